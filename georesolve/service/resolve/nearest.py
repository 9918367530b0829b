"""`/nearest`: a few observations in, their nearest references out, at once and without a job."""

import time
from functools import partial

from fastapi import APIRouter, Request, Response

from georesolve.intake.representations import ARROW, JSON, Format
from georesolve.service.context import Service, service_of
from georesolve.service.description import examples
from georesolve.service.description.operations import json_request, matches_answer
from georesolve.service.errors import NotReady, TooLarge
from georesolve.service.http.bodies import media_type
from georesolve.service.resolve.inputs import (
    QUICKLY_READ,
    Asked,
    Sent,
    content_of,
    json_content,
    parsed,
    sent_by_json,
    sent_by_stream,
)
from georesolve.service.resolve.lookup import Matches, look_up, why_too_large
from georesolve.service.resolve.models import NearestInputs
from georesolve.service.resolve.options import refuse_query
from georesolve.service.resolve.router import matches_response
from georesolve.service.results.negotiation import wanted_format
from georesolve.workers.at_hand import NotAtHand, NotResident, is_quick

router = APIRouter(tags=["resolve"])

_FEW_BYTES = 64 << 10
"""So much is read, and made a table, in some milliseconds: a thousand observations have 40 KB."""
_BEYOND = "send files to /resolve, or, for a job, an execution to /processes/nearest/execution"


@router.post(
    "/nearest",
    summary="The nearest references of a few observations, at once",
    response_class=Response,
    responses=matches_answer("the matches, in the format that Accept likes best", first=JSON),
    openapi_extra=json_request((NearestInputs, examples.SETS | examples.OPTIONS)),
)
async def nearest(request: Request) -> Response:
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
    service = await service_of(request)
    is_stream = media_type(request.headers) == ARROW.media_type
    if not is_stream:
        refuse_query(request)
    receive = content_of if is_stream else json_content
    answer = partial(service.at_hand.answer, service.owner)
    async with receive(request, service) as content:
        if is_stream:
            sent = sent_by_stream(request, content)
        else:
            sent = sent_by_json(await parsed(service, content, NearestInputs))
        matches = None
        # A stream is read in a sandbox.
        if not is_stream and len(content) <= QUICKLY_READ:
            quickly = partial(_quickly, service, sent, format, start)
            at_hand = partial(_at_hand, service, sent, format, start)
            is_small = len(content) <= _FEW_BYTES
            matches = await answer(at_hand, quickly if is_small else None)
        if matches is None:
            async with service.ingest.folder() as folder:
                asked = await sent.asked(service, folder)
                matches = await answer(partial(_of_sets, service, asked, format, start))
    return matches_response(matches)


def _quickly(service: Service, sent: Sent, format: Format, start: float) -> Matches | None:
    """The matches where they take some milliseconds and wait for nothing; else None.

    Then the references were used a moment ago: neither the database nor a file has to be read, as
    for the lines of GeoJSON, and nothing is carried that may be large.
    """
    asked = sent.asked_at_hand(service, service.library.known)
    if asked is None or format.geometry == "line":
        return None
    if asked.options.columns or asked.options.observation_columns:
        return None
    observations, references = (one.dataset for one in asked.sets)
    if not is_quick(observations, references, asked.options):
        return None
    return _of_sets(service, asked, format, start, quickly=True)


def _at_hand(service: Service, sent: Sent, format: Format, start: float) -> Matches | None:
    """The matches of a small body, all of it in this thread; None where a sandbox must read it."""
    asked = sent.asked_at_hand(service, service.library.use)
    return None if asked is None else _of_sets(service, asked, format, start)


def _of_sets(
    service: Service, asked: Asked, format: Format, start: float, *, quickly: bool = False
) -> Matches:
    asked.check()
    if why := why_too_large(asked):
        raise TooLarge(f"{why}: {_BEYOND}")
    try:
        return look_up(service, asked, format, start, quickly=quickly)
    except NotResident as error:
        raise NotReady(f"{error}: try again") from None
    except NotAtHand as error:
        raise TooLarge(f"{error}: {_BEYOND}") from None
