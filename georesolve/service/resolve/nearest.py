"""`/nearest`: a few observations in, their nearest references out, at once and without a job."""

import time
from collections.abc import Mapping
from contextlib import suppress
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
from georesolve.service.resolve.lookup import (
    Matches,
    asks_elsewhere,
    damage_told,
    look_up,
    looked_up,
    why_too_large,
)
from georesolve.service.resolve.models import NearestInputs
from georesolve.service.resolve.options import refuse_query
from georesolve.service.resolve.router import matches_response
from georesolve.service.results.negotiation import wanted_format
from georesolve.service.store.rows import DatasetRow
from georesolve.workers.at_hand import (
    QUICK_STEPS,
    NotAtHand,
    NotResident,
    SearchIsHard,
    is_quick,
)

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
    async with receive(request, service) as content:
        if is_stream:
            sent = sent_by_stream(request, content)
        else:
            sent = sent_by_json(await parsed(service, content, NearestInputs))
        # A stream is read in a sandbox.
        size_bytes = None if is_stream else len(content)
        try:
            matches = await _matches(service, sent, size_bytes, format, start)
        except NotResident as error:
            raise NotReady(f"{error}: try again") from None
        except NotAtHand as error:
            raise TooLarge(f"{error}: {_BEYOND}") from None
    return matches_response(matches)


async def _matches(
    service: Service, sent: Sent, size_bytes: int | None, format: Format, start: float
) -> Matches:
    if size_bytes is not None and size_bytes <= QUICKLY_READ:
        found = await sent.datasets(service)
        quickly = partial(_quickly, service, sent, found, format, start)
        at_hand = partial(_at_hand, service, sent, found, format, start)
        quickly_or_none = quickly if size_bytes <= _FEW_BYTES else None
        async with damage_told(service, found.values()):
            matches = await service.at_hand.answer(service.owner, at_hand, quickly_or_none)
        if matches is not None:
            return matches
    async with service.ingest.folder() as folder:
        asked = await sent.asked(service, folder)
        _refuse_large(asked)
        return await looked_up(service, asked, format, start)


def _quickly(
    service: Service, sent: Sent, found: Mapping[str, DatasetRow], format: Format, start: float
) -> Matches | None:
    """The matches where they take some milliseconds and wait for nothing; else None.

    Then the references were used a moment ago: no file has to be read, as for the lines of GeoJSON,
    and nothing is carried that may be large.
    """
    asked = sent.asked_at_hand(service, found)
    if asked is None or format.geometry == "line":
        return None
    if asked.options.columns or asked.options.observation_columns:
        return None
    observations, references = (one.dataset for one in asked.sets)
    if not is_quick(observations, references, asked.options):
        return None
    _refuse_large(asked)
    # How long a search takes depends on where the points lie, which nobody knows before.
    with suppress(SearchIsHard):
        return look_up(service, asked, format, start, QUICK_STEPS)
    return None


def _at_hand(
    service: Service, sent: Sent, found: Mapping[str, DatasetRow], format: Format, start: float
) -> Matches | None:
    """The matches of a small body, all of it in this thread; None where that could wait for long.

    That is where a sandbox must read a set, or an object store is asked.
    """
    asked = sent.asked_at_hand(service, found)
    if asked is None or asks_elsewhere(asked):
        return None
    _refuse_large(asked)
    return look_up(service, asked, format, start)


def _refuse_large(asked: Asked) -> None:
    asked.check()
    if why := why_too_large(asked):
        raise TooLarge(f"{why}: {_BEYOND}")
