"""Child processes that do one thing and end, of which one waits ready.

They are forked from a server process that has the libraries loaded, and share nothing with the
service but a pipe. Even so to start one takes longer than to decode a small file. The server is
our own: that of `multiprocessing` is one for the whole process, and loads what its first user says.
"""

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import NoReturn

from georesolve.service.errors import stopping

_START_SECONDS = 30.0
"""A server that has started no child for so long is replaced; it needs milliseconds."""
_END_SECONDS = 5.0
"""A server that does not tell for so long how a killed child ended is replaced."""
_UNKNOWN = 255
"""How a child ended whose server was replaced meanwhile."""


class _Server:
    """A process that forks; it ends with the service, however that ends."""

    def __init__(self, work: str, preload: list[str]) -> None:
        self._control, other = socket.socketpair()
        self._control.settimeout(_START_SECONDS)
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import run_forkserver; "
            f"run_forkserver({other.fileno()}, {work!r}, {preload!r})"
        )
        with other:
            # A Ctrl-C is for the service: in a session of its own the server does not hear it.
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", code],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ask(self, *descriptors: int) -> None:
        """Have a child started with the ends of two pipes; raises OSError."""
        socket.send_fds(self._control, [b"\0"], descriptors)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._control.close()


class Child:
    """A process: the pipe to it, and the one on which its server tells its number and its end."""

    def __init__(self, connection: Connection, told: Connection, server: _Server) -> None:
        self.connection = connection
        self.told = told
        self.server = server
        self._number = 0

    def has_started(self, seconds: float) -> bool:
        """Whether it starts in time; False, too, where its server was killed."""
        self._number = self.hear(seconds) or 0
        return bool(self._number)

    def hear(self, seconds: float) -> int | None:
        """What the server tells next; None where it tells nothing in time, or was killed."""
        with suppress(EOFError, OSError):
            if self.told.poll(seconds):
                number: int = self.told.recv()
                return number
        return None

    def kill(self) -> None:
        """Kill it, unless its end was told: then its number may be that of another process."""
        with suppress(OSError):
            if not self.told.poll():
                os.kill(self._number, signal.SIGKILL)


class NotStarted(Exception):
    """The server started no child in time; it has been replaced."""


class Children:
    """Gives out processes that run a function of a module, each once.

    A process runs `work` with its end of the pipe, and ends when that is closed, so also with the
    service. It writes nothing before it has read. The server loads the modules `preload`.
    """

    def __init__(self, work: Callable[[Connection], None], preload: list[str]) -> None:
        self._of_server = f"{work.__module__}:{work.__qualname__}", preload
        self._server: _Server | None = None
        self._asking = threading.Lock()
        self._ready: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._given: set[Child] = set()
        self._is_closed = False

    def make_ready(self) -> None:
        """Have a process started, and wait for nothing."""
        self._ready.put(self._asked())

    @contextmanager
    def child(self, seconds: float) -> Iterator[Child]:
        """A process of one's own, for which one waits so long; on exit it is killed, and has ended.

        Raises NotStarted, and NotReady when the service ends meanwhile.
        """
        child = self._taken(seconds)
        self._given.add(child)
        try:
            self.refuse_closed()
            yield child
        finally:
            child.connection.close()
            if child in self._given:
                child.kill()
                self.exit_code(child)
            child.told.close()

    def refuse_closed(self) -> None:
        """Raise NotReady where processes end because the service does."""
        if self._is_closed:
            raise stopping()

    def exit_code(self, child: Child) -> int:
        """Wait for a process that ends; returns how it did. It is asked once."""
        code = child.hear(_END_SECONDS)
        if code is None:
            child.kill()
            self._replace(child.server)
        self._given.discard(child)
        return _UNKNOWN if code is None else code

    def close(self) -> None:
        """End the processes that are given out, and the server."""
        self._is_closed = True
        for child in [*self._given]:
            child.kill()
        if self._server is not None:
            self._replace(self._server)

    def _asked(self) -> Child:
        """A process that is being started."""
        own, other = Pipe()
        told, telling = Pipe(duplex=False)
        with other, telling, self._asking:
            while True:
                self.refuse_closed()
                server = self._server = self._server or _Server(*self._of_server)
                try:
                    server.ask(other.fileno(), telling.fileno())
                    return Child(own, told, server)
                except OSError:
                    # It was killed, or has not listened for long.
                    server.kill()
                    self._server = None

    def _replace(self, server: _Server) -> None:
        with self._asking:
            server.kill()
            if self._server is server:
                self._server = None

    def _taken(self, seconds: float) -> Child:
        while True:
            self.make_ready()
            child = self._ready.get()
            if not child.has_started(min(_START_SECONDS, seconds / 2)):
                self._replace(child.server)
                child = self._asked()
                if not child.has_started(seconds):
                    raise NotStarted
            # One that was killed while it waited has closed its end.
            if not child.connection.poll():
                return child
            child.connection.close()


def run_forkserver(descriptor: int, work: str, preload: list[str]) -> NoReturn:
    """What the server does: fork a child for each two pipes that come, and tell how it ended."""
    for module in preload:
        with suppress(ImportError):
            import_module(module)
    function = resolve_name(work)
    telling: dict[int, Connection] = {}
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    with socket.socket(fileno=descriptor) as control:
        while True:
            ready, _, _ = select.select([descriptor, ended], [], [])
            if ended in ready:
                os.read(ended, select.PIPE_BUF)
                for number in [*telling]:
                    found, status = os.waitpid(number, os.WNOHANG)
                    if found:
                        _tell(telling.pop(number), os.waitstatus_to_exitcode(status))
            if descriptor in ready:
                content, descriptors, *_ = socket.recv_fds(control, 1, 2)
                if not content:
                    os._exit(0)
                pipe, told = descriptors
                number = os.fork()
                if not number:
                    _work(function, pipe)
                os.close(pipe)
                telling[number] = Connection(told, readable=False)
                _tell(telling[number], number)


def _tell(where: Connection, number: int) -> None:
    # Nobody may hear it any more.
    with suppress(OSError):
        where.send(number)


def _work(function: Callable[[Connection], None], pipe: int) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # What is the server's: who waits for its end waits for all that have it.
        os.closerange(3, pipe)
        os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
        function(Connection(pipe))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
