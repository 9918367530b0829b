"""`/resolve`, `/nearest`, `/within`: two point sets in, the matches of every observation out."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import signature
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.routing import request_response

from georesolve.io.result_formats import ARROW, JSON
from georesolve.options import FILTERS
from georesolve.query import Question
from georesolve.service import errors
from georesolve.service.auth.access import own
from georesolve.service.http import examples, openapi
from georesolve.service.http.answers import unchanged, wanted_format
from georesolve.service.http.bodies import media_type
from georesolve.service.http.parameters import parameters_of, refuse_query
from georesolve.service.jobs.models import StatusInfo
from georesolve.service.links import base_of
from georesolve.service.receiving.ingest import Folder
from georesolve.service.resolve import outcome, requests
from georesolve.service.resolve.context import Service
from georesolve.service.resolve.models import MatchInputs, MatchParameters, ResolveForm
from georesolve.service.resolve.sets import Asked, asked_by
from georesolve.service.results.models import matches_route
from georesolve.service.store.rows import LIVE, JobRow


class _OfRequest(APIRoute):
    """A route whose handler may take the request alone: then FastAPI has nothing to find for it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if [*signature(self.endpoint).parameters] == ["request"]:
            self.app = request_response(self.endpoint)


router = APIRouter(tags=["resolve"], route_class=_OfRequest)

ServiceContext = Annotated[Service, own()]

TAKEN: openapi.Answers = {
    201: {
        "description": "accepted, with `Prefer: respond-async`, or when `wait=N` seconds are over",
        "model": StatusInfo,
        "headers": openapi.created("the job"),
    }
}
"""The answer to a request that became a job."""
_FORM = openapi.form_request(
    ResolveForm,
    {**openapi.BYTES["schema"], "description": "a file, or the text dataset:<id>"},
    examples.FILES,
)


_POINT = ("lat", "lon", "references")
_DEGREES = "degrees, WGS 84"
_MATCHES = "the matches, in the format that Accept likes best"
_AT_ONCE = matches_route(_MATCHES, {}, first=JSON)


@router.post(
    "/nearest",
    summary="The nearest references of a few observations, at once",
    **_AT_ONCE,
    openapi_extra=openapi.json_request((MatchInputs, examples.SETS | examples.OPTIONS)),
)
async def nearest(request: Request) -> Response:
    """Find the nearest references of a few observations, in milliseconds.

    The body is JSON: both point sets, each as arrays by column name, records, GeoJSON or a
    registered dataset, and beside them the options. The answer is JSON if `Accept` wants nothing
    else. No job is made, and nothing is kept. What is larger than a small search (observations
    times `k` beyond 65 536, more than an estimated 50 ms) is refused with 413: it goes to
    `/resolve`.

    The observations may also be an Arrow stream as the body (`Content-Type:
    application/vnd.apache.arrow.stream`), with `references=dataset:<id>` and the options in the
    query.
    """
    return await _at_once(request, "nearest")


@router.get(
    "/nearest",
    operation_id="nearestOfPoint",
    summary="The nearest references of one point, at once",
    **matches_route(_MATCHES, openapi.UNCHANGED, first=JSON),
    openapi_extra={
        "parameters": [
            *openapi.query(MatchParameters, without=("lat", "lon", "question", *FILTERS))[
                "parameters"
            ],
            *openapi.IF_NONE_MATCH["parameters"],
        ]
    },
)
async def nearest_of_point(
    request: Request,
    lat: Annotated[
        float, Query(ge=-90, le=90, description=_DEGREES, json_schema_extra={"example": 52.52})
    ],
    lon: Annotated[
        float, Query(ge=-180, le=360, description=_DEGREES, json_schema_extra={"example": 13.4})
    ],
    references: Annotated[
        str, Query(description="a registered dataset: its name or id, or `dataset:` before it")
    ],
) -> Response:
    """Find the nearest references of one point: `/nearest?lat=52.5&lon=13.4&references=places`.

    It is answered as a POST of one observation. The options are further parameters; which columns
    of the references are read `reference_lat` and the like say.
    """
    name = references if ":" in references else f"dataset:{references}"
    given = {"observations": {"lat": [lat], "lon": [lon]}, "references": name}
    query = [one for one in request.query_params.multi_items() if one[0] not in _POINT]
    inputs = parameters_of(MatchInputs, query, given=given)
    response = await _at_once(request, "nearest", inputs)
    # To be kept and asked again with its ETag: the dataset may have a new version.
    response.headers["Cache-Control"] = "private, no-cache"
    return unchanged(request, response.headers) or response


