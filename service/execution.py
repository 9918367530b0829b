"""From two point sets and options to an answer: the one way of every request that matches.

A small request is answered at once. For others a job is accepted, and the client gets its result,
or the job to ask again, as it prefers.
"""

import asyncio
import hashlib
import time

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from service.context import Service
from service.errors import NotReady, TooLarge
from service.ingest import Ingested
from service.inputs import ROLES, Inputs
from service.links import base_of
from service.matching import accept_job, check_match
from service.models import MatchParameters, StatusInfo
from service.preferences import Preference
from service.results import PARQUET, echo_response, result_response
from service.store import LIVE, DatasetRow, Delivery, EchoOptions, JobRow, new_id
from workers.jobs import Job
from workers.plan import is_small


def refuse_unready(service: Service, preference: Preference) -> None:
    """Refuse a request that wants its result at once while there is no cluster.

    Raises
    ------
    NotReady
    """
    if not preference.takes_a_job and service.supervisor.cluster is None:
        raise NotReady(
            f"{service.supervisor.trouble}: try again, or send 'Prefer: respond-async'",
            headers={"Retry-After": "2"},
        )


async def answer(
    request: Request,
    service: Service,
    inputs: Inputs,
    parameters: MatchParameters,
    preference: Preference,
    delivery: Delivery | None = None,
) -> Response:
    """Match two sets, and answer with the result or, if the client takes one, with the job.

    Parameters
    ----------
    delivery
        How an execution of OGC API wants its result, of which the job is the record. None for the
        bare result: a small one leaves no job.

    Raises
    ------
    TooLarge
        When the sets are too large for an answer at once, and the client takes no job.
    Problem
        When the sets cannot be matched, or the job failed.
    """
    if not preference.takes_a_job:
        _refuse_large(service, inputs, parameters)
    check_match(inputs.observations.dataset, inputs.references.dataset, parameters)
    if delivery is None and preference.waits and _is_small(service, inputs, parameters):
        return await _express(service, inputs, parameters, preference)
    id = await _accept(service, inputs, parameters, delivery or Delivery())
    return await _answer_with_job(request, service, id, preference)


async def echo(
    request: Request,
    service: Service,
    options: EchoOptions,
    preference: Preference,
    delivery: Delivery,
) -> Response:
    """Give back what was sent, or, if the client takes one, the job that will."""
    if not preference.takes_a_job:
        await asyncio.sleep(options.pause)
        return echo_response(options, delivery)
    id = await asyncio.to_thread(service.store.add_echo, options, delivery)
    return await _answer_with_job(request, service, id, preference)


async def _answer_with_job(
    request: Request, service: Service, id: str, preference: Preference
) -> Response:
    """Run an accepted job, and answer with its result or, if the client takes one, with it."""
    service.supervisor.start(id)
    await _wait(request, service, id, preference)
    job = await asyncio.to_thread(service.store.job, id)
    assert job is not None, "a job just accepted is in the store"
    if job.status not in LIVE:
        response = await asyncio.to_thread(result_response, service, job, request)
        if preference.wait_seconds is not None:
            response.headers.update(preference.applied())
        return response
    if preference.takes_a_job:
        return _job_response(job, request, preference)
    raise NotReady(
        "the service is stopping; the job goes on when it is back",
        headers={"Retry-After": "10", "Link": f'<{base_of(request)}/jobs/{id}>; rel="monitor"'},
    )


def _refuse_large(service: Service, inputs: Inputs, parameters: MatchParameters) -> None:
    observations, references = (one.dataset.rows for one in inputs)
    rows = observations * parameters.k + references
    if rows > service.settings.sync_rows:
        raise TooLarge(
            f"{rows} rows of both sets together (observations k times) are more than the "
            f"limit of {service.settings.sync_rows} for an answer at once: "
            "send the header 'Prefer: respond-async' and ask the job"
        )


def _is_small(service: Service, inputs: Inputs, parameters: MatchParameters) -> bool:
    cluster, express = service.supervisor.cluster, service.supervisor.express
    observations, references = (one.dataset.rows for one in inputs)
    return (
        cluster is not None
        and express is not None
        and is_small(observations, references, parameters.options(), cluster.device)
    )


async def _express(
    service: Service, inputs: Inputs, parameters: MatchParameters, preference: Preference
) -> Response:
    """Answer without a job: nothing is kept of the request."""
    start = time.perf_counter()
    lane = service.supervisor.express
    assert lane is not None, "the lane is there as long as the cluster"
    id = new_id()
    job = Job(
        id,
        service.store.job_folder(id),
        inputs.observations.dataset,
        inputs.references.dataset,
        parameters.options(),
    )
    answer = await lane.resolve(job)
    seconds = {"lane": time.perf_counter() - start, **answer.seconds}
    for role, one in zip(ROLES, inputs, strict=True):
        if isinstance(one, Ingested):
            seconds |= {f"{stage}_{role}": value for stage, value in one.seconds.items()}
    timing = ", ".join(f"{stage};dur={1e3 * value:.2f}" for stage, value in seconds.items())
    return Response(
        answer.content,
        media_type=PARQUET,
        headers={
            "ETag": f'"{hashlib.sha256(answer.content).hexdigest()}"',
            "Server-Timing": timing,
            **preference.applied(),
        },
    )


async def _accept(
    service: Service, inputs: Inputs, parameters: MatchParameters, delivery: Delivery
) -> str:
    """Keep both sets and accept a job with them; nothing is left of a refused one."""
    kept: list[DatasetRow] = []
    try:
        for one in inputs:
            if isinstance(one, Ingested):
                kept.append(await asyncio.to_thread(service.library.keep, one))
            else:
                kept.append(one)
        observations, references = kept
        return await asyncio.to_thread(
            accept_job, service.store, observations, references, parameters, delivery
        )
    except BaseException:
        for row in kept:
            await asyncio.to_thread(service.library.release, row.id)
        raise


async def _wait(request: Request, service: Service, id: str, preference: Preference) -> None:
    """Wait for a job as long as the client does.

    Raises
    ------
    ClientDisconnect
        When the client has gone; as nobody else knows of its job, that is dismissed.
    """
    if preference.respond_async and preference.wait_seconds is None:
        return
    finished = asyncio.create_task(service.supervisor.finished(id, preference.wait_seconds))
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait([finished, gone], return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            return
    finally:
        finished.cancel()
        gone.cancel()
    await service.supervisor.dismiss(id)
    raise ClientDisconnect


async def _disconnected(request: Request) -> None:
    # The body has been read: what comes now is that the client has gone.
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _job_response(job: JobRow, request: Request, preference: Preference) -> Response:
    base = base_of(request)
    return JSONResponse(
        StatusInfo.of(job, base).model_dump(exclude_none=True),
        status_code=201,
        headers={"Location": f"{base}/jobs/{job.id}", **preference.applied()},
    )
