"""`/datasets`: register point sets once, resolve with them often."""

import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self

import pyarrow as pa
from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field

from georesolve.io.datasets import first_rows
from georesolve.io.local_files import sha256_of
from georesolve.io.result_files import TableRows
from georesolve.io.result_formats import ARROW, JSON, PARQUET, shortened, up_to
from georesolve.io.source_files import SourceFailed, SourceFiles
from georesolve.io.storage import Folder, is_url
from georesolve.service import errors, pools
from georesolve.service.auth.access import OwnStore, own
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Checks
from georesolve.service.http import examples, openapi
from georesolve.service.http.answers import File, file_response, refuse_unmatched, saved_as
from georesolve.service.http.bodies import media_type
from georesolve.service.http.parameters import Renaming, Title, parameters_of
from georesolve.service.links import Link, base_of, links_of_page
from georesolve.service.receiving.ingest import Ingest
from georesolve.service.receiving.models import FeatureCollection, TableParameters
from georesolve.service.receiving.uploads import receive_body, receive_form
from georesolve.service.store.listing import Page
from georesolve.service.store.names import Condition
from georesolve.service.store.quotas import Quotas
from georesolve.service.store.rows import DatasetRow
from georesolve.service.store.store import Store

router = APIRouter(tags=["datasets"])

DatasetId = Annotated[
    str,
    Path(
        description="the id of the dataset, or its name: `places`, or a version of it: `places@3`",
        examples=[examples.DATASET_ID],
    ),
]
DatasetName = Annotated[
    str,
    Path(
        description="a letter, then up to 63 letters, digits, `.`, `_` and `-`, all lower case",
        openapi_examples={"places": {"value": "places"}},
    ),
]

_LAYERS = ("application/geopackage+sqlite3", "application/vnd.flatgeobuf", "application/zip")
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            # First what the documentation in a browser can send as it stands.
            "text/csv": {"schema": {"type": "string"}, "example": examples.CITIES_CSV},
            "application/geo+json": {
                "schema": openapi.schema_of(FeatureCollection),
                "example": examples.CITIES_GEOJSON,
            },
            PARQUET.media_type: openapi.BYTES,
            ARROW.media_type: openapi.BYTES,
            **dict.fromkeys(_LAYERS, openapi.BYTES),
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {
                            "description": "a file, or as a text the address of Parquet files",
                            "type": "string",
                            "format": "binary",
                        }
                    },
                },
                "example": {"file": examples.CITIES_CSV},
            },
        },
    }
}


class DatasetParameters(TableParameters):
    """How to read a dataset, and what to call it."""

    name: Title | None = Field(
        None, description="what lists show: without it the name of the file; it is no address"
    )


class DatasetInfo(BaseModel):
    """A registered dataset."""

    id: str
    name: str = Field(
        description="what it is called: the name of the file that it was made of, or what its "
        "client says"
    )
    names: list[str] = Field(
        description="what else stands for it: `places` where it is the newest version of that "
        "name, `places@3` as long as it is kept"
    )
    rows: int
    invalid_rows: int
    bbox: Annotated[list[float], Field(min_length=4, max_length=4)] | None = Field(
        description="west, south, east and north of its valid points, in degrees"
    )
    columns: list[str]
    lat: str
    lon: str
    id_column: str | None
    geometry: str | None = Field(
        None, description="the column of its lines and polygons, if some rows are any"
    )
    sha256: str
    size_bytes: int = Field(description="of its file, as the service keeps it")
    created: str
    expires: str | None = Field(description="when it is removed unless it is used again")
    owner: str | None = Field(
        None, description="the name of the key that it was made with, told to the role admin"
    )
    is_own: bool = Field(description="whether the key that asks made it: `names` are its own then")

    @classmethod
    def of(cls, row: DatasetRow, names: list[str], owners: dict[str, str], store: Store) -> Self:
        """What a client is told of a dataset; of its owner, if the client is told, the name."""
        owner = owners.get(row.owner)
        dataset = row.dataset
        # Of a body that is a file nobody has told a name.
        name = row.name or next(iter(names), row.id)
        own: dict[str, Any] = {"names": names, "id_column": dataset.id, "owner": owner}
        own["sha256"] = dataset.sha256
        own["geometry"] = dataset.outlines and dataset.outlines.column
        own["name"], own["is_own"] = name, row.owner == (store.owner or "")
        return cls.model_validate(vars(dataset) | vars(row) | own)


