"""The result of a job as an HTTP answer."""

import asyncio
import base64
import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json

from georesolve.intake.columns import Role
from georesolve.intake.representations import CSV, PARQUET, Format
from georesolve.service.context import Service
from georesolve.service.database.rows import Delivery, EchoOptions, JobRow
from georesolve.service.errors import (
    JobDismissed,
    NoSuchDataset,
    Problem,
    ResultDamaged,
    ResultExpired,
    ResultNotReady,
    SetsGone,
    StorageFull,
)
from georesolve.service.links import OGC_RELATION, base_of
from georesolve.service.results.files import file_response, wants_digest
from georesolve.service.results.negotiation import format_of
from georesolve.workers.datasets import Dataset

logger = logging.getLogger(__name__)


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
    ResultDamaged
        When its file has not the bytes of its checksum.
    ResultExpired
        When its result was kept for as long as results are.
    SetsGone
        When it is wanted with coordinates, and a set that has them was removed.
    Problem
        The job's own, when it failed.
    """
    _refuse_without_result(job)
    monitor = f'<{base_of(request)}/jobs/{job.id}>; rel="monitor"'
    if isinstance(job.options, EchoOptions):
        response = echo_response(job.options, job.delivery)
    else:
        format = format_of(job.delivery, request.headers)
        if job.delivery.transmission == "reference":
            response = _reference(job, format, request)
        elif job.delivery.response == "document":
            response = await _document(service, job, format, request)
        else:
            response = await format_response(service, job, format, request)
            response.headers["Vary"] = "Accept"
            response.headers["Content-Location"] = _url(job, format, request)
            return response
        response.headers["Vary"] = "Accept"
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
    with _result_of(job):
        path, sha256 = await _whole_file(service, job, format, request)
        headers = {"Link": f'<{base_of(request)}/jobs/{job.id}>; rel="monitor"'}
        return file_response(path, sha256, format.media_type, format.name, request, headers)


@contextmanager
def _result_of(job: JobRow) -> Iterator[None]:
    """Tell what has become of a result that cannot be read: it is gone, or damaged."""
    try:
        yield
    except FileNotFoundError:
        raise _gone(job) from None
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise
        # What pyarrow raises has no number: a page without its checksum, a footer that is none.
        logger.exception("the result of the job %s is damaged", job.id)
        raise _damaged(job) from None


async def _whole_file(
    service: Service, job: JobRow, format: Format, request: Request
) -> tuple[Path, str]:
    """The file of a result in a format, which has the bytes of its checksum, and that."""
    result = service.store.job_folder(job.id) / PARQUET.name
    anew = wants_digest(request)
    if format == PARQUET or anew:
        sha256 = await service.checksums.of(job)
        if not await service.checksums.is_whole(result, sha256, anew=anew):
            raise _damaged(job)
        if format == PARQUET:
            return result, sha256
    sets = partial(_set_of, service, job)
    storage = partial(service.quotas.storage, service.store)
    note = partial(service.store.note_export, job.id)
    export = await service.exports.export(result, format, sets, storage, note)
    if export.is_new:
        service.checksums.note_whole(export.path, export.sha256)
    elif not await service.checksums.is_whole(export.path, export.sha256, anew=anew):
        # It is made of the result, and can be made again.
        logger.error("%s of the job %s is damaged, and is made anew", format.name, job.id)
        await asyncio.to_thread(note, -export.path.stat().st_size)
        export.path.unlink(missing_ok=True)
        export = await service.exports.export(result, format, sets, storage, note)
    return export.path, export.sha256


def _set_of(service: Service, job: JobRow, role: Role) -> Dataset:
    """One of the two sets of a job; raises SetsGone and DatasetDamaged."""
    try:
        return service.library.whole(getattr(job, role)).dataset
    except NoSuchDataset:
        raise SetsGone(
            f"the {role} of the job {job.id!r} are not kept any more, and a result has no "
            "coordinates of its own: send the job again with registered datasets, or, to have its "
            "sets kept as long as its result, with 'Accept: application/geo+json'"
        ) from None


def _url(job: JobRow, format: Format, request: Request) -> str:
    return f"{base_of(request)}/jobs/{job.id}/results/{format.address}"


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


def _damaged(job: JobRow) -> Problem:
    return ResultDamaged(
        f"the result of the job {job.id!r} is damaged on the disk of the service, and is not given "
        "out: dismiss the job, and send it again"
    )


def _dismissed(job: JobRow) -> Problem:
    return JobDismissed(f"the job {job.id!r} was dismissed; its result does not exist")


def echo_response(options: EchoOptions, delivery: Delivery) -> Response:
    """The result of the process `echo`."""
    raw = delivery.response == "raw"
    return JSONResponse(options.message if raw else {"message": options.message})


def _reference(job: JobRow, format: Format, request: Request) -> Response:
    """Where the result is: a header, or a document."""
    href = _url(job, format, request)
    if job.delivery.response == "raw":
        link = f'<{href}>; rel="{OGC_RELATION}results"; type="{format.media_type}"'
        return Response(status_code=204, headers={"Link": link})
    return JSONResponse({"matches": {"href": href, "type": format.media_type}})


async def _document(service: Service, job: JobRow, format: Format, request: Request) -> Response:
    """The result in a document (OGC API - Processes 1.0, 7.11.4), or where it is if it is large."""
    limit = service.settings.inline_bytes
    with _result_of(job):
        # As text it is larger still, and need not be made for that.
        path, _ = await _whole_file(service, job, PARQUET, request)
        if path.stat().st_size <= limit:
            path, _ = await _whole_file(service, job, format, request)
        if path.stat().st_size > limit:
            return _reference(job, format, request)
        content = await asyncio.to_thread(_in_document, path, format)
    return Response(content, media_type="application/json")


def _in_document(path: Path, format: Format) -> bytes:
    value, about = path.read_bytes(), {"mediaType": format.media_type}
    if not format.is_text:
        value, about = base64.b64encode(value), {**about, "encoding": "base64"}
    if format is CSV or not format.is_text:
        # Not json.dumps: for each MB that takes 5 ms in which nobody else is answered.
        value = to_json(value.decode())
    return b'{"matches":{"value":%b,%b}}' % (value.strip(), to_json(about)[1:-1])


def _as_problem(document: dict[str, Any]) -> Problem:
    # The result stays away; the same work, sent again, finds room when somebody has made it.
    waiting = {"Retry-After": "60"} if document["status"] == StorageFull.status else None
    problem = Problem(document["detail"], document.get("errors"), waiting)
    problem.status, problem.type = document["status"], document["type"]
    problem.title = document["title"]
    return problem
