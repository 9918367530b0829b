"""What requests for matches need of the service: its parts, threads for small ones, and memory."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import sched_getaffinity
from typing import Any, Protocol, TypeVar

from georesolve.engine.inline import prepare, prepare_thread
from georesolve.io.errors import Refused
from georesolve.io.urls import Sinks
from georesolve.service import errors, pools
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Disk
from georesolve.service.jobs.cluster import ClusterView
from georesolve.service.metrics import Metrics
from georesolve.service.receiving.ingest import Ingest
from georesolve.service.results.response import Results
from georesolve.service.settings import Settings
from georesolve.service.store.quotas import Quotas
from georesolve.service.store.store import Store

logger = logging.getLogger(__name__)

_MOST_UNANSWERED = 1024
"""Each has its sets in memory."""
_MOST_OF_ONE_KEY = 256
_MOST_THREADS = 4
_PREPARING = "the kernels are loaded, or compiled once for this machine"
_LARGEST_BODIES = 16
"""So many bodies of the largest size may be held at a time."""

T = TypeVar("T")


class AtHand:
    """The few threads that answer small requests; owners take turns."""

    def __init__(self, settings: Settings) -> None:
        self._preparing_since: float | None = time.monotonic()
        self._failure: str | None = None
        cores = max(1, len(sched_getaffinity(0)) // settings.fronts_here)
        # One is for the event loop. Most of an answer is Python, whose threads wait for each other:
        # on two cores, two of them gave 64 clients two thirds of what one gave.
        threads = min(_MOST_THREADS, max(1, cores - 1))
        self._turns = pools.Turns(threads)
        # This one is that of the event loop, which answers what is quick.
        prepare_thread(cores)
        self._unanswered: Counter[str] = Counter()
        each = max(1, cores // threads)
        self._threads = pools.Pool("at hand", threads, partial(prepare_thread, each))
        # Where machine code is to be compiled that takes a minute, which the end must not wait for.
        threading.Thread(target=self._prepare, args=(settings,), daemon=True).start()

    def _prepare(self, settings: Settings) -> None:
        logger.info("small requests wait: %s", _PREPARING)
        try:
            prepare(settings.search_bytes, settings.fronts_here)
            logger.info("small requests are answered")
        except Exception as error:
            logger.exception("small requests cannot be answered")
            self._failure = f"the kernels cannot be used: {error}"
        self._preparing_since = None

    @property
    def trouble(self) -> str | None:
        """Why they do not answer as soon as they ever will, in words; None when they do."""
        if (since := self._preparing_since) is None:
            return self._failure
        return f"for {time.monotonic() - since:.0f} s now, {_PREPARING}"

    def close(self) -> None:
        """Answer no more."""
        self._threads.close(cancel=True)

    async def answer(
        self, owner: str, function: Callable[[], T], quickly: Callable[[], T | None] = lambda: None
    ) -> T:
        """What a function returns, called by a thread in the turn of its owner.

        `quickly` is called first, and by the event loop, which would otherwise wait for Python's
        lock. Where it returns None, or fails other than with a refusal, `function` is called.
        """
        waiting, own = self._unanswered.total(), self._unanswered[owner]
        if waiting >= _MOST_UNANSWERED:
            raise errors.QueueFull(
                f"{waiting} small requests wait for their answers at one front, and "
                f"{_MOST_UNANSWERED} may: come again later",
                headers={"Retry-After": "1"},
            )
        if owner and own >= _MOST_OF_ONE_KEY:
            raise errors.TooManyJobs(
                f"{own} small requests of this key wait for their answers at one front, and "
                f"{_MOST_OF_ONE_KEY} may: wait for one before you send the next",
                headers={"Retry-After": "1"},
            )
        self._unanswered[owner] += 1
        try:
            async with slot(self._turns, owner) as start:
                if owner:
                    # Those that came at the same time stand in line before the first of them
                    # begins: so their owners take turns.
                    await asyncio.sleep(0)
                try:
                    if (found := quickly()) is not None:
                        return found
                except Refused:
                    raise
                except Exception as error:
                    logger.warning("a small request is answered by a thread: %r", error)
                return await start(self._threads(function))
        finally:
            self._unanswered[owner] -= 1


class Work(Protocol):
    """Start work whose end frees a slot."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Start the work; a caller that is cancelled leaves it running."""


@asynccontextmanager
async def slot(slots: pools.Turns, owner: str) -> AsyncIterator[Work]:
    """Wait for a slot, which stays taken until the work has ended that the given function starts.

    Cancelling a request does not stop its thread: without this, one client could occupy more
    threads than its share.
    """
    await slots.take(owner)
    works: list[asyncio.Task[Any]] = []

    def start(work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        task = asyncio.create_task(work)
        works.append(task)
        return asyncio.shield(task)

    def free(work: asyncio.Task[Any] | None = None) -> None:
        if work is not None and not work.cancelled():
            # Mark the error as seen: its request was cancelled.
            work.exception()
        slots.give_back(owner)

    try:
        yield start
    finally:
        if works and not works[-1].done():
            works[-1].add_done_callback(free)
        else:
            free()


class Memory:
    """Shares the memory for bodies that are held and not stored among the requests being read.

    One key may hold as much as is left for all others: some is always left for the next one.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = _LARGEST_BODIES * settings.inline_bytes
        self._held: Counter[str] = Counter()

    def hold(self, owner: str, size: int) -> None:
        """Hold so many bytes more for an owner: TooManyBodies."""
        held, own = self._held.total() + size, self._held[owner] + size
        left = self._most - held
        if left < 0 or (owner and own > left):
            whose = f"of this key have {own} bytes, which is more than is left for others"
            raise errors.TooManyBodies(
                "the JSON bodies that one front is reading "
                f"{f'have {held} bytes' if left < 0 else whose}, and all may have "
                f"{self._most}: send fewer at a time, or files"
            )
        self._held[owner] = own

    def let_go(self, owner: str, size: int) -> None:
        """Hold so many bytes less."""
        self._held[owner] -= size


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
    reading: pools.Turns
    views: dict[tuple[str, bool], "Service"] = field(default_factory=dict)
    """What `of` gave, by owner and whether it sees all: every request asks for one."""

    @property
    def owner(self) -> str:
        """Whose service this is; empty without keys."""
        return self.store.owner or ""

    def of(self, owner: str, *, sees_all: bool) -> "Service":
        """The same as one owner sees it."""
        whose = owner, sees_all
        if whose not in self.views:
            store = self.store.of(owner, sees_all=sees_all)
            library = self.library.of(store)
            results = replace(self.results, store=store, library=library)
            self.views[whose] = replace(self, store=store, library=library, results=results)
        return self.views[whose]
