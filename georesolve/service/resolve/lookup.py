"""Small requests, answered at hand: no job is made of them, and nothing is kept."""

import hashlib
import io
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from georesolve.intake.errors import Refused
from georesolve.intake.representations import PARQUET, Format
from georesolve.service import pools
from georesolve.service.errors import InvalidInput, NotReady, TooLarge
from georesolve.service.receiving.ingest import Ingested
from georesolve.service.resolve.models import ROLES, NearestInputs
from georesolve.service.resolve.service import Service
from georesolve.service.resolve.sets import (
    Asked,
    Pointer,
    PointSet,
    asked_at_hand,
    asked_by,
    used,
)
from georesolve.service.results.streams import CONVERTED_BYTES, converted
from georesolve.service.store.rows import DatasetRow
from georesolve.workers.at_hand import (
    MOST_STEPS,
    QUICK_STEPS,
    NotAtHand,
    SearchIsHard,
    is_quick,
    prepare_thread,
    resolve_at_hand,
)
from georesolve.workers.datasets import Dataset
from georesolve.workers.jobs import Job, MatchOptions, with_id
from georesolve.workers.plan import QUICKLY_INDEXED, most_at_hand
from georesolve.workers.references import is_resident
from georesolve.workers.result import opened
from georesolve.workers.sources import SourceFailed

QUICKLY_READ = 1 << 18
"""Bytes of JSON that are read in some milliseconds, and answered without a file in between."""
_FEW_BYTES = 64 << 10
"""So much is read, and made a table, in some milliseconds: a thousand observations have 40 KB."""
BEYOND = "send files to /resolve, or, for a job, an execution to /processes/nearest/execution"


def refuse_without_cluster(service: Service, advice: str = "try again") -> None:
    """Refuse what asks the cluster, while there is none that answers; raises NotReady."""
    if (trouble := service.cluster.trouble) is not None:
        raise NotReady(f"{trouble}: {advice}")


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
    carried = _carried_bytes(observations, references, options)
    if carried > CONVERTED_BYTES:
        return (
            f"the columns that the result would carry take {carried} bytes, and "
            f"{CONVERTED_BYTES} may be carried without a job"
        )
    return None


def _carried_bytes(observations: Dataset, references: Dataset, options: MatchOptions) -> int:
    """Memory that the columns take that are carried into a result, if all references are alike."""
    rows = observations.rows * options.k
    of_references = references.width(with_id(references, options.columns)).total
    of_observations = observations.width(with_id(observations, options.observation_columns)).total
    return of_observations * options.k + of_references * rows // max(1, references.rows)


class SmallAnswer(NamedTuple):
    """The answer to a small request: its bytes, and time by stage."""

    content: bytes
    format: Format
    sha256: str
    seconds: dict[str, float]


async def answered_at_hand(
    service: Service,
    inputs: NearestInputs,
    pointer: Pointer,
    size_bytes: int,
    format: Format,
    start: float,
) -> SmallAnswer:
    """Answer a small request that came as JSON of so many bytes; raises what `look_up` does."""
    found = await used(inputs, service) if size_bytes <= QUICKLY_READ else None
    if found is not None:
        asked = partial(asked_at_hand, inputs, pointer, service, found)
        at_hand = partial(_look_up_at_hand, service, asked, format, start)
        quickly = partial(_look_up_quickly, service, asked, format, start)
        async with _damage_told(service, found.values()):
            answer = await service.at_hand.answer(
                service.owner, at_hand, quickly if size_bytes <= _FEW_BYTES else None
            )
        if answer is not None:
            return answer
    async with service.ingest.folder() as folder:
        return await answered(service, inputs, pointer, folder, format, start)


async def answered(
    service: Service,
    inputs: NearestInputs,
    pointer: Pointer,
    folder: Path,
    format: Format,
    start: float,
) -> SmallAnswer:
    """Answer a small request whose sets are made in a folder; raises what `look_up` does."""
    asked = await asked_by(inputs, pointer, service, folder)
    _refuse_large(asked)
    return await looked_up(service, asked, format, start)


@asynccontextmanager
async def _damage_told(service: Service, sets: Iterable[PointSet]) -> AsyncIterator[None]:
    """Tell of a dataset that was damaged, or removed, where a search failed for no known reason."""
    try:
        yield
    except (NotAtHand, Refused):
        raise
    except Exception:
        for one in sets:
            if isinstance(one, DatasetRow):
                await service.store.files(service.library.whole, one.id, every_byte=True)
        raise


async def looked_up(service: Service, asked: Asked, format: Format, start: float) -> SmallAnswer:
    """Answer a small request; raises as `look_up` does."""
    look = partial(look_up, service, asked, format, start)
    async with _damage_told(service, asked.sets):
        if _asks_elsewhere(asked):
            return await pools.remote(service.owner, partial(_with_one_core, look))
        return await service.at_hand.answer(service.owner, look)


def _with_one_core(look: Callable[[], SmallAnswer]) -> SmallAnswer:
    prepare_thread(1)
    return look()


def _asks_elsewhere(asked: Asked) -> bool:
    """Whether files in an object store, or on a server, are read for the answer."""
    observations, references = asked.datasets
    return observations.lies_elsewhere or (
        references.lies_elsewhere
        and not is_resident(references, with_id(references, asked.options.columns))
    )


def look_up(
    service: Service,
    asked: Asked,
    format: Format,
    start: float,
    most_steps: int = MOST_STEPS,
) -> SmallAnswer:
    """Answer a small request in this thread; `start` is when it came, by `time.perf_counter`.

    Raises NotAtHand when only a job can give it, and NotResident while the references are loaded.
    """
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


def _look_up_quickly(
    service: Service, ask: Callable[[], Asked], format: Format, start: float
) -> SmallAnswer | None:
    """The answer where it takes some milliseconds and waits for nothing; else None.

    Then the references were used a moment ago: no file has to be read, as for the lines of GeoJSON,
    and nothing is carried that may be large.
    """
    asked = ask()
    if format.geometry == "line" or asked.options.columns or asked.options.observation_columns:
        return None
    if not is_quick(*asked.datasets, asked.options):
        return None
    _refuse_large(asked)
    # How long a search takes depends on where the points lie, which nobody knows before.
    with suppress(SearchIsHard):
        return look_up(service, asked, format, start, QUICK_STEPS)
    return None


def _look_up_at_hand(
    service: Service, ask: Callable[[], Asked], format: Format, start: float
) -> SmallAnswer | None:
    """The answer, all of it in this thread; None where an object store is asked."""
    asked = ask()
    if _asks_elsewhere(asked):
        return None
    _refuse_large(asked)
    return look_up(service, asked, format, start)


def _refuse_large(asked: Asked) -> None:
    asked.check()
    if why := why_too_large(asked):
        raise TooLarge(f"{why}: {BEYOND}")
