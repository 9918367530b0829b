"""The metrics of a service, for Prometheus: counted as things happen, or read when asked.

Fronts of one machine count into files of one folder, and each tells what all of them have counted.
The runner tells its own in the database, and fronts pass them on.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
    values,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from georesolve import __version__
from georesolve.service.clock import seconds_between
from georesolve.service.cluster import ClusterView
from georesolve.service.errors import DatasetDamaged, JobFailed, StorageFull
from georesolve.service.settings import Settings
from georesolve.service.store.rows import LIVE, JobRow, ProcessId
from georesolve.service.store.store import Store

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
# Labels have few values: templates of routes, known methods, types of problems. What clients choose
# freely would make a series each.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
_REASONS = (JobFailed.type, DatasetDamaged.type, StorageFull.type, "other")
"""Why jobs fail."""
_ENDS = [("successful", ""), ("dismissed", ""), *(("failed", reason) for reason in _REASONS)]
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_JOB_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600)
_Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a sample."""


class Metrics(Collector):
    """The metrics of one process, in a registry of its own, and those that others have counted.

    Parameters
    ----------
    folder
        Where all fronts of this machine count; None for one alone.
    name
        Of this front, which another one has only after its end.
    """

    def __init__(self, folder: Path | None = None, name: str = "") -> None:
        self._folder = folder
        if folder is not None:
            # It is read when metrics are made; the folder, when they first count.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
            values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._read = CollectorRegistry()
        ProcessCollector(registry=self._read)
        GCCollector(registry=self._read)
        Info("georesolve", "What runs.", registry=self._read).info({"version": __version__})
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._requests = histogram(
            "georesolve_request_seconds",
            "Time from a request to the end of its answer.",
            ["route", "method", "status"],
            buckets=_REQUEST_SECONDS,
        )
        self._received = counter("georesolve_received_bytes", "Bytes of the bodies of requests.")
        self._wrong_keys = counter(
            "georesolve_wrong_keys", "Requests with a key that opens nothing."
        )
        self._jobs = counter(
            "georesolve_jobs",
            "Jobs that ended; the reason is the type of the problem of one that failed.",
            ["process", "status", "reason"],
        )
        # From the start: Prometheus sees no increase in a series that begins with 1, and an alert
        # on it would not fire.
        for process in get_args(ProcessId):
            for end in _ENDS:
                self._jobs.labels(process, *end)
        self._queue = histogram(
            "georesolve_job_queue_seconds",
            "Time from the acceptance of a job to its start.",
            buckets=_JOB_SECONDS,
        )
        self._run = histogram(
            "georesolve_job_run_seconds",
            "Time from the start of a job to its end.",
            ["status"],
            buckets=_JOB_SECONDS,
        )
        self._rows_in = counter(
            "georesolve_rows_in",
            "Observations resolved, by jobs and by requests answered at once.",
            ["by"],
        )
        self._rows_out = counter(
            "georesolve_rows_out", "Rows of the results, by status of the row.", ["by", "status"]
        )

    def read_when_asked(self, settings: Settings, store: Store, cluster: ClusterView) -> None:
        """Let the metrics tell how things are, too, and what the runner has counted."""
        self._settings = settings
        self._store = store
        self._cluster = cluster

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
            if rows:
                self._rows_out.labels(by, status).inc(rows)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self) + generate_latest(self._read)

    def counted(self) -> str:
        """What this process has counted, in the same format."""
        return generate_latest(self.registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Called by what writes it down."""
        yield from self._added_up()
        yield from self._state()

    def _added_up(self) -> Iterator[Metric]:
        """What several processes have counted, each added up."""
        families: dict[str, Metric] = {}
        samples: dict[str, defaultdict[_Key, float]] = {}
        for family in self._counted_by_all():
            name = families.setdefault(family.name, family).name
            added = samples.setdefault(name, defaultdict(float))
            for sample in family.samples:
                added[sample.name, tuple(sorted(sample.labels.items()))] += sample.value
        for name, family in families.items():
            family.samples = [
                Sample(sample, dict(labels), value)
                for (sample, labels), value in samples[name].items()
            ]
            yield family

    def _counted_by_all(self) -> Iterator[Metric]:
        if self._folder is None:
            yield from self.registry.collect()
        else:
            folder: Collector = MultiProcessCollector(None, str(self._folder))  # type: ignore[no-untyped-call]
            yield from folder.collect()
        yield from text_string_to_metric_families(self._cluster.metrics)

    def _state(self) -> Iterator[Metric]:
        """What is read when it is asked for: a gauge that is kept up to date may be forgotten."""
        live, cluster = self._store.live_jobs(), self._cluster.state
        by_status = {status: sum(job.status == status for job in live) for status in LIVE}
        yield _gauge("georesolve_live_jobs", "Jobs not ended.", status=by_status)
        yield GaugeMetricFamily(
            "georesolve_rows_per_second",
            "Observations a second that the running jobs resolve together.",
            sum(job.rows_a_second or 0.0 for job in live if job.status == "running"),
        )
        yield GaugeMetricFamily(
            "georesolve_cluster_up",
            "Whether there is a cluster, and its scheduler answers.",
            self._cluster.trouble is None,
        )
        yield GaugeMetricFamily(
            "georesolve_scheduler_silence_seconds",
            "Time since the scheduler last answered.",
            cluster.silence_seconds,
        )
        yield _gauge(
            "georesolve_workers",
            "Workers that have passed their check: one a GPU where the device is cuda.",
            device={cluster.device: cluster.workers} if cluster.device else {},
        )
        disk = shutil.disk_usage(self._settings.data_dir)
        yield _gauge(
            "georesolve_disk_bytes",
            "Space of the disk of the data folder.",
            state={"free": disk.free, "used": disk.used},
        )


def _gauge(name: str, about: str, **values: Mapping[Any, float]) -> Metric:
    """A gauge with one label, and its values by those of the label."""
    ((label, by_label),) = values.items()
    gauge = GaugeMetricFamily(name, about, labels=[label])
    for of_label, value in by_label.items():
        gauge.add_metric([of_label], value)
    return gauge
