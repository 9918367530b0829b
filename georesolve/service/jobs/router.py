"""`/jobs`: what became of accepted work, and its results."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from georesolve.intake.representations import FORMATS, LINES, PARQUET, POINTS, Format
from georesolve.service import pools
from georesolve.service.context import ServiceContext
from georesolve.service.description.operations import (
    BYTES,
    FILE_HEADERS,
    IN_DOCUMENT,
    Answers,
    JobId,
    answer_of,
    file_answers,
    header,
    matches_content,
)
from georesolve.service.errors import JobDismissed, NoSuchJob, ResultNotReady
from georesolve.service.http.queries import JobQuery, links_of_page
from georesolve.service.jobs.endings import dismiss
from georesolve.service.jobs.models import JobList, Report, StatusInfo
from georesolve.service.links import base_of
from georesolve.service.results.models import Parts
from georesolve.service.results.response import (
    format_response,
    manifest_of,
    part_response,
    result_response,
)
from georesolve.service.store.rows import LIVE, JobRow

router = APIRouter(tags=["jobs"])

_PART = "000000000000-000000000002.parquet"
PartName = Annotated[str, Path(description="the name of the part", examples=[_PART])]
_BY_ACCEPT = matches_content(*FORMATS, others=(IN_DOCUMENT,))
_LINK = {"Link": header("leads to the result")}
_RESULT: Answers = {
    **file_answers(_BY_ACCEPT, "the result, as the header Accept likes it best"),
    204: {"description": "where the result is, as a link", "headers": _LINK},
}


def job_of(service: ServiceContext, id: JobId) -> JobRow:
    """The job with this id: what a handler takes whose path names it.

    Raises
    ------
    NoSuchJob
    """
    row = service.store.job(id)
    if row is None:
        raise NoSuchJob(f"there is no job {id[:80]!r}")
    return row


Job = Annotated[JobRow, Depends(pools.database.handler(job_of))]


@router.get("/jobs", summary="All jobs", response_model_exclude_none=True)
@pools.database.handler
def get_jobs(
    request: Request,
    service: ServiceContext,
    query: Annotated[JobQuery, Query()],
) -> JobList:
    """Jobs, the newest first; the link `next` leads on when there are more."""
    page, base, waiting = query.page(), base_of(request), service.cluster.waiting
    rows, owners = service.store.jobs(page, query.selection()), service.owners()
    return JobList(
        jobs=[
            StatusInfo.of(row, base, waiting, owners.get(row.owner)) for row in rows[: page.limit]
        ],
        links=links_of_page(request, rows, page),
    )


@router.get("/jobs/{id}", summary="How far a job is", response_model_exclude_none=True)
@pools.database.handler
def get_status(
    id: JobId, request: Request, service: ServiceContext, response: Response
) -> StatusInfo:
    """What became of a job so far: status, progress, rows a second, and where its result is."""
    row = job_of(service, id)
    if row.status in LIVE:
        response.headers["Retry-After"] = "1"
    owner = service.owners().get(row.owner)
    return StatusInfo.of(row, base_of(request), service.cluster.waiting, owner)


@router.get(
    "/jobs/{id}/results",
    summary="The result of a job",
    response_class=Response,
    responses=_RESULT,
    openapi_extra=FILE_HEADERS,
)
async def get_result(job: Job, service: ServiceContext, request: Request) -> Response:
    """The result of a job, in the way that the request for the job wished to have it.

    Its format is the one that the request named in `outputs`, or the one that the header Accept
    likes best.
    """
    return await result_response(service, job, request)


def _get_file(format: Format) -> Callable[..., Any]:
    """The decorator of what answers with a result in a format."""
    is_file = format == PARQUET
    answers = file_answers if is_file else answer_of
    return router.get(
        f"/jobs/{{id}}/results/{format.name}",
        operation_id=f"getResultAs{format.suffix.title()}",
        summary=f"The result of a job as {format.name}",
        response_class=Response,
        responses=answers(matches_content(format), "the result"),
        openapi_extra=FILE_HEADERS if is_file else None,
    )


def _add_route(format: Format) -> None:
    @_get_file(format)
    async def show_result_file(job: Job, service: ServiceContext, request: Request) -> Response:
        """The result of a job in the format that the address names."""
        return await format_response(service, job, format, request)


for _format in FORMATS:
    if not _format.geometry:
        _add_route(_format)


@_get_file(POINTS)
async def show_features(
    job: Job,
    service: ServiceContext,
    request: Request,
    geometry: Annotated[
        Literal["point", "line"],
        Query(description="point: the observation; line: from there to its reference"),
    ] = "point",
) -> Response:
    """The result of a job as GeoJSON, for maps: a feature a row, with its columns as properties.

    The coordinates come from the sets of the job, which must be there still: 410 when a registered
    dataset was removed, or when more than 16 MiB came with a request that did not `Accept` GeoJSON.
    """
    return await format_response(service, job, LINES if geometry == "line" else POINTS, request)


@router.get("/jobs/{id}/results/parts", summary="The parts of a result")
async def get_parts(job: Job, service: ServiceContext, request: Request) -> Parts:
    """The files that a result is made of: each is Parquet, to be read by itself or beside others.

    `matches.parquet` is the bytes `PAR1`, the row groups of all parts in their order, and its
    ending. The SHA-256 of each is here; the digest is the SHA-256 of these, one after the other, 32
    bytes each. A part is the same: `PAR1`, its row groups, and an ending of its own.
    """
    manifest = await service.store.files(manifest_of, service, job)
    base = job.delivery.output or f"{base_of(request)}/jobs/{job.id}/results/parts/"
    return Parts.model_validate(manifest.document(base))


@router.get(
    "/jobs/{id}/results/parts/{name}",
    summary="A part of a result",
    response_class=Response,
    responses=file_answers({PARQUET.media_type: BYTES}, "the part"),
    openapi_extra=FILE_HEADERS,
)
async def get_part(
    id: JobId, name: PartName, service: ServiceContext, request: Request
) -> Response:
    """A part of the result of a job: a Parquet file of its own."""
    job = await pools.database(job_of, service, id)
    return await part_response(service, job, name, request)


@router.get("/jobs/{id}/report", summary="What a job did")
async def get_report(job: Job) -> Report:
    """What a finished job did: counts, timings by stage, devices, versions, checksums."""
    if job.status == "dismissed":
        raise JobDismissed(f"the job {job.id!r} was dismissed; its report does not exist")
    if job.report is None:
        raise ResultNotReady(
            f"the job {job.id!r} of the process {job.process!r} is {job.status} and has no report: "
            "one comes with the result of 'nearest'"
        )
    return Report(**{**job.report, "options": job.options})


@router.delete(
    "/jobs/{id}",
    operation_id="dismiss",
    summary="Stop or remove a job",
    response_model_exclude_none=True,
)
async def dismiss_job(job: Job, request: Request, service: ServiceContext) -> StatusInfo:
    """Stop a job, or remove a finished one with its result."""
    if job.status == "dismissed":
        raise JobDismissed(f"the job {job.id!r} was dismissed already")
    await service.store.files(dismiss, service.store, service.library, service.metrics, job.id)
    return StatusInfo.of(await pools.database(job_of, service, job.id), base_of(request))
