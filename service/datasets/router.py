"""`/datasets`: register point sets once, resolve with them often."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from georesolve.intake.representations import PARQUET
from georesolve.service.context import Service, ServiceContext
from georesolve.service.database.rows import DatasetRow
from georesolve.service.datasets.models import DatasetInfo, DatasetList
from georesolve.service.description import examples
from georesolve.service.description.answers import bytes_of, created, file_answers, json_answer
from georesolve.service.description.refusals import CHANGES, FILES, TABLES, refusals
from georesolve.service.description.requests import (
    CONTENT_DIGEST,
    IF_NONE_MATCH,
    IF_RANGE,
    RANGE,
    WANT_REPR_DIGEST,
    DatasetId,
    headers,
)
from georesolve.service.errors import DatasetDamaged, DatasetInUse, InvalidRequest, NoSuchDataset
from georesolve.service.http.bounds import media_type
from georesolve.service.http.queries import PageQuery, links_of_page
from georesolve.service.links import EXAMPLE_BASE, Link, base_of
from georesolve.service.resolve.options import options_of
from georesolve.service.resolve.point_sets import FEATURES
from georesolve.service.results.files import file_response, wants_digest
from georesolve.service.uploads.ingest import Ingested
from georesolve.service.uploads.models import TableParameters
from georesolve.service.uploads.receiving import receive_body, receive_form

router = APIRouter(tags=["datasets"])

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_HERE = f"/datasets/{examples.DATASET_ID}"
_LIST = {
    "datasets": [examples.DATASET],
    "used_bytes": examples.DATASET.size_bytes,
    "quota_bytes": 64 << 30,
    "links": [Link(href=f"{EXAMPLE_BASE}/datasets", rel="self", title="this document")],
}
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            # First what the documentation in a browser can send as it stands.
            "text/csv": {"schema": {"type": "string"}, "example": examples.CITIES_CSV},
            "application/geo+json": {
                "schema": FEATURES,
                "example": examples.CITIES_GEOJSON,
            },
            PARQUET.media_type: _BINARY,
            "application/vnd.apache.arrow.stream": _BINARY,
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                },
                "example": {"file": examples.CITIES_CSV},
            },
        },
    }
}


_REGISTERED = json_answer(examples.DATASET, "registered before: the same content", 200)
_REGISTERED[200]["model"] = DatasetInfo


@router.post(
    "/datasets",
    operation_id="registerDataset",
    summary="Register a dataset",
    status_code=201,
    responses=json_answer(examples.DATASET, "registered", 201, created("the dataset"))
    | _REGISTERED
    | refusals("/datasets", *(one for one in TABLES if one not in (NoSuchDataset, DatasetDamaged))),
    openapi_extra=_UPLOAD | headers(CONTENT_DIGEST),
)
async def register_dataset(
    request: Request,
    response: Response,
    service: ServiceContext,
    parameters: Annotated[TableParameters, Query()],
) -> DatasetInfo:
    """Register a point set: the body is a file in any input format, or a form with `file`.

    The options may also be fields of the form.

    201 and its `Location`; 200 when the same content is registered already.
    """
    async with service.ingest.folder() as folder:
        if media_type(request.headers) == "multipart/form-data":
            form = await receive_form(request, folder, ["file"], TableParameters.model_fields)
            parameters, _ = options_of(TableParameters, request, form.fields)
            part = form.parts["file"]
            if isinstance(part, str):
                raise InvalidRequest("the part 'file' of the form is a text: send it with a name")
            upload = part._replace(file=part.name or "file")
        else:
            upload = await receive_body(request, folder)
        ingested = await service.ingest.from_upload(
            upload, parameters.reading(), folder, service.owner
        )
        row, is_new = await asyncio.to_thread(_register, service, ingested)
    if not is_new:
        response.status_code = 200
    response.headers["Location"] = f"{base_of(request)}/datasets/{row.id}"
    return DatasetInfo.of(row)


def _register(service: Service, ingested: Ingested) -> tuple[DatasetRow, bool]:
    is_known = service.store.registered_dataset(ingested.dataset) is not None
    with service.quotas.room(service.store, 0 if is_known else ingested.size_bytes):
        return service.library.register(ingested)


@router.get(
    "/datasets",
    operation_id="getDatasets",
    summary="All registered datasets",
    responses=json_answer(_LIST, "a page of datasets") | refusals("/datasets"),
)
def list_datasets(
    request: Request, service: ServiceContext, query: Annotated[PageQuery, Query()]
) -> DatasetList:
    """The registered datasets, the newest first; the link `next` leads on when there are more."""
    page = query.page()
    rows = service.store.registered_datasets(page)
    storage = service.quotas.storage(service.store)
    return DatasetList(
        datasets=[DatasetInfo.of(row) for row in rows[: page.limit]],
        used_bytes=storage.used,
        quota_bytes=storage.quota,
        links=links_of_page(request, rows, page),
    )


@router.get(
    "/datasets/{id}",
    operation_id="getDataset",
    summary="A dataset",
    responses=json_answer(examples.DATASET, "the dataset") | refusals(_HERE, NoSuchDataset),
)
def show_dataset(id: DatasetId, service: ServiceContext) -> DatasetInfo:
    """A registered dataset: its rows, columns, extent, checksum and when it expires."""
    return DatasetInfo.of(service.library.get(id))


@router.get(
    "/datasets/{id}/data.parquet",
    operation_id="downloadDataset",
    summary="The points of a dataset",
    response_class=Response,
    responses=file_answers(bytes_of(PARQUET.media_type), "the points")
    | refusals(f"{_HERE}/data.parquet", NoSuchDataset, DatasetDamaged, *FILES),
    openapi_extra=headers(RANGE, IF_RANGE, IF_NONE_MATCH, WANT_REPR_DIGEST),
)
async def download_dataset(id: DatasetId, service: ServiceContext, request: Request) -> Response:
    """The dataset as the service keeps it: Parquet with float64 coordinates.

    A download is a use: the dataset expires later.
    """
    row = await asyncio.to_thread(service.library.use, id)
    path, sha256 = service.store.dataset_path(row.id), row.dataset.sha256
    try:
        if not await service.checksums.is_whole(path, sha256, anew=wants_digest(request)):
            await asyncio.to_thread(service.library.whole, id, every_byte=True)
        return file_response(path, sha256, PARQUET.media_type, "data.parquet", request)
    except FileNotFoundError:
        raise NoSuchDataset(f"the dataset {id!r} was removed meanwhile") from None


@router.delete(
    "/datasets/{id}",
    operation_id="removeDataset",
    summary="Remove a dataset",
    status_code=204,
    responses={
        204: {"description": "removed"},
        **refusals(_HERE, NoSuchDataset, DatasetInUse, *CHANGES),
    },
)
def remove_dataset(id: DatasetId, service: ServiceContext) -> None:
    """Remove a dataset; results made with it stay."""
    service.library.remove(id)
