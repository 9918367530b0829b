"""Child processes that do one thing and end, of which one waits ready.

They are forked from a server process that has the libraries loaded. The server is our own: that of
`multiprocessing` is one for the whole process, and loads what its first user says.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import NamedTuple, NoReturn

from georesolve.service import errors

_START_SECONDS = 30.0
"""A server that has started no child for so long is replaced; it needs milliseconds."""
_END_SECONDS = 5.0
"""A child that was killed and has not ended after so long waits for a disk: it is left alone."""
_NICENESS = 5
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
INHERITED = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
    *("GDAL_DATA", "PROJ_DATA", "PROJ_LIB", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"),
)
"""Variables that a child process inherits: no secrets, which an untrusted file could read."""
_libc = ctypes.CDLL(None, use_errno=True)


class Child(NamedTuple):
    """A process, and the pipe to it."""

    connection: Connection
    number: int


class Children:
    """Gives out processes that run a function of a module, each once.

    A process ends when its pipe is closed, so also with the service. The server loads `preload`,
    and finds no package `without`.
    """

    def __init__(
        self, work: Callable[[Connection], None], preload: list[str], without: str = ""
    ) -> None:
        # A child whose parent has ended is the service's own from then on: see `run_forkserver`.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._load = f"{work.__module__}:{work.__qualname__}", preload, without
        self._server: subprocess.Popen[bytes] | None = None
        self._changing = threading.RLock()
        self._ready: deque[tuple[Connection, subprocess.Popen[bytes]]] = deque()
        self._given: set[Child] = set()
        self._is_closed = False

    def make_ready(self, number: int = 1) -> None:
        """Have processes started until so many wait for work, and wait for nothing."""
        with self._changing:
            for _ in range(number - len(self._ready)):
                self._start()

    def _start(self) -> None:
        own, other = Pipe()
        with other, self._changing:
            while True:
                self.refuse_closed()
                server = self._server or self._new_server()
                try:
                    socket.send_fds(self._control, [b"\0"], [other.fileno()])
                except OSError:
                    # It was killed, or has not listened for long.
                    self._replace(server)
                else:
                    self._ready.append((own, server))
                    return

    @contextmanager
    def child(self, seconds: float) -> Iterator[Child]:
        """A process of one's own, which is killed on exit; raises NotReady."""
        child = self._taken(seconds)
        self._given.add(child)
        try:
            self.refuse_closed()
            yield child
        finally:
            child.connection.close()
            # Once it has ended its number may be that of another process.
            if child in self._given:
                os.kill(child.number, signal.SIGKILL)
                self.exit_code(child)

    def refuse_closed(self) -> None:
        """Raise NotReady where processes end because the service does."""
        if self._is_closed:
            raise errors.NotReady(
                "the service is stopping: send it again when it is back",
                headers={"Retry-After": "10"},
            )

    def exit_code(self, child: Child) -> int | None:
        """How a process ended that has closed its pipe, or was killed; None if it hangs."""
        until, pause = time.monotonic() + _END_SECONDS, 0.0001
        while time.monotonic() < until:
            found, status = os.waitpid(child.number, os.WNOHANG)
            if found:
                self._given.discard(child)
                return os.waitstatus_to_exitcode(status)
            # Most end at once, and a request waits for it.
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return None

    def close(self) -> None:
        """End the processes that are given out, and the server."""
        self._is_closed = True
        for child in [*self._given]:
            # Whom another thread has seen end meanwhile.
            with suppress(ProcessLookupError):
                os.kill(child.number, signal.SIGKILL)
        if self._server is not None:
            self._replace(self._server)

    def _new_server(self) -> "subprocess.Popen[bytes]":
        self._control, other = socket.socketpair()
        self._control.settimeout(_START_SECONDS)
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import run_forkserver; "
            f"run_forkserver(*{self._load!r})"
        )
        with other:
            # A Ctrl-C is for the service: in a group of its own the server does not hear it. Not in
            # a session, to which the kernel would give as much of the cores as to the service.
            self._server = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", code],
                stdin=other.fileno(),
                process_group=0,
                env={name: os.environ[name] for name in INHERITED if name in os.environ},
            )
        return self._server

    def _replace(self, server: "subprocess.Popen[bytes]") -> None:
        with self._changing:
            server.kill()
            server.wait()
            if self._server is server:
                self._control.close()
                self._server = None

    def _taken(self, seconds: float) -> Child:
        with self._changing:
            self.make_ready(2)
            connection, server = self._ready.popleft()
        for patience in (min(_START_SECONDS, seconds / 2), seconds):
            with suppress(EOFError, ConnectionError):
                if connection.poll(patience):
                    child = Child(connection, connection.recv())
                    if not connection.poll():
                        return child
                    # It was killed while it waited, and has closed its end.
                    self.exit_code(child)
            connection.close()
            self._replace(server)
            with self._changing:
                self._start()
                connection, server = self._ready.pop()
        # It is for who comes next.
        self._ready.append((connection, server))
        raise errors.NotReady(
            f"no process to decode with started within the {seconds:.0f} s that were left, so what "
            "starts them was replaced: send it again"
        )


class _Without(MetaPathFinder):
    """Finds no module of a name, whether it is installed or not.

    A module of None in `sys.modules` is taken for the module by what Cython compiled.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Called by Python for each module that is not loaded."""
        if fullname == self._name:
            raise ModuleNotFoundError(f"no {fullname} is looked for", name=fullname)


def run_forkserver(work: str, preload: list[str], without: str) -> NoReturn:
    """What the server does: fork a child for each pipe that comes by standard input."""
    # What a front has to do is little, and soon.
    os.nice(_NICENESS)
    sys.meta_path.insert(0, _Without(without))
    for module in preload:
        with suppress(ImportError):
            import_module(module)
    function = resolve_name(work)
    with socket.socket(fileno=0) as control:
        while True:
            _, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not descriptors:
                os._exit(0)
            # By way of a process that ends: so the service is the one to hear how the child ends.
            between = os.fork()
            if not between:
                between = os.getpid()
                if os.fork():
                    os._exit(0)
                _work(function, descriptors[0], between)
            os.waitpid(between, 0)
            os.close(descriptors[0])


def _work(function: Callable[[Connection], None], pipe: int, between: int) -> NoReturn:
    code = 1
    try:
        _libc.prctl(_PR_SET_NAME, b"child", 0, 0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, pipe)
        os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
        while os.getppid() == between:
            time.sleep(0.0001)
        connection = Connection(pipe)
        connection.send(os.getpid())
        function(connection)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
