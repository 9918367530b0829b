"""What requests for matches need of the service."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import Depends, Request

from georesolve.intake.addresses import Sinks
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Disk
from georesolve.service.jobs.cluster import ClusterView
from georesolve.service.metrics import Metrics
from georesolve.service.receiving.ingest import Ingest
from georesolve.service.resolve.at_hand import AtHand, Memory
from georesolve.service.results.response import Results
from georesolve.service.settings import Settings
from georesolve.service.store.quotas import Quotas
from georesolve.service.store.store import Store
from georesolve.service.turns import Turns


@dataclass(frozen=True)
class Service:
    """The parts of a running service that requests for matches need."""

    settings: Settings
    store: Store
    ingest: Ingest
    sinks: Sinks
    library: Library
    results: Results
    cluster: ClusterView
    at_hand: AtHand
    disk: Disk
    memory: Memory
    quotas: Quotas
    metrics: Metrics
    reading: Turns
    views: dict[tuple[str | None, bool], "Service"] = field(default_factory=dict)
    """What `of` gave, by owner and whether it sees all: every request has a store of its own."""

    @property
    def owner(self) -> str:
        """Whose service this is; empty without keys."""
        return self.store.owner or ""

    def of(self, store: Store) -> "Service":
        """The same with the store as one owner sees it."""
        whose = store.owner, store.sees_all
        if whose not in self.views:
            library, results = self.library.of(store), self.results.of(store)
            self.views[whose] = replace(self, store=store, library=library, results=results)
        return self.views[whose]


async def service_of(request: Request) -> Service:
    """The service as its caller sees it: called, it takes less time than as a dependency."""
    whole: Service = request.app.state.service
    return whole.of(request.state.store)


ServiceContext = Annotated[Service, Depends(service_of)]
"""The service as the owner sees it whose key the request has: see `service.auth.access`."""
