"""`/resolve`: two point sets in, the nearest reference of every observation out."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from georesolve.service.context import ServiceContext
from georesolve.service.description import examples
from georesolve.service.description.answers import TAKEN, matches_answer
from georesolve.service.description.refusals import JOBS, TABLES, refusals
from georesolve.service.description.requests import IDEMPOTENCY_KEY, PREFER, headers
from georesolve.service.description.schemas import schema_of
from georesolve.service.errors import NotAcceptable, ResultTooLarge
from georesolve.service.models import InlineRequest, MatchParameters
from georesolve.service.web.execution import answer, refuse_unready, terms_of
from georesolve.service.web.inputs import ROLES, inputs_of_body

router = APIRouter(tags=["resolve"])

_FILE = {"type": "string", "format": "binary", "description": "a file, or the text dataset:<id>"}
_FORM = {
    "schema": {
        "type": "object",
        "required": list(ROLES),
        "properties": dict.fromkeys(ROLES, _FILE),
    },
    "example": dict.fromkeys(ROLES, f"dataset:{examples.DATASET_ID}"),
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            # First what the documentation in a browser can send as it stands.
            "application/json": {"schema": schema_of(InlineRequest), "example": examples.SETS},
            "multipart/form-data": _FORM,
        },
    }
}


@router.post(
    "/resolve",
    operation_id="resolve",
    summary="The nearest reference of every observation",
    response_class=Response,
    responses=matches_answer("the result, in the format that the header Accept likes best")
    | TAKEN
    | refusals("/resolve", *TABLES, *JOBS, NotAcceptable, ResultTooLarge),
    openapi_extra=_BODY | headers(PREFER, IDEMPOTENCY_KEY),
)
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
    with terms_of(request, service) as terms:
        await refuse_unready(request, service, terms)
        async with service.ingest.folder() as folder:
            inputs = await inputs_of_body(request, service, parameters, folder)
            return await answer(request, service, inputs, parameters, terms, "/query")
