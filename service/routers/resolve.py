"""`/resolve`: two point sets in, the nearest reference of every observation out."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from service.context import Service, ServiceContext
from service.errors import InvalidRequest, TooLarge
from service.ingest import Ingested, Upload
from service.matching import accept_job
from service.models import InlineRequest, MatchParameters, StatusInfo
from service.results import PARQUET, result_response
from service.store import DatasetRow

router = APIRouter(tags=["resolve"])

_ROLES = ("observations", "references")
_FILE = {"type": "string", "format": "binary", "description": "a file, or the text dataset:<id>"}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": list(_ROLES),
                    "properties": dict.fromkeys(_ROLES, _FILE),
                }
            },
            "application/json": {
                "schema": InlineRequest.model_json_schema(),
                "example": {
                    "observations": {"lat": [52.52, 48.86], "lon": [13.4, 2.35]},
                    "references": {"lat": [50.11, 47.37], "lon": [8.68, 8.54]},
                },
            },
        },
    }
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "the result", "content": {PARQUET: {}}},
    201: {"description": "accepted, with `Prefer: respond-async`", "model": StatusInfo},
}


@router.post("/resolve", response_class=Response, responses=_ANSWERS, openapi_extra=_BODY)
async def resolve(
    request: Request,
    service: ServiceContext,
    parameters: Annotated[MatchParameters, Query()],
) -> Response:
    """Find the nearest reference of every observation.

    Observations and references are a form with two parts, each a file in any input format or the
    text `dataset:<id>`; or JSON with arrays by column name. The answer is the result as Parquet, or,
    with `Prefer: respond-async`, a job to ask again.
    """
    prefers = request.headers.get("prefer", "").replace(" ", "").lower().split(",")
    respond_async = "respond-async" in prefers
    id = await _accept(request, service, parameters, respond_async)
    service.supervisor.start(id)
    if respond_async:
        job = await asyncio.to_thread(service.store.job, id)
        assert job is not None, "a job just accepted is in the store"
        return JSONResponse(
            StatusInfo.of(job).model_dump(),
            status_code=201,
            headers={"Location": f"/jobs/{id}", "Preference-Applied": "respond-async"},
        )
    await service.supervisor.finished(id)
    job = await asyncio.to_thread(service.store.job, id)
    assert job is not None, "a job just finished is in the store"
    return result_response(service.store, job, request)


async def _accept(
    request: Request, service: Service, parameters: MatchParameters, respond_async: bool
) -> str:
    """Make or find both datasets and accept a job with them; nothing is left of a refused one."""
    kept: list[DatasetRow] = []
    try:
        with service.ingest.folder() as folder:
            ingested = await _ingest_both(request, service, parameters, folder)
            rows = sum(one.dataset.rows for one in ingested)
            if not respond_async and rows > service.settings.sync_rows:
                raise TooLarge(
                    f"{rows} rows of both sets together are more than the limit of "
                    f"{service.settings.sync_rows} for an answer at once: "
                    "send the header 'Prefer: respond-async' and ask the job"
                )
            for one in ingested:
                if isinstance(one, DatasetRow):
                    kept.append(one)
                else:
                    kept.append(await service.library.keep(one, registered=False))
            return accept_job(service.store, kept[0], kept[1], parameters)
    except BaseException:
        for row in kept:
            service.library.release(row.id)
        raise


async def _ingest_both(
    request: Request, service: Service, parameters: MatchParameters, folder: Path
) -> list[Ingested | DatasetRow]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        async with request.form(max_files=2, max_fields=2) as form:
            return [await _from_part(form, role, service, parameters, folder) for role in _ROLES]
    if media_type == "application/json":
        try:
            inline = InlineRequest.model_validate_json(await request.body())
        except ValidationError as error:
            errors = [
                {"detail": e["msg"], "pointer": "/" + "/".join(str(part) for part in e["loc"])}
                for e in error.errors()
            ]
            raise InvalidRequest(f"{errors[0]['pointer']}: {errors[0]['detail']}", errors) from None
        return [
            await _from_json(getattr(inline, role), role, service, parameters, folder)
            for role in _ROLES
        ]
    raise InvalidRequest(
        f"the media type {media_type or 'none'} is not supported here: send multipart/form-data "
        "with the parts 'observations' and 'references', or application/json"
    )


async def _from_part(
    form: FormData, role: str, service: Service, parameters: MatchParameters, folder: Path
) -> Ingested | DatasetRow:
    part = form.get(role)
    if part is None:
        raise InvalidRequest(f"the form has no part {role!r}; it has {', '.join(form) or 'none'}")
    if isinstance(part, str):
        return _registered(part, role, service)
    assert isinstance(part, UploadFile)
    upload = Upload(part.file, part.content_type, part.filename, role)
    return await service.ingest.from_upload(
        upload, parameters.names(), parameters.on_invalid, folder
    )


async def _from_json(
    value: dict[str, list[Any]] | str,
    role: str,
    service: Service,
    parameters: MatchParameters,
    folder: Path,
) -> Ingested | DatasetRow:
    if isinstance(value, str):
        return _registered(value, role, service)
    return await service.ingest.from_arrays(
        value, parameters.names(), parameters.on_invalid, folder, f"/{role}"
    )


def _registered(text: str, role: str, service: Service) -> DatasetRow:
    kind, _, id = text.strip().partition(":")
    if kind != "dataset" or not id:
        raise InvalidRequest(f"{role}: {text[:80]!r} is neither a file nor 'dataset:<id>'")
    return service.library.get(id)
