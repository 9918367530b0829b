"""`open_cluster`: one process a GPU, or CPU processes, or a scheduler that exists already."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from distributed import Client, LocalCluster, Scheduler
from distributed.security import Security
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule, RuleRouter

from georesolve.engine import sampling
from georesolve.engine.gpus import choose_device, count_gpus
from georesolve.engine.plan import CHUNKS_IN_HAND
from georesolve.kernels.devices import Device
from georesolve.workers.cluster_settings import ClusterSettings
from georesolve.workers.plugin import Warmup

_ROLES = ("client", "scheduler", "worker")


def throw_away_security() -> Security:
    """Make a key and a certificate that the scheduler, workers and clients of a cluster share.

    Both are in memory only. A certificate of `Security.temporary` is valid for a year from now:
    a clock that is set back, or a longer service, would keep out workers that are started anew.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "georesolve")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    own = certificate.public_bytes(Encoding.PEM).decode()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return Security(
        require_encryption=True,
        tls_ca_file=own,
        **{f"tls_{role}_cert": own for role in _ROLES},
        **{f"tls_{role}_key": secret for role in _ROLES},
    )


def why_no_tls(address: str | None) -> str | None:
    """Why a scheduler at ``tls://`` cannot be connected to, in one line; None where it can.

    Without certificates Dask fails when it connects, and asks for an object of Python's ssl.
    """
    if not (address or "").startswith("tls://"):
        return None
    lack = "Dask is configured with none"
    try:
        if Security().get_connection_args("client")["ssl_context"]:
            return None
    except OSError as error:
        lack = f"those that Dask is configured with cannot be read ({error.strerror or error})"
    return (
        f"the scheduler {address} needs TLS certificates, and {lack}: make them with "
        "deploy/make_certificates.sh FOLDER, and start the scheduler, its workers and the service "
        "with DASK_CONFIG=FOLDER"
    )


logger = logging.getLogger(__name__)

_DASK_CONFIG = Path(__file__).with_name("dask.yaml")
_LARGEST_CPU_CLUSTER = 8
"""Processes on a CPU machine; more cores than that become threads of each."""
_ANSWER_SECONDS = 5.0
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True)
class Cluster:
    """An open cluster."""

    client: Client
    """Connected to its scheduler."""
    device: Device
    """What its workers compute on."""
    dashboard_url: str | None
    """Where the Dask dashboard answers."""
    connection: object
    """That of the client to the scheduler whose workers have passed their check."""
    trial: threading.Lock = field(default_factory=threading.Lock)
    """Held while a chunk is tried again that may have ended its worker."""

    def is_up(self) -> bool:
        """Whether the scheduler is still connected; a cluster that was lost once stays lost.

        A client connects again by itself, but perhaps to another scheduler: that one knows nothing
        of what was submitted, and its workers have not passed their check.
        """
        return self.client.status == "running" and self.client.scheduler_comm is self.connection

    def restore(self) -> None:
        """Start the workers of an own cluster anew that Dask has given up."""
        own = self.client.cluster
        if own is not None and len(own.workers) < len(own.worker_spec):
            own.scale(len(own.worker_spec))

    def workers(self) -> dict[str, str]:
        """Addresses of the workers that are up and have passed their check, by name.

        It waits for the scheduler for as long as that takes; `workers_of` does not.
        """
        if not self.is_up():
            return {}
        return _by_name(self.client.scheduler_info(n_workers=-1))


@contextlib.contextmanager
def open_cluster(settings: ClusterSettings) -> Iterator[Cluster]:
    """Open the cluster that the settings ask for, with workers that have passed their check.

    It raises NoGpuError when ``device`` is ``cuda`` and there is no GPU, WorkerCheckError when a
    worker's device gives a wrong answer, and OSError when the existing scheduler does not answer,
    or needs certificates, or its file is not there or tells no address.
    """
    with contextlib.ExitStack() as stack:
        [ours] = dask.config.collect_yaml([str(_DASK_CONFIG)])
        merged = {part: dask.config.merge(dask.config.get(part, {}), ours[part]) for part in ours}
        stack.enter_context(dask.config.set(merged))
        # What a job needs here takes a second or two to load, and workers take longer to start.
        loading = stack.enter_context(ThreadPoolExecutor(1)).submit(_load)
        if settings.is_existing:
            address, file = settings.scheduler, settings.scheduler_file
            if file is not None:
                # Read each time: a scheduler that was started anew may be on another machine.
                try:
                    address = json.loads(file.read_text())["address"]
                except (ValueError, TypeError, KeyError):
                    raise OSError(
                        f"{file} is no JSON with the 'address' of a scheduler: name the file that "
                        "'dask scheduler --scheduler-file' writes"
                    ) from None
            if why := why_no_tls(address):
                raise OSError(why)
            client = stack.enter_context(
                Client(address, timeout=settings.connect_seconds, set_as_default=False)
            )
        else:
            local = stack.enter_context(_local_cluster(settings))
            client = stack.enter_context(Client(local, set_as_default=False))
        client.wait_for_workers(1, timeout=settings.connect_seconds)
        # On a GPU most of the work is not the cores'; of other clusters they may be elsewhere.
        yields = not settings.is_existing and choose_device(settings.device) == "cpu"
        log_format = None if settings.is_existing else settings.log_format
        given = settings.device, settings.references_a_piece
        client.register_plugin(Warmup(*given, yields=yields, log_format=log_format))
        backends = client.run(dask.config.get, "dataframe.backend")
        device: Device = "cuda" if "cudf" in backends.values() else "cpu"
        loading.result()
        # Without a dashboard a scheduler answers at the same address.
        draws = client.run_on_scheduler(
            lambda dask_scheduler: bool(dask_scheduler.http_application.applications)
        )
        dashboard_url = client.dashboard_link if draws else None
        cluster = Cluster(client, device, dashboard_url or None, client.scheduler_comm)
        logger.info(
            "cluster open: device %s, workers %s, dashboard %s",
            device,
            ", ".join(cluster.workers()),
            cluster.dashboard_url,
        )
        yield cluster


