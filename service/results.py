"""The result of a job as an HTTP answer."""

import base64
from pathlib import Path

from fastapi import Request
from fastapi.responses import FileResponse, JSONResponse, Response

from service.context import Service
from service.errors import JobDismissed, Problem, ResultNotReady, TooLarge
from service.links import OGC_RELATION, base_of
from service.store import Delivery, EchoOptions, JobRow

PARQUET = "application/vnd.apache.parquet"
_NAME = "matches.parquet"


def result_response(service: Service, job: JobRow, request: Request) -> Response:
    """The result of a job, in the way that its client wished to have it.

    Raises
    ------
    ResultNotReady
        When the job is not finished.
    JobDismissed
        When it was dismissed.
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
        return file_response(service, job, request)
    else:
        response = _ogc_response(service, job, f"{base_of(request)}/jobs/{job.id}/results/{_NAME}")
    response.headers.append("Link", monitor)
    return response


def file_response(service: Service, job: JobRow, request: Request) -> Response:
    """The result file of a job, whole or the range that was asked for; raises as above."""
    _refuse_without_result(job)
    if job.report is None:
        raise ResultNotReady(
            f"the process {job.process!r} gives no file: ask /jobs/{job.id}/results"
        )
    return parquet_response(
        service.store.job_folder(job.id) / _NAME,
        job.report["sha256"],
        request,
        {"Link": f'<{base_of(request)}/jobs/{job.id}>; rel="monitor"'},
    )


def _refuse_without_result(job: JobRow) -> None:
    if job.status == "dismissed":
        raise JobDismissed(f"the job {job.id!r} was dismissed; its result does not exist")
    if job.problem is not None:
        raise _as_problem(job.problem)
    if job.status != "successful":
        raise ResultNotReady(
            f"the job {job.id!r} is {job.status}: {job.message}", headers={"Retry-After": "1"}
        )


def echo_response(options: EchoOptions, delivery: Delivery) -> Response:
    """The result of the process `echo`."""
    raw = delivery.response == "raw"
    return JSONResponse(options.message if raw else {"message": options.message})


def _ogc_response(service: Service, job: JobRow, href: str) -> Response:
    """The result as JSON, or where it is: section 7.11.4 of OGC API - Processes 1.0."""
    if job.delivery.response == "raw":
        link = f'<{href}>; rel="{OGC_RELATION}results"; type="{PARQUET}"'
        return Response(status_code=204, headers={"Link": link})
    if job.delivery.transmission == "reference":
        return JSONResponse({"matches": {"href": href, "type": PARQUET}})
    path, limit = service.store.job_folder(job.id) / _NAME, service.settings.inline_bytes
    if path.stat().st_size > limit:
        raise TooLarge(
            f"the result has {path.stat().st_size} bytes, and JSON takes up to {limit}: it is at "
            f"{href}, or ask for 'transmissionMode': 'reference'"
        )
    value = base64.b64encode(path.read_bytes()).decode()
    return JSONResponse({"matches": {"value": value, "mediaType": PARQUET, "encoding": "base64"}})


def parquet_response(
    path: Path, sha256: str, request: Request, headers: dict[str, str] | None = None
) -> Response:
    """A Parquet file that never changes: whole, a range, or 304 to whom has it already."""
    etag = f'"{sha256}"'
    headers = {**(headers or {}), "ETag": etag, "Cache-Control": "private, immutable"}
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {etag, f"W/{etag}", "*"}:
        return Response(status_code=304, headers=headers)
    return FileResponse(path, media_type=PARQUET, filename=path.name, headers=headers)


def _as_problem(document: dict[str, object]) -> Problem:
    problem = Problem(str(document["detail"]))
    problem.status = int(str(document["status"]))
    problem.type, problem.title = str(document["type"]), str(document["title"])
    return problem