@router.post(
    "/within",
    summary="All references within a distance of a few observations, at once",
    **_AT_ONCE,
    openapi_extra=openapi.json_request((MatchInputs, examples.SETS | examples.WITHIN)),
)
async def within(request: Request) -> Response:
    """Find all references within a distance of a few observations, or a summary of them.

    It is asked and answered as `/nearest`. More than 65 536 pairs are refused with 413, too.
    """
    return await _at_once(request, "within")


async def _at_once(
    request: Request, question: Question, inputs: MatchInputs | None = None
) -> Response:
    """Answer what a body asks, or a query whose `inputs` are few."""
    format, start = wanted_format(request.headers, JSON), time.perf_counter()
    # A dependency takes more time.
    service: Service = request.state.service
    async with service.ingest.folder() as folder:

        async def answer(inputs: MatchInputs, *, is_short: bool) -> Response:
            inputs.ask(question)
            asked = await asked_by(inputs, service, folder, is_short=is_short)
            return _small_response(await outcome.resolve_at_once(service, asked, format, start))

        if inputs is not None:
            return await answer(inputs, is_short=True)
        if media_type(request.headers) == ARROW.media_type:
            return await answer(await requests.read_stream(request, folder.path), is_short=False)
        if request.scope["query_string"]:
            refuse_query(request.query_params.multi_items())
        async with requests.json_content(request, service) as content:
            inputs = await requests.parsed(service, content, MatchInputs)
            return await answer(inputs, is_short=len(content) <= requests.SHORT_BYTES)


@router.post(
    "/resolve",
    operation_id="resolve",
    summary="The nearest reference of every observation",
    openapi_extra=_FORM,
    **matches_route("the result, in the format that the header Accept likes best", TAKEN),
)
async def resolve_files(
    request: Request, service: ServiceContext, terms: requests.TermsOfRequest
) -> Response:
    """Find the nearest reference of every observation.

    Observations and references are parts of a form, each a file in any input format or the text
    `dataset:<id>`. Options are further fields of the form, or parameters of the
    query. Of columns to carry, one field is a list with commas, or `*` for all; of several fields
    of that name, each is a name as it stands.

    The answer is the result as Parquet, or, with `Prefer: respond-async`, a job to ask again. With
    `Prefer: wait=N` it is the result if that is there within N seconds, and else the job. With
    `output` it is a link to where the result lies. With `question=within` it has all references
    within `distance_m`, or a summary of them.
    """

    async def ask(folder: Folder) -> Asked:
        form = await requests.read_form(request, folder.path)
        return await asked_by(form, service, folder, form.delivery(), form.name)

    return await answer(request, service, terms, ask)


async def answer(
    request: Request,
    service: Service,
    terms: requests.Terms,
    ask: Callable[[Folder], Awaitable[Asked]],
) -> Response:
    """Answer a request that is read, with its sets made in a folder, by `ask`."""
    await outcome.refuse_unready(service, terms)
    async with service.ingest.folder() as folder:
        asked = await ask(folder)
        terms = terms.received()

        async def gone() -> NoReturn:
            # The body has been read: what comes now is that the client has gone.
            while (await request.receive())["type"] != "http.disconnect":
                pass
            raise ClientDisconnect

        found = await outcome.resolve(service, asked, terms, gone)
        return await _response_of(request, service, found, terms)


async def _response_of(
    request: Request, service: Service, found: outcome.SmallAnswer | JobRow, terms: requests.Terms
) -> Response:
    """The answer, the result of the job if it is there in time, or 201 with the job."""
    if isinstance(found, outcome.SmallAnswer):
        response = _small_response(found)
        response.headers.update(terms.applied())
        return response
    if found.status not in LIVE and terms.waits:
        # The result may be there, and not yet in the format that was asked for.
        with suppress(TimeoutError):
            async with asyncio.timeout(terms.seconds_left()):
                response = await service.results.response(found, request)
            response.headers.update(terms.applied())
            return response
    url = f"{base_of(request)}/jobs/{found.id}"
    if terms.takes_a_job:
        status = StatusInfo.of(found, base_of(request), service.cluster.waiting)
        headers = {"Location": url, **terms.applied(by_job=True)}
        return JSONResponse(status.model_dump(exclude_none=True), 201, headers)
    raise errors.NotReady(
        "the service is stopping; the job goes on when it is back",
        headers={"Retry-After": "10", "Link": f'<{url}>; rel="monitor"'},
    )


def _small_response(found: outcome.SmallAnswer) -> Response:
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