def _load() -> None:
    import_module("dask.dataframe")
    sampling.load()


@contextlib.asynccontextmanager
async def in_event_loop(cluster: Cluster) -> AsyncIterator[Client]:
    """Another client of a cluster, for the caller's event loop: it takes no thread; OSError."""
    scheduler, security = cluster.client.scheduler, cluster.client.security
    assert scheduler is not None, "an open cluster has a scheduler"
    async with Client(
        scheduler.address, asynchronous=True, security=security, set_as_default=False
    ) as client:
        yield client


async def workers_of(client: Client) -> dict[str, str]:
    """Addresses of a scheduler's workers by name, asked in the caller's event loop; OSError."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            assert client.scheduler is not None, "an open cluster has a scheduler"
            identity = await client.scheduler.identity(n_workers=-1)
    except TimeoutError:
        raise OSError(f"the scheduler does not answer within {_ANSWER_SECONDS:g} s") from None
    return _by_name(identity)


def _by_name(identity: dict[str, Any]) -> dict[str, str]:
    workers = identity.get("workers", {})
    return {str(workers[address]["name"]): address for address in sorted(workers)}


@contextlib.contextmanager
def _local_cluster(settings: ClusterSettings) -> Iterator[LocalCluster]:
    cores = len(os.sched_getaffinity(0))
    device = choose_device(settings.device)
    on_gpus = device == "cuda"
    common: dict[str, Any] = {
        "dashboard_address": settings.dashboard_address,
        "threads_per_worker": CHUNKS_IN_HAND[device],
        "local_directory": str(settings.scratch) if settings.scratch else None,
        "silence_logs": logging.WARNING,
        # A scheduler and its workers run code for every client that connects, and any user of this
        # machine can connect to loopback.
        "security": throw_away_security(),
    }
    most = count_gpus() if on_gpus else min(cores, _LARGEST_CPU_CLUSTER)
    n_workers = min(settings.workers or most, most) if on_gpus else settings.workers or most
    # For as long as the cluster is open: workers are started anew with it.
    threads = {"NUMBA_NUM_THREADS": str(max(1, cores // n_workers))}
    with dask.config.set({"distributed.nanny.environ": threads}):
        # The threads that start workers, anew too, begin here, and inherit a mask: a terminal sends
        # SIGINT to all processes that it shows, and the service ends its own in order. The tracker
        # is launched with the first process, and would lift the mask.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            if on_gpus:
                from dask_cuda import LocalCUDACluster

                cluster = LocalCUDACluster(n_workers=n_workers, rmm_async=True, **common)
            else:
                cluster = LocalCluster(n_workers=n_workers, **common)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            _guard_dashboard(cluster.scheduler, settings.dashboard_address)
            yield cluster
        finally:
            # A killed process has a second to be gone, for which a busy machine may take longer.
            with contextlib.suppress(TimeoutError):
                cluster.close()


def _guard_dashboard(scheduler: Scheduler, address: str) -> None:
    """Let a dashboard be asked by its own pages, on loopback by the names of this machine alone.

    Dask's own answers any name, so that a page of another site could read it in a browser here.
    """
    host = address.rpartition(":")[0]
    names = _LOOPBACK_NAMES | {host}
    is_loopback = host in _LOOPBACK_NAMES or host.startswith("127.") or host == "::1"
    server = scheduler.http_server
    matcher = _OwnPages(names if is_loopback else None)
    # What no rule matches is answered 404.
    server.request_callback = RuleRouter([Rule(matcher, scheduler.http_application)])


class _OwnPages(Matcher):
    """Matches requests for one of some names, or any, which no page of another origin sends."""

    def __init__(self, names: frozenset[str] | None) -> None:
        self._names = names

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Called by tornado; None for no match."""
        origin = request.headers.get("Origin")
        is_own = origin is None or urlsplit(origin).netloc.lower() == request.host.lower()
        is_named = self._names is None or request.host_name.lower() in self._names
        return {} if is_own and is_named else None
