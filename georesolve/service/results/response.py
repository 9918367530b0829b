"""The result of a job as an HTTP answer."""

import errno
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, BinaryIO

import pyarrow as pa
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json

from georesolve.intake.columns import Role
from georesolve.intake.representations import CSV, PARQUET, Format
from georesolve.service.context import Service
from georesolve.service.errors import (
    JobDismissed,
    NoSuchDataset,
    NotThere,
    Problem,
    ResultDamaged,
    ResultExpired,
    ResultNotReady,
    SetsGone,
    StorageFull,
)
from georesolve.service.links import OGC_RELATION, base_of
from georesolve.service.results.files import BLOCK_BYTES, Piece, file_response
from georesolve.service.results.negotiation import format_of
from georesolve.service.results.streams import pieces_of, stream_response, up_to
from georesolve.service.store.rows import JobRow
from georesolve.workers.datasets import Dataset
from georesolve.workers.files import Look
from georesolve.workers.manifest import (
    Extent,
    Manifest,
    Matches,
    look_at_manifest,
    read_manifest,
)
from georesolve.workers.places import Folder, Home, StoreFailed

logger = logging.getLogger(__name__)

_HELD_FILES = 16
"""Files that an answer holds from its begin: what has no more of them arrives whole, although its
job is dismissed meanwhile."""
_KEPT_MANIFESTS = 16
"""Each has a hundred bytes or two a row group: a MB at 2^29 rows."""


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
    format = format_of(job.delivery, request.headers)
    if job.delivery.transmission == "reference" or job.delivery.output:
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
    _refuse_elsewhere(job)
    headers = {"Link": f'<{base_of(request)}/jobs/{job.id}>; rel="monitor"'}
    folder = service.store.job_folder(job.id)
    with result_of(job):
        if format != PARQUET:
            sets = partial(set_of, service, job)
            return await stream_response(
                service.store.files, pieces_of(folder, format, sets), format, headers
            )
        manifest = await service.store.files(manifest_of, service, job)
        return await file_response(
            service.store.files,
            partial(_open, manifest),
            manifest.size_bytes,
            manifest.digest,
            await service.store.files(look_at_manifest, folder),
            format,
            request,
            headers,
            pieces=_pieces(service, job, manifest, manifest.extents()),
        )


async def part_response(service: Service, job: JobRow, name: str, request: Request) -> Response:
    """A part of the result of a job, which is a Parquet file of its own; raises as above.

    Raises
    ------
    NotThere
        When the result has no part of this name.
    """
    _refuse_elsewhere(job)
    with result_of(job):
        manifest = await service.store.files(manifest_of, service, job)
        part = next((one for one in manifest.parts if one.name == name), None)
        if part is None:
            raise NotThere(
                f"the result of the job {job.id!r} has no part {name[:80]!r}: "
                f"/jobs/{job.id}/results/parts lists those that it has"
            )
        extent = Extent(part, 0, part.size_bytes)
        return await file_response(
            service.store.files,
            partial(manifest.open, extent),
            part.size_bytes,
            part.digest,
            await service.store.files(manifest.look, extent),
            PARQUET,
            request,
            name=name,
            pieces=_pieces(service, job, manifest, [extent]),
        )


@lru_cache(_KEPT_MANIFESTS)
def _kept_manifest(folder: Home, look: Look, digest: str) -> Manifest | None:
    manifest = read_manifest(folder)
    return manifest if manifest.digest == digest else None


def manifest_of(service: Service, job: JobRow) -> Manifest:
    """The manifest of a job's result; raises as `format_response`."""
    _refuse_without_result(job)
    assert job.report is not None, "a result has a report"
    with result_of(job):
        folder = service.store.job_folder(job.id)
        manifest = _kept_manifest(folder, look_at_manifest(folder), job.report["digest"])
    if manifest is None:
        raise _damaged(job)
    return manifest


def _open(manifest: Manifest) -> BinaryIO:
    held = _HELD_FILES if isinstance(manifest.place, Folder) else 0
    return io.BufferedReader(Matches(manifest, held), BLOCK_BYTES)


def _pieces(
    service: Service, job: JobRow, manifest: Manifest, extents: list[Extent]
) -> Iterator[Piece]:
    start = 0
    for extent in extents:
        check = partial(_check, service, job, manifest, extent)
        yield Piece(start, start := start + extent.size_bytes, check)


