"""What comes of a request that matches as an HTTP answer: the matches, or the job."""

import asyncio
from contextlib import suppress
from typing import NoReturn

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from georesolve.service.context import Service
from georesolve.service.database.rows import LIVE, JobRow
from georesolve.service.errors import NotReady
from georesolve.service.jobs.models import StatusInfo
from georesolve.service.links import base_of
from georesolve.service.resolve.lookup import Matches
from georesolve.service.resolve.terms import Terms
from georesolve.service.results.response import result_response


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
