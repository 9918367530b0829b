"""`/resolve`: two point sets in, the nearest reference of every observation out."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from service.bounds import media_type
from service.columns import listed
from service.context import Service, ServiceContext
from service.errors import InvalidRequest, NotReady, TooLarge, UnsupportedFormat, invalid_request
from service.ingest import Ingested, Upload
from service.matching import accept_job
from service.models import InlineRequest, MatchParameters, StatusInfo
from service.results import PARQUET, result_response
from service.store import LIVE, DatasetRow

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
    text `dataset:<id>`; or JSON with arrays by column name. The answer is the result as Parquet,
    or, with `Prefer: respond-async`, a job to ask again.
    """
    respond_async = _prefers_async(request)
    if not respond_async and service.supervisor.cluster is None:
        raise NotReady(
            f"{service.supervisor.trouble}: try again, or send 'Prefer: respond-async'",
            headers={"Retry-After": "2"},
        )
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
    if job.status in LIVE:
        raise NotReady(
            "the service is stopping; the job goes on when it is back",
            headers={"Retry-After": "10", "Link": f'</jobs/{id}>; rel="monitor"'},
        )
    return result_response(service.store, job, request)


def _prefers_async(request: Request) -> bool:
    # Several headers, several preferences in each, parameters after a semicolon: RFC 7240.
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return "respond-async" in {p.partition(";")[0].strip().lower() for p in preferences}


async def _accept(
    request: Request, service: Service, parameters: MatchParameters, respond_async: bool
) -> str:
    """Make or find both datasets and accept a job with them; nothing is left of a refused one."""
    kept: list[DatasetRow] = []
    try:
        with service.ingest.folder() as folder:
            ingested = await _ingest_both(request, service, parameters, folder)
            rows = ingested[0].dataset.rows * parameters.k + ingested[1].dataset.rows
            if not respond_async and rows > service.settings.sync_rows:
                raise TooLarge(
                    f"{rows} rows of both sets together (observations k times) are more than the "
                    f"limit of {service.settings.sync_rows} for an answer at once: "
                    "send the header 'Prefer: respond-async' and ask the job"
                )
            for one in ingested:
                if isinstance(one, Ingested):
                    kept.append(await asyncio.to_thread(service.library.keep, one))
                else:
                    kept.append(one)
            observations, references = kept
            return await asyncio.to_thread(
                accept_job, service.store, observations, references, parameters
            )
    except BaseException:
        for row in kept:
            service.library.release(row.id)
        raise


async def _ingest_both(
    request: Request, service: Service, parameters: MatchParameters, folder: Path
) -> list[Ingested | DatasetRow]:
    given = media_type(request.headers)
    if given == "multipart/form-data":
        async with request.form(max_files=2, max_fields=2) as form:
            names = [name for name, _ in form.multi_items()]
            if sorted(names) != sorted(_ROLES):
                raise InvalidRequest(
                    f"the form must have the parts {' and '.join(_ROLES)}, once each; it has "
                    f"{listed(names)} (options are query parameters)"
                )
            return [await _from_part(form, role, service, parameters, folder) for role in _ROLES]
    if given == "application/json":
        try:
            inline = InlineRequest.model_validate_json(await request.body())
        except ValidationError as error:
            raise invalid_request(error.errors(include_url=False, include_input=False)) from None
        return [
            await _from_json(getattr(inline, role), role, service, parameters, folder)
            for role in _ROLES
        ]
    raise UnsupportedFormat(
        f"the media type {given[:80] or 'none'} is not supported here: send multipart/form-data "
        "with the parts 'observations' and 'references', or application/json"
    )


async def _from_part(
    form: FormData, role: str, service: Service, parameters: MatchParameters, folder: Path
) -> Ingested | DatasetRow:
    part = form[role]
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
