"""Small requests, answered at hand: no job is made of them, and nothing is kept."""

import hashlib
import io
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from georesolve.intake.errors import Refused
from georesolve.intake.geometries import PointSets
from georesolve.intake.representations import PARQUET, Format, up_to
from georesolve.service import pools
from georesolve.service.errors import InvalidInput, NotReady, ResultTooLarge, TooLarge
from georesolve.service.receiving.ingest import Ingested
from georesolve.service.resolve.models import ROLES
from georesolve.service.resolve.service import Service
from georesolve.service.resolve.sets import Asked
from georesolve.service.store.rows import DatasetRow
from georesolve.workers.at_hand import (
    MOST_STEPS,
    QUICK_STEPS,
    NotAtHand,
    NotResident,
    SearchIsHard,
    is_quick,
    prepare_thread,
    resolve_at_hand,
)
from georesolve.workers.jobs import Job, with_id
from georesolve.workers.plan import QUICKLY_INDEXED, most_at_hand
from georesolve.workers.references import is_resident
from georesolve.workers.result import Rows, opened
from georesolve.workers.sources import SourceFailed

CONVERTED_BYTES = 64 << 20
"""What is made in memory is not larger."""
_BEYOND = "send files to /resolve, or, for a job, an execution to /processes/nearest/execution"


class SmallAnswer(NamedTuple):
    """The answer to a small request: its bytes, and time by stage."""

    content: bytes
    format: Format
    sha256: str
    seconds: dict[str, float]


def why_too_large(asked: Asked) -> str | None:
    """Why a request is not small, with both numbers; None where it is."""
    observations, references = asked.datasets
    options = asked.options
    if isinstance(asked.references, Ingested) and references.rows > QUICKLY_INDEXED:
        # They are indexed for this request alone.
        return (
            f"{references.rows} references came with the request, and {QUICKLY_INDEXED} may: "
            "register them as a dataset"
        )
    most = most_at_hand(references.rows, options)
    if observations.rows > most:
        return (
            f"{observations.rows} observations are more than the limit of {most} for an answer "
            f"without a job (k is {options.k}, the algorithm {options.algorithm!r})"
        )
    # Where few references are wider than the others, the search finds out that it is too much.
    rows = observations.rows * options.k
    of_observations = observations.width(with_id(observations, options.observation_columns)).total
    of_references = references.width(with_id(references, options.columns)).total
    carried = of_observations * options.k + of_references * rows // max(1, references.rows)
    if carried > CONVERTED_BYTES:
        return (
            f"the columns that the result would carry take {carried} bytes, and "
            f"{CONVERTED_BYTES} may be carried without a job"
        )
    return None


async def resolve_at_once(
    service: Service, asked: Asked, format: Format, start: float
) -> SmallAnswer:
    """The answer to a small request that came at `start`, and to no other: no job is made."""
    if why := why_too_large(asked):
        raise TooLarge(f"{why}: {_BEYOND}")
    try:
        return await looked_up(service, asked, format, start)
    except NotResident as error:
        raise NotReady(f"{error}: try again") from None
    except NotAtHand as error:
        raise TooLarge(f"{error}: {_BEYOND}") from None


async def looked_up(service: Service, asked: Asked, format: Format, start: float) -> SmallAnswer:
    """Answer a small request; `start` is when it came, by `time.perf_counter`.

    Raises NotAtHand when only a job can give it, and NotResident while the references are loaded.
    """

    def look(most_steps: int = MOST_STEPS) -> SmallAnswer:
        return _look_up(service, asked, format, start, most_steps)

    def look_with_one_core() -> SmallAnswer:
        prepare_thread(1)
        return look()

    def look_quickly() -> SmallAnswer | None:
        if _is_quick(asked, format):
            # How long a search takes depends on where the points lie, which nobody knows before.
            with suppress(SearchIsHard):
                return look(QUICK_STEPS)
        return None

    try:
        if _asks_elsewhere(asked):
            return await pools.remote(service.owner, look_with_one_core)
        return await service.at_hand.answer(service.owner, look, look_quickly)
    except (NotAtHand, Refused):
        raise
    except Exception:
        # A dataset may be damaged, or was removed: then that is what the client is told.
        for one in asked.sets:
            if isinstance(one, DatasetRow):
                await service.store.files(service.library.whole, one.id, every_byte=True)
        raise


def _asks_elsewhere(asked: Asked) -> bool:
    """Whether files in an object store, or on a server, are read for the answer."""
    observations, references = asked.datasets
    return observations.lies_elsewhere or (
        references.lies_elsewhere
        and not is_resident(references, with_id(references, asked.options.columns))
    )


def _is_quick(asked: Asked, format: Format) -> bool:
    """Whether the answer takes some milliseconds and waits for nothing.

    Then the references were used a moment ago: no file has to be read, as for the lines of GeoJSON,
    and nothing is carried that may be large.
    """
    options = asked.options
    is_plain = format.geometry != "line" and not options.columns + options.observation_columns
    return is_plain and is_quick(*asked.datasets, options)


def _look_up(
    service: Service, asked: Asked, format: Format, start: float, most_steps: int
) -> SmallAnswer:
    """The answer, found in this thread."""
    observations, references = asked.datasets
    # It has no folder: nothing is written.
    indexes = service.library.indexes_of(asked.references)
    job = Job("at hand", Path(), observations, references, asked.options, indexes)
    try:
        answer = resolve_at_hand(job, most_steps)
    except SourceFailed as failed:
        raise InvalidInput(str(failed)) from None
    service.metrics.count_rows("at hand", job.observations.rows, answer.counts)
    resolved = time.perf_counter()
    if format == PARQUET:
        content = answer.content
    else:
        # An Arrow stream is that of the file: it says where it comes from.
        rows = answer.plain if format.is_text else opened(io.BytesIO(answer.content))
        content = converted(rows, format, lambda role: getattr(asked, role).dataset)
    written = time.perf_counter()
    seconds = {"at_hand": written - start, **answer.seconds, "write": written - resolved}
    for role, one in zip(ROLES, asked.sets, strict=True):
        if isinstance(one, Ingested):
            seconds |= {f"{stage}_{role}": value for stage, value in one.seconds.items()}
    return SmallAnswer(content, format, hashlib.sha256(content).hexdigest(), seconds)


def converted(rows: Rows, format: Format, sets: PointSets) -> bytes:
    """A small result in a format other than Parquet."""
    assert format.pieces is not None, "Parquet is there"
    made = up_to(CONVERTED_BYTES, format.pieces(rows, sets))
    if made is None:
        raise ResultTooLarge(
            f"as {format.media_type} the result is larger than the limit of {CONVERTED_BYTES} "
            "bytes: take it as Parquet"
        )
    return made
