"""`/uploads`: files that are sent in several requests and go on after a break, as tus 1.0 has it.

https://tus.io/protocols/resumable-upload: the core protocol, and its extensions creation,
termination and expiration.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import datetime
from email.utils import format_datetime

from fastapi import APIRouter, Depends, Request, Response

from georesolve.service.context import Service, ServiceContext
from georesolve.service.description import examples
from georesolve.service.description.operations import UploadId, created, header, headers
from georesolve.service.errors import (
    InvalidRequest,
    PreconditionFailed,
    Problem,
    TooLarge,
)
from georesolve.service.http.bodies import refuse_other_types
from georesolve.service.links import base_of
from georesolve.service.uploads.models import UploadInfo
from georesolve.service.uploads.receiving import receive_rest
from georesolve.service.uploads.resumable import Progress, metadata

_VERSION = "1.0.0"
_EXTENSIONS = "creation,termination,expiration"
_BYTES = "application/offset+octet-stream"
_METADATA_BYTES = 4096


async def _versioned(request: Request, response: Response) -> AsyncIterator[None]:
    """Requests may name the version of the protocol; answers do, also those that refuse."""
    response.headers["Tus-Resumable"] = _VERSION
    try:
        wanted = request.headers.get("tus-resumable", _VERSION)
        if wanted != _VERSION and request.method != "OPTIONS":
            raise PreconditionFailed(
                f"Tus-Resumable is {wanted[:20]!r}, and may be {_VERSION}",
                headers={"Tus-Version": _VERSION},
            )
        yield
    except Problem as problem:
        problem.headers["Tus-Resumable"] = _VERSION
        raise


router = APIRouter(tags=["uploads"], dependencies=[Depends(_versioned)])


_EXPIRES = {"Upload-Expires": header("when it is removed unless it is used again")}
_OFFSET = {"Upload-Offset": header("bytes that are there", "integer")} | _EXPIRES
_STATE = {
    **_OFFSET,
    "Upload-Length": header("bytes of the whole", "integer"),
    "Upload-Metadata": header("what its client said of it"),
}


@router.options(
    "/uploads",
    summary="What the service knows of tus",
    status_code=204,
    responses={
        204: {
            "description": "versions, extensions and the largest upload",
            "headers": {
                "Tus-Version": header("of the protocol"),
                "Tus-Extension": header("of the protocol"),
                "Tus-Max-Size": header("bytes that an upload may have", "integer"),
            },
        }
    },
)
async def describe_uploads(service: ServiceContext, response: Response) -> None:
    """Which version of tus and which of its extensions there are, and how large a file may be."""
    response.headers["Tus-Version"] = _VERSION
    response.headers["Tus-Extension"] = _EXTENSIONS
    response.headers["Tus-Max-Size"] = str(service.settings.upload_bytes)


@router.post(
    "/uploads",
    summary="Begin an upload that can go on after a break",
    status_code=201,
    responses={201: {"description": "begun", "headers": created("the upload") | _EXPIRES}},
    openapi_extra=headers("Upload-Length", "Upload-Metadata", "Repr-Digest"),
)
async def begin_upload(request: Request, response: Response, service: ServiceContext) -> UploadInfo:
    """Begin an upload as tus 1.0 has it: clients of tus can send files here.

    `PATCH` to its `Location` sends bytes, `HEAD` tells how many are there. When all are there, the
    text `upload:<id>` stands for the file wherever `dataset:<id>` may stand for a set, and as the
    part `file` of a form for `/datasets`. It is kept until it is removed with `DELETE`, or has not
    been used for `--upload-hours`.
    """
    size_bytes = _count_in(request, "Upload-Length")
    if size_bytes == 0:
        raise InvalidRequest("Upload-Length is 0: an empty file is no table of points")
    about = request.headers.get("upload-metadata", "")
    if len(about) > _METADATA_BYTES:
        raise InvalidRequest(
            f"Upload-Metadata has {len(about)} bytes, and may have {_METADATA_BYTES}"
        )
    metadata(about)
    limit = service.settings.upload_bytes
    if size_bytes > limit:
        raise TooLarge(
            f"Upload-Length is {size_bytes} bytes, and the limit is {limit} bytes: send less"
        )
    row = await asyncio.to_thread(_create, service, size_bytes, about, request)
    response.headers["Location"] = f"{base_of(request)}/uploads/{row.row.id}"
    return _told(row, response)


def _create(service: Service, size_bytes: int, about: str, request: Request) -> Progress:
    service.disk.refuse_when_low(size_bytes)
    digest = request.headers.get("repr-digest", "")
    quotas = service.quotas
    admit = quotas.room(service.store, size_bytes, quotas.refuse_many_uploads)
    return Progress(service.uploads.create(size_bytes, about, digest, admit), 0)


@router.get(
    "/uploads/{id}",
    summary="How much of an upload is there",
    responses={200: {"description": "the upload", "headers": _STATE}},
)
def get_upload(id: UploadId, service: ServiceContext, response: Response) -> UploadInfo:
    """How many bytes of an upload are there; `HEAD` answers with the same headers alone."""
    progress = service.uploads.get(id)
    response.headers["Upload-Length"] = str(progress.row.size_bytes)
    response.headers["Cache-Control"] = "no-store"
    if progress.row.about:
        response.headers["Upload-Metadata"] = progress.row.about
    return _told(progress, response)


@router.patch(
    "/uploads/{id}",
    summary="Send the next bytes of an upload",
    status_code=204,
    responses={204: {"description": "they are there", "headers": _OFFSET}},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {_BYTES: {"schema": {"type": "string"}, "example": examples.CITIES_CSV}},
        }
    }
    | headers("Upload-Offset", "Content-Digest"),
)
async def continue_upload(
    id: UploadId, request: Request, response: Response, service: ServiceContext
) -> None:
    """Append the body to the bytes that are there, of which `Upload-Offset` must be the number.

    What comes of a body that breaks off stays: ask with `HEAD` where to go on. Of a body whose
    `Content-Digest` is another one nothing stays. One request at a time sends to an upload; a
    second one is answered 409 `upload-in-use`, and 409 `wrong-offset` tells the right offset.
    """
    refuse_other_types(request, _BYTES, "with the next bytes of the file")
    offset = _count_in(request, "Upload-Offset")
    stack = ExitStack()
    row, file = await asyncio.to_thread(stack.enter_context, service.uploads.opened(id, offset))
    try:
        await receive_rest(request, file, row.size_bytes - offset)
    finally:
        # What came may be on its way to an object store.
        await asyncio.shield(asyncio.to_thread(stack.close))
    _tell(await asyncio.to_thread(service.uploads.keep, id), response)


@router.delete("/uploads/{id}", summary="Remove an upload", status_code=204)
def remove_upload(id: UploadId, service: ServiceContext) -> None:
    """Remove an upload, finished or not; datasets and jobs that were made of it stay."""
    service.uploads.remove(id)


def _told(progress: Progress, response: Response) -> UploadInfo:
    _tell(progress, response)
    return UploadInfo(offset=progress.offset, **vars(progress.row))


def _tell(progress: Progress, response: Response) -> None:
    expires = datetime.fromisoformat(progress.row.expires)
    response.headers["Upload-Offset"] = str(progress.offset)
    response.headers["Upload-Expires"] = format_datetime(expires, usegmt=True)


def _count_in(request: Request, name: str) -> int:
    given = request.headers.get(name, "")
    if not (given.isascii() and given.isdecimal() and len(given) < 19):
        found = repr(given[:80]) if given else "missing"
        raise InvalidRequest(f"{name} is {found}: give it as a number of bytes")
    return int(given)
