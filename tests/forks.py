"""Services, schedulers and workers, forked from a process that has loaded what they load.

To load it takes three seconds of a core, and the tests start a hundred of them. A fork runs its
module as `python -m` does, with an environment and a log of its own; what it starts itself, such as
decoders and workers of its cluster, it starts as always.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

ROOT = Path(__file__).parents[1]
_MOST_BYTES = 1 << 20
_LOADED = (
    "alembic.command",
    "dask.dataframe",
    "distributed.cli.dask_scheduler",
    "distributed.cli.dask_worker",
    "distributed.dashboard.scheduler",
    "georesolve.service.server",
    "uvloop",
)


class Fork:
    """A process that was forked, with what the tests use of `subprocess.Popen`."""

    def __init__(self, origin, pid, arguments):
        self.pid = pid
        self.args = arguments
        self.returncode = None
        self._origin = origin
        self._ended = os.pidfd_open(pid)

    def poll(self):
        """How it ended, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        """Wait for its end; returns how it ended."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._ended, select.POLLIN)
            if not poll.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(self.args, timeout)
            # Until then nothing else can have its number.
            self.returncode = self._origin.ask({"reap": self.pid})
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number):
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class _Origin:
    """The process that forks; it ends with this one."""

    def __init__(self):
        self._turn = threading.Lock()
        self._requests, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "tests.forks", str(other.fileno())],
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
        atexit.register(self._close)

    def _close(self):
        # It sees that nobody asks any more.
        self._requests.close()
        self._process.wait()

    def ask(self, request, *files):
        with self._turn:
            socket.send_fds(self._requests, [json.dumps(request).encode()], files)
            return json.loads(self._requests.recv(_MOST_BYTES))


def _environment():
    # As an administrator is told to, for schedulers and workers that are not the service's own.
    return {**os.environ, "DASK_CONFIG": str(ROOT / "workers")}


@cache
def _origin():
    return _Origin()


def fork(module, arguments, log=None, errors=None):
    """Run a module with arguments and the environment of now.

    It writes to a log, or nowhere; errors, too, unless they have a file of their own.
    """
    request = {"module": module, "arguments": arguments, "environment": _environment()}
    with Path(os.devnull).open("wb") as nowhere:
        out = log or nowhere
        pid = _origin().ask(request, out.fileno(), (errors or out).fileno())
    return Fork(_origin(), pid, [module, *arguments])


def run(module, arguments):
    """Run a module to its end, as `subprocess.run` does."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
        code = fork(module, arguments, out, errors).wait(100)
        texts = [file.seek(0) or file.read() for file in (out, errors)]
    return subprocess.CompletedProcess([module, *arguments], code, *texts)


def _forked(requests):
    """Fork for each request; returns in a fork, with its request, and None at the end of all."""
    while True:
        content, files, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
        if not content:
            return None
        request = json.loads(content)
        if "reap" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                for file, standard in zip(files, (sys.stdout, sys.stderr), strict=True):
                    os.dup2(file, standard.fileno())
            for file in files:
                os.close(file)
            if answer == 0:
                return request
        requests.send(json.dumps(answer).encode())


def _end(codes):
    for standard in (sys.stdout, sys.stderr):
        standard.flush()
    os._exit(codes[-1])


def _main():
    # Last of all that a process does at its end. What follows would take down all that is loaded:
    # a fork would copy it first, for five times as long as a command takes.
    codes = [0]
    atexit.register(_end, codes)
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        # As `georesolve serve` does; what is loaded is never garbage.
        gc.disable()
        for module in _LOADED:
            import_module(module)
        loop_guard = import_module("tests.loop_guard")
        # The machine code of the kernels, which each front and each runner reads. In one thread: a
        # fork has no other.
        import_module("georesolve.kernels.threads_cpu").allowed.threads = 1
        import_module("georesolve.engine.inline").prepare(None)
        import_module("georesolve.engine.sampling").load()
        del sys.modules["georesolve.kernels.threads_cpu"].allowed.threads
        gc.freeze()
        request = _forked(requests)
    if request is not None:
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[1:] = request["arguments"]
        gc.enable()
        if request["arguments"][:1] == ["serve"]:
            loop_guard.install()
        codes.append(1)
        try:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
            codes.append(0)
        except SystemExit as ended:
            codes.append(ended.code or 0)


if __name__ == "__main__":
    _main()
