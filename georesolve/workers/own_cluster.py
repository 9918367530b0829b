"""Cluster of its own for one match: all GPUs of this machine, for Python calls and the command."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.engine.match_sets import MatchSets
from georesolve.io.extras import needed
from georesolve.io.points import Points, write_points
from georesolve.kernels.devices import Device
from georesolve.query import MatchOptions
from georesolve.workers.job import Job
from georesolve.workers.results.manifest import open_matches

Progress = Callable[[int, int], None]
"""Callback with the number of observations resolved so far, and of all."""


def run_on_cluster(
    sets: MatchSets, folder: Path, progress: Progress | None, device: Device = "cuda"
) -> dict[str, int]:
    """Match two sets on a cluster of its own; returns result rows by status.

    The result is written into `folder`: see `open_matches`. The processes of the cluster import the
    main module of the program again: a script keeps its work below ``if __name__ == "__main__"``.
    """
    for module in ("distributed", "pydantic"):
        needed(module, "service", "work for several GPUs")
    from georesolve.workers import pipeline
    from georesolve.workers.cluster import open_cluster
    from georesolve.workers.cluster_settings import ClusterSettings

    def report(done: pipeline.Progress) -> None:
        if progress is not None:
            progress(done.rows_done, done.rows)

    job = Job(sets.observations, sets.references, sets.options, id="matches", folder=folder)
    settings = ClusterSettings(
        device=device, dashboard_address="127.0.0.1:0", scratch=folder / "spilled"
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
    """Match two sets in memory on a cluster of its own; returns the result."""
    with tempfile.TemporaryDirectory(prefix="georesolve-") as name:
        folder = Path(name)
        sets = MatchSets(
            write_points(observations, folder / "observations.parquet"),
            write_points(references, folder / "references.parquet"),
            options,
        )
        run_on_cluster(sets, folder, progress, device)
        with open_matches(folder) as file:
            return pq.read_table(file)
