"""What the handlers of one application share."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import Depends, Request

from georesolve.intake.addresses import Sinks
from georesolve.service.cluster import ClusterView
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Disk
from georesolve.service.jobs.quotas import Quotas
from georesolve.service.maps.cache import Maps
from georesolve.service.metrics import Metrics
from georesolve.service.receiving.ingest import Ingest
from georesolve.service.resolve.at_hand import AtHand, Memory
from georesolve.service.results.checks import Checks
from georesolve.service.settings import Settings
from georesolve.service.store.roles import Role
from georesolve.service.store.store import Store
from georesolve.service.turns import Turns


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    settings: Settings
    store: Store
    ingest: Ingest
    sinks: Sinks
    checks: Checks
    maps: Maps
    library: Library
    cluster: ClusterView
    at_hand: AtHand
    disk: Disk
    memory: Memory
    quotas: Quotas
    metrics: Metrics
    reading: Turns
    views: dict[tuple[str, Role], "Service"] = field(default_factory=dict)
    """What `of` gave, by owner and role: as many as there are keys."""

    @property
    def owner(self) -> str:
        """Whose service this is; empty without keys."""
        return self.store.owner or ""

    def of(self, owner: str, role: Role) -> "Service":
        """The service as one owner sees it: datasets and jobs of others are not there.

        An admin sees those of all.
        """
        if (owner, role) not in self.views:
            store = self.store.of(owner, sees_all=role == "admin")
            self.views[owner, role] = replace(self, store=store, library=self.library.of(store))
        return self.views[owner, role]

    def owners(self) -> dict[str, str]:
        """Names of the keys by id, to tell whose something is where all is seen."""
        return {key.id: key.name for key in self.store.keys.all()} if self.store.sees_all else {}


# Async, or every request would take a turn through the pool of threads for it.
async def _whole_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def service_of(request: Request) -> Service:
    """The service as its caller sees it: called, it takes less time than as a dependency."""
    whole: Service = request.app.state.service
    return whole.of(request.state.owner, request.state.role)


ServiceContext = Annotated[Service, Depends(service_of)]
"""The service as the owner sees it whose key the request has: see `service.auth.access`."""
WholeService = Annotated[Service, Depends(_whole_service)]
"""The service with what all owners have, for those who look after it: health and metrics."""
