"""A job whose chunk ends every worker that takes it fails, and no other one does."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import dask
import pytest

from georesolve.query import MatchOptions
from georesolve.workers import pipeline
from georesolve.workers.cluster import open_cluster
from georesolve.workers.cluster_settings import ClusterSettings
from georesolve.workers.job import Job
from georesolve.workers.partitions import resolve
from georesolve.workers.pipeline import run
from georesolve.workers.quarantine import WorkerLost
from tests.conftest import points, store_points
from tests.workers.test_pipeline import cut_into, ignore, never

CHUNK = 500
"""Observations that a chunk has."""
HAS_FAILED = "the guilty job has failed"
"""A file: others take their time until it is there."""


def resolve_or_die(chunk, job):
    """Ends the worker with the chunks of one job, and takes its time with those of others."""
    if job.id == "guilty":
        (job.folder / f"died-{os.getpid()}").touch()
        os._exit(1)
    if not job.folder.with_name(HAS_FAILED).exists():
        time.sleep(0.5)
    return resolve(chunk, job)


@pytest.mark.timeout(300)
def test_a_chunk_that_ends_its_workers_fails_its_own_job_only(device, tmp_path, monkeypatch):
    references = store_points(points(300, 2), tmp_path / "references.parquet")

    def make_job(name, n):
        observations = store_points(points(n, 1), tmp_path / f"{name}.parquet")
        return Job(
            observations, references, MatchOptions(), id=name, folder=tmp_path / f"job-{name}"
        )

    undisturbed, innocent = make_job("undisturbed", 60_000), make_job("innocent", 60_000)
    guilty = make_job("guilty", 4 * CHUNK)
    # Each death takes along what is beside it in the worker.
    monkeypatch.setattr("georesolve.workers.cluster.CHUNKS_IN_HAND", {"cpu": 2, "cuda": 2})
    settings = ClusterSettings(device=device, workers=1, dashboard_address="127.0.0.1:0")
    # On a busy machine a worker may take longer to be back, and be given up with what it has begun.
    patience = {"distributed.deploy.lost-worker-timeout": "300s"}
    with (
        open_cluster(settings) as cluster,
        dask.config.set(patience),
        ThreadPoolExecutor() as threads,
    ):
        expected, _ = run(cluster, undisturbed, ignore, never)
        cut_into(monkeypatch, CHUNK)
        monkeypatch.setattr(pipeline, "resolve", resolve_or_die)
        other = threads.submit(run, cluster, innocent, ignore, never)
        with pytest.raises(WorkerLost, match=r"[0-9]+99 ended their workers in 3"):
            run(cluster, guilty, ignore, never)
        assert len(list(guilty.folder.glob("died-*"))) == 3, "not one for each of its chunks"
        assert not other.done()
        (tmp_path / HAS_FAILED).touch()
        result, progress = other.result()
    assert result.digest == expected.digest
    assert progress.counts["matched"] == 60_000
