"""The runner: holds the lease, keeps the cluster open, runs jobs, and removes what has expired."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from georesolve.engine.memory import keep_what_is_loaded
from georesolve.service import pools
from georesolve.service.clock import new_id
from georesolve.service.datasets.library import library_of
from georesolve.service.jobs.retention import Retention
from georesolve.service.jobs.supervisor import Supervisor
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.service.store.store import Store

logger = logging.getLogger(__name__)


@asynccontextmanager
async def running(settings: Settings, holder: str) -> AsyncIterator[Supervisor]:
    """Wait for the lease, to be held by that name, then run jobs."""
    metrics = Metrics()
    with closing(Store(settings.data_dir, settings.database, settings.store)) as store:
        lease = store.lease(holder)
        await lease.taken()
        library = library_of(settings, store)
        supervisor = Supervisor(settings, store, library, metrics)

        def tell() -> dict[str, Any]:
            return {"cluster": asdict(supervisor.keeper.state()), "metrics": metrics.counted()}

        # It may not even stop its jobs, which are those of another by then.
        die = partial(os.kill, os.getpid(), signal.SIGKILL)
        async with (
            store.changes.watched(),
            lease.kept(tell, supervisor.keeper.news, lost=die),
            supervisor.running(),
            pools.beside(Retention(settings, store, library).sweep_for_ever(), "retention"),
        ):
            keep_what_is_loaded()
            yield supervisor


def run(settings: Settings, holder: str | None = None, addresses: str = "") -> int:
    """Run jobs until a signal ends it; returns the exit code. Fronts answer at `addresses`."""
    with suppress(asyncio.CancelledError):
        asyncio.run(_run_until_told(settings, holder or new_id(), addresses))
    # As any process that a signal ends: but for the first of a container, which it does not.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)
    return 0


async def _run_until_told(settings: Settings, holder: str, addresses: str) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "it runs in one"

    def stop() -> None:
        # Once: a second signal would end what ends in order.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
    async with running(settings, holder) as supervisor:
        await supervisor.keeper.opened.wait()
        if addresses:
            logger.info("answers at %s", addresses)
        await loop.create_future()
