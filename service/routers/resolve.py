"""`/resolve`: two point sets in, the nearest reference of every observation out."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.context import ServiceContext
from service.execution import answer, refuse_unready, terms_of
from service.inputs import ROLES, inputs_of_body
from service.models import InlineRequest, MatchParameters, StatusInfo
from service.representations import FORMATS
from service.schemas import schema_of

router = APIRouter(tags=["resolve"])

_FILE = {"type": "string", "format": "binary", "description": "a file, or the text dataset:<id>"}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": list(ROLES),
                    "properties": dict.fromkeys(ROLES, _FILE),
                }
            },
            "application/json": {
                "schema": schema_of(InlineRequest),
                "example": {
                    "observations": {"lat": [52.52, 48.86], "lon": [13.4, 2.35]},
                    "references": {"lat": [50.11, 47.37], "lon": [8.68, 8.54]},
                },
            },
        },
    }
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "the result", "content": {one.media_type: {} for one in FORMATS}},
    201: {
        "description": "accepted, with `Prefer: respond-async`, or when `wait=N` seconds are over",
        "model": StatusInfo,
    },
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
    or, with `Prefer: respond-async`, a job to ask again. With `Prefer: wait=N` it is the result
    if that is there within N seconds, and else the job.
    """
    with terms_of(request, service) as terms, service.ingest.folder() as folder:
        refuse_unready(service, terms.preference)
        inputs = await inputs_of_body(request, service, parameters, folder)
        return await answer(request, service, inputs, parameters, terms)
