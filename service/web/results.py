"""The result of a job as an HTTP answer."""

import asyncio
import base64
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from service.context import Service
from service.database.rows import Delivery, EchoOptions, JobRow
from service.errors import (
    JobDismissed,
    Problem,
    ResultExpired,
    ResultNotReady,
    StorageFull,
    TooLarge,
)
from service.jobs.representations import PARQUET, Format
from service.links import OGC_RELATION, base_of
from service.web.files import file_response
from service.web.negotiation import wanted_format


async def result_response(service: Service, job: JobRow, request: Request) -> Response:
    """The result of a job, in the way that its client wished to have it.

    Raises
    ------
    ResultNotReady
        When the job is not finished.
    JobDismissed
        When it was dismissed.
    NotAcceptable
        When it is wanted in a format that there is not.
    ResultExpired
        When its result was kept for as long as results are.
    TooLarge
        When it is wanted as a value in JSON and does not fit.
    Problem
        The job's own, when it failed.
    """
    _refuse_without_result(job)
    monitor = f'<{base_of(request)}/jobs/{job.id}>; rel="monitor"'
    if isinstance(job.options, EchoOptions):
        response = echo_response(job.options, job.delivery)
    elif job.delivery == Delivery("raw", "value"):
        format = wanted_format(request.headers)
        response = await format_response(service, job, format, request)
        response.headers["Vary"] = "Accept"
        response.headers["Content-Location"] = _url(job, format, request)
        return response
    else:
        href = _url(job, PARQUET, request)
        try:
            response = await asyncio.to_thread(_ogc_response, service, job, href)
        except FileNotFoundError:
            raise _gone(job) from None
    response.headers.append("Link", monitor)
    return response


async def format_response(
    service: Service, job: JobRow, format: Format, request: Request
) -> Response:
    """The result of a job in a format, whole or the range that was asked for; raises as above."""
    _refuse_without_result(job)
    if job.report is None:
        raise ResultNotReady(
            f"the process {job.process!r} gives no file: ask /jobs/{job.id}/results"
        )
    path = service.store.job_folder(job.id) / PARQUET.name
    try:
        if format == PARQUET:
            sha256 = await service.checksums.of(job)
        else:
            path, sha256 = await service.exports.export(path, format)
        return file_response(
            path,
            sha256,
            format.media_type,
            format.name,
            request,
            {"Link": f'<{base_of(request)}/jobs/{job.id}>; rel="monitor"'},
        )
    except FileNotFoundError:
        raise _gone(job) from None


def _url(job: JobRow, format: Format, request: Request) -> str:
    return f"{base_of(request)}/jobs/{job.id}/results/{format.name}"


def _refuse_without_result(job: JobRow) -> None:
    if job.status == "dismissed":
        raise _dismissed(job)
    if job.problem is not None:
        raise _as_problem(job.problem)
    if job.status != "successful":
        raise ResultNotReady(
            f"the job {job.id!r} is {job.status}: {job.message}", headers={"Retry-After": "1"}
        )
    if job.has_expired:
        raise _expired(job)


def _gone(job: JobRow) -> Problem:
    """Why the result of a job that was successful is not there."""
    return _expired(job) if job.has_expired else _dismissed(job)


def _expired(job: JobRow) -> Problem:
    return ResultExpired(
        f"the result of the job {job.id!r} was kept until {job.expires}: send the job again"
    )


def _dismissed(job: JobRow) -> Problem:
    return JobDismissed(f"the job {job.id!r} was dismissed; its result does not exist")


def echo_response(options: EchoOptions, delivery: Delivery) -> Response:
    """The result of the process `echo`."""
    raw = delivery.response == "raw"
    return JSONResponse(options.message if raw else {"message": options.message})


def _ogc_response(service: Service, job: JobRow, href: str) -> Response:
    """The result as JSON, or where it is: section 7.11.4 of OGC API - Processes 1.0."""
    if job.delivery.response == "raw":
        link = f'<{href}>; rel="{OGC_RELATION}results"; type="{PARQUET.media_type}"'
        return Response(status_code=204, headers={"Link": link})
    if job.delivery.transmission == "reference":
        return JSONResponse({"matches": {"href": href, "type": PARQUET.media_type}})
    path, limit = service.store.job_folder(job.id) / PARQUET.name, service.settings.inline_bytes
    if path.stat().st_size > limit:
        raise TooLarge(
            f"the result has {path.stat().st_size} bytes, and JSON takes up to {limit}: it is at "
            f"{href}, or ask for 'transmissionMode': 'reference'"
        )
    value = base64.b64encode(path.read_bytes()).decode()
    about = {"mediaType": PARQUET.media_type, "encoding": "base64"}
    return JSONResponse({"matches": {"value": value, **about}})


def _as_problem(document: dict[str, Any]) -> Problem:
    # The result stays away; the same work, sent again, finds room when somebody has made it.
    waiting = {"Retry-After": "60"} if document["status"] == StorageFull.status else None
    problem = Problem(document["detail"], document.get("errors"), waiting)
    problem.status, problem.type = document["status"], document["type"]
    problem.title = document["title"]
    return problem
