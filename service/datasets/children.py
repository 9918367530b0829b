"""Child processes that do one thing and end, of which one waits ready.

They are forked from a server process that has the libraries loaded, and share nothing with the
service but a pipe. Even so to start one takes longer than to decode a small file.
"""

import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from workers.interrupts import uninterrupted

_context = multiprocessing.get_context("forkserver")


class Child(NamedTuple):
    """A process, and the pipe to it."""

    process: Any
    connection: Connection


class Children:
    """Gives out processes that run a function, each once.

    Parameters
    ----------
    work
        What a process runs with its end of the pipe; it ends when that is closed, so also with
        the service, however that ends.
    preload
        Modules that the server process loads before it forks.
    """

    def __init__(self, work: Callable[[Connection], None], preload: list[str]) -> None:
        _context.set_forkserver_preload(preload)
        self._work = work
        self._ready: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="children")
        # To start a process is to look after all that have ended, and no two may do that at once.
        self._lock = threading.Lock()

    def make_ready(self) -> None:
        """Start a process in the background, for whoever comes next."""
        self._helper.submit(lambda: self._ready.put(self._start()))

    @contextmanager
    def child(self) -> Iterator[Child]:
        """A process of one's own; it is killed on exit."""
        child = self._take()
        self.make_ready()
        try:
            yield child
        finally:
            child.connection.close()
            child.process.kill()
            self._helper.submit(self.exit_code, child)

    def _take(self) -> Child:
        """One that waits ready, unless it was killed meanwhile, or a new one."""
        while True:
            try:
                child = self._ready.get_nowait()
            except queue.Empty:
                return self._start()
            with self._lock:
                if child.process.is_alive():
                    return child
            child.connection.close()

    def exit_code(self, child: Child) -> int:
        """Wait for a process that ends; returns how it did."""
        with self._lock:
            child.process.join()
            code: int = child.process.exitcode
            return code

    def _start(self) -> Child:
        own, other = _context.Pipe()
        process = _context.Process(target=self._work, args=(other,), name="child", daemon=True)
        with self._lock, uninterrupted():
            process.start()
        other.close()
        return Child(process, own)
