"""`/metrics`: what the service has counted, and how it does, for Prometheus."""

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from georesolve.service import pools
from georesolve.service.auth.access import METRICS
from georesolve.service.resolve.context import Service
from georesolve.service.store.rows import LIVE

router = APIRouter(tags=["health"])


@router.get(METRICS, summary="How it does, for Prometheus", response_class=PlainTextResponse)
@pools.database.handler
def get_metrics(request: Request) -> Response:
    """How the service does, for Prometheus: requests, jobs, rows, workers, disk."""
    service: Service = request.app.state.service
    text = service.metrics.text(service.cluster.metrics, _state(service))
    return Response(text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _state(service: Service) -> Iterator[Metric]:
    """What is read when it is asked for: a gauge that is kept up to date may be forgotten."""
    live, cluster = service.store.live_jobs(), service.cluster.state
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
        service.cluster.trouble is None,
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
    yield _gauge(
        "georesolve_disk_bytes",
        "Space of the disk of the data folder.",
        state=service.disk.space(),
    )


def _gauge(name: str, about: str, **values: Mapping[Any, float]) -> Metric:
    """A gauge with one label, and its values by those of the label."""
    ((label, by_label),) = values.items()
    gauge = GaugeMetricFamily(name, about, labels=[label])
    for of_label, value in by_label.items():
        gauge.add_metric([of_label], value)
    return gauge
