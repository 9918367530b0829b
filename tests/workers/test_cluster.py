"""Opening clusters: an existing scheduler, devices asked for, workers that answer wrongly."""

import gc
import json
import os
from collections import defaultdict

import dask
import numpy as np
import pyarrow.parquet as pq
import pytest
from cryptography import x509
from distributed import Client, LocalCluster

from georesolve.engine.gpus import (
    NoGpuError,
    choose_device,
    count_gpus,
    count_visible,
)
from georesolve.query import MatchOptions
from georesolve.workers import plugin
from georesolve.workers.cluster import open_cluster, throw_away_security
from georesolve.workers.cluster_settings import ClusterSettings
from georesolve.workers.job import Job
from georesolve.workers.pipeline import run
from georesolve.workers.plugin import NICENESS, Warmup, WorkerCheckError, check_known_answer
from georesolve.workers.results.manifest import open_matches
from tests.conftest import (
    free_port,
    kill_with_children,
    points,
    sphere,
    start_scheduler,
    start_worker,
    store_points,
    wait_until,
)
from tests.oracle import nearest


@pytest.fixture
def let_in(cluster):
    """Other clients than ours have the key of the cluster from Dask's configuration."""
    security = cluster.client.security
    client = {"cert": security.tls_client_cert, "key": security.tls_client_key}
    tls = {"ca-file": security.tls_ca_file, "client": client}
    with dask.config.set({"distributed.comm.tls": dask.config.get("distributed.comm.tls") | tls}):
        yield


def test_an_own_cluster_takes_nobody_without_its_key(cluster):
    workers = cluster.client.scheduler_info(n_workers=-1)["workers"]
    addresses = [cluster.client.scheduler.address, *workers]
    addresses += [worker["nanny"] for worker in workers.values()]
    assert len(addresses) == 1 + 2 * len(workers) >= 3
    other = throw_away_security()
    # A certificate is shown to all who ask: it opens nothing without its key.
    other.tls_ca_file = cluster.client.security.tls_ca_file
    for address in addresses:
        plain = address.replace("tls://", "tcp://")
        for another, security in ((plain, None), (address, other)):
            with pytest.raises(OSError, match=r"closed|Timed out"):
                Client(another, security=security, timeout=2, set_as_default=False)


def test_a_clock_that_is_wrong_keeps_no_worker_out():
    """Nor does a year of running: workers that start anew show the same certificate."""
    [own] = x509.load_pem_x509_certificates(throw_away_security().tls_ca_file.encode())
    assert own.not_valid_before_utc.year == 2000
    assert own.not_valid_after_utc.year == 9999


@pytest.mark.usefixtures("let_in")
def test_an_existing_scheduler(cluster, device, tmp_path):
    settings = ClusterSettings(scheduler=cluster.client.scheduler.address, device=device)
    job = Job(
        store_points(points(500, 1), tmp_path / "observations.parquet"),
        store_points(points(300, 2), tmp_path / "references.parquet"),
        MatchOptions(),
        id=tmp_path.name,
        folder=tmp_path / "job",
    )
    with open_cluster(settings) as existing:
        assert existing.workers() == cluster.workers() != {}
        run(existing, job, lambda progress: None, lambda: False)
    rows, _ = nearest(*sphere(500, 1), *sphere(300, 2))
    np.testing.assert_array_equal(pq.read_table(open_matches(job.folder))["reference"], rows)
    assert cluster.client.submit(sum, [1, 2]).result() == 3, "it was theirs, and still runs"


@pytest.mark.usefixtures("let_in")
def test_the_file_of_an_existing_scheduler(cluster, device, tmp_path):
    settings = ClusterSettings(scheduler_file=tmp_path / "scheduler.json", device=device)
    with pytest.raises(OSError, match=r"scheduler\.json"), open_cluster(settings):
        pass
    for text in ("{half", "[]", "{}"):
        settings.scheduler_file.write_text(text)
        told = r"scheduler\.json is no JSON with the 'address' of a scheduler"
        with pytest.raises(OSError, match=told), open_cluster(settings):
            pass
    # As a scheduler writes it; a client's `write_scheduler_file` breaks once a task has run.
    settings.scheduler_file.write_text(json.dumps({"address": cluster.client.scheduler.address}))
    with open_cluster(settings) as existing:
        assert existing.workers() == cluster.workers() != {}