class DatasetList(BaseModel):
    """Registered datasets, the newest first."""

    datasets: list[DatasetInfo]
    used_bytes: int = Field(
        description="bytes that the datasets and results of the key take, and unfinished jobs are "
        "expected to"
    )
    quota_bytes: int | None = Field(description="how many they may; null without keys")
    links: list[Link]


_MOST_ROWS = 100
_MOST_BYTES = 16 << 20
_ROWS = {"example": [{"id": "Frankfurt", "lat": 50.11, "lon": 8.68}]}
_ETAG = {"ETag": openapi.header("strong: its sha256")}
_REGISTERED: openapi.Answers = {
    200: {
        "description": "the same content again, or a new version",
        "headers": _ETAG,
        "model": DatasetInfo,
    },
    201: {"description": "registered", "headers": openapi.created("the dataset") | _ETAG},
}
_REGISTERS: dict[str, Any] = {
    "status_code": 201,
    "responses": _REGISTERED,
    "openapi_extra": _UPLOAD | openapi.CONTENT_DIGEST,
}


OwnLibrary = Annotated[Library, own("library")]


@router.post("/datasets", summary="Register a dataset", **_REGISTERS)
async def register_dataset(
    request: Request,
    response: Response,
    library: OwnLibrary,
    parameters: Annotated[DatasetParameters, Query()],
) -> DatasetInfo:
    """Register a point set: the body is a file in any input format, or a form with `file`.

    The options may also be fields of the form. Where `file` is a text, it is the
    address of Parquet files below a prefix that the operator listed
    (`s3://bucket/folder/*.parquet`). These stay where they are; a job fails if one of them has
    changed since.

    201 and its `Location`; 200 when the same content is registered already, which a `name` renames.
    """
    row, is_new = await _registered(request, library, parameters)
    if not is_new:
        response.status_code = 200
    here = f"{base_of(request)}/datasets/{row.id}"
    return await pools.database(_info, row, library.store, response, here)


@router.put(
    "/datasets/{id}", summary="Register a dataset under a name, or replace it", **_REGISTERS
)
async def put_dataset(
    id: DatasetName,
    condition: Annotated[Condition, Header()],
    request: Request,
    response: Response,
    library: OwnLibrary,
    parameters: Annotated[DatasetParameters, Query()],
) -> DatasetInfo:
    """Register a point set as the newest version of a name; the body is as for `POST /datasets`.

    From then on `dataset:places` stands for it, in one step: a job that was accepted before keeps
    the version that it was accepted with. The version before, `places@1`, is kept for as long as a
    dataset that is not used.
    """
    # Before the body comes, and again when the name is replaced.
    names = library.store.names
    await pools.database(names.refuse_changed, id, condition)
    row, is_new = await _registered(request, library, parameters, called=id)
    try:
        if not await pools.database(names.put, id, row.id, condition, library.expires()):
            response.status_code = 200
    except errors.PreconditionFailed:
        if is_new and row.expires is not None:
            # Unless another request registered it, too. What stays, as where a bucket is silent,
            # expires.
            with suppress(errors.Problem, OSError):
                await library.store.files(library.discard, row.id, expires=row.expires)
        raise
    row = await pools.database(library.get, row.id)
    here = f"{base_of(request)}/datasets/{id}"
    return await pools.database(_info, row, library.store, response, here)


