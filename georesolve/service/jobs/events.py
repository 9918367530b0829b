"""`/jobs/{id}/events`: how far a job is, told while it runs, as server-sent events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from georesolve.service import pools
from georesolve.service.auth.access import OwnStore
from georesolve.service.jobs.models import StatusInfo
from georesolve.service.jobs.router import JobId, SharedCluster, job_of
from georesolve.service.links import base_of
from georesolve.service.store.rows import LIVE, JobRow

router = APIRouter(tags=["jobs"])

_LOOK_SECONDS = 5.0
"""How often a listener looks for itself: the service may be stopping."""
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`status` first and when that changes, `progress` with every piece of work, "
        "`end` last; each with the statusInfo",
        "content": {"text/event-stream": {}},
    },
    204: {"description": "the job has ended, and `Last-Event-ID` says that the client knows it"},
}


def _event_id(row: JobRow) -> str:
    """Names what a client knows of a job: it comes back with it after a lost connection."""
    return f"{row.status}:{row.rows_done}"


@pools.database.handler
def _last_known(
    id: JobId,
    store: OwnStore,
    response: Response,
    last_event_id: Annotated[
        str | None,
        Header(description="what the client knows already; for example `running:400000`"),
    ] = None,
) -> str | None:
    """What the client knows already; found out before the stream begins, as errors are."""
    row = job_of(store, id)
    if row.status not in LIVE and _event_id(row) == last_event_id:
        # This ends an EventSource, which would otherwise come again and again.
        response.status_code = 204
    return last_event_id


@router.get(
    "/jobs/{id}/events",
    response_class=EventSourceResponse,
    summary="How far a job is, while it runs",
    responses=_ANSWERS,
)
async def get_events(
    id: JobId,
    request: Request,
    store: OwnStore,
    cluster: SharedCluster,
    known: Annotated[str | None, Depends(_last_known)],
) -> AsyncIterator[ServerSentEvent]:
    """How far a job is, told while it runs; the stream ends with the job."""
    told: JobRow | None = None
    with store.changes.of(id) as changed:
        while not store.changes.stopping:
            changed.clear()
            row = await pools.database(job_of, store, id)
            has_ended = row.status not in LIVE
            if _event_id(row) != known:
                if has_ended:
                    kind = "end"
                else:
                    kind = "progress" if told and told.status == row.status else "status"
                waiting = cluster.waiting
                info = StatusInfo.of(row, base_of(request), waiting).model_dump(exclude_none=True)
                known, told = _event_id(row), row
                yield ServerSentEvent(event=kind, data=info, id=known)
            if has_ended:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _LOOK_SECONDS)
