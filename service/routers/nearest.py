"""`/nearest`: a few observations in, their nearest references out, at once and without a job."""

from pathlib import Path

from fastapi import APIRouter, Request, Response

from georesolve.intake.representations import ARROW, JSON
from georesolve.service.context import Service, ServiceContext
from georesolve.service.description import examples
from georesolve.service.description.answers import matches_answer
from georesolve.service.description.refusals import TABLES, refusals
from georesolve.service.description.requests import json_request
from georesolve.service.errors import (
    NotAcceptable,
    NotReady,
    QueueFull,
    ResultTooLarge,
    TooLarge,
    TooManyJobs,
)
from georesolve.service.models import NearestInputs
from georesolve.service.web.bounds import media_type
from georesolve.service.web.inputs import (
    Asked,
    asked_by_json,
    asked_by_stream,
    json_content,
    parsed,
)
from georesolve.service.web.lookup import lookup_response, refuse_without_cluster, why_too_large
from georesolve.service.web.negotiation import wanted_format
from georesolve.service.web.options import refuse_query
from georesolve.workers.express import NotAtOnce, NotResident

router = APIRouter(tags=["resolve"])

_BEYOND = "send files to /resolve, or, for a job, an execution to /processes/nearest/execution"


@router.post(
    "/nearest",
    operation_id="nearest",
    summary="The nearest references of a few observations, at once",
    response_class=Response,
    responses=matches_answer("the matches, in the format that Accept likes best", first=JSON)
    | refusals(
        "/nearest", *TABLES, NotAcceptable, ResultTooLarge, TooManyJobs, QueueFull, NotReady
    ),
    openapi_extra=json_request((NearestInputs, examples.SETS | examples.OPTIONS)),
)
async def find_nearest(request: Request, service: ServiceContext) -> Response:
    """Find the nearest references of a few observations, in milliseconds.

    The body is JSON: both point sets, each as arrays by column name, GeoJSON or a registered
    dataset, and beside them the options. The answer is JSON if `Accept` wants nothing else. No job
    is made, and nothing is kept. What is larger than a small search (observations times `k` beyond
    65 536, more than an estimated 50 ms) is refused with 413: it goes to `/resolve`.

    The observations may also be an Arrow stream as the body (`Content-Type:
    application/vnd.apache.arrow.stream`), with `references=dataset:<id>` and the options in the
    query.
    """
    format = wanted_format(request.headers, JSON)
    refuse_without_cluster(service)
    async with service.ingest.folder() as folder:
        asked = await _asked(request, service, folder)
        asked.check()
        if why := why_too_large(service, asked):
            raise TooLarge(f"{why}: {_BEYOND}")
        try:
            return await lookup_response(service, asked, format)
        except NotResident as error:
            raise NotReady(f"{error}: try again", headers={"Retry-After": "2"}) from None
        except NotAtOnce as error:
            raise TooLarge(f"{error}: {_BEYOND}") from None


async def _asked(request: Request, service: Service, folder: Path) -> Asked:
    if media_type(request.headers) == ARROW.media_type:
        return await asked_by_stream(request, service, folder)
    refuse_query(request)
    async with json_content(request, service) as content:
        given = await parsed(service, content, NearestInputs)
        return await asked_by_json(service, given, folder)