async def _registered(
    request: Request, library: Library, parameters: DatasetParameters, *, called: str = ""
) -> tuple[DatasetRow, bool]:
    """The dataset that a request brings, registered, and whether its content is new."""
    ingest: Ingest = request.state.service.ingest
    quotas: Quotas = request.state.service.quotas
    async with ingest.folder() as folder:
        if media_type(request.headers) == "multipart/form-data":
            fields = DatasetParameters.model_fields
            form = await receive_form(request, folder.path, ["file"], fields)
            query = request.query_params.multi_items()
            parameters = parameters_of(DatasetParameters, query, form.fields)
            upload = form.parts["file"]
            if not isinstance(upload, str):
                upload.file = upload.name or "file"
        else:
            upload = await receive_body(request, folder.path)
        reading, owner = parameters.reading(), library.store.owner or ""
        if not isinstance(upload, str):
            made = await ingest.from_upload(upload, reading, folder.path, owner)
        elif is_url(upload):
            made = await pools.remote(owner, ingest.from_href, upload.strip(), reading, "file")
        else:
            raise errors.InvalidRequest(
                "the part 'file' of the form is a text: send a file, which has a filename in its "
                "Content-Disposition, or an address such as s3://bucket/folder/*.parquet"
            )
        made = replace(made, name=parameters.name or made.name)
        admit = partial(quotas.refuse_without_room, library.store, made.dataset.size_bytes)
        row, is_new = await library.store.files(library.register, made, admit)
        # What a file happens to be called renames nothing.
        name = parameters.name or row.name or made.name or called
        if name != row.name:
            await pools.database(library.store.rename_dataset, row.id, name)
        return replace(row, name=name), is_new


def _info(row: DatasetRow, store: Store, response: Response, location: str = "") -> DatasetInfo:
    response.headers["ETag"] = f'"{row.dataset.sha256}"'
    response.headers.update({"Location": location} if location else {})
    return DatasetInfo.of(row, store.names.of([row.id])[row.id], store.owners(), store)


@router.get("/datasets", summary="All registered datasets")
@pools.database.handler
def get_datasets(request: Request, store: OwnStore, page: Annotated[Page, Query()]) -> DatasetList:
    """The registered datasets, the newest first; the link `next` leads on when there are more."""
    rows, quotas = store.registered_datasets(page), request.state.service.quotas
    names, owners = store.names.of([row.id for row in rows]), store.owners()
    return DatasetList(
        datasets=[DatasetInfo.of(row, names[row.id], owners, store) for row in rows[: page.limit]],
        used_bytes=store.kept_bytes(),
        quota_bytes=quotas.bytes_of(store),
        links=links_of_page(request, page.next_cursor(rows)),
    )


@router.get(
    "/datasets/{id}",
    summary="A dataset",
    responses={200: {"description": "the dataset", "headers": _ETAG}},
    openapi_extra=openapi.IF_MATCH,
)
@pools.database.handler
def get_dataset(
    id: DatasetId, library: OwnLibrary, request: Request, response: Response
) -> DatasetInfo:
    """A registered dataset: its rows, columns, extent, checksum and when it expires."""
    # No 304: the tag is that of the points, and names and the expiry change without them.
    return _info(_matching(id, library, request), library.store, response)


def _matching(id: str, library: Library, request: Request) -> DatasetRow:
    """The dataset with this id or name; PreconditionFailed if If-Match names other content."""
    row = library.get(id)
    refuse_unmatched(request, row.dataset.sha256)
    return row


@router.patch(
    "/datasets/{id}",
    summary="Change what a dataset is called",
    openapi_extra=openapi.IF_MATCH,
)
@pools.database.handler
def rename_dataset(
    id: DatasetId, renaming: Renaming, library: OwnLibrary, request: Request, response: Response
) -> DatasetInfo:
    """Call a dataset something else: lists show it, and its id and `names` stay."""
    row = _matching(id, library, request)
    library.store.rename_dataset(row.id, renaming.name)
    return _info(library.get(row.id), library.store, response)


