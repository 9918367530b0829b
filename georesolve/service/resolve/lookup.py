"""Small requests, answered at hand: no job is made of them, and nothing is kept."""

import hashlib
import io
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from georesolve.intake.errors import Refused
from georesolve.intake.representations import PARQUET, Format
from georesolve.service import pools
from georesolve.service.context import Service
from georesolve.service.errors import InvalidInput, NotReady
from georesolve.service.receiving.ingest import Ingested
from georesolve.service.resolve.inputs import ROLES, Asked, Set
from georesolve.service.resolve.room import carried_bytes
from georesolve.service.results.streams import CONVERTED_BYTES, converted
from georesolve.service.store.rows import DatasetRow
from georesolve.workers.at_hand import MOST_STEPS, NotAtHand, prepare_thread, resolve_at_hand
from georesolve.workers.jobs import Job, with_id
from georesolve.workers.plan import QUICKLY_INDEXED, most_at_hand
from georesolve.workers.references import is_resident
from georesolve.workers.result import opened
from georesolve.workers.sources import SourceFailed


def refuse_without_cluster(service: Service, advice: str = "try again") -> None:
    """Refuse what asks the cluster, while there is none that answers; raises NotReady."""
    if (trouble := service.cluster.trouble) is not None:
        raise NotReady(f"{trouble}: {advice}")


def why_too_large(asked: Asked) -> str | None:
    """Why a request is not small, with both numbers; None where it is."""
    observations, references = (one.dataset for one in asked.sets)
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
    carried = carried_bytes(observations, references, options)
    if carried > CONVERTED_BYTES:
        return (
            f"the columns that the result would carry take {carried} bytes, and "
            f"{CONVERTED_BYTES} may be carried without a job"
        )
    return None


class Matches(NamedTuple):
    """The answer to a small request.

    Attributes
    ----------
    content, format, sha256
        Its bytes.
    seconds
        Time by stage.
    """

    content: bytes
    format: Format
    sha256: str
    seconds: dict[str, float]


@asynccontextmanager
async def damage_told(service: Service, sets: Iterable[Set]) -> AsyncIterator[None]:
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


async def looked_up(service: Service, asked: Asked, format: Format, start: float) -> Matches:
    """Answer a small request; raises as `look_up` does."""
    look = partial(look_up, service, asked, format, start)
    async with damage_told(service, asked.sets):
        if asks_elsewhere(asked):
            return await pools.remote(service.owner, partial(_with_one_core, look))
        return await service.at_hand.answer(service.owner, look)


def _with_one_core(look: Callable[[], Matches]) -> Matches:
    prepare_thread(1)
    return look()


def asks_elsewhere(asked: Asked) -> bool:
    """Whether files in an object store, or on a server, are read for the answer."""
    observations, references = (one.dataset for one in asked.sets)
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
) -> Matches:
    """Answer a small request in this thread.

    Parameters
    ----------
    start
        By `time.perf_counter`, since when it waits.
    most_steps
        As for `resolve_at_hand`.

    Raises
    ------
    NotAtHand, NotResident
        When only a job can give it, or the references are being loaded first.
    NotAcceptable, ResultTooLarge
        When the format cannot have it.
    """
    observations, references = (one.dataset for one in asked.sets)
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
    return Matches(content, format, hashlib.sha256(content).hexdigest(), seconds)
