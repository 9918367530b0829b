"""The cluster: the runner keeps it open and tells fronts every other second how it is."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic import TypeAdapter

from georesolve.engine.estimate import Capacity
from georesolve.service import pools
from georesolve.service.settings import Settings
from georesolve.service.store.store import Store
from georesolve.workers.cluster import Cluster, in_event_loop, open_cluster, workers_of
from georesolve.workers.pace import OfWorker, Pace, asked_of_worker

logger = logging.getLogger(__name__)

_SILENCE_SECONDS = 10.0
"""A runner that has told nothing for longer is taken for dead; a scheduler that has not answered
for longer is asked for nothing on behalf of a client."""
_REOPEN_SECONDS = 5.0
_ASK_SECONDS = 2.0
"""How often the scheduler is asked for its workers."""
_OPENING = (
    "workers start, load the kernels or compile them once for this machine, and check their device"
)


@dataclass(frozen=True)
class ClusterState:
    """How a cluster is: the `trouble` with it in words, and the workers that passed their check."""

    trouble: str | None
    silence_seconds: float = 0.0
    device: str | None = None
    workers: int = 0
    dashboard_url: str | None = None
    capacity: Capacity | None = None


class ClusterKeeper:
    """Keeps a cluster open: `opened` while its scheduler answers, `news` when `state` changes."""

    def __init__(self, settings: Settings) -> None:
        self.cluster: Cluster | None = None
        self.opened = asyncio.Event()
        self.news = asyncio.Event()
        self.pace = Pace()
        self.ran: set[str] = set()
        """Kinds of questions that jobs have asked since: their code is there."""
        self._settings = settings.cluster()
        # As the scheduler told last: nobody waits for it to ask.
        self._workers: dict[str, str] = {}
        self._of_worker: OfWorker | None = None
        self._trouble = ""
        # Since when it is being opened.
        self._since: float | None = None
        self._heard_at = 0.0
        self._thread = pools.Pool("cluster", 1)
        self._is_closing = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep it open from now on, and close it in the end."""
        async with pools.beside(self._keep_open(), "cluster"):
            try:
                yield
            finally:
                self._is_closing = True

    def state(self) -> ClusterState:
        """How the cluster is now."""
        cluster, n, now = self.cluster, len(self._workers), time.monotonic()
        if cluster is None:
            since = f"the cluster is being opened, for {now - (self._since or now):.0f} s now: "
            opening = since + _OPENING if self._since is not None else ""
            told = "; ".join(filter(None, (self._trouble, opening)))
            return ClusterState(told or "the runner has just started")
        silence, trouble, capacity = now - self._heard_at, None, None
        if silence > _SILENCE_SECONDS:
            trouble = f"the scheduler has not answered for {silence:.0f} s; it had {n} workers"
        if self._of_worker is not None and n:
            capacity = Capacity(cluster.device, n, self.pace.factor, *self._of_worker)
            capacity = capacity._replace(compiled=(*capacity.compiled, *self.ran))
        return ClusterState(trouble, silence, cluster.device, n, cluster.dashboard_url, capacity)

    async def _keep_open(self) -> None:
        """Open the cluster, again and again: when it cannot be opened, and when it is lost."""
        # Not for ever: a client of Dask that closes after its scheduler was lost swallows the
        # cancellation that was meant for this task.
        while not self._is_closing:
            opening = open_cluster(self._settings)
            self._since = time.monotonic()
            logger.info("the cluster is being opened: %s", _OPENING)
            try:
                cluster = await self._thread(opening.__enter__)
            except Exception as error:
                # Whatever it was, without another try there would be no cluster ever again.
                self._trouble, self._since = f"the cluster cannot be opened: {error}", None
                self.news.set()
                logger.error(self._trouble, exc_info=not isinstance(error, OSError))
                await asyncio.sleep(_REOPEN_SECONDS)
                continue
            self._workers, self._heard_at = {}, time.monotonic()
            self.cluster, self._trouble, self._since = cluster, "", None
            try:
                await self._watch(cluster)
                logger.error("the cluster was lost")
            except Exception:
                logger.exception("the cluster can no longer be watched, and is opened anew")
            finally:
                self.opened.clear()
                self.cluster = None
                self._trouble = "the cluster was lost"
                self.news.set()
                await self._thread(_close, opening)

    async def _watch(self, cluster: Cluster) -> None:
        """Keep the workers up, as long as the cluster is up."""
        async with in_event_loop(cluster) as client:
            while cluster.is_up():
                cluster.restore()
                try:
                    workers = await workers_of(client)
                    self._heard_at = time.monotonic()
                    if workers != self._workers or self._of_worker is None:
                        self._of_worker = None
                        try:
                            for one in [*workers.values()][:1]:
                                asked = asked_of_worker(client, cluster.device, one)
                                self._of_worker = await asked
                        finally:
                            # Told together: an estimate needs both.
                            self._workers = workers
                            self.news.set()
                except OSError as error:
                    # It is stopped, or lost. What was known of it gets old.
                    logger.warning("%s", error)
                if not self.opened.is_set():
                    self.opened.set()
                    self.news.set()
                await asyncio.sleep(_ASK_SECONDS)


def _close(opening: contextlib.AbstractContextManager[Cluster]) -> None:
    try:
        # A scheduler that is gone cannot be told good-bye.
        with contextlib.suppress(OSError):
            opening.__exit__(None, None, None)
    except Exception:
        logger.exception("the lost cluster could not be closed")


_STATE = TypeAdapter(ClusterState)


class ClusterView:
    """The cluster as the runner told of it last, since this process began, with its `metrics`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._beat: int | None = None
        self._heard_at: float | None = None
        self.metrics = ""
        self.state = ClusterState("no runner has told yet of its cluster")

    def read(self) -> None:
        """Read what the runner told, when something in the database has changed."""
        told = self._store.told()
        if self._beat not in (None, told.beat) and told.cluster:
            self.state = _STATE.validate_python(told.cluster)
            self.metrics, self._heard_at = told.metrics, time.monotonic()
        self._beat = told.beat

    @property
    def trouble(self) -> str | None:
        """Why the cluster cannot be asked, in words; None while it can."""
        if self.state.trouble is not None or self._heard_at is None:
            return self.state.trouble
        seconds = time.monotonic() - self._heard_at
        # On a full disk it cannot tell.
        if seconds < _SILENCE_SECONDS or self._store.writable.trouble() is not None:
            return None
        return f"the runner has told nothing of its cluster for {seconds:.0f} s"

    @property
    def waiting(self) -> str | None:
        """Why no job on the cluster gets on, in words; None while it can be asked."""
        trouble = self.trouble
        return None if trouble is None else f"waiting for workers: {trouble}"
