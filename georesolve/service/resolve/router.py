"""`/resolve`: two point sets in, the nearest reference of every observation out, or a job."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from georesolve.service.context import Service, ServiceContext
from georesolve.service.description import examples
from georesolve.service.description.operations import TAKEN, headers, matches_answer
from georesolve.service.description.schemas import as_texts, schema_of
from georesolve.service.errors import NotReady
from georesolve.service.jobs.models import StatusInfo
from georesolve.service.links import base_of
from georesolve.service.resolve.inputs import ROLES, sent_by_form
from georesolve.service.resolve.lookup import Matches
from georesolve.service.resolve.models import JobParameters
from georesolve.service.resolve.resolution import refuse_unready, resolve
from georesolve.service.resolve.terms import Terms
from georesolve.service.results.response import result_response
from georesolve.service.store.rows import LIVE, JobRow

router = APIRouter(tags=["resolve"])

_FILE = {
    "type": "string",
    "format": "binary",
    "description": "a file, or the text dataset:<id>",
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
    `dataset:<id>`. Options are further fields of the form, or parameters of the
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


async def gone(request: Request) -> NoReturn:
    """Wait until the client has gone; then raise ClientDisconnect."""
    # The body has been read: what comes now is that the client has gone.
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


async def response_of(
    request: Request, service: Service, found: Matches | JobRow, terms: Terms
) -> Response:
    """The matches, the result of the job if it is there in time, or 201 with the job.

    Raises
    ------
    NotReady
        When the service stops before there is a result, and the client takes no job.
    Problem
        The job's own, when it failed.
    """
    if isinstance(found, Matches):
        response = matches_response(found)
        response.headers.update(terms.applied())
        return response
    if found.status not in LIVE and terms.waits:
        # The result may be there, and not yet in the format that was asked for.
        with suppress(TimeoutError):
            async with asyncio.timeout(terms.seconds_left()):
                response = await result_response(service, found, request)
            response.headers.update(terms.applied())
            return response
    url = f"{base_of(request)}/jobs/{found.id}"
    if terms.takes_a_job:
        status = StatusInfo.of(found, base_of(request), service.cluster.waiting)
        headers = {"Location": url, **terms.applied(by_job=True)}
        return JSONResponse(status.model_dump(exclude_none=True), 201, headers)
    raise NotReady(
        "the service is stopping; the job goes on when it is back",
        headers={"Retry-After": "10", "Link": f'<{url}>; rel="monitor"'},
    )


def matches_response(found: Matches) -> Response:
    """The matches of a small request."""
    timing = ", ".join(f"{stage};dur={1e3 * value:.2f}" for stage, value in found.seconds.items())
    return Response(
        found.content,
        media_type=found.format.media_type,
        headers={
            "ETag": f'"{found.sha256}"',
            "Content-Disposition": f'attachment; filename="{found.format.name}"',
            "Vary": "Accept",
            "Server-Timing": timing,
        },
    )
