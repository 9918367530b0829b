"""Compiled loops on all cores: how many threads one is worth, and how it runs on them.

A loop is a compiled function ``loop(thread, threads, ...)`` that does its thread's share and has
released the interpreter's lock meanwhile. Python's own threads run it: 20 microseconds for two.
`numba.prange` needs less than that where nothing else runs, but makes three functions of every
loop, each optimised anew, and so doubled the time of a first call.
"""

from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from functools import cache
from os import register_at_fork
from queue import SimpleQueue
from sys import maxsize
from threading import local
from typing import Any

from numba import config
from numba.core.caching import CacheImpl
from numba.core.compiler_lock import global_compiler_lock

from georesolve.kernels.cache import keep_code_of_kernels, load_code_of_kernels

# All modules with loops import this one.
keep_code_of_kernels(CacheImpl)
load_code_of_kernels()


class _Allowed(local):
    """How many threads a search of this thread may take, if numba may take as many."""

    # Not `numba.get_num_threads`, which starts threads of its own and takes locks that an
    # interrupt or a fork may leave taken for ever.
    threads = maxsize


allowed = _Allowed()


def threads_for(items: int, grain: int) -> int:
    """How many threads have `grain` items each; at least one, never more than are allowed."""
    return max(1, min(items // grain, allowed.threads, config.NUMBA_NUM_THREADS))


def in_threads(loop: Callable[..., None], threads: int, *arguments: Any) -> None:
    """Run ``loop(thread, threads, *arguments)`` for every thread, the first on the caller's own.

    When it returns or raises, no share runs any more: also after `KeyboardInterrupt`, and whatever
    else a signal handler or another thread raises in the caller.
    """
    if threads == 1:
        loop(0, 1, *arguments)
        return
    call = _Call(loop, threads, arguments)
    try:
        if not getattr(loop, "overloads", True):
            # Compiled by the caller alone: an interrupt in the middle may leave locks of Python's
            # imports and of numba taken, which the caller can take again and no other thread.
            call.run(most=1)
        calls = _pool()
        for _ in range(1, threads):
            calls.put(call)
        call.run()
    finally:
        call.end()
    if call.errors:
        raise call.errors[0]


class _Call:
    """The shares of a loop, each of which goes to the first thread that asks for one.

    The caller asks, too, so a call ends without any other thread. Each step is one operation in C,
    before or after which an interrupt may come. An executor's locks are no such thing: an interrupt
    in `submit` can leave one taken, and every later call waits for it.
    """

    def __init__(self, loop: Callable[..., None], threads: int, arguments: tuple[Any, ...]) -> None:
        self.errors: list[BaseException] = []
        self._loop, self._threads, self._arguments = loop, threads, arguments
        self._shares = deque(range(threads))
        self._begun: list[None] = []
        self._ended: list[None] = []
        self._news: SimpleQueue[None] = SimpleQueue()

    def run(self, most: int = maxsize) -> None:
        """Run shares until there is none left, or so many are done."""
        for _ in range(min(most, self._threads)):
            try:
                share = self._shares.popleft()
            except IndexError:
                return
            self._loop(share, self._threads, *self._arguments)

    def help(self) -> None:
        """As `run`, in a thread of the pool."""
        self._begun.append(None)
        try:
            self.run()
        except BaseException as error:
            self.errors.append(error)
        self._ended.append(None)
        self._news.put(None)

    def end(self) -> None:
        """Begin no further share, and wait for those that have begun."""
        try:
            self._shares.clear()
            while len(self._ended) < len(self._begun):
                self._news.get()
            # Threads that come late, or let go late, do not hold its memory.
            self._arguments = ()
        except BaseException:
            # Twice: another one may arrive as the call begins, before its own `try`.
            try:
                self.end()
            except BaseException:
                self.end()
            raise


@cache
def _pool() -> "SimpleQueue[_Call]":
    """Where threads wait for calls; they start with the first one."""
    calls: SimpleQueue[_Call] = SimpleQueue()
    for _ in range(1, config.NUMBA_NUM_THREADS):
        start_new_thread(_serve, (calls,))
    return calls


def _serve(calls: "SimpleQueue[_Call]") -> None:
    while True:
        calls.get().help()


# A forked process has no thread but its first, and no other that could end a compilation.
register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)
register_at_fork(after_in_child=_pool.cache_clear)
