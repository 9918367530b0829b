"""`/datasets`: register point sets once, resolve with them often."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.datastructures import UploadFile

from service.context import ServiceContext
from service.errors import InvalidRequest
from service.ingest import Upload
from service.models import DatasetInfo, DatasetList, TableParameters
from service.results import PARQUET

router = APIRouter(tags=["datasets"])

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            PARQUET: _BINARY,
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
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            form = await request.form(max_files=1, max_fields=0)
            part = form.get("file")
            if not isinstance(part, UploadFile):
                raise InvalidRequest("the form has no file named 'file'")
            upload = Upload(part.file, part.content_type, part.filename, part.filename or "file")
        else:
            received = folder / "body"
            with received.open("wb") as handle:
                async for piece in request.stream():
                    handle.write(piece)
            media_type = request.headers.get("content-type")
            upload = Upload(received.open("rb"), media_type, None, "the body")
        with upload.content:
            ingested = await service.ingest.from_upload(
                upload, parameters.names(), parameters.on_invalid, folder
            )
        row = service.store.registered_dataset(ingested.dataset)
        if row is not None:
            response.status_code = 200
        else:
            row = await service.library.keep(ingested, registered=True)
    response.headers["Location"] = f"/datasets/{row.id}"
    return DatasetInfo.of(row)


@router.get("/datasets")
def list_datasets(
    service: ServiceContext, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> DatasetList:
    """The registered datasets, the newest first."""
    rows = service.store.registered_datasets(limit)
    return DatasetList(datasets=[DatasetInfo.of(row) for row in rows])


@router.get("/datasets/{id}")
def show_dataset(id: str, service: ServiceContext) -> DatasetInfo:
    """One dataset."""
    return DatasetInfo.of(service.library.get(id))


@router.get("/datasets/{id}/data.parquet", response_class=FileResponse)
def download_dataset(id: str, service: ServiceContext) -> FileResponse:
    """The dataset as the service keeps it: Parquet with float64 coordinates."""
    row = service.library.get(id)
    return FileResponse(
        row.dataset.path, media_type=PARQUET, headers={"ETag": f'"{row.dataset.sha256}"'}
    )


@router.delete("/datasets/{id}", status_code=204)
def remove_dataset(id: str, service: ServiceContext) -> None:
    """Remove a dataset; results made with it stay."""
    service.library.remove(id)
