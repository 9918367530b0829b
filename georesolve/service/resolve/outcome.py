"""From two point sets and options to an answer at hand, or a job: the one way of every request."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Connection

from georesolve.engine import inline
from georesolve.engine.cost_model import most_at_hand, quickly_indexed
from georesolve.engine.estimate import obstacle, result_bytes
from georesolve.engine.match_sets import MatchSets
from georesolve.engine.resident import is_resident
from georesolve.engine.sampling import sampled
from georesolve.io.errors import Refused
from georesolve.io.result_files import Rows
from georesolve.io.result_formats import PARQUET, Format, up_to
from georesolve.io.result_geometries import PointSets
from georesolve.io.source_files import SourceFailed
from georesolve.io.storage import place_of
from georesolve.service import errors, pools
from georesolve.service.jobs.endings import dismiss, wait_for_end
from georesolve.service.resolve.context import Service
from georesolve.service.resolve.models import ROLES
from georesolve.service.resolve.requests import Terms
from georesolve.service.resolve.sets import Asked, bytes_of, sizes_of, title_of
from georesolve.service.results.response import format_of
from georesolve.service.store.rows import DatasetRow, Delivery, JobRow, Repeat

logger = logging.getLogger(__name__)

CONVERTED_BYTES = 64 << 20
"""What is made in memory is not larger."""
_BEYOND = "send files to /resolve, or, for a job, an execution to /processes/nearest/execution"
_SMALL_SETS_BYTES = 16 << 20
"""Sets of a request that take no more are kept as long as its result: for GeoJSON, which has their
coordinates, whether that was asked for in time or not."""

Gone = Callable[[], Coroutine[Any, Any, NoReturn]]
"""Waits until the client has gone, and raises then."""


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
    # For a row a shape all points look for the shapes.
    is_turned = observations.outlines is not None
    asking, searched = (references, observations) if is_turned else (observations, references)
    quickly = quickly_indexed(options)
    if not asked.references.id and searched.as_points > quickly:
        # They are indexed for this request alone.
        lines = f", which take as long as {searched.as_points} points," if searched.outlines else ""
        return (
            f"{asked.references.dataset.rows} references{lines} came with the request, and "
            f"{quickly} may: register them as a dataset"
        )
    most = most_at_hand(searched, options)
    if asking.rows > most:
        return (
            f"{asking.rows} observations are more than the limit of {most} for an answer "
            f"without a job (k is {options.k}, the algorithm {options.algorithm!r})"
        )
    # Where few references are wider than the others, the search finds out that it is too much.
    rows = observations.rows * options.k
    of_observations = observations.width(options.of_observations(observations)).total
    of_references = references.width(options.of_references(references)).total
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
        raise errors.TooLarge(f"{why}: {_BEYOND}")
    try:
        return await looked_up(service, asked, format, start)
    except inline.NotResident as error:
        raise errors.NotReady(f"{error}: try again") from None
    except inline.NotAtHand as error:
        raise errors.TooLarge(f"{error}: {_BEYOND}") from None


async def looked_up(service: Service, asked: Asked, format: Format, start: float) -> SmallAnswer:
    """Answer a small request; `start` is when it came, by `time.perf_counter`.

    Raises NotAtHand when only a job can give it, and NotResident while the references are loaded.
    """

    def look(most_steps: int = inline.MOST_STEPS) -> SmallAnswer:
        return _look_up(service, asked, format, start, most_steps)

    def look_with_one_core() -> SmallAnswer:
        inline.prepare_thread(1)
        return look()

    def look_quickly() -> SmallAnswer | None:
        if _is_quick(asked, format):
            # How long a search takes depends on where the points lie, which nobody knows before.
            with suppress(inline.SearchIsHard):
                return look(inline.QUICK_STEPS)
        return None

    try:
        if _asks_elsewhere(asked):
            return await pools.remote(service.owner, look_with_one_core)
        return await service.at_hand.answer(service.owner, look, look_quickly)
    except (inline.NotAtHand, Refused):
        raise
    except Exception:
        # A dataset may be damaged, or was removed: then that is what the client is told.
        for one in asked.sets:
            if one.id:
                await service.store.files(service.library.whole, one.id, every_byte=True)
        raise


def _asks_elsewhere(asked: Asked) -> bool:
    """Whether files in an object store, or on a server, are read for the answer."""
    observations, references = asked.datasets
    if observations.lies_elsewhere or not references.lies_elsewhere:
        return observations.lies_elsewhere
    options = asked.options
    columns = options.needed_of_references(references)
    return options.filters is not None or not is_resident(references, columns, options.earth)


def _is_quick(asked: Asked, format: Format) -> bool:
    """Whether the answer takes some milliseconds and waits for nothing: no file has to be read."""
    options = asked.options
    is_plain = format.geometry != "line" and not options.columns + options.observation_columns
    return is_plain and inline.is_quick(*asked.datasets, options)


def _look_up(
    service: Service, asked: Asked, format: Format, start: float, most_steps: int
) -> SmallAnswer:
    """The answer, found in this thread."""
    observations, references = asked.datasets
    indexes = service.library.indexes_of(asked.references)
    sets = MatchSets(observations, references, asked.options, indexes)
    try:
        answer = inline.resolve_at_hand(sets, most_steps)
    except SourceFailed as failed:
        raise errors.InvalidInput(str(failed)) from None
    service.metrics.count_rows("at hand", observations.rows, answer.counts)
    resolved = time.perf_counter()
    if format == PARQUET:
        content = answer.content
    else:
        # An Arrow stream is that of the file: it says where it comes from.
        rows = answer.plain if format.is_text else answer.decoded
        content = converted(rows, format, lambda role: getattr(asked, role).dataset)
    written = time.perf_counter()
    seconds = {"at_hand": written - start, **answer.seconds, "write": written - resolved}
    for role, one in zip(ROLES, asked.sets, strict=True):
        if not one.id:
            seconds |= {f"{stage}_{role}": value for stage, value in one.seconds.items()}
    return SmallAnswer(content, format, hashlib.sha256(content).hexdigest(), seconds)


def converted(rows: Rows, format: Format, sets: PointSets) -> bytes:
    """A small result in a format other than Parquet."""
    assert format.pieces is not None, "Parquet is there"
    made = up_to(CONVERTED_BYTES, format.pieces(rows, sets))
    if made is None:
        raise errors.TooLargeForFormat(
            f"as {format.media_type} the result is larger than the limit of {CONVERTED_BYTES} "
            "bytes: take it as Parquet"
        )
    return made


def refuse_without_cluster(service: Service, advice: str = "try again") -> None:
    """Refuse what asks the cluster, while there is none that answers; raises NotReady."""
    if (trouble := service.cluster.trouble) is not None:
        raise errors.NotReady(f"{trouble}: {advice}")


async def refuse_unready(service: Service, terms: Terms) -> None:
    """Refuse, before it is received, a request that cannot be answered as its client wants."""
    if terms.waits:
        format_of(Delivery(), terms.headers)
    # A request whose key made a job needs no place any more.
    elif not terms.key or not await pools.database(service.store.first_of, Repeat(terms.key, "")):
        await pools.database(service.quotas.refuse_when_full, service.store)
    if not terms.takes_a_job:
        refuse_without_cluster(service, "try again, or send 'Prefer: respond-async'")


async def resolve(service: Service, asked: Asked, terms: Terms, gone: Gone) -> SmallAnswer | JobRow:
    """Match two sets: the answer to a small request, or a job, ended if the client waits that long.

    Sets that are too large for an answer at once are refused if the client takes no job.
    """
    observations, references = (one.rows for one in asked.datasets)
    rows, most = observations * asked.options.k + references, service.settings.sync_rows
    if rows > most and not terms.takes_a_job:
        raise errors.TooLarge(
            f"{rows} rows of both sets together (observations k times) are more than the limit of "
            f"{most} for an answer at once: send the header 'Prefer: respond-async' and follow the "
            "Location of the answer"
        )
    delivery = asked.delivery or Delivery()
    content = [one.dataset.sha256 for one in asked.sets]
    repeat = terms.repeat(*content, asked.options, asked.on_invalid, delivery)
    is_plain = asked.delivery is None and repeat is None
    if is_plain and terms.waits and not why_too_large(asked):
        # After half of the time that the client waits it is not too late to accept a job.
        left = terms.seconds_left()
        with suppress(inline.NotAtHand, errors.TooLargeForFormat, TimeoutError):
            async with asyncio.timeout(None if left is None else left / 2):
                format = format_of(delivery, terms.headers)
                return await looked_up(service, asked, format, time.perf_counter())
    with suppress(errors.NotAcceptable):
        keeps_sets = bool(format_of(delivery, terms.headers).geometry)
        delivery = replace(delivery, keeps_sets=keeps_sets)
    id = await _job_of(service, asked, delivery, repeat)
    if terms.waits:
        await _wait(service, id, terms.seconds_left(), gone, comes_back=repeat is not None)
    job = await pools.database(service.store.job, id)
    assert job is not None, "a job just accepted is in the store"
    return job


async def _job_of(service: Service, asked: Asked, delivery: Delivery, repeat: Repeat | None) -> str:
    """Accept a job, or reuse the one of this Idempotency-Key; returns its id."""
    if (first := await _first(service, repeat)) is not None:
        return first
    if delivery.output:
        await pools.remote(service.owner, _refuse_taken, delivery.output)
    try:
        id = await service.store.files(_accept, service, asked, delivery, repeat)
    except errors.KeyInUse:
        # The same request was accepted meanwhile: the database has each key once.
        if (first := await _first(service, repeat)) is None:
            raise
        return first
    logger.info("job %s accepted", id, extra={"job": id})
    return id


async def _first(service: Service, repeat: Repeat | None) -> str | None:
    """The job that the first of repeated requests made."""
    if repeat is None:
        return None
    first = await pools.database(service.store.first_of, repeat)
    if first is None:
        return None
    id, fingerprint = first
    if fingerprint != repeat.fingerprint:
        raise errors.KeyReused(
            f"the Idempotency-Key {repeat.key!r} came with other sets or options before, and made "
            f"the job {id!r}: send the same again, or take another key"
        )
    return id


def _accept(service: Service, asked: Asked, delivery: Delivery, repeat: Repeat | None) -> str:
    """Keep both sets and accept a job with them; nothing is left of a refused one."""
    options = asked.options
    sizes = sizes_of(*asked.sets, options)
    if why := obstacle(*sizes, options):
        raise errors.TooLarge(why)
    is_here = not any(one.lies_elsewhere for one in asked.datasets)
    least = sampled(*asked.datasets, options).least if options.has_pairs and is_here else None
    size_bytes, most = result_bytes(*sizes, options, least), service.settings.result_bytes
    if least is not None and size_bytes > most:
        raise errors.ResultTooLarge(
            f"a sample of both sets has {least} pairs, which take {size_bytes} bytes, and {most} "
            "are allowed: ask for a shorter distance, or for a summary"
        )
    size_bytes = 0 if delivery.output else size_bytes
    on_disk, own_bytes = bytes_of(*asked.sets, sizes)
    delivery = replace(delivery, keeps_sets=delivery.keeps_sets or own_bytes <= _SMALL_SETS_BYTES)
    service.disk.refuse_when_low(size_bytes + on_disk if service.disk.holds_all else 0)
    store, quotas = service.store, service.quotas
    quotas.refuse_without_room(store, size_bytes + own_bytes)

    def admit(connection: Connection) -> None:
        quotas.refuse_when_full(store, connection)
        store.refuse_output_of_others(connection, delivery.output)
        quotas.refuse_without_room(store, size_bytes, connection)

    kept: list[DatasetRow] = []
    try:
        # What was used a moment ago may be called something else now.
        kept.extend(
            service.library.get(one.id) if one.id else service.library.keep(one)
            for one in asked.sets
        )
        observations, references = kept
        named = asked._replace(observations=observations, references=references)
        return store.add_job(
            *(observations, references, options, delivery, repeat, size_bytes, admit),
            name=title_of(named),
        )
    except BaseException:
        for row in kept:
            service.library.release(row.id)
        raise


def _refuse_taken(output: str) -> None:
    """Refuse to write where something lies."""
    try:
        is_taken = place_of(output).is_taken()
    except OSError as error:
        raise errors.NotReady(
            f"{output}: it cannot be read whether something lies there: {str(error)[:300]}",
            headers={"Retry-After": "10"},
        ) from None
    if is_taken:
        raise errors.OutputTaken(f"something lies at {output}: remove it, or name another folder")


async def _wait(
    service: Service, id: str, seconds: float | None, gone: Gone, *, comes_back: bool
) -> None:
    """Wait for a job as long as the client does: for ever, or some seconds.

    If the client goes, and does not come back with a key, nobody knows of its job: it is dismissed.
    """
    finished = asyncio.create_task(wait_for_end(service.store, id, seconds))
    left = asyncio.create_task(gone())
    try:
        await asyncio.wait([finished, left], return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            return
        if not comes_back:
            with suppress(errors.JobDismissed):
                parts = service.store, service.library, service.metrics
                await service.store.files(dismiss, *parts, id)
        left.result()
    finally:
        finished.cancel()
        left.cancel()
