"""Child processes that do one thing and end, of which one waits ready.

They are forked from a server process that has the libraries loaded, and share nothing with the
service but a pipe. Even so to start one takes longer than to decode a small file.
"""

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from georesolve.service.errors import stopping
from georesolve.workers.interrupts import uninterrupted

_context = multiprocessing.get_context("forkserver")
_START_SECONDS = 30.0
"""A server that has started no child for so long is replaced; it needs milliseconds."""
_END_SECONDS = 5.0
"""A server that does not tell for so long how a killed child ended is replaced."""
_STARTS = 3
"""Tries to start a child: on a busy machine a server may be replaced that only took long."""


class Child(NamedTuple):
    """A process, and the pipe to it."""

    process: Any
    connection: Connection


class NotStarted(Exception):
    """The server started no child in time; it has been replaced."""


class Children:
    """Gives out processes that run a function, each once.

    A process runs `work` with its end of the pipe, and ends when that is closed, so also with the
    service, however that ends. It writes nothing before it has read. The server process loads the
    modules `preload` before it forks.
    """

    def __init__(self, work: Callable[[Connection], None], preload: list[str]) -> None:
        _context.set_forkserver_preload(preload)
        self._work = work
        self._ready: queue.SimpleQueue[Future[Child]] = queue.SimpleQueue()
        self._given: set[Child] = set()
        self._is_closed = False
        # One thread starts and reaps: `Process.start()` reaps finished children, which is not
        # thread-safe. It waits for the server without a limit; whoever waits for it kills that.
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="children")

    def make_ready(self) -> None:
        """Start a process in the background."""
        self._ready.put(self._helper.submit(self._start))

    @contextmanager
    def child(self, seconds: float) -> Iterator[Child]:
        """A process of one's own, for which one waits so long; on exit it is killed, and has ended.

        Raises NotStarted, and NotReady when the service ends meanwhile.
        """
        child = self._take(seconds)
        self._given.add(child)
        try:
            self.refuse_closed()
            yield child
        finally:
            self._given.discard(child)
            child.connection.close()
            _kill(child)
            self._helper.submit(self._end, child)

    def refuse_closed(self) -> None:
        """Raise NotReady where processes end because the service does."""
        if self._is_closed:
            raise stopping()

    def exit_code(self, child: Child) -> int:
        """Wait for a process that ends; returns how it did."""
        return self._helper.submit(self._end, child).result()

    def close(self) -> None:
        """End the processes that are given out, and a server that hangs: a thread waits for it."""
        self._is_closed = True
        for child in [*self._given]:
            _kill(child)
        try:
            self._helper.submit(lambda: None).result(_END_SECONDS)
        except TimeoutError:
            _kill_server()

    def _take(self, seconds: float) -> Child:
        while True:
            self.make_ready()
            started = self._ready.get()
            try:
                child = started.result(min(_START_SECONDS, seconds / 2))
            except TimeoutError:
                _kill_server()
                try:
                    child = started.result(seconds)
                except TimeoutError:
                    raise NotStarted from None
            # One that was killed while it waited has closed its end.
            if not child.connection.poll():
                return child
            child.connection.close()

    def _start(self) -> Child:
        for _ in range(_STARTS):
            self.refuse_closed()
            own, other = _context.Pipe()
            process = _context.Process(target=self._work, args=(other,), name="child", daemon=True)
            try:
                with other, uninterrupted():
                    process.start()
                return Child(process, own)
            except (EOFError, ConnectionError):
                # The server was killed meanwhile: the next start makes another one.
                _kill_server()
        raise NotStarted

    def _end(self, child: Child) -> int:
        child.process.join(_END_SECONDS)
        if child.process.exitcode is None:
            _kill_server()
            child.process.join()
        code: int = child.process.exitcode
        return code


def _kill(child: Child) -> None:
    """Kill a process, and wait until it has ended."""
    # Once it has ended its number may be that of another process.
    if not wait([child.process.sentinel], 0):
        child.process.kill()
    if not wait([child.process.sentinel], _END_SECONDS):
        _kill_server()


def _kill_server() -> None:
    """Kill the server, and wait until the next start can see that it has ended."""
    # No public name: https://github.com/python/cpython/blob/3.13/Lib/multiprocessing/forkserver.py
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
