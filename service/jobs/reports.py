"""What a finished job tells of itself: counts, time by stage, checksums of inputs, versions."""

from importlib import metadata

from georesolve import __version__
from georesolve.intake.plausibility import remarks
from georesolve.service.clock import seconds_between
from georesolve.service.database.rows import DatasetRow, JobRow
from georesolve.service.jobs.models import Account, Verification
from georesolve.workers.jobs import Job
from georesolve.workers.manifest import Manifest
from georesolve.workers.pipeline import Progress

_VERSIONS = {
    "georesolve": __version__,
    **{name: metadata.version(name) for name in ("dask", "numba", "pyarrow")},
}


def account_of(job: Job, result: Manifest, progress: Progress, device: str) -> Account:
    """What a job did, from what its parts and its result say."""
    return Account(
        counts=dict(progress.counts),
        seconds=dict(progress.seconds),
        rows=result.rows,
        size_bytes=result.size_bytes,
        digest=result.digest,
        observations_sha256=job.observations.sha256,
        references_sha256=job.references.sha256,
        device=device,
        verification=Verification(observations=progress.verified),
        chunks_by_worker=dict(progress.chunks_by_worker),
        versions=_VERSIONS,
        remarks=remarks(job.observations, job.references),
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
