"""`/livez`, `/readyz`, `/metrics`: whether the process lives, can do its work, and how it does."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from service.access import DECLARED
from service.context import Service, WholeService
from service.metrics import CONTENT_TYPE
from service.models import Check, Health

router = APIRouter(tags=["health"])


@router.get("/livez")
async def live() -> Health:
    """The process answers."""
    return Health(status="ok", checks=[])


@router.get("/readyz", responses={503: {"model": Health}})
@router.get("/healthz", responses={503: {"model": Health}}, name="healthy")
def ready(service: WholeService, response: Response) -> Health:
    """The service can do its work; 503 and why when it cannot."""
    checks = [_store(service), *_cluster(service)]
    if all(check.ok for check in checks):
        return Health(status="ok", checks=checks)
    response.status_code = 503
    response.headers["Retry-After"] = "2"
    return Health(status="unavailable", checks=checks)


@router.get("/metrics", response_class=PlainTextResponse, dependencies=DECLARED)
def show_metrics(service: WholeService) -> Response:
    """How the service does, for Prometheus: requests, jobs, rows, workers, disk."""
    return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _store(service: Service) -> Check:
    live = len(service.store.live_jobs())
    return Check(name="store", ok=True, detail=f"{live} jobs not finished")


def _cluster(service: Service) -> list[Check]:
    supervisor = service.supervisor
    cluster = supervisor.cluster
    if cluster is None:
        return [Check(name="cluster", ok=False, detail=supervisor.trouble)]
    workers = cluster.workers()
    return [
        Check(name="workers", ok=bool(workers), detail=f"{len(workers)} that passed their check"),
        Check(name="device", ok=True, detail=cluster.device),
        Check(name="dashboard", ok=True, detail=cluster.dashboard_url or "none"),
    ]
