"""Work for all GPUs of this machine: a cluster that is opened for it, and closed behind it."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.extras import needed
from georesolve.intake.points import Points, write_points
from georesolve.kernels.devices import Device
from georesolve.searches import Progress
from georesolve.workers.jobs import Job, MatchOptions
from georesolve.workers.manifest import open_matches


def run_on_cluster(job: Job, progress: Progress | None, device: Device = "cuda") -> dict[str, int]:
    """Resolve a job whose sets are files, on a cluster of its own; its result stands afterwards.

    The processes of the cluster import the main module of the program again: what a script does
    belongs below ``if __name__ == "__main__"``.

    Returns
    -------
    counts
        Number of result rows by status.

    Raises
    ------
    MissingExtra
        When what a cluster needs is not installed.
    CarriedTooLong
        When the result would carry more than its row groups may.
    """
    for module in ("distributed", "pydantic"):
        needed(module, "service", "work for several GPUs")
    from georesolve.workers import pipeline
    from georesolve.workers.cluster import open_cluster
    from georesolve.workers.settings import ClusterSettings

    def report(done: pipeline.Progress) -> None:
        if progress is not None:
            progress(done.rows_done, done.rows)

    assert isinstance(job.folder, Path), "a cluster of its own has a folder of its own"
    settings = ClusterSettings(
        device=device, dashboard_address="127.0.0.1:0", scratch=job.folder / "spilled"
    )
    with open_cluster(settings) as cluster:
        _, done = pipeline.run(cluster, job, report, cancelled=lambda: False)
    return dict(done.counts)


def resolve_on_all_gpus(
    observations: Points,
    references: Points,
    options: MatchOptions,
    progress: Progress | None,
    device: Device = "cuda",
) -> pa.Table:
    """The result for two sets in memory."""
    with tempfile.TemporaryDirectory(prefix="georesolve-") as folder:
        here = Path(folder)
        job = Job(
            "matches",
            here,
            write_points(observations, here / "observations.parquet"),
            write_points(references, here / "references.parquet"),
            options,
        )
        run_on_cluster(job, progress, device)
        with open_matches(here) as file:
            return pq.read_table(file)
