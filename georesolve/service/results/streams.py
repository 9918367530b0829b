"""Results in formats other than Parquet: made of that as they are sent, a batch of rows at a time.

They have no length, no ranges and no file: each is made anew, and takes as long as its client
reads. What is wrong with the first batch is told as a problem; what goes wrong behind it ends the
connection, so that no client takes half a result for the whole.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse

from georesolve.intake.geometries import PointSets
from georesolve.intake.representations import Format
from georesolve.service.http.answers import Run
from georesolve.service.turns import Turns
from georesolve.workers.manifest import open_matches
from georesolve.workers.places import Home
from georesolve.workers.result import opened

T = TypeVar("T")

_making = Turns(2)
"""For batches that are made at the same time, of however many results. What asks servers takes
turns of its owner instead: a silent one would hold all places."""


def pieces_of(folder: Home, format: Format, sets: PointSets) -> Iterator[bytes]:
    """The result of the job with this folder in a format other than Parquet, piece by piece.

    Raises NotAcceptable for values that the format cannot have, OSError when it is gone or damaged.
    """
    assert format.pieces is not None, "Parquet is there"
    with open_matches(folder) as file:
        yield from format.pieces(opened(file), sets)


async def stream_response(
    run: Run, pieces: Iterator[bytes], format: Format, headers: Mapping[str, str]
) -> StreamingResponse:
    """Answer with pieces, which `run` has made in a thread; raises what the first one does."""
    first = await run(next, pieces, None)
    return StreamingResponse(
        _all(run, first, pieces),
        media_type=format.media_type,
        headers={
            "Accept-Ranges": "none",
            "Cache-Control": "private",
            "Content-Disposition": f'attachment; filename="{format.name}"',
            **headers,
        },
    )


async def _all(run: Run, first: bytes | None, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    piece = first
    while piece is not None:
        yield piece
        piece = await run(next, pieces, None)


async def by_turns(run: Run, function: Callable[..., T], *given: Any) -> T:
    """What a function makes that waits for no server, a few at a time."""
    async with _making.place(""):
        made: T = await run(function, *given)
        return made
