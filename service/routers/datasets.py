"""`/datasets`: register point sets once, resolve with them often."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import UploadFile

from service.bounds import media_type
from service.context import ServiceContext
from service.errors import InvalidRequest
from service.files import file_response
from service.ingest import Upload
from service.links import base_of
from service.models import DatasetInfo, DatasetList, TableParameters
from service.queries import PageQuery, links_of_page
from service.representations import PARQUET

router = APIRouter(tags=["datasets"])

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            PARQUET.media_type: _BINARY,
            "application/vnd.apache.arrow.stream": _BINARY,
            "text/csv": {"schema": {"type": "string"}},
            "application/geo+json": {"schema": {"type": "object"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}


@router.post("/datasets", status_code=201, openapi_extra=_UPLOAD)
async def register_dataset(
    request: Request,
    response: Response,
    service: ServiceContext,
    parameters: Annotated[TableParameters, Query()],
) -> DatasetInfo:
    """Register a point set: the body is a file in any input format, or a form with `file`.

    201 and its `Location`; 200 when the same content is registered already.
    """
    with service.ingest.folder() as folder:
        if media_type(request.headers) == "multipart/form-data":
            form = await request.form(max_files=1, max_fields=0)
            part = form.get("file")
            if not isinstance(part, UploadFile):
                raise InvalidRequest("the form has no file named 'file'")
            upload = Upload(part.file, part.content_type, part.filename, part.filename or "file")
        else:
            folder.mkdir()
            received = folder / "body"
            with received.open("wb") as handle:
                async for piece in request.stream():
                    handle.write(piece)
            kind = request.headers.get("content-type")
            upload = Upload(received.open("rb"), kind, None, "the body")
        with upload.content:
            ingested = await service.ingest.from_upload(upload, parameters.reading(), folder)
        row, is_new = await asyncio.to_thread(service.library.register, ingested)
    if not is_new:
        response.status_code = 200
    response.headers["Location"] = f"{base_of(request)}/datasets/{row.id}"
    return DatasetInfo.of(row)


@router.get("/datasets")
def list_datasets(
    request: Request, service: ServiceContext, query: Annotated[PageQuery, Query()]
) -> DatasetList:
    """The registered datasets, the newest first; the link `next` leads on when there are more."""
    page = query.page()
    rows = service.store.registered_datasets(page)
    return DatasetList(
        datasets=[DatasetInfo.of(row) for row in rows[: page.limit]],
        links=links_of_page(request, rows, page),
    )


@router.get("/datasets/{id}")
def show_dataset(id: str, service: ServiceContext) -> DatasetInfo:
    """One dataset."""
    return DatasetInfo.of(service.library.get(id))


@router.get("/datasets/{id}/data.parquet", response_class=Response)
def download_dataset(id: str, service: ServiceContext, request: Request) -> Response:
    """The dataset as the service keeps it: Parquet with float64 coordinates."""
    row = service.library.get(id)
    path = service.store.dataset_path(row.id)
    return file_response(path, row.dataset.sha256, PARQUET.media_type, "data.parquet", request)


@router.delete("/datasets/{id}", status_code=204)
def remove_dataset(id: str, service: ServiceContext) -> None:
    """Remove a dataset; results made with it stay."""
    service.library.remove(id)
