"""What tests share: point sets, a real cluster, a real service."""

import fcntl
import gc
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom

import dask
import httpx
import hypothesis
import numpy as np
import psutil
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

from georesolve.io.datasets import held_dataset, write_dataset
from georesolve.io.evidence import Evidence
from georesolve.workers.cluster import open_cluster
from georesolve.workers.cluster_settings import ClusterSettings
from tests.forks import ROOT, fork


def pytest_addoption(parser):
    parser.addoption("--device", choices=["cpu", "cuda"], default="cpu", help="what to test on")


_COMPILING = pytest.StashKey[subprocess.Popen]()


def pytest_configure(config):
    # Processes that run tests, and services of each, would compile the kernels at the same time.
    if getattr(config.option, "numprocesses", None):
        command = [sys.executable, "-m", "tests.compiling"]
        config.stash[_COMPILING] = subprocess.Popen(command, cwd=ROOT)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node):
    assert node.config.stash[_COMPILING].wait() == 0, "the kernels cannot be compiled"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among what is loaded: none of it ever is."""
    gc.disable()
    try:
        with Path(__file__).open() as file:
            # One process goes ahead: pytest keeps the modules that it has rewritten, and the others
            # load those. To rewrite them takes each twice as long as all else.
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_SH)
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") == "cpu":
        gpu = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]
    # Files are dealt out in this order: those that take long do not come last, and some that take
    # the cores run beside some that wait. Of the long runs small files take longest.
    if hasattr(config, "workerinput") and not any("faults" in item.path.parts for item in items):
        items.sort(key=lambda item: item.path.stat().st_size, reverse=True)


SAMPLES = ROOT / "samples"

# No test checks how fast something was: on a busy machine anything may take a second.
# Where CI is set Hypothesis draws the same examples each time, elsewhere others.
hypothesis.settings.register_profile("unhurried", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("unhurried")


def sphere(n, seed):
    """Points uniform on the globe: latitudes and longitudes in degrees."""
    random = np.random.default_rng(seed)
    return np.degrees(np.arcsin(random.uniform(-1, 1, n))), random.uniform(-180, 180, n)


def points(n, seed, **columns):
    """A table of points with an id, and further columns."""
    lat, lon = sphere(n, seed)
    return pa.table({"id": np.arange(n) + 1_000_000, "lat": lat, "lon": lon, **columns})


def store_points(table, path):
    """A table as a canonical dataset, in memory where there is no path."""
    has_id = "id" if "id" in table.schema.names else None
    if path is None:
        columns = [column.combine_chunks() for column in table.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=table.schema)
        seen = Evidence.of(batch["lat"].to_numpy(), batch["lon"].to_numpy())
        return held_dataset(batch, {"id": has_id, "lat": "lat", "lon": "lon"}, seen)
    return write_dataset(table.schema, table.to_batches(), path, lat="lat", lon="lon", id=has_id)


@pytest.fixture(scope="session")
def device(pytestconfig):
    """What the clusters of this run compute on."""
    return pytestconfig.getoption("--device")


@pytest.fixture(scope="session")
def cluster(device):
    """A real cluster of two workers, or of one GPU worker where there is one GPU."""
    settings = ClusterSettings(device=device, workers=2, dashboard_address="127.0.0.1:0")
    with open_cluster(settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def dask_client(device):
    """A client of a cluster such as users of Dask start, which computes collections."""
    if device == "cuda":
        from dask_cuda import LocalCUDACluster

        cluster = LocalCUDACluster(dashboard_address="127.0.0.1:0")
    else:
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    with cluster, Client(cluster) as client:
        yield client


START_SECONDS = 240
"""What a service may take to start on a busy machine; its kernels may have to be compiled first."""

LOOP_WAITED = "the event loop waited for"
"""What the log of a front tells that would not answer for as long as this takes."""

NO_CLUSTER = ("--scheduler-file", "/nowhere/scheduler.json")
"""Flags of a service that has no cluster: it starts no workers, and waits for nothing when it ends.

