"""`serve`: a runner and fronts, kept alive, or one of them alone; and what they need to start.

This process loads all and starts no thread: a fork of it is at work in a moment.
"""

import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, MutableSequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.sharedctypes import RawArray
from pathlib import Path

from georesolve.engine.gpus import NoGpuError, choose_device
from georesolve.io.storage import StoreFailed
from georesolve.service import errors, front, runner
from georesolve.service.auth.access import refuse_unprotected
from georesolve.service.clock import new_id
from georesolve.service.datasets.library import library_of
from georesolve.service.settings import Settings
from georesolve.service.store.identity import Ownership, owned
from georesolve.service.store.store import Store
from georesolve.workers.cluster import why_no_tls
from georesolve.workers.logs import configure_log

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_CAUGHT = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_WELL_SECONDS = 10.0
"""A process that lived for longer is started anew at once."""
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 30.0
_libc = ctypes.CDLL(None, use_errno=True)


def serve(settings: Settings) -> int:
    """Run the service until a signal ends it; returns the exit code of the process."""
    configure_log(settings.log_format)
    # That of a Ctrl-C ends the process as any other: Python's KeyboardInterrupt would wait for a
    # cluster that is just being opened.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with contextlib.ExitStack() as stack:
            sockets = (
                [] if settings.role == "runner" else stack.enter_context(front.listening(settings))
            )
            # Where others work, too, the lease tells which of them runs jobs.
            shared = settings.role is not None or settings.database is not None
            return _serve(settings, sockets, stack.enter_context(owned(settings.data_dir, shared)))
    except (errors.CannotStart, NoGpuError) as error:
        logger.error("%s", error)
        return 1


def _serve(settings: Settings, sockets: list[socket.socket], ownership: Ownership) -> int:
    addresses = front.addresses_of(sockets)
    if settings.role is not None:
        prepare(settings, is_alone=ownership.is_alone)
        ownership.share()
        if settings.role == "runner":
            return runner.run(settings)
        logger.info("listens at %s", addresses)
        return front.run(settings, sockets)
    # In a process of its own: this one stays as it is now, for those that are forked from it.
    checking = _fork("check", partial(prepare, settings, is_alone=ownership.is_alone))
    if code := os.waitstatus_to_exitcode(os.waitpid(checking, 0)[1]):
        return code
    ownership.share()
    logger.info("listens at %s while its cluster opens", addresses)
    # What is loaded here is that of all, and is never garbage: to look through it would copy it.
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="georesolve-metrics-") as metrics:
        counts: MutableSequence[int] = RawArray("i", settings.fronts)
        runs = {"runner": partial(runner.run, settings, new_id(), addresses)}
        for number in range(settings.fronts):
            name = f"front {number + 1}"
            at = (Path(metrics), name, counts, number)
            runs[name] = partial(front.run, settings, sockets, *at)
        ending = _keep_alive(runs)
    signal.signal(ending, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {ending})
    # Not taken by the first process of a container.
    signal.raise_signal(ending)
    return 0


def prepare(settings: Settings, *, is_alone: bool) -> None:
    """Bring the database up to date, and refuse what the service cannot run with."""
    try:
        with closing(Store(settings.data_dir, settings.database, settings.store)) as store:
            store.refuse_other_folder()
            if settings.role != "runner":
                refuse_unprotected(settings, store.keys)
            if settings.role != "front" and not settings.cluster().is_existing:
                choose_device(settings.device)
            elif settings.role != "front" and (why := why_no_tls(settings.scheduler)):
                raise errors.CannotStart(why)
            library = library_of(settings, store)
            store.jobs_place.make()
            # Others may work in the same object store, with folders of their own.
            if is_alone and not (settings.store and settings.database):
                store.take_over()
                library.take_over()
    except StoreFailed as failed:
        raise errors.CannotStart(
            f"the object store does not answer, or refuses: {failed}; its address and keys are "
            "AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION of the "
            "environment"
        ) from None


@dataclass
class _Process:
    """One of the processes: how to run it, and when to start it anew."""

    name: str
    run: Callable[[], int]
    pid: int | None = None
    started_at: float = 0.0
    pause_seconds: float = 0.0
    due_at: float = 0.0

    def start(self) -> None:
        self.started_at = time.monotonic()
        self.pid = _fork(self.name, self.run)
        logger.info("the %s is process %d", self.name, self.pid)

    def reap(self, *, is_ending: bool) -> None:
        """Take note of its end, after which it is started anew, or not while all end."""
        pid, status = os.waitpid(self.pid, os.WNOHANG) if self.pid else (0, 0)
        if not pid:
            return
        self.pid = None
        if is_ending:
            return
        lived = time.monotonic() - self.started_at
        longer = max(_FIRST_PAUSE_SECONDS, min(2 * self.pause_seconds, _LONGEST_PAUSE_SECONDS))
        self.pause_seconds = 0.0 if lived > _WELL_SECONDS else longer
        self.due_at = time.monotonic() + self.pause_seconds
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        logger.error("the %s has ended with %s, and is started anew", self.name, how)


def _fork(name: str, run: Callable[[], int | None]) -> int:
    """Run a function in a process, which ends with its code, or with this one; returns its pid."""
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
    except (errors.CannotStart, NoGpuError) as error:
        logger.error("%s", error)
    except Exception:
        logger.exception("the %s has failed", name)
    finally:
        # What the stack above holds is that of the process which forked this one.
        os._exit(code)


def _keep_alive(runs: Mapping[str, Callable[[], int]]) -> int:
    """Keep processes alive until a signal ends them, each in order; returns that signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _CAUGHT)
    processes = [_Process(name, run) for name, run in runs.items()]
    ending = 0
    while not ending or any(one.pid for one in processes):
        if not ending:
            for one in processes:
                if one.pid is None and time.monotonic() >= one.due_at:
                    one.start()
        due = [one.due_at - time.monotonic() for one in processes if one.pid is None]
        pause = max(0.0, min(due)) if due and not ending else _LONGEST_PAUSE_SECONDS
        caught = signal.sigtimedwait(_CAUGHT, pause)
        if caught is not None and caught.si_signo != signal.SIGCHLD:
            # A second one ends at once what ends in order.
            number = signal.SIGKILL if ending else signal.SIGTERM
            for pid in [one.pid for one in processes if one.pid]:
                os.kill(pid, number)
            ending = ending or caught.si_signo
        for one in processes:
            one.reap(is_ending=bool(ending))
    return ending
