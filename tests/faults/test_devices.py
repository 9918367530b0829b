"""A worker whose device fails its check, or a rehearsal, takes no work."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest

from georesolve.engine.search import WrongAnswer
from georesolve.query import MatchOptions
from georesolve.workers import partitions, plugin
from georesolve.workers.cluster import open_cluster
from georesolve.workers.cluster_settings import ClusterSettings
from georesolve.workers.job import Job
from georesolve.workers.pipeline import run
from georesolve.workers.plugin import WorkerCheckError
from tests.conftest import ROOT, START_SECONDS, points, store_points, wait_until


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A file; once it is there, workers that are started fail in the way that it names."""
    # Python runs it at its start. Dask's own way to have a worker run something is taken on a GPU.
    at_start, flag = tmp_path / "sitecustomize.py", tmp_path / "broken"
    at_start.write_text(f"from tests.faults.test_devices import fail_as; fail_as({str(flag)!r})")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    return flag


def fail_as(flag):
    way = Path(flag).read_text() if Path(flag).exists() else ""
    if way == "in the check":
        plugin._KNOWN_REFERENCE = [0, 2, 3, 0]
    if way == "in the rehearsal":
        partitions.verify = wrong


@contextmanager
def given_up_at_once(cluster):
    """Dask waits for no worker that leaves from here on, as one does that fails its check.

    That which left before is waited for as always: another one is started in its place.
    """
    wait_until(lambda: not cluster.client.cluster.scheduler_info["workers"])
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "0s"}):
        yield


def wrong(*arguments):
    raise WrongAnswer("by one algorithm and by the other")


@pytest.mark.parametrize("way", ["in the check", "in the rehearsal"])
def test_a_cluster_does_not_open_on_a_device_that_fails(device, broken, way):
    broken.write_text(way)
    settings = ClusterSettings(device=device, workers=1, dashboard_address="127.0.0.1:0")
    told = {"in the check": "replace the device", "in the rehearsal": "by one algorithm"}
    with pytest.raises(WorkerCheckError, match=told[way]), open_cluster(settings):
        pass


def test_a_worker_that_joins_with_a_device_that_fails_takes_no_work(device, broken):
    settings = ClusterSettings(device=device, workers=1, dashboard_address="127.0.0.1:0")
    with open_cluster(settings) as cluster:
        [pid] = cluster.client.run(os.getpid).values()
        broken.write_text("in the check")
        os.kill(pid, signal.SIGKILL)
        with given_up_at_once(cluster):
            # Dask starts another one, which joins and is closed; it would have had this task.
            task = cluster.client.submit(os.getpid)
            wait_until(lambda: not cluster.client.cluster.workers, seconds=START_SECONDS)
        assert not cluster.workers()
        # At most it was lost with that worker.
        assert task.status in ("pending", "error")
        broken.unlink()
        cluster.restore()
        assert cluster.client.submit(os.getpid, pure=False).result(START_SECONDS) != pid


def test_no_chunk_is_blamed_for_a_device_that_fails(device, broken, tmp_path):
    """A worker that joins has tasks, and does not begin them before its check."""
    settings = ClusterSettings(device=device, workers=1, dashboard_address="127.0.0.1:0")
    sets = [store_points(points(n, n), tmp_path / f"{n}.parquet") for n in (20_000, 300)]
    job = Job(*sets, MatchOptions(), id="one", folder=tmp_path / "job")
    with open_cluster(settings) as cluster, ThreadPoolExecutor(1) as threads:
        [pid] = cluster.client.run(os.getpid).values()
        broken.write_text("in the check")
        os.kill(pid, signal.SIGKILL)
        with given_up_at_once(cluster):
            running = threads.submit(run, cluster, job, lambda progress: None, lambda: False)
            own = cluster.client.cluster
            for _ in range(2):
                wait_until(lambda: not own.workers, seconds=START_SECONDS)
                assert not running.done()
                cluster.restore()
                wait_until(lambda: own.workers)
            broken.unlink()

            def is_done():
                # As a runner does now and then.
                cluster.restore()
                return running.done()

            wait_until(is_done, seconds=START_SECONDS)
            _, progress = running.result()
    assert progress.rows_done == 20_000
