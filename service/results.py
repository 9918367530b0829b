"""The result of a job as an HTTP answer."""

from pathlib import Path

from fastapi import Request
from fastapi.responses import FileResponse, Response

from service.errors import JobDismissed, Problem, ResultNotReady
from service.store import JobRow, Store

PARQUET = "application/vnd.apache.parquet"


def result_response(store: Store, job: JobRow, request: Request) -> Response:
    """The result file of a job, whole or the range that was asked for.

    Raises
    ------
    ResultNotReady
        When the job is not finished.
    JobDismissed
        When it was dismissed.
    Problem
        The job's own, when it failed.
    """
    if job.status == "dismissed":
        raise JobDismissed(f"the job {job.id!r} was dismissed; its result does not exist")
    if job.problem is not None:
        raise _as_problem(job.problem)
    if job.status != "successful" or job.report is None:
        raise ResultNotReady(
            f"the job {job.id!r} is {job.status}: {job.message}", headers={"Retry-After": "1"}
        )
    return parquet_response(
        store.job_folder(job.id) / "matches.parquet",
        job.report["sha256"],
        request,
        {"Link": f'</jobs/{job.id}>; rel="monitor"'},
    )


def parquet_response(
    path: Path, sha256: str, request: Request, headers: dict[str, str] | None = None
) -> Response:
    """A Parquet file that never changes: whole, a range, or 304 to whom has it already."""
    etag = f'"{sha256}"'
    headers = {**(headers or {}), "ETag": etag, "Cache-Control": "private, immutable"}
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {etag, f"W/{etag}", "*"}:
        return Response(status_code=304, headers=headers)
    return FileResponse(path, media_type=PARQUET, filename=path.name, headers=headers)


def _as_problem(document: dict[str, object]) -> Problem:
    problem = Problem(str(document["detail"]))
    problem.status = int(str(document["status"]))
    problem.type, problem.title = str(document["type"]), str(document["title"])
    return problem
