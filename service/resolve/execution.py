"""From two point sets and options to an answer: the one way of every request that matches.

A small request is answered at once. For others a job is accepted, and the client gets its result,
or the job to ask again, as it prefers.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from georesolve.service.context import Service
from georesolve.service.database.rows import LIVE, DatasetRow, Delivery, EchoOptions, JobRow, Repeat
from georesolve.service.errors import (
    JobDismissed,
    KeyReused,
    NoSuchDataset,
    NotAcceptable,
    NotReady,
    ResultTooLarge,
    TooLarge,
)
from georesolve.service.http.preferences import Preference, preference_of
from georesolve.service.jobs.models import StatusInfo
from georesolve.service.links import base_of
from georesolve.service.resolve.claims import Claim
from georesolve.service.resolve.idempotency import key_of
from georesolve.service.resolve.inputs import Asked
from georesolve.service.resolve.lookup import lookup_response, refuse_without_cluster, why_too_large
from georesolve.service.resolve.room import kept_bytes, set_bytes, sizes_of
from georesolve.service.results.negotiation import format_of, wanted_format
from georesolve.service.results.response import echo_response, result_response
from georesolve.service.uploads.ingest import Ingested
from georesolve.workers.at_hand import NotAtHand
from georesolve.workers.estimate import job_bytes, obstacle
from georesolve.workers.jobs import MatchOptions

_SMALL_SETS_BYTES = 16 << 20
"""Sets of a request that take no more are kept as long as its result: for GeoJSON, which has their
coordinates, whether that was asked for in time or not."""


@dataclass(frozen=True)
class Terms:
    """How a client wants to be answered.

    Attributes
    ----------
    preference
        How long it waits.
    claim
        Its Idempotency-Key, if it sent one.
    delivery
        How an execution of OGC API wants its result, of which the job is the record. None for the
        bare result: a small one leaves no job.
    """

    preference: Preference
    claim: Claim
    delivery: Delivery | None = None


@contextmanager
def terms_of(request: Request, service: Service) -> Iterator[Terms]:
    """Read how a client wants to be answered, before its body is received.

    Raises
    ------
    KeyInUse
        While another request with its key is being received.
    """
    with service.claims.claim(service.owner, key_of(request.headers)) as claim:
        yield Terms(preference_of(request.headers), claim)


async def refuse_unready(request: Request, service: Service, terms: Terms) -> None:
    """Refuse, before it is received, a request that cannot be answered as it wants to be.

    Raises
    ------
    NotAcceptable
        When it waits for a result in a format that there is not.
    NotReady
        When it wants its result at once, and there is no cluster.
    QueueFull, TooManyJobs
        When it wants a job, and there is no place for one.
    """
    if terms.preference.waits:
        wanted_format(request.headers)
    elif not await _has_job(service, terms.claim.key):
        await asyncio.to_thread(service.quotas.refuse_when_full, service.store)
    if not terms.preference.takes_a_job:
        refuse_without_cluster(service, "try again, or send 'Prefer: respond-async'")


async def _has_job(service: Service, key: str | None) -> bool:
    """Whether a request with this key made a job, which needs no place any more."""
    if key is None:
        return False
    return await asyncio.to_thread(service.store.first_of, Repeat(key, "")) is not None


async def answer(
    request: Request,
    service: Service,
    asked: Asked,
    terms: Terms,
) -> Response:
    """Match two sets, and answer with the result or, if the client takes one, with the job.

    Raises
    ------
    TooLarge
        When the sets are too large for an answer at once, and the client takes no job.
    KeyReused
        When the key of the request came with other content before.
    Problem
        When the sets cannot be matched, or the job failed.
    """
    start = time.monotonic()
    preference, delivery = terms.preference, terms.delivery or Delivery()
    if not preference.takes_a_job:
        _refuse_large(service, asked)
    asked.check()
    content = [one.dataset.sha256 for one in asked.inputs]
    repeat = terms.claim.of(*content, asked.options, asked.on_invalid, delivery)
    needs_no_job = terms.delivery is None and repeat is None and preference.waits
    if needs_no_job and (response := await _at_once(request, service, asked, preference)):
        return response
    with suppress(NotAcceptable):
        keeps_sets = bool(format_of(delivery, request.headers).geometry)
        delivery = replace(delivery, keeps_sets=keeps_sets)
    accept = partial(asyncio.to_thread, _accept, service, asked, delivery, repeat)
    return await _answer_with_job(request, service, terms, repeat, start, accept)


async def echo(request: Request, service: Service, options: EchoOptions, terms: Terms) -> Response:
    """Give back what was sent, or, if the client takes one, the job that will."""
    start = time.monotonic()
    preference, delivery = terms.preference, terms.delivery or Delivery()
    repeat = terms.claim.of(options, delivery)
    if repeat is None and not preference.takes_a_job:
        await asyncio.sleep(options.pause)
        return echo_response(options, delivery)
    accept = partial(asyncio.to_thread, _enter_echo, service, options, delivery, repeat)
    return await _answer_with_job(request, service, terms, repeat, start, accept)


def _enter_echo(
    service: Service, options: EchoOptions, delivery: Delivery, repeat: Repeat | None
) -> str:
    store, size_bytes = service.store, len(options.message.encode())
    with service.quotas.room(store, size_bytes), service.quotas.place(store):
        return store.add_echo(options, delivery, repeat)


async def _first(service: Service, repeat: Repeat | None) -> str | None:
    """The job that the first of repeated requests made.

    Raises
    ------
    KeyReused
    """
    if repeat is None:
        return None
    first = await asyncio.to_thread(service.store.first_of, repeat)
    if first is None:
        return None
    id, fingerprint = first
    if fingerprint != repeat.fingerprint:
        raise KeyReused(
            f"the Idempotency-Key {repeat.key!r} came with other sets or options before, and made "
            f"the job {id!r}: send the same again, or take another key"
        )
    return id


async def _answer_with_job(
    request: Request,
    service: Service,
    terms: Terms,
    repeat: Repeat | None,
    start: float,
    accept: Callable[[], Coroutine[Any, Any, str]],
) -> Response:
    """Create the job, or reuse the one of this Idempotency-Key; answer with its result or with it.

    Parameters
    ----------
    start
        Since when the client waits.
    accept
        Accepts the job and returns its id.
    """
    id = await _first(service, repeat)
    if id is None:
        id = await accept()
        service.supervisor.start(id)
    terms.claim.end()
    preference = terms.preference
    if preference.waits:
        left = preference.seconds_left(start)
        await _wait(request, service, id, left, comes_back=repeat is not None)
    job = await asyncio.to_thread(service.store.job, id)
    assert job is not None, "a job just accepted is in the store"
    if job.status not in LIVE and preference.waits:
        # The result may be there, and not yet in the format that was asked for.
        with suppress(TimeoutError):
            async with asyncio.timeout(preference.seconds_left(start)):
                response = await result_response(service, job, request)
            response.headers.update(preference.applied())
            return response
    if preference.takes_a_job:
        return _job_response(job, request, preference, service.supervisor.waiting)
    raise NotReady(
        "the service is stopping; the job goes on when it is back",
        headers={"Retry-After": "10", "Link": f'<{base_of(request)}/jobs/{id}>; rel="monitor"'},
    )


def _refuse_large(service: Service, asked: Asked) -> None:
    observations, references = (one.dataset.rows for one in asked.inputs)
    rows = observations * asked.options.k + references
    if rows > service.settings.sync_rows:
        raise TooLarge(
            f"{rows} rows of both sets together (observations k times) are more than the "
            f"limit of {service.settings.sync_rows} for an answer at once: "
            "send the header 'Prefer: respond-async' and follow the Location of the answer"
        )


async def _at_once(
    request: Request, service: Service, asked: Asked, preference: Preference
) -> Response | None:
    """The result of a small request, if it is to be had without a job."""
    if why_too_large(asked):
        return None
    format = wanted_format(request.headers)
    # After half of the time that the client waits it is not too late to accept a job.
    patience = None if preference.wait_seconds is None else preference.wait_seconds / 2
    with suppress(NotAtHand, ResultTooLarge, TimeoutError):
        async with asyncio.timeout(patience):
            response = await lookup_response(service, asked, format)
        response.headers.update(preference.applied())
        return response
    return None


def _accept(service: Service, asked: Asked, delivery: Delivery, repeat: Repeat | None) -> str:
    """Keep both sets and accept a job with them; nothing is left of a refused one."""
    inputs, options = asked.inputs, asked.options
    sizes = sizes_of(*inputs, options)
    if why := obstacle(*sizes, options):
        raise TooLarge(why)
    size_bytes = job_bytes(*sizes, options)
    own_bytes = kept_bytes(*inputs, sizes)
    delivery = replace(delivery, keeps_sets=delivery.keeps_sets or own_bytes <= _SMALL_SETS_BYTES)
    service.disk.refuse_when_low(size_bytes + set_bytes(*inputs, sizes))
    kept: list[DatasetRow] = []
    with service.quotas.room(service.store, size_bytes + own_bytes):
        try:
            kept.extend(
                service.library.keep(one) if isinstance(one, Ingested) else one for one in inputs
            )
            return _enter(service, kept, options, delivery, repeat, size_bytes)
        except BaseException:
            for row in kept:
                service.library.release(row.id)
            raise


def _enter(
    service: Service,
    kept: list[DatasetRow],
    options: MatchOptions,
    delivery: Delivery,
    repeat: Repeat | None,
    size_bytes: int,
) -> str:
    observations, references = kept
    store = service.store
    with service.quotas.place(store):
        # Once more: what others were promised meanwhile is no longer there for this one.
        service.disk.refuse_when_low(size_bytes)
        id = store.add_job(observations, references, options, delivery, repeat, size_bytes)
    if id is None:
        raise NoSuchDataset("one of the two datasets was removed while the job was accepted")
    return id


async def _wait(
    request: Request, service: Service, id: str, seconds: float | None, *, comes_back: bool
) -> None:
    """Wait for a job as long as the client does: for ever, or some seconds.

    Raises
    ------
    ClientDisconnect
        When the client has gone. Nobody else knows of its job, so that is dismissed; unless the
        client has a key to come back with.
    """
    finished = asyncio.create_task(service.supervisor.finished(id, seconds))
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait([finished, gone], return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            return
    finally:
        finished.cancel()
        gone.cancel()
    if not comes_back:
        with suppress(JobDismissed):
            await service.supervisor.dismiss(id)
    raise ClientDisconnect


async def _disconnected(request: Request) -> None:
    # The body has been read: what comes now is that the client has gone.
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _job_response(
    job: JobRow, request: Request, preference: Preference, waiting: str | None
) -> Response:
    base = base_of(request)
    return JSONResponse(
        StatusInfo.of(job, base, waiting).model_dump(exclude_none=True),
        status_code=201,
        headers={"Location": f"{base}/jobs/{job.id}", **preference.applied(by_job=True)},
    )
