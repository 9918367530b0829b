"""What the handlers of one application share."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from service.idempotency import Claims
from service.ingest import Ingest
from service.library import Library
from service.settings import Settings
from service.store import Store
from service.supervisor import Supervisor


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    settings: Settings
    store: Store
    ingest: Ingest
    library: Library
    supervisor: Supervisor
    claims: Claims


# Async, or every request would take a turn through the pool of threads for it.
async def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceContext = Annotated[Service, Depends(_service_of)]
