"""The metrics of a service, for Prometheus: counted as things happen.

Fronts of one machine count in one folder, and the runner tells its own in the database.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

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
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from georesolve.service import errors
from georesolve.service.clock import seconds_between
from georesolve.version import __version__

# Labels have few values: templates of routes, known methods, types of problems. What clients choose
# freely would make a series each.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
_REASONS = (errors.JobFailed.type, errors.DatasetDamaged.type, errors.StorageFull.type, "other")
"""Why jobs fail."""
_ENDS = [("successful", ""), ("dismissed", ""), *(("failed", reason) for reason in _REASONS)]
_PROCESSES = ("nearest", "within")
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_JOB_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600)
_Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a sample."""


class _Families(list[Metric], Collector):
    """Metrics as the writer of the text format wants them."""

    def collect(self) -> Iterable[Metric]:
        return self


class Metrics:
    """The metrics of one process, and those that all fronts of this machine count in a folder."""

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
        # Labels have few values, and to look their series up takes longer than to count.
        self._of_requests = cache(self._requests.labels)
        self._received = counter("georesolve_received_bytes", "Bytes of the bodies of requests.")
        self.wrong_keys = counter(
            "georesolve_wrong_keys", "Requests with a key that opens nothing."
        )
        self._jobs = counter(
            "georesolve_jobs",
            "Jobs that ended; the reason is the type of the problem of one that failed.",
            ["process", "status", "reason"],
        )
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
        self._in_by, self._out_by = cache(self._rows_in.labels), cache(self._rows_out.labels)
        # From the start: Prometheus sees no increase in a series that begins with 1. An alert on it
        # would not fire, and a panel would not show the first job.
        for end in _ENDS:
            self._run.labels(end[0])
            for process in _PROCESSES:
                self._jobs.labels(process, *end)
        for by in ("job", "at hand"):
            self._in_by(by)

    def count_request(
        self, route: str, method: str, status: int, seconds: float, received_bytes: int
    ) -> None:
        """Count a request that has been answered."""
        known = method if method in _METHODS else "other"
        self._of_requests(route, known, status).observe(seconds)
        self._received.inc(received_bytes)

    def count_job(
        self,
        process: str,
        status: str,
        reason: str,
        created: str,
        started: str | None,
        finished: str | None,
    ) -> None:
        """Count a job that has ended; the reason is the type of its problem, or empty."""
        if status == "failed" and reason not in _REASONS:
            reason = "other"
        self._jobs.labels(process, status, reason).inc()
        if started:
            self._queue.observe(seconds_between(created, started))
        if started and finished:
            self._run.labels(status).observe(seconds_between(started, finished))

    def count_rows(self, by: str, observations: int, counts: dict[str, int]) -> None:
        """Count observations that were resolved, and what became of them."""
        self._in_by(by).inc(observations)
        for status, rows in counts.items():
            if rows:
                self._out_by(by, status).inc(rows)

    def text(self, of_runner: str, state: Iterable[Metric]) -> bytes:
        """All metrics as Prometheus reads them, with those `of_runner` and the `state` now."""
        counted = _Families([*self._added_up(of_runner), *state])
        return generate_latest(counted) + generate_latest(self._read)

    def counted(self) -> str:
        """What this process has counted, in the same format."""
        return generate_latest(self.registry).decode()

    def _added_up(self, of_runner: str) -> Iterable[Metric]:
        """What several processes have counted, each added up."""
        counted: Collector = self.registry
        if self._folder is not None:
            counted = MultiProcessCollector(None, str(self._folder))  # type: ignore[no-untyped-call]
        families: dict[str, Metric] = {}
        added: defaultdict[str, defaultdict[_Key, float]] = defaultdict(partial(defaultdict, float))
        for family in (*counted.collect(), *text_string_to_metric_families(of_runner)):
            families.setdefault(family.name, family)
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                added[family.name][sample.name, labels] += sample.value
        for name, family in families.items():
            family.samples = [
                Sample(sample, dict(labels), value)
                for (sample, labels), value in added[name].items()
            ]
        return families.values()
