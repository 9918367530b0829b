"""`/jobs`: what became of accepted work, and its results."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.context import Service, ServiceContext
from service.errors import JobDismissed, NoSuchJob, ResultNotReady
from service.models import JobList, Link, Report, StatusInfo
from service.results import PARQUET, result_response
from service.store import LIVE, JobRow, JobStatus

router = APIRouter(tags=["jobs"])


def _job(service: Service, id: str) -> JobRow:
    row = service.store.job(id)
    if row is None:
        raise NoSuchJob(f"there is no job {id[:80]!r}")
    return row


@router.get("/jobs")
def list_jobs(
    service: ServiceContext,
    status: Annotated[list[JobStatus] | None, Query(description="only jobs in these")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> JobList:
    """Jobs, the newest first."""
    rows = service.store.jobs(limit, tuple(status) if status else None)
    links = [Link(href="/jobs", rel="self", title="this document")]
    return JobList(jobs=[StatusInfo.of(row) for row in rows], links=links)


@router.get("/jobs/{id}")
def show_job(id: str, service: ServiceContext, response: Response) -> StatusInfo:
    """How far a job is."""
    row = _job(service, id)
    if row.status in LIVE:
        response.headers["Retry-After"] = "1"
    return StatusInfo.of(row)


@router.get(
    "/jobs/{id}/results",
    response_class=Response,
    responses={200: {"description": "the result", "content": {PARQUET: {}}}},
)
@router.get(
    "/jobs/{id}/results/matches.parquet",
    response_class=Response,
    responses={200: {"description": "the result", "content": {PARQUET: {}}}},
    name="show_result_file",
)
def show_result(id: str, service: ServiceContext, request: Request) -> Response:
    """The result of a job as Parquet."""
    return result_response(service.store, _job(service, id), request)


@router.get("/jobs/{id}/report")
def show_report(id: str, service: ServiceContext) -> Report:
    """What a finished job did: counts, timings by stage, devices, versions, checksums."""
    row = _job(service, id)
    if row.status == "dismissed":
        raise JobDismissed(f"the job {id!r} was dismissed; its report does not exist")
    if row.report is None:
        raise ResultNotReady(f"the job {id!r} is {row.status}: a report comes with the result")
    return Report(**row.report)


@router.delete("/jobs/{id}")
async def dismiss_job(id: str, service: ServiceContext) -> StatusInfo:
    """Stop a job, or remove a finished one with its result."""
    if _job(service, id).status == "dismissed":
        raise JobDismissed(f"the job {id!r} was dismissed already")
    service.supervisor.dismiss(id)
    return StatusInfo.of(_job(service, id))