@pytest.mark.parametrize("missing", [None, "ca-file"])
def test_a_scheduler_with_tls_needs_certificates(tmp_path, missing):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": "tls://127.0.0.1:9"}))
    given = (
        {"ca-file": "/none/ca.crt", "client": {"cert": "/none/crt", "key": None}} if missing else {}
    )
    tls = dask.config.get("distributed.comm.tls") | given
    told = "cannot be read .No such file" if missing else "Dask is configured with none"
    for settings in (
        ClusterSettings(scheduler="tls://127.0.0.1:9"),
        ClusterSettings(scheduler_file=file),
    ):
        with (
            dask.config.set({"distributed.comm.tls": tls}),
            pytest.raises(OSError, match=f"tls://127.0.0.1:9 needs .*{told}.*DASK_CONFIG=FOLDER"),
            open_cluster(settings),
        ):
            pass


def test_no_scheduler_answers():
    settings = ClusterSettings(scheduler="tcp://127.0.0.1:9", connect_seconds=1)
    with pytest.raises(OSError, match="Timed out"), open_cluster(settings):
        pass


def test_a_cluster_that_was_lost_stays_lost(device):
    port = free_port()
    settings = ClusterSettings(device=device, scheduler=f"tcp://127.0.0.1:{port}")
    processes = [start_scheduler(port), start_worker(port)]
    try:
        with open_cluster(settings) as cluster:
            assert cluster.is_up()
            kill_with_children(processes[0])
            processes[0] = start_scheduler(port)
            wait_until(lambda: cluster.client.status == "connecting")
            wait_until(lambda: cluster.client.status == "running")
            assert not cluster.is_up()
            assert not cluster.workers()
    finally:
        for process in processes:
            kill_with_children(process)


def test_a_worker_that_compiles_for_long_is_not_given_up(tmp_path):
    """Dask gives up a worker that is silent; from one that prepares it hears again and again."""

    class SlowWarmup(Warmup):
        def prepare(self, worker):
            wait_until((tmp_path / "go on").exists)

    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    heard = defaultdict(set)

    def is_heard():
        for worker in [*local.scheduler.workers.values()]:
            heard[worker.address].add(worker.last_seen)
        return any(len(times) > 3 for times in heard.values())

    with (
        LocalCluster(n_workers=0, **options) as local,
        Client(local, set_as_default=False) as client,
    ):
        client.register_plugin(SlowWarmup("cpu", None, yields=False))
        local.scale(1)
        try:
            wait_until(is_heard)
        finally:
            (tmp_path / "go on").touch()
        client.submit(os.getpid).result(timeout=60)
    assert len(heard) == 1, "it was given up, and another one started"


def test_workers_leave_cores_to_fronts(cluster, device):
    """A task runs in a thread; it is the thread that is nice."""
    found = cluster.client.submit(os.getpriority, os.PRIO_PROCESS, 0).result()
    assert found == os.getpriority(os.PRIO_PROCESS, 0) + {"cpu": NICENESS, "cuda": 0}[device]


def test_workers_have_little_to_look_through_when_they_end(cluster):
    """Most of what a worker has was there before its first task."""
    objects = cluster.client.run(lambda: (gc.get_freeze_count(), len(gc.get_objects())))
    for kept, others in objects.values():
        assert kept > others


def test_tasks_wait_for_workers_for_as_long_as_it_takes(cluster):
    def patience(dask_scheduler):
        return dask_scheduler.no_workers_timeout

    assert cluster.client.run_on_scheduler(patience) is None


def test_choose_device(device, monkeypatch):
    if device == "cuda":
        assert count_gpus() > 0
        assert choose_device("auto") == choose_device("cuda") == "cuda"
        assert choose_device("cpu") == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert count_gpus() == 0
    assert choose_device("auto") == choose_device("cpu") == "cpu"
    with pytest.raises(NoGpuError, match="set device to 'auto' or 'cpu'"):
        choose_device("cuda")
    with pytest.raises(ValueError, match="device must be one of auto, cpu, cuda, got 'gpu'"):
        choose_device("gpu")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        *[(None, 3), ("0", 1), (" 2, 0", 2), ("0,3,1", 1), ("", 0), ("-1", 0), ("NoDevFiles", 0)],
        *[("GPU-4f", 1), ("GPU-4f1c-77,GPU-9", 2), ("GPU-5", 0), ("MIG-11", 1), ("0,,1", 1)],
    ],
)
def test_what_cuda_shows_of_three_gpus(names, shown):
    assert count_visible(["GPU-4f1c-77", "GPU-9a-1", "GPU-9b-2"], names) == shown
    assert count_visible([], names) == 0


def test_a_wrong_answer_is_told(monkeypatch):
    check_known_answer("cpu")
    monkeypatch.setattr(plugin, "_KNOWN_REFERENCE", [0, 2, 3, 0])
    with pytest.raises(WorkerCheckError, match=r"the cpu answered .* replace the device"):
        check_known_answer("cpu")