For what needs none: connections, bodies, keys, decoders, jobs that wait.
"""


@contextmanager
def running_service(data_dir, *flags, ready=True):
    """A real service in a process of its own; yields a client, which has the process."""
    log = (data_dir.parent / f"{data_dir.name}.log").open("ab")
    process = start_service(data_dir, log, *flags)
    start = log.tell()
    try:
        with httpx.Client(timeout=120, base_url=wait_for_url(process, log.name, start)) as client:
            client.process = process
            client.log = Path(log.name)
            if ready:
                wait_until(lambda: client.get("/readyz").is_success, START_SECONDS, process=process)
            yield client
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            log.close()
    # See `tests.loop_guard`.
    waited = [line for line in Path(log.name).read_text().splitlines() if LOOP_WAITED in line]
    assert not waited


def start_service(data_dir, log, *flags, from_shell=False):
    """The process of a service, which writes to a log; it need not answer yet.

    From a shell it loads all that it needs itself, and is a group of its own with what it starts.
    """
    arguments = ["--data-dir", data_dir, "--port", 0, "--dashboard-address", "127.0.0.1:0"]
    # Of two flags the last one counts: those that are given.
    arguments += ["--workers", 1, "--fronts", 1]
    arguments = ["serve", *map(str, arguments), *map(str, flags)]
    if not from_shell:
        return fork("georesolve", arguments, log)
    command = [sys.executable, "-m", "georesolve", *arguments]
    return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, process_group=0)


_DASK_FLAGS = ["--no-dashboard", "--host", "127.0.0.1"]


def start_scheduler(port, log=None):
    """The process of a Dask scheduler that the service does not own."""
    return fork("dask", ["scheduler", "--port", str(port), *_DASK_FLAGS], log)


def start_worker(port, log=None):
    """The process of a Dask nanny for the scheduler on a port, with one worker."""
    flags = ["--nworkers=1", "--nthreads=1", *_DASK_FLAGS]
    return fork("dask", ["worker", f"tcp://127.0.0.1:{port}", *flags], log)


@contextmanager
def scheduler_on(port):
    """A scheduler with one worker, each a process of its own, killed at the end; yields both."""
    processes = [start_scheduler(port), start_worker(port)]
    try:
        yield processes
    finally:
        for process in processes:
            kill_with_children(process)


@pytest.fixture(scope="session")
def shared_cluster(device):
    """Flags of a service that computes on a cluster which services share.

    For those that need a cluster and flags of their own: they start no workers. Not for tests that
    kill workers, or look at their logs or at the dashboard.
    """
    port = free_port()
    with scheduler_on(port):
        yield ("--device", device, "--scheduler", f"tcp://127.0.0.1:{port}")


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.count(10_000 + 2_000 * (_WORKER % 10) + SystemRandom().randrange(1_000))
"""Each process that runs tests has its own; all are below those that connections are given."""


def free_port():
    """A port that nobody listens on, and that no connection takes before it is used."""
    return next(filter(_is_free, _PORTS))


def _is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def children_of(process, word, *, recursive=False):
    """What a process has started, and still runs, with a word in its command line."""
    found = []
    for child in psutil.Process(process.pid).children(recursive):
        # One that ends meanwhile has no command line.
        with suppress(psutil.NoSuchProcess):
            if word in " ".join(child.cmdline()):
                found.append(child)
    return found


def roles_of(process, role):
    """The processes of a service that are fronts, or its runner."""
    found = []
    for child in psutil.Process(process.pid).children():
        # One that was killed may be waited for meanwhile, and has no name then.
        with suppress(psutil.NoSuchProcess):
            if child.name().startswith(role):
                found.append(child)
    return found


def kill_with_children(process):
    """Kill a process and what it started, and wait until all have ended, as a power cut would."""
    family = [psutil.Process(process.pid)]
    # A worker whose scheduler was killed may have ended by now, with what it had started.
    with suppress(psutil.ZombieProcess):
        family += family[0].children(recursive=True)
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    # What the next service finds locked, or its port taken, it takes for another one's.
    wait_until(lambda: all(map(_has_ended, family)))


def _has_ended(process):
    """Whether a process holds nothing any more; one that nobody waits for is a zombie."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for_url(process, log, start):
    """Wait until a service tells where it listens, in its log from some byte on."""
    found = []

    def listening():
        text = Path(log).read_bytes()[start:].decode()
        found[:] = re.findall(r"http://(?:127\.0\.0\.1|0\.0\.0\.0):\d+", text)
        return bool(found)

    wait_until(listening, seconds=START_SECONDS, process=process)
    return found[0].replace("0.0.0.0", "127.0.0.1")


@contextmanager
def worker_given_up(device):
    """A cluster whose only worker Dask has given up, and the process that this was."""
    settings = ClusterSettings(device=device, workers=1, dashboard_address="127.0.0.1:0")
    with open_cluster(settings) as cluster:
        [pid] = cluster.client.run(os.getpid).values()
        # In no time: the nanny that starts another worker is closed before that one is there.
        with dask.config.set({"distributed.deploy.lost-worker-timeout": "0s"}):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not cluster.client.cluster.workers)
        yield cluster, pid


def wait_until(condition, seconds=120, process=None):
    """Ask again and again, and give up in the end."""
    start = time.monotonic()
    while not condition():
        assert process is None or process.poll() is None, "the process has ended"
        passed = time.monotonic() - start
        assert passed < seconds, "it did not happen in time"
        # To be asked all the time takes the time of what is waited for.
        time.sleep(min(0.02 + passed / 20, 0.25))


@pytest.fixture(scope="session")
def service(tmp_path_factory, device):
    """A service for all tests that leave it as they found it."""
    data_dir = tmp_path_factory.mktemp("service") / "data"
    with running_service(data_dir, "--device", device) as client:
        yield client


@pytest.fixture(scope="session")
def long_job(device):
    """Observations, references and options of many seconds of work."""
    m, n = {"cpu": (200_000, 100_000), "cuda": (4_000_000, 3_000_000)}[device]
    return points(m, 1), points(n, 2), {"algorithm": "brute"}


def run_nearest(client, inputs, headers=None):
    """Run the process `nearest` with sets and options as JSON, of which a job is made."""
    body = {"inputs": inputs}
    return client.post("/processes/nearest/execution", json=body, headers=headers)


def small_job(client, **headers):
    """Have a job made of one observation, which waits where there is no cluster."""
    table = {"lat": [1.0], "lon": [2.0]}
    inputs = dict.fromkeys(("observations", "references"), table)
    return run_nearest(client, inputs, {"Prefer": "respond-async", **headers})


def look_up(client, inputs, headers=None):
    """Ask `/nearest`, which makes no job; the answer is Parquet if nothing else is asked for."""
    headers = {"Accept": "application/vnd.apache.parquet", **(headers or {})}
    return client.post("/nearest", json=inputs, headers=headers)


def finished(client, location):
    """Wait for a job to end; returns its statusInfo."""
    info = {}

    def ended():
        info.update(client.get(location).raise_for_status().json())
        return info["status"] not in ("accepted", "running")

    wait_until(ended)
    return info
