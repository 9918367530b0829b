"""Child processes that do one thing and end, of which one waits ready.

They are forked from a server process that has the libraries loaded, and share nothing with the
service but a pipe. Even so to start one takes longer than to decode a small file.
"""

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
_LOOK_SECONDS = 0.2
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

    Parameters
    ----------
    work
        What a process runs with its end of the pipe; it ends when that is closed, so also with
        the service, however that ends. It writes nothing before it has read.
    preload
        Modules that the server process loads before it forks.
    """

    def __init__(self, work: Callable[[Connection], None], preload: list[str]) -> None:
        _context.set_forkserver_preload(preload)
        self._work = work
        self._ready: queue.SimpleQueue[Child | Exception] = queue.SimpleQueue()
        # One thread starts and reaps: `Process.start()` reaps finished children, which is not
        # thread-safe. It waits for the server without a limit; whoever waits for it kills that.
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="children")

    def make_ready(self) -> None:
        """Start a process in the background."""
        self._helper.submit(self._add)

    @contextmanager
    def child(self, seconds: float, stop: Connection | None = None) -> Iterator[Child]:
        """A process of one's own; it is killed on exit, and has ended then.

        Parameters
        ----------
        seconds
            How long to wait for one.
        stop
            Once its other end is closed, nothing is waited for.

        Raises
        ------
        NotReady
            When the service ends meanwhile.
        NotStarted
        """
        child = self._take(seconds, stop)
        try:
            yield child
        finally:
            child.connection.close()
            _kill(child)
            self._helper.submit(self._end, child)

    def exit_code(self, child: Child) -> int:
        """Wait for a process that ends; returns how it did."""
        return self._helper.submit(self._end, child).result()

    def close(self) -> None:
        """Kill a server that hangs, so that no thread waits for it."""
        try:
            self._helper.submit(lambda: None).result(_END_SECONDS)
        except TimeoutError:
            _kill_server()

    def _take(self, seconds: float, stop: Connection | None) -> Child:
        self.make_ready()
        start = time.monotonic()
        patience = min(_START_SECONDS, seconds / 2)
        while True:
            try:
                child = self._ready.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                waited = time.monotonic() - start
                if stop is not None and wait([stop], 0):
                    raise stopping() from None
                if waited > patience:
                    _kill_server()
                    patience = seconds
                if waited > seconds:
                    raise NotStarted from None
                continue
            if isinstance(child, Exception):
                raise child
            # One that was killed while it waited has closed its end.
            if not child.connection.poll():
                return child
            child.connection.close()
            self.make_ready()

    def _add(self) -> None:
        for _ in range(_STARTS):
            try:
                self._ready.put(self._start())
                return
            except (EOFError, ConnectionError):
                # The server was killed meanwhile: the next start makes another one.
                _kill_server()
            except Exception as error:
                self._ready.put(error)
                return
        self._ready.put(NotStarted())

    def _start(self) -> Child:
        own, other = _context.Pipe()
        process = _context.Process(target=self._work, args=(other,), name="child", daemon=True)
        with other, uninterrupted():
            process.start()
        return Child(process, own)

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
