"""Threads for what waits, apart by what it waits for: a silent bucket holds up no key check.

Owners take turns where they share threads. Searches, decoders, jobs and the cluster have pools of
their own. That of asyncio is not used.
"""

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar

from georesolve.service import errors

_TURN_SECONDS = 30.0
"""So long a request waits for a thread to an object store; what holds one may take minutes."""

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Lets so many work at a time. A free place goes to the owner who holds the fewest."""

    def __init__(self, places: int, most_of_one: int | None = None) -> None:
        self._places = self._free = places
        self._most_of_one = most_of_one or places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}

    @asynccontextmanager
    async def place(self, owner: str, *, alone: bool = False) -> AsyncIterator[None]:
        """Wait for a place, and hold it; `alone` holds all of them."""
        places = self._places if alone else 1
        await self.take(owner, places)
        try:
            yield
        finally:
            self.give_back(owner, places)

    async def take(self, owner: str, places: int = 1) -> None:
        """Wait for places; their holder gives them back."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append((turn, places))
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            # Of one that was cancelled while it waited the turn is cancelled too.
            if turn.cancelled():
                self._give()
            else:
                self.give_back(owner, places)
            raise

    def give_back(self, owner: str, places: int = 1) -> None:
        """Give places back."""
        self._free += places
        self._held[owner] -= places
        self._give()

    def _give(self) -> None:
        while self._waiting:
            owner = min(self._waiting, key=self._held.__getitem__)
            turns = self._waiting[owner]
            turn, places = turns[0]
            if not turn.cancelled():
                # Nobody passes over one who waits for several.
                if places > self._free or self._held[owner] + places > self._most_of_one:
                    return
                self._free -= places
                self._held[owner] += places
                turn.set_result(None)
            turns.popleft()
            del self._waiting[owner]
            if turns:
                self._waiting[owner] = turns


class _Threads:
    def __init__(self, kind: str, most: int, begin: Callable[[], object] | None = None) -> None:
        self._kind, self._most, self._begin = kind, most, begin
        self._open()
        # A fork has none of the threads.
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        self._threads = ThreadPoolExecutor(self._most, self._kind, self._begin)

    def close(self, *, cancel: bool = False) -> None:
        """Wait for what runs, and take no more; `cancel` drops what has not begun."""
        self._threads.shutdown(cancel_futures=cancel)

    def _begun(self, call: Callable[[], T]) -> Future[T]:
        # What is logged in the thread is about the same request.
        return self._threads.submit(copy_context().run, call)


class Pool(_Threads):
    """Threads that take work as it comes."""

    async def __call__(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What a function returns, called in one of the threads, which goes on to its end."""
        return await asyncio.wrap_future(self._begun(partial(function, *given, **named)))

    def handler(self, function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
        """A handler of requests, or a dependency of one, that is called in one of the threads."""

        @wraps(function)
        async def called(*given: P.args, **named: P.kwargs) -> T:
            return await self(function, *given, **named)

        return called


class SharedPool(_Threads):
    """Threads that owners take in turn: one has some of them at most, and waits for so long."""

    def __init__(
        self, kind: str, most: int, most_of_one: int | None = None, patience: float | None = None
    ) -> None:
        super().__init__(kind, most)
        self._turns, self._patience = Turns(most, most_of_one), patience

    async def __call__(
        self, owner: str, function: Callable[P, T], *given: P.args, **named: P.kwargs
    ) -> T:
        """What a function returns, called in one of the threads when it is its owner's turn."""
        try:
            async with asyncio.timeout(self._patience):
                await self._turns.take(owner)
        except TimeoutError:
            raise errors.NotReady(
                f"no file could be asked for within {self._patience:g} s: an object store is "
                "silent or slow, and other requests wait for it; try again",
                headers={"Retry-After": "10"},
            ) from None
        loop, running = asyncio.get_running_loop(), self._begun(partial(function, *given, **named))

        def end(_: Future[T]) -> None:
            # Only now the thread is free, although its request may be long gone.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._turns.give_back, owner)

        running.add_done_callback(end)
        return await asyncio.wrap_future(running)


class Shared(Generic[T]):
    """Work that is done once for all who ask for it meanwhile, and go on at the same time.

    Behind a lock they would go on one by one, each in a turn of the event loop: while that has much
    to do, the last of 64 waited for seconds.
    """

    def __init__(self) -> None:
        self._running: dict[Any, asyncio.Task[T]] = {}

    async def __call__(self, key: Any, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the work gives that runs under a key, or is begun."""
        if key not in self._running:
            self._running[key] = asyncio.create_task(work())
            self._running[key].add_done_callback(lambda _: self._running.pop(key))
        # One of those who wait may be cancelled.
        return await asyncio.shield(self._running[key])


database = Pool("database", 8)
"""Statements of SQL; they end within seconds, one way or another."""
checks = Pool("checks", 2)
"""Checks of `/readyz`, which anybody may ask for: they wait for a disk or a bucket."""
disk = Pool("disk", 8)
"""Files of the data folder."""
compute = SharedPool("compute", 3)
"""What requests bring takes Python's lock from the event loop: more would only do so in turn."""
texts = SharedPool("texts", 2)
"""Results and first rows, which become texts piece by piece. As many pieces wait as clients read:
what comes packed takes a turn for each of its own, and would wait for all of them each time."""
remote = SharedPool("remote", 16, 8, _TURN_SECONDS)
"""Files that may lie in an object store, or on a server."""


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Have the event loop do some work from now on, and no more in the end."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Refusing(ThreadPoolExecutor):
    def submit(self, *_: object, **__: object) -> "Future[object]":  # type: ignore[override]
        raise RuntimeError("work for a thread names its kind: see georesolve.service.pools")


def refuse_default() -> None:
    """Refuse whatever would run in the default pool of the event loop of this thread."""
    asyncio.get_running_loop().set_default_executor(_Refusing(1))
