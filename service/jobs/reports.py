"""The report of a finished job: counts, time by stage, checksums, versions."""

from importlib import metadata

from service.clock import seconds_between
from service.database.rows import DatasetRow, JobRow
from service.models import Report, Verification
from workers import __version__
from workers.assembly import Result
from workers.jobs import Job
from workers.pipeline import Progress

_LIBRARIES = ("dask", "numba", "pyarrow")


def job_report(job: Job, result: Result, progress: Progress, device: str) -> Report:
    """What a job did, from what its parts and its result say."""
    return Report(
        counts=dict(progress.counts),
        seconds=dict(progress.seconds),
        rows=result.rows,
        size_bytes=result.size_bytes,
        sha256=result.sha256,
        observations_sha256=job.observations.sha256,
        references_sha256=job.references.sha256,
        device=device,
        verification=Verification(observations=progress.verified),
        chunks_by_worker=dict(progress.chunks_by_worker),
        versions={
            "georesolve": __version__,
            **{name: metadata.version(name) for name in _LIBRARIES},
        },
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
