"""`/resolve`: two point sets in, the nearest reference of every observation out."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from georesolve.service.context import ServiceContext
from georesolve.service.description import examples
from georesolve.service.description.operations import TAKEN, headers, matches_answer
from georesolve.service.description.schemas import as_texts, schema_of
from georesolve.service.resolve.inputs import ROLES, sent_by_form
from georesolve.service.resolve.models import JobParameters
from georesolve.service.resolve.resolution import refuse_unready, resolve
from georesolve.service.resolve.responses import gone, response_of
from georesolve.service.resolve.terms import Terms

router = APIRouter(tags=["resolve"])

_FILE = {
    "type": "string",
    "format": "binary",
    "description": "a file, or the text dataset:<id> or upload:<id>",
}
_OPTIONS = schema_of(JobParameters)["properties"]
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "title": "ResolveForm",
                    "type": "object",
                    "required": list(ROLES),
                    "properties": dict.fromkeys(ROLES, _FILE) | as_texts(_OPTIONS),
                    "additionalProperties": False,
                },
                "example": dict(examples.FILES),
            }
        },
    }
}


@router.post(
    "/resolve",
    operation_id="resolve",
    summary="The nearest reference of every observation",
    response_class=Response,
    responses=matches_answer("the result, in the format that the header Accept likes best") | TAKEN,
    openapi_extra=_FORM | headers("Prefer", "Idempotency-Key"),
)
async def resolve_files(request: Request, service: ServiceContext) -> Response:
    """Find the nearest reference of every observation.

    Observations and references are parts of a form, each a file in any input format or the text
    `dataset:<id>` or `upload:<id>`. Options are further fields of the form, or parameters of the
    query. Of columns to carry, one field is a list with commas, or `*` for all; of several fields
    of that name, each is a name as it stands.

    The answer is the result as Parquet, or, with `Prefer: respond-async`, a job to ask again. With
    `Prefer: wait=N` it is the result if that is there within N seconds, and else the job. With
    `output` it is a link to where the result lies.
    """
    terms = Terms.of(request.headers)
    await refuse_unready(service, terms)
    async with service.ingest.folder() as folder:
        asked = await (await sent_by_form(request, service, folder)).asked(service, folder)
        terms = terms.received()
        found = await resolve(service, asked, terms, partial(gone, request))
        return await response_of(request, service, found, terms)
