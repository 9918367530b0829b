"""The metrics of one service, for Prometheus: counted as things happen, or read when asked."""

import shutil
from collections.abc import Iterator
from typing import Protocol, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georesolve import __version__
from georesolve.service.clock import seconds_between
from georesolve.service.database.rows import LIVE, JobRow, ProcessId
from georesolve.service.database.store import Store
from georesolve.service.errors import DatasetDamaged, JobFailed, StorageFull
from georesolve.service.settings import Settings
from georesolve.workers.cluster import Cluster

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
# Labels have few values: templates of routes, known methods, types of problems. What clients choose
# freely would make a series each.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
_REASONS = (JobFailed.type, DatasetDamaged.type, StorageFull.type, "other")
"""Why jobs fail."""
_ENDS = [("successful", ""), ("dismissed", ""), *(("failed", reason) for reason in _REASONS)]
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_JOB_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600)


class HasCluster(Protocol):
    """What knows the cluster that is open now, and when its scheduler answered last."""

    cluster: Cluster | None
    workers: dict[str, str]

    @property
    def silence_seconds(self) -> float:
        """Time since the scheduler last answered."""

    @property
    def trouble(self) -> str | None:
        """Why the cluster cannot be asked; None while it can."""


class Metrics:
    """The metrics of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("georesolve", "What runs.", registry=self.registry).info({"version": __version__})
        self._requests = Histogram(
            "georesolve_request_seconds",
            "Time from a request to the end of its answer.",
            ["route", "method", "status"],
            buckets=_REQUEST_SECONDS,
            registry=self.registry,
        )
        self._received = Counter(
            "georesolve_received_bytes", "Bytes of the bodies of requests.", registry=self.registry
        )
        self._wrong_keys = Counter(
            "georesolve_wrong_keys",
            "Requests with a key that opens nothing.",
            registry=self.registry,
        )
        self._jobs = Counter(
            "georesolve_jobs",
            "Jobs that ended; the reason is the type of the problem of one that failed.",
            ["process", "status", "reason"],
            registry=self.registry,
        )
        # From the start: Prometheus sees no increase in a series that begins with 1, and an alert
        # on it would not fire.
        for process in get_args(ProcessId):
            for end in _ENDS:
                self._jobs.labels(process, *end)
        self._queue = Histogram(
            "georesolve_job_queue_seconds",
            "Time from the acceptance of a job to its start.",
            buckets=_JOB_SECONDS,
            registry=self.registry,
        )
        self._run = Histogram(
            "georesolve_job_run_seconds",
            "Time from the start of a job to its end.",
            ["status"],
            buckets=_JOB_SECONDS,
            registry=self.registry,
        )
        self._rows_in = Counter(
            "georesolve_rows_in",
            "Observations resolved, by jobs and by requests answered at once.",
            ["by"],
            registry=self.registry,
        )
        self._rows_out = Counter(
            "georesolve_rows_out",
            "Rows of the results, by status of the row.",
            ["by", "status"],
            registry=self.registry,
        )

    def read_when_asked(self, settings: Settings, store: Store, supervisor: HasCluster) -> None:
        """Let the metrics tell how things are, too."""
        self.registry.register(_State(settings, store, supervisor))

    def count_request(
        self, route: str, method: str, status: int, seconds: float, received_bytes: int
    ) -> None:
        """Count a request that has been answered."""
        known = method if method in _METHODS else "other"
        self._requests.labels(route, known, status).observe(seconds)
        self._received.inc(received_bytes)

    def count_wrong_key(self) -> None:
        """Count a request whose key was refused."""
        self._wrong_keys.inc()

    def count_job(self, job: JobRow) -> None:
        """Count a job that has ended."""
        reason = job.problem["type"] if job.problem else ""
        if job.status == "failed" and reason not in _REASONS:
            reason = "other"
        self._jobs.labels(job.process, job.status, reason).inc()
        if job.started is None:
            return
        self._queue.observe(seconds_between(job.created, job.started))
        if job.finished is not None:
            self._run.labels(job.status).observe(seconds_between(job.started, job.finished))

    def count_rows(self, by: str, observations: int, counts: dict[str, int]) -> None:
        """Count observations that were resolved, and what became of them."""
        self._rows_in.labels(by).inc(observations)
        for status, rows in counts.items():
            self._rows_out.labels(by, status).inc(rows)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class _State(Collector):
    """What is read when it is asked for: a gauge that is kept up to date may be forgotten."""

    def __init__(self, settings: Settings, store: Store, supervisor: HasCluster) -> None:
        self._settings = settings
        self._store = store
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        live = self._store.live_jobs()
        jobs = GaugeMetricFamily("georesolve_live_jobs", "Jobs not ended.", labels=["status"])
        for status in LIVE:
            jobs.add_metric([status], sum(job.status == status for job in live))
        yield jobs
        yield GaugeMetricFamily(
            "georesolve_rows_per_second",
            "Observations a second that the running jobs resolve together.",
            value=sum(job.rows_a_second or 0.0 for job in live if job.status == "running"),
        )
        cluster = self._supervisor.cluster
        yield GaugeMetricFamily(
            "georesolve_cluster_up",
            "Whether there is a cluster, and its scheduler answers.",
            value=self._supervisor.trouble is None,
        )
        yield GaugeMetricFamily(
            "georesolve_scheduler_silence_seconds",
            "Time since the scheduler last answered.",
            value=self._supervisor.silence_seconds,
        )
        workers = GaugeMetricFamily(
            "georesolve_workers",
            "Workers that have passed their check: one a GPU where the device is cuda.",
            labels=["device"],
        )
        if cluster is not None:
            workers.add_metric([cluster.device], len(self._supervisor.workers))
        yield workers
        disk = shutil.disk_usage(self._settings.data_dir)
        space = GaugeMetricFamily(
            "georesolve_disk_bytes", "Space of the disk of the data folder.", labels=["state"]
        )
        space.add_metric(["free"], disk.free)
        space.add_metric(["used"], disk.used)
        yield space
