"""`/jobs`: what became of accepted work; `/jobs/{id}/events` tells it while it happens."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from georesolve.service import errors, pools
from georesolve.service.auth.access import OwnStore, own
from georesolve.service.http import examples
from georesolve.service.http.parameters import Renaming
from georesolve.service.jobs import endings
from georesolve.service.jobs.cluster import ClusterView
from georesolve.service.jobs.models import JobList, Report, StatusInfo
from georesolve.service.links import base_of, links_of_page
from georesolve.service.store.listing import JobQuery
from georesolve.service.store.rows import LIVE, JobRow
from georesolve.service.store.store import Store

router = APIRouter(tags=["jobs"])

JobId = Annotated[str, Path(description="the id of the job", examples=[examples.JOB_ID])]

SharedCluster = Annotated[ClusterView, own("cluster")]
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`status` first and when that changes, `progress` with every piece of work, "
        "`end` last; each with the statusInfo",
        "content": {"text/event-stream": {}},
    },
    204: {"description": "the job has ended, and `Last-Event-ID` says that the client knows it"},
}


def job_of(store: OwnStore, id: JobId) -> JobRow:
    """The job with this id: what a handler takes whose path names it."""
    row = store.job(id)
    if row is None:
        raise errors.NoSuchJob(f"there is no job {id[:80]!r}")
    return row


Job = Annotated[JobRow, Depends(pools.database.handler(job_of))]


@router.get("/jobs", summary="All jobs", response_model_exclude_none=True)
@pools.database.handler
def get_jobs(
    request: Request, store: OwnStore, cluster: SharedCluster, query: Annotated[JobQuery, Query()]
) -> JobList:
    """Jobs, the newest first; the link `next` leads on when there are more."""
    base, waiting = base_of(request), cluster.waiting
    rows, owners = store.jobs(query), store.owners()
    told = [StatusInfo.of(row, base, waiting, owners.get(row.owner)) for row in rows[: query.limit]]
    return JobList(jobs=told, links=links_of_page(request, query.next_cursor(rows)))


@router.get("/jobs/{id}", summary="How far a job is", response_model_exclude_none=True)
@pools.database.handler
def get_status(
    id: JobId, request: Request, store: OwnStore, cluster: SharedCluster, response: Response
) -> StatusInfo:
    """What became of a job so far: status, progress, rows a second, and where its result is."""
    info = _info(id, request, store, cluster)
    if info.status in LIVE:
        response.headers["Retry-After"] = "1"
    return info


def _info(id: str, request: Request, store: Store, cluster: ClusterView) -> StatusInfo:
    row = job_of(store, id)
    owner = store.owners().get(row.owner)
    return StatusInfo.of(row, base_of(request), cluster.waiting, owner)


@router.get("/jobs/{id}/report", summary="What a job did")
async def get_report(job: Job) -> Report:
    """What a finished job did: counts, timings by stage, devices, versions, checksums."""
    if job.status == "dismissed":
        raise errors.JobDismissed(f"the job {job.id!r} was dismissed; its report does not exist")
    if job.report is None:
        raise errors.ResultNotReady(
            f"the job {job.id!r} of the process {job.process!r} is {job.status} and has no report: "
            "one comes with its result"
        )
    return Report(**job.report)


@router.patch("/jobs/{id}", summary="Change the name of a job", response_model_exclude_none=True)
@pools.database.handler
def rename_job(
    id: JobId, renaming: Renaming, request: Request, store: OwnStore, cluster: SharedCluster
) -> StatusInfo:
    """Call a job something else than what it was made of."""
    job_of(store, id)
    store.rename_job(id, renaming.name)
    return _info(id, request, store, cluster)


@router.delete("/jobs/{id}", summary="Stop or remove a job", response_model_exclude_none=True)
async def dismiss(job: Job, request: Request, store: OwnStore) -> StatusInfo:
    """Stop a job, or remove a finished one with its result."""
    service = request.state.service
    await store.files(endings.dismiss, store, service.library, service.metrics, job.id)
    return StatusInfo.of(await pools.database(job_of, store, job.id), base_of(request))


def _event_id(row: JobRow) -> str:
    """Names what a client knows of a job: it comes back with it after a lost connection."""
    return f"{row.status}:{row.rows_done}"


async def _last_known(
    job: Job,
    response: Response,
    last_event_id: Annotated[
        str | None,
        Header(description="what the client knows already; for example `running:400000`"),
    ] = None,
) -> str | None:
    """What the client knows already; found out before the stream begins, as errors are."""
    if job.status not in LIVE and _event_id(job) == last_event_id:
        # This ends an EventSource, which would otherwise come again and again.
        response.status_code = 204
    return last_event_id


@router.get(
    "/jobs/{id}/events",
    response_class=EventSourceResponse,
    summary="How far a job is, while it runs",
    responses=_EVENTS,
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
            await changed.wait()
