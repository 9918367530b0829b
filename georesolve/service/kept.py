"""Processes that are kept alive: forked from this one, and anew when they die.

A fork has loaded all that this process has: it is at work in a moment, and shares that memory. So
this process loads all and starts no thread.
"""

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping

from georesolve.service.errors import CannotStart
from georesolve.workers.gpus import NoGpuError

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_CAUGHT = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_WELL_SECONDS = 10.0
"""One that lived for longer is started anew at once."""
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 30.0
_libc = ctypes.CDLL(None, use_errno=True)


class _Kept:
    """One of the processes: how to run it, and when to start it anew."""

    def __init__(self, name: str, run: Callable[[], int]) -> None:
        self.name = name
        self.pid: int | None = None
        self._run = run
        self._started_at = 0.0
        self._pause_seconds = 0.0
        self.due_at = 0.0

    def start(self) -> None:
        self._started_at = time.monotonic()
        self.pid = fork(self.name, self._run)
        logger.info("the %s is process %d", self.name, self.pid)

    def reap(self, *, is_ending: bool) -> None:
        """Take note of its end, after which it is started anew, or not while all end."""
        pid, status = os.waitpid(self.pid, os.WNOHANG) if self.pid else (0, 0)
        if not pid:
            return
        self.pid = None
        if is_ending:
            return
        lived = time.monotonic() - self._started_at
        longer = max(_FIRST_PAUSE_SECONDS, min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS))
        self._pause_seconds = 0.0 if lived > _WELL_SECONDS else longer
        self.due_at = time.monotonic() + self._pause_seconds
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        logger.error("the %s has ended with %s, and is started anew", self.name, how)


def fork(name: str, run: Callable[[], int | None]) -> int:
    """Run a function in a process of its own, which ends with what it returns, or with this one.

    None is 0; an error is 1, and in the log. Returns the number of the process.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
    # A terminal sends it to all processes that it shows: the first one ends the others in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CAUGHT)
    code = 1
    try:
        if os.getppid() == parent:
            code = run() or 0
    except (CannotStart, NoGpuError) as error:
        logger.error("%s", error)
    except Exception:
        logger.exception("the %s has failed", name)
    finally:
        # What the stack above holds is that of the process which forked this one.
        os._exit(code)


def keep(runs: Mapping[str, Callable[[], int]]) -> int:
    """Keep processes alive until a signal ends them, each in order; returns that signal.

    Parameters
    ----------
    runs
        What each of them runs, by name.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _CAUGHT)
    kept = [_Kept(name, run) for name, run in runs.items()]
    ending = 0
    while not ending or any(one.pid for one in kept):
        if not ending:
            for one in kept:
                if one.pid is None and time.monotonic() >= one.due_at:
                    one.start()
        due = [one.due_at - time.monotonic() for one in kept if one.pid is None]
        pause = max(0.0, min(due)) if due and not ending else _LONGEST_PAUSE_SECONDS
        caught = signal.sigtimedwait(_CAUGHT, pause)
        if caught is not None and caught.si_signo != signal.SIGCHLD:
            # A second one ends at once what ends in order.
            number = signal.SIGKILL if ending else signal.SIGTERM
            for pid in [one.pid for one in kept if one.pid]:
                os.kill(pid, number)
            ending = ending or caught.si_signo
        for one in kept:
            one.reap(is_ending=bool(ending))
    return ending
