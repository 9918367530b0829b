"""`/jobs`: what became of accepted work, and its results."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.context import Service, ServiceContext
from service.errors import JobDismissed, NoSuchJob, ResultNotReady
from service.links import base_of
from service.models import JobList, Report, StatusInfo
from service.queries import JobQuery, links_of_page
from service.representations import FORMATS, Format
from service.results import format_response, result_response
from service.rows import LIVE, JobRow

router = APIRouter(tags=["jobs"])


def job_of(service: Service, id: str) -> JobRow:
    """The job with this id.

    Raises
    ------
    NoSuchJob
    """
    row = service.store.job(id)
    if row is None:
        raise NoSuchJob(f"there is no job {id[:80]!r}")
    return row


@router.get("/jobs", operation_id="getJobs", response_model_exclude_none=True)
def list_jobs(
    request: Request,
    service: ServiceContext,
    query: Annotated[JobQuery, Query()],
) -> JobList:
    """Jobs, the newest first; the link `next` leads on when there are more."""
    page, base = query.page(), base_of(request)
    rows = service.store.jobs(page, query.selection())
    return JobList(
        jobs=[StatusInfo.of(row, base) for row in rows[: page.limit]],
        links=links_of_page(request, rows, page),
    )


@router.get("/jobs/{id}", operation_id="getStatus", response_model_exclude_none=True)
def show_job(id: str, request: Request, service: ServiceContext, response: Response) -> StatusInfo:
    """How far a job is."""
    row = job_of(service, id)
    if row.status in LIVE:
        response.headers["Retry-After"] = "1"
    return StatusInfo.of(row, base_of(request))


@router.get(
    "/jobs/{id}/results",
    operation_id="getResult",
    response_class=Response,
    responses={
        200: {"description": "the result", "content": {one.media_type: {} for one in FORMATS}},
        204: {"description": "where the result is, as a link"},
    },
)
async def show_result(id: str, service: ServiceContext, request: Request) -> Response:
    """The result of a job, in the way that the request for the job wished to have it.

    A result that was wanted raw comes in the format that the header Accept likes best.
    """
    return await result_response(service, await asyncio.to_thread(job_of, service, id), request)


def _add_route(format: Format) -> None:
    @router.get(
        f"/jobs/{{id}}/results/{format.name}",
        name=f"show_result_as_{format.suffix}",
        response_class=Response,
        responses={200: {"description": "the result", "content": {format.media_type: {}}}},
    )
    async def show_result_file(id: str, service: ServiceContext, request: Request) -> Response:
        """The result of a job in the format that the address names."""
        job = await asyncio.to_thread(job_of, service, id)
        return await format_response(service, job, format, request)


for _format in FORMATS:
    _add_route(_format)


@router.get("/jobs/{id}/report")
def show_report(id: str, service: ServiceContext) -> Report:
    """What a finished job did: counts, timings by stage, devices, versions, checksums."""
    row = job_of(service, id)
    if row.status == "dismissed":
        raise JobDismissed(f"the job {id!r} was dismissed; its report does not exist")
    if row.report is None:
        raise ResultNotReady(
            f"the job {id!r} of the process {row.process!r} is {row.status} and has no report: one "
            "comes with the result of 'nearest'"
        )
    return Report(**row.report)


@router.delete("/jobs/{id}", operation_id="dismiss", response_model_exclude_none=True)
async def dismiss_job(id: str, request: Request, service: ServiceContext) -> StatusInfo:
    """Stop a job, or remove a finished one with its result."""
    if (await asyncio.to_thread(job_of, service, id)).status == "dismissed":
        raise JobDismissed(f"the job {id!r} was dismissed already")
    await service.supervisor.dismiss(id)
    return StatusInfo.of(await asyncio.to_thread(job_of, service, id), base_of(request))
