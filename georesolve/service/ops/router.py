"""`/livez`, `/readyz`, `/metrics`: whether it lives, can do its work, and how it does."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from georesolve.service import pools
from georesolve.service.auth.access import METRICS
from georesolve.service.disk import Trouble
from georesolve.service.http import openapi
from georesolve.service.receiving import sandbox
from georesolve.service.resolve.context import Service
from georesolve.service.store.rows import LIVE

logger = logging.getLogger(__name__)
router = APIRouter(tags=["health"])


class Check(BaseModel):
    """One thing that must be right for the service to be ready."""

    name: str
    ok: bool
    detail: str
    href: str | None = None


class Health(BaseModel):
    """Whether the service is ready.

    `full` is ready, too: it stores nothing more, but what makes room is done.
    """

    status: Literal["ok", "full", "unavailable"]
    checks: list[Check] = Field(
        description="one a line; none for keys of the role user, or without a needed key"
    )


_PATIENCE_SECONDS = 2.0
"""So long a check waits for a write that is being tried."""
_ALIVE = Health(status="ok", checks=[])
_RETRY = {"Retry-After": openapi.header("seconds", "integer")}
_NOT_READY: openapi.Answers = {
    503: {"description": "it cannot work, and why", "model": Health, "headers": _RETRY}
}


@router.get("/livez", summary="Whether the process lives")
async def get_life() -> Health:
    """The process answers."""
    return _ALIVE


@router.get(
    "/readyz", operation_id="getReadiness", summary="Whether it can work", responses=_NOT_READY
)
@router.get("/healthz", summary="The same as /readyz", responses=_NOT_READY)
@pools.checks.handler
def get_health(request: Request, response: Response) -> Health:
    """The service can do its work; 503 when it cannot.

    The checks say why, to keys of the roles `admin` and `metrics`, and where no key is needed.
    """
    health = _health(request.app.state.service)
    if health.status == "unavailable":
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    if not getattr(request.state, "is_operator", False):
        return Health(status=health.status, checks=[])
    return health


def _health(service: Service) -> Health:
    decoders = Check(name="sandbox", ok=True, detail=str(sandbox.available()))
    waits_for = service.at_hand.trouble
    small = Check(name="small requests", ok=waits_for is None, detail=waits_for or "answered here")
    trouble = service.store.writable.trouble(_PATIENCE_SECONDS)
    checks = [_store(service, trouble), _disk(service), decoders, small, *_cluster(service)]
    store, disk, *others = checks
    # A full disk does not make it unready: what makes room, DELETE, must still come through.
    if all(check.ok for check in others) and (store.ok or (trouble and trouble.is_full)):
        return Health(status="ok" if store.ok and disk.ok else "full", checks=checks)
    return Health(status="unavailable", checks=checks)


def _store(service: Service, trouble: Trouble | None) -> Check:
    if trouble is not None:
        return Check(name="store", ok=False, detail=f"it cannot be written: {trouble.reason}")
    try:
        live, _ = service.store.count_live()
    except SQLAlchemyError as error:
        logger.warning("the store cannot be read: %s", error)
        return Check(name="store", ok=False, detail=f"it cannot be read: {type(error).__name__}")
    return Check(name="store", ok=True, detail=f"writable, {live} jobs not finished")


def _disk(service: Service) -> Check:
    free, must_stay_free = service.disk.space()["free"], service.disk.must_stay_free
    detail = f"{free} bytes free, of which {must_stay_free} must stay free"
    trouble = service.disk.writable.trouble(_PATIENCE_SECONDS)
    if trouble is not None:
        detail += f"; no file can be written: {trouble.reason}"
    return Check(name="disk", ok=free >= must_stay_free and trouble is None, detail=detail)


def _cluster(service: Service) -> list[Check]:
    cluster, trouble = service.cluster.state, service.cluster.trouble
    if trouble is not None:
        return [Check(name="cluster", ok=False, detail=trouble)]
    workers = cluster.workers
    return [
        Check(name="workers", ok=bool(workers), detail=f"{workers} that passed their check"),
        Check(name="device", ok=True, detail=str(cluster.device)),
        Check(
            name="dashboard",
            ok=True,
            detail=cluster.dashboard_url or "none",
            href=cluster.dashboard_url,
        ),
    ]


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
        "georesolve_disk_bytes", "Space of the disk of the data folder.", state=service.disk.space()
    )


def _gauge(name: str, about: str, **values: Mapping[Any, float]) -> Metric:
    """A gauge with one label, and its values by those of the label."""
    ((label, by_label),) = values.items()
    gauge = GaugeMetricFamily(name, about, labels=[label])
    for of_label, value in by_label.items():
        gauge.add_metric([of_label], value)
    return gauge
