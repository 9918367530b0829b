"""`create_app`: the application of a front, made of its parts."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import closing

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from georesolve.engine.memory import keep_what_is_loaded
from georesolve.io.urls import Sinks
from georesolve.service import pools
from georesolve.service.auth.access import Access
from georesolve.service.datasets import router as datasets
from georesolve.service.datasets.library import library_of
from georesolve.service.description import DescribedApp
from georesolve.service.disk import Checks, Disk
from georesolve.service.http.entrance import Entrance
from georesolve.service.http.handlers import install_error_handlers
from georesolve.service.jobs import router as jobs
from georesolve.service.jobs.cluster import ClusterView
from georesolve.service.maps import router as maps
from georesolve.service.maps.cache import Maps
from georesolve.service.metrics import Metrics
from georesolve.service.ops import router as ops
from georesolve.service.page import router as page
from georesolve.service.processes import router as processes
from georesolve.service.receiving.ingest import Ingest
from georesolve.service.resolve import estimate
from georesolve.service.resolve import router as resolve
from georesolve.service.resolve.context import AtHand, Memory, Service
from georesolve.service.results import router as results
from georesolve.service.results.response import Results
from georesolve.service.settings import Settings
from georesolve.service.store.quotas import Quotas
from georesolve.service.store.store import Store
from georesolve.version import __version__

_DESCRIPTION = """\
For every geospatial observation, the nearest reference point on a sphere: exact in float64, the \
same bytes every time, every row accounted for.

Coordinates are degrees, WGS 84. Distances are great-circle metres on a sphere of radius \
6 371 008.8 m; on the WGS 84 ellipsoid they differ by -0.43 to +0.56 %, \
and with `earth=wgs84` they are those of its geodesics. Equally near references go \
to the lowest row.
"""
_SHOWN = (
    *("Accept-Ranges", "Allow", "Content-Disposition", "Content-Location", "Content-Range"),
    *("ETag", "Link", "Location", "Preference-Applied", "Retry-After"),
    *("Server-Timing", "WWW-Authenticate", "X-Request-ID"),
)
"""Headers that a browser shows to pages of other sites, if it lets them use the service (CORS)."""


def create_app(settings: Settings, metrics: Metrics | None = None) -> FastAPI:
    """Make the application; nothing is opened before it starts."""
    metrics = metrics or Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pools.refuse_default()
        with closing(Store(settings.data_dir, settings.database, settings.store)) as store:
            disk = Disk(settings)
            cluster, library = ClusterView(store), library_of(settings, store)
            open_maps = Maps(settings, store)
            with closing(Ingest(settings, disk)) as ingest, closing(AtHand(settings)) as at_hand:
                also = cluster.read, library.forget_used, open_maps.forget_gone
                service = Service(
                    settings=settings,
                    store=store,
                    ingest=ingest,
                    sinks=Sinks(settings.sinks),
                    library=library,
                    results=Results(store, library, Checks(), settings.inline_bytes),
                    cluster=cluster,
                    at_hand=at_hand,
                    disk=disk,
                    memory=Memory(settings),
                    quotas=Quotas(settings),
                    metrics=metrics,
                    # JSON is read in the thread of the event loop.
                    reading=pools.Turns(1),
                )
                # A request gets the first as its owner sees it: see `service.auth.access`.
                app.state.service, app.state.maps = service, open_maps
                keep_what_is_loaded()
                async with store.changes.watched(*also):
                    yield

    app = DescribedApp(
        title="georesolve",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/api",
        docs_url=None,
        redoc_url=None,
        # Whether they are wanted is otherwise asked with every request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.add_middleware(Access, settings=settings, metrics=metrics)
    if origins := settings.origins():
        # Before the keys are asked for: what a browser sends ahead of a request has none.
        # No cookies: a key stands in a header, which the page itself sends.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_SHOWN,
            # A page of the internet that was allowed may ask a service on the user's own machine.
            allow_private_network=True,
        )
    app.add_middleware(Entrance, settings=settings, metrics=metrics)
    install_error_handlers(app)
    # Routes are looked through in this order.
    of_resources = (estimate, datasets, processes, jobs, results, maps)
    for module in (resolve, *of_resources, ops, page):
        app.include_router(module.router)
    return app
