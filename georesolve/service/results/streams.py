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
from georesolve.service.errors import ResultTooLarge
from georesolve.service.http.answers import Run
from georesolve.service.turns import Turns
from georesolve.workers.manifest import open_matches
from georesolve.workers.places import Home
from georesolve.workers.result import Rows, opened

T = TypeVar("T")

CONVERTED_BYTES = 64 << 20
"""What is made in memory is not larger."""
_making = Turns(2)
"""For batches that are made at the same time, of however many results. What asks servers takes
turns of its owner instead: a silent one would hold all places."""


def converted(rows: Rows, format: Format, sets: PointSets) -> bytes:
    """A small result in a format other than Parquet.

    Parameters
    ----------
    sets
        The two sets of the request.

    Raises
    ------
    NotAcceptable
        When it has values that the format cannot have.
    ResultTooLarge
        When it would take much memory: from a job it may be had all the same.
    """
    assert format.pieces is not None, "Parquet is there"
    made = up_to(CONVERTED_BYTES, format.pieces(rows, sets))
    if made is None:
        raise ResultTooLarge(
            f"as {format.media_type} the result is larger than the limit of {CONVERTED_BYTES} "
            "bytes: take it as Parquet"
        )
    return made


def up_to(most_bytes: int, pieces: Iterator[bytes]) -> bytes | None:
    """All pieces together; None when they are more than so many bytes."""
    made = bytearray()
    for piece in pieces:
        made += piece
        if len(made) > most_bytes:
            return None
    return bytes(made)


def pieces_of(folder: Home, format: Format, sets: PointSets) -> Iterator[bytes]:
    """The result of the job with this folder in a format other than Parquet, piece by piece.

    Raises
    ------
    NotAcceptable
        When it has values that the format cannot have.
    OSError
        When it is gone, or damaged.
    """
    assert format.pieces is not None, "Parquet is there"
    with open_matches(folder) as file:
        yield from format.pieces(opened(file), sets)


async def stream_response(
    run: Run, pieces: Iterator[bytes], format: Format, headers: Mapping[str, str]
) -> StreamingResponse:
    """Answer with pieces as they are made; raises what the first one does.

    Parameters
    ----------
    run
        Calls what makes them in a thread.
    """
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
