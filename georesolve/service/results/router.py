"""`/jobs/{id}/results`: the result of a job in all formats, and its parts."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from georesolve.io.result_formats import FORMATS, LINES, PARQUET, POINTS, Format
from georesolve.service.http import openapi
from georesolve.service.jobs.router import Job
from georesolve.service.links import base_of
from georesolve.service.results.models import IN_DOCUMENT, Parts, matches_content
from georesolve.service.results.response import OwnResults

router = APIRouter(tags=["jobs"])

_PART = "000000000000-000000000002.parquet"
PartName = Annotated[str, Path(description="the name of the part", examples=[_PART])]
_BY_ACCEPT = matches_content(*FORMATS, others=(IN_DOCUMENT,))
_LINK = {"Link": openapi.header("leads to the result")}
_ELSEWHERE: openapi.Answers = {
    204: {"description": "where the result is, as a link", "headers": _LINK}
}


@router.get(
    "/jobs/{id}/results",
    summary="The result of a job",
    **openapi.file_route(_BY_ACCEPT, "the result, as the header Accept likes it best", _ELSEWHERE),
)
async def get_result(job: Job, results: OwnResults, request: Request) -> Response:
    """The result of a job, in the way that the request for the job wished to have it.

    Its format is the one that the request named in `outputs`, or the one that the header Accept
    likes best.
    """
    return await results.response(job, request)


def _get_file(format: Format) -> Callable[..., Any]:
    """The decorator of what answers with a result in a format."""
    route = openapi.file_route if format == PARQUET else openapi.route
    return router.get(
        f"/jobs/{{id}}/results/{format.name}",
        operation_id=f"getResultAs{format.suffix.title()}",
        summary=f"The result of a job as {format.name}",
        **route(matches_content(format), "the result"),
    )


def _add_route(format: Format) -> None:
    @_get_file(format)
    async def show_result_file(job: Job, results: OwnResults, request: Request) -> Response:
        """The result of a job in the format that the address names."""
        return await results.in_format(job, format, request)


for _format in FORMATS:
    if not _format.geometry:
        _add_route(_format)


@_get_file(POINTS)
async def show_features(
    job: Job,
    results: OwnResults,
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
    return await results.in_format(job, LINES if geometry == "line" else POINTS, request)


@router.get("/jobs/{id}/results/parts", summary="The parts of a result")
async def get_parts(job: Job, results: OwnResults, request: Request) -> Parts:
    """The files that a result is made of: each is Parquet, to be read by itself or beside others.

    `matches.parquet` is the bytes `PAR1`, the row groups of all parts in their order, and its
    ending. The SHA-256 of each is here; the digest is the SHA-256 of these, one after the other, 32
    bytes each. A part is the same: `PAR1`, its row groups, and an ending of its own.
    """
    manifest = await results.store.files(results.manifest_of, job)
    base = job.delivery.output or f"{base_of(request)}/jobs/{job.id}/results/parts/"
    return Parts.model_validate(manifest.document(base))


@router.get(
    "/jobs/{id}/results/parts/{name}",
    summary="A part of a result",
    **openapi.file_route({PARQUET.media_type: openapi.BYTES}, "the part"),
)
async def get_part(job: Job, name: PartName, results: OwnResults, request: Request) -> Response:
    """A part of the result of a job: a Parquet file of its own."""
    return await results.parquet(job, request, name)
