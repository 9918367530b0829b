"""What a job that ended tells of itself: counts, times, checksums, versions; or why it failed."""

from dataclasses import replace
from importlib import metadata
from typing import Literal

from georesolve import __version__
from georesolve.intake.plausibility import remarks
from georesolve.service.clock import seconds_between
from georesolve.service.errors import JobFailed, Problem, disk_full, is_disk_full
from georesolve.service.jobs.models import Account, Verification
from georesolve.service.store.rows import DatasetRow, JobRow
from georesolve.workers.jobs import CarriedTooLong, Job
from georesolve.workers.manifest import Manifest
from georesolve.workers.pipeline import Progress
from georesolve.workers.places import OutputFailed
from georesolve.workers.plan import way_of
from georesolve.workers.sources import SourceFailed
from georesolve.workers.suspects import WorkerLost

_VERSIONS = {
    "georesolve": __version__,
    **{name: metadata.version(name) for name in ("dask", "numba", "pyarrow")},
}


def account_of(
    job: Job, result: Manifest, progress: Progress, device: Literal["cpu", "cuda"]
) -> Account:
    """What a job did, from what its parts and its result say."""
    observations = job.observations
    if (seen := progress.evidence) is not None:
        observations = replace(observations, bbox=seen.bbox, null_island=seen.null_island)
    chunks = max(1, sum(progress.chunks_by_worker.values()))
    sizes = -(-progress.rows // chunks), job.references.rows
    return Account(
        counts=dict(progress.counts),
        seconds=dict(progress.seconds),
        rows=result.rows,
        size_bytes=result.size_bytes,
        digest=result.digest,
        observations_sha256=job.observations.sha256,
        references_sha256=job.references.sha256,
        observations_bbox=observations.bbox,
        references_bbox=job.references.bbox,
        device=device,
        search=str(way_of(*sizes, job.options, device)),
        verification=Verification(observations=progress.verified),
        chunks_by_worker=dict(progress.chunks_by_worker),
        versions=_VERSIONS,
        remarks=remarks(observations, job.references),
    )


def seconds_before(
    row: JobRow, observations: DatasetRow, references: DatasetRow
) -> dict[str, float]:
    """Time by stage of what came before the job ran: receive, decode, queue."""
    seconds = {"queue": seconds_between(row.created, row.started or row.created)}
    for name, dataset in (("observations", observations), ("references", references)):
        for stage, value in dataset.seconds.items():
            seconds[f"{stage}_{name}"] = value
    return seconds


def problem_of_failure(error: BaseException) -> Problem:
    """What the client is told of a job that ended with an error of ours."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, CarriedTooLong | OutputFailed | SourceFailed | WorkerLost):
        return JobFailed(str(error))
    if is_disk_full(error):
        return disk_full()
    return JobFailed("an error of the service; its log has the details")
