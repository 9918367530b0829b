"""`/nearest`: a few observations in, their nearest references out, at once and without a job."""

import time
from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request, Response

from georesolve.intake.representations import ARROW, JSON, Format
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
from georesolve.service.http.bounds import media_type
from georesolve.service.resolve.inputs import (
    Asked,
    StreamQuery,
    asked_at_hand,
    asked_by_flat_stream,
    asked_by_json,
    asked_by_stream,
    content_of,
    is_quickly_read,
    json_content,
    parsed,
    read_json,
)
from georesolve.service.resolve.lookup import Matches, look_up, why_too_large
from georesolve.service.resolve.models import NearestInputs, NearestQuery
from georesolve.service.resolve.options import options_of, refuse_query
from georesolve.service.resolve.responses import matches_response
from georesolve.service.results.negotiation import wanted_format
from georesolve.workers.at_hand import NotAtHand, NotResident

router = APIRouter(tags=["resolve"])

_BEYOND = "send files to /resolve, or, for a job, an execution to /processes/nearest/execution"


@router.post(
    "/nearest",
    operation_id="nearest",
    summary="The nearest references of a few observations, at once",
    response_class=Response,
    responses=matches_answer("the matches, in the format that Accept likes best", first=JSON)
    | refusals(*TABLES, NotAcceptable, ResultTooLarge, TooManyJobs, QueueFull, NotReady),
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
    format, start = wanted_format(request.headers, JSON), time.perf_counter()
    return matches_response(await _matches(request, service, format, start))


async def _matches(request: Request, service: Service, format: Format, start: float) -> Matches:
    at_hand = partial(service.at_hand.answer, service.owner)
    if media_type(request.headers) == ARROW.media_type:
        query = StreamQuery(*options_of(NearestQuery, request))
        async with content_of(request, service) as content:
            if is_quickly_read(content):
                flat = partial(asked_by_flat_stream, service, query, content)
                matches = await at_hand(partial(_of_flat, service, flat, format, start))
                if matches is not None:
                    return matches
            async with service.ingest.folder() as folder:
                asked = await asked_by_stream(service, query, content, folder)
                return await at_hand(partial(_of_sets, service, asked, format, start))
    refuse_query(request)
    async with json_content(request, service) as content:
        if is_quickly_read(content):
            flat = partial(_asked_by_small_json, service, content)
            matches = await at_hand(partial(_of_flat, service, flat, format, start))
            if matches is not None:
                return matches
        given = await parsed(service, content, NearestInputs)
        async with service.ingest.folder() as folder:
            asked = await asked_by_json(service, given, folder)
            return await at_hand(partial(_of_sets, service, asked, format, start))


def _asked_by_small_json(service: Service, content: bytearray) -> Asked | None:
    return asked_at_hand(service, read_json(NearestInputs, content))


def _of_flat(
    service: Service, read: Callable[[], Asked | None], format: Format, start: float
) -> Matches | None:
    """The matches of a small body, all of it in this thread; None where a sandbox must read it."""
    asked = read()
    return None if asked is None else _of_sets(service, asked, format, start)


def _of_sets(service: Service, asked: Asked, format: Format, start: float) -> Matches:
    asked.check()
    if why := why_too_large(asked):
        raise TooLarge(f"{why}: {_BEYOND}")
    try:
        return look_up(service, asked, format, start)
    except NotResident as error:
        raise NotReady(f"{error}: try again", headers={"Retry-After": "2"}) from None
    except NotAtHand as error:
        raise TooLarge(f"{error}: {_BEYOND}") from None