async def _check(
    service: Service,
    job: JobRow,
    manifest: Manifest,
    extent: Extent,
) -> None:
    """Compare the file that an extent lies in with its digest; raises ResultDamaged."""
    look, check = partial(manifest.look, extent), partial(manifest.is_whole, extent)
    key = f"{job.id}/{manifest.name_of(extent)}"
    with result_of(job):
        if isinstance(manifest.place, Folder):
            is_whole = await service.checks.is_whole(key, look, check)
        else:
            is_whole = await service.store.files(check)
        if not is_whole:
            raise _damaged(job)


@contextmanager
def result_of(job: JobRow) -> Iterator[None]:
    """Tell what has become of a result that cannot be read: it is gone, or damaged."""
    try:
        yield
    except FileNotFoundError:
        raise _gone(job) from None
    except StoreFailed:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise
        # What pyarrow raises has no number: a page without its checksum, a footer that is none.
        logger.exception("the result of the job %s is damaged", job.id)
        raise _damaged(job) from None


def set_of(service: Service, job: JobRow, role: Role) -> Dataset:
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


def _refuse_elsewhere(job: JobRow) -> None:
    if job.delivery.output:
        raise NotThere(
            f"the result of the job {job.id!r} lies at {job.delivery.output}, and not here: "
            f"/jobs/{job.id}/results/parts lists its parts"
        )


def _refuse_without_result(job: JobRow) -> None:
    if job.status == "dismissed":
        raise _gone(job)
    if job.problem is not None:
        raise _as_problem(job.problem)
    if job.status != "successful":
        raise ResultNotReady(
            f"the job {job.id!r} is {job.status}: {job.message}", headers={"Retry-After": "1"}
        )
    if job.has_expired and not job.delivery.output:
        raise _gone(job)


def _gone(job: JobRow) -> Problem:
    """Why the result of a job is not there, which is not live and has not failed."""
    if job.has_expired and job.status != "dismissed":
        return ResultExpired(
            f"the result of the job {job.id!r} was kept until {job.expires}: send the job again"
        )
    return JobDismissed(f"the job {job.id!r} was dismissed; its result does not exist")


def _damaged(job: JobRow) -> Problem:
    return ResultDamaged(
        f"the result of the job {job.id!r} is damaged on the disk of the service, and is not given "
        "out: dismiss the job, and send it again"
    )


def _reference(job: JobRow, format: Format, request: Request) -> Response:
    """Where the result is: a header, or a document."""
    # Where it lies elsewhere, that is a folder of Parquet files.
    format = PARQUET if job.delivery.output else format
    href = job.delivery.output or _url(job, format, request)
    if job.delivery.response == "raw":
        link = f'<{href}>; rel="{OGC_RELATION}results"; type="{format.media_type}"'
        return Response(status_code=204, headers={"Link": link})
    return JSONResponse({"matches": {"href": href, "type": format.media_type}})


async def _document(service: Service, job: JobRow, format: Format, request: Request) -> Response:
    """The result in a document (OGC API - Processes 1.0, 7.11.4), or where it is.

    What is binary or large is a link.
    """
    if not format.is_text:
        return _reference(job, format, request)
    limit = service.settings.inline_bytes
    manifest = await service.store.files(manifest_of, service, job)
    # As text it is larger still, and need not be made for that.
    if manifest.size_bytes > limit:
        return _reference(job, format, request)
    for extent in manifest.extents():
        await _check(service, job, manifest, extent)
    with result_of(job):
        document = await service.store.files(_in_document, service, job, format, limit)
    if document is None:
        return _reference(job, format, request)
    return Response(document, media_type="application/json")


def _in_document(service: Service, job: JobRow, format: Format, limit: int) -> bytes | None:
    """A result in a document; None if it is larger than this in its format."""
    folder = service.store.job_folder(job.id)
    value = up_to(limit, pieces_of(folder, format, partial(set_of, service, job)))
    if value is None:
        return None
    about = {"mediaType": format.media_type}
    if format is CSV:
        # Not json.dumps: for each MB that takes 5 ms in which nobody else is answered.
        value = to_json(value.decode())
    return b'{"matches":{"value":%b,%b}}' % (value.strip(), to_json(about)[1:-1])


def _as_problem(document: dict[str, Any]) -> Problem:
    # The result stays away; the same work, sent again, finds room when somebody has made it.
    kind = StorageFull if document["status"] == StorageFull.status else Problem
    problem = kind(document["detail"], document.get("errors"))
    problem.status, problem.type = document["status"], document["type"]
    problem.title = document["title"]
    return problem
