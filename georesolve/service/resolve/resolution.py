"""From two point sets and options to an answer, or to a job: the one way of every request.

A small request is answered at once. For others a job is accepted, and the client gets its result,
or the job to ask again, as it prefers.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from sqlalchemy import Connection

from georesolve.service import pools
from georesolve.service.errors import (
    JobDismissed,
    KeyInUse,
    KeyReused,
    NoSuchDataset,
    NotAcceptable,
    NotReady,
    OutputTaken,
    ResultTooLarge,
    TooLarge,
)
from georesolve.service.jobs.endings import dismiss, wait_for_end
from georesolve.service.receiving.ingest import Ingested
from georesolve.service.resolve.lookup import SmallAnswer, looked_up, why_too_large
from georesolve.service.resolve.requests import Terms
from georesolve.service.resolve.service import Service
from georesolve.service.resolve.sets import Asked, bytes_of_sets, sizes_of
from georesolve.service.results.response import format_of
from georesolve.service.store.rows import DatasetRow, Delivery, JobRow, Repeat
from georesolve.service.store.store import Store
from georesolve.workers.at_hand import NotAtHand
from georesolve.workers.estimate import obstacle, result_bytes
from georesolve.workers.places import place_of

logger = logging.getLogger(__name__)

_SMALL_SETS_BYTES = 16 << 20
"""Sets of a request that take no more are kept as long as its result: for GeoJSON, which has their
coordinates, whether that was asked for in time or not."""

Gone = Callable[[], Coroutine[Any, Any, NoReturn]]
"""Waits until the client has gone, and raises then."""


def refuse_without_cluster(service: Service, advice: str = "try again") -> None:
    """Refuse what asks the cluster, while there is none that answers; raises NotReady."""
    if (trouble := service.cluster.trouble) is not None:
        raise NotReady(f"{trouble}: {advice}")


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
        raise TooLarge(
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
        with suppress(NotAtHand, ResultTooLarge, TimeoutError):
            async with asyncio.timeout(None if left is None else left / 2):
                format = format_of(delivery, terms.headers)
                return await looked_up(service, asked, format, time.perf_counter())
    with suppress(NotAcceptable):
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
    except KeyInUse:
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
        raise KeyReused(
            f"the Idempotency-Key {repeat.key!r} came with other sets or options before, and made "
            f"the job {id!r}: send the same again, or take another key"
        )
    return id


def _accept(service: Service, asked: Asked, delivery: Delivery, repeat: Repeat | None) -> str:
    """Keep both sets and accept a job with them; nothing is left of a refused one."""
    options = asked.options
    sizes = sizes_of(*asked.sets, options)
    if why := obstacle(*sizes, options):
        raise TooLarge(why)
    size_bytes = 0 if delivery.output else result_bytes(*sizes, options)
    on_disk, own_bytes = bytes_of_sets(*asked.sets, sizes)
    delivery = replace(delivery, keeps_sets=delivery.keeps_sets or own_bytes <= _SMALL_SETS_BYTES)
    service.disk.refuse_when_low(size_bytes + on_disk if service.disk.holds_all else 0)
    quotas = service.quotas
    quotas.refuse_without_room(service.store, size_bytes + own_bytes)

    def refuse_output(store: Store, connection: Connection) -> None:
        if delivery.output:
            store.refuse_output_of_others(delivery.output, connection)

    admit = quotas.admission(service.store, size_bytes, quotas.refuse_when_full, refuse_output)
    kept: list[DatasetRow] = []
    try:
        kept.extend(
            service.library.keep(one) if isinstance(one, Ingested) else one for one in asked.sets
        )
        observations, references = kept
        id = service.store.add_job(
            observations, references, options, delivery, repeat, size_bytes, admit
        )
        if id is None:
            raise NoSuchDataset("one of the two datasets was removed while the job was accepted")
        return id
    except BaseException:
        for row in kept:
            service.library.release(row.id)
        raise


def _refuse_taken(output: str) -> None:
    """Refuse to write where something lies."""
    try:
        is_taken = place_of(output).is_taken()
    except OSError as error:
        raise NotReady(
            f"{output}: it cannot be read whether something lies there: {str(error)[:300]}",
            headers={"Retry-After": "10"},
        ) from None
    if is_taken:
        raise OutputTaken(f"something lies at {output}: remove it, or name another folder")


async def _wait(
    service: Service, id: str, seconds: float | None, gone: Gone, *, comes_back: bool
) -> None:
    """Wait for a job as long as the client does: for ever, or some seconds.

    If the client goes, nobody else knows of its job, so that is dismissed; unless the client has a
    key to come back with.
    """
    finished = asyncio.create_task(wait_for_end(service.store, id, seconds))
    left = asyncio.create_task(gone())
    try:
        await asyncio.wait([finished, left], return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            return
        if not comes_back:
            with suppress(JobDismissed):
                await service.store.files(
                    dismiss, service.store, service.library, service.metrics, id
                )
        left.result()
    finally:
        finished.cancel()
        left.cancel()