@router.get(
    "/datasets/{id}/data.parquet",
    summary="The points of a dataset",
    **openapi.file_route({PARQUET.media_type: openapi.BYTES}, "the points"),
)
async def download_dataset(id: DatasetId, library: OwnLibrary, request: Request) -> Response:
    """The dataset as the service keeps it: Parquet with float64 coordinates.

    A download is a use: the dataset expires later.
    """
    store = library.store
    row = await store.files(library.use, id)
    if isinstance(row.dataset.file, SourceFiles):
        raise errors.NoSuchDataset(
            f"the points of the dataset {id!r} are not kept here: they lie at "
            f"{row.dataset.file.href}"
        )
    sha256, place, name = row.dataset.sha256, store.datasets_place, f"{row.id}.parquet"
    look = partial(place.look, name)
    try:
        if isinstance(place, Folder):
            path = place.path / name
            key = f"{row.id}/{sha256}"
            checks: Checks = request.state.service.results.checks
            if not await checks.is_whole(key, look, lambda: sha256_of(path) == sha256):
                await store.files(library.whole, row.id, every_byte=True)
        found = await store.files(look)
        opened, media_type = partial(place.open, name), PARQUET.media_type
        file = File(opened, found.size, sha256, found, media_type, "data.parquet")
        # That of a file has an ending; a version is none.
        called = re.sub(r"\.[A-Za-z]\w*$", "", row.name) or row.id
        headers = saved_as(file.name, f"{called}.parquet")
        return await file_response(store.files, file, request, headers)
    except FileNotFoundError:
        raise errors.NoSuchDataset(f"the dataset {id!r} was removed meanwhile") from None


@router.get(
    "/datasets/{id}/rows",
    summary="The first rows of a dataset",
    **openapi.route(
        {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}, **_ROWS}},
        "the rows, as objects",
    ),
)
async def get_first_rows(
    id: DatasetId,
    library: OwnLibrary,
    most: Annotated[int, Query(ge=1, le=_MOST_ROWS, description="so many at most")] = 10,
) -> Response:
    """The first rows of a dataset with all of its columns, to look at.

    Of a text they have the first 1000 characters. Of a geometry with more than 50 points they say
    how many it has: `Polygon of 1234 points`.
    """
    store = library.store
    row = await store.files(library.whole, id)

    def read() -> bytes | None:
        rows = map(shortened, first_rows(row.dataset, most))
        table = pa.Table.from_batches(rows) if row.dataset.rows else pa.table({})
        assert JSON.pieces is not None, "it is no Parquet"
        # Rows as they stand have no geometry that other sets would have to give.
        return up_to(_MOST_BYTES, JSON.pieces(TableRows(table), lambda role: row.dataset))

    try:
        # As they become texts they take Python's lock.
        threads = pools.remote if row.dataset.lies_elsewhere else pools.texts
        content = await threads(store.owner or "", read)
    except SourceFailed as failed:
        raise errors.DatasetDamaged(str(failed)) from None
    except (OSError, pa.ArrowException):
        # It may be damaged, or was removed: then that is what the client is told.
        await store.files(library.whole, row.id, every_byte=True)
        raise
    if content is None:
        raise errors.TooLargeForFormat(
            f"as JSON the rows take more than {_MOST_BYTES} bytes: ask for fewer than {most} with "
            f"most, or take /datasets/{row.id}/data.parquet"
        )
    return Response(content, media_type="application/json")


@router.delete(
    "/datasets/{id}", summary="Remove a dataset", status_code=204, openapi_extra=openapi.IF_MATCH
)
async def remove_dataset(id: DatasetId, library: OwnLibrary, request: Request) -> None:
    """Remove a dataset; results made with it stay. By its name, all versions of that."""
    await pools.database(_matching, id, library, request)
    await library.store.files(library.remove, id)
