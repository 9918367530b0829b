"""`serve`: a runner and fronts, kept alive, or one of them alone; and what they need to start."""

import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, MutableSequence
from contextlib import closing
from functools import partial
from multiprocessing.sharedctypes import RawArray
from pathlib import Path

from georesolve.service import front, kept, runner
from georesolve.service.auth.access import refuse_unprotected
from georesolve.service.clock import new_id
from georesolve.service.datasets.library import library_of
from georesolve.service.errors import CannotStart
from georesolve.service.http.connections import BACKLOG
from georesolve.service.jobs import endings
from georesolve.service.receiving import ingest
from georesolve.service.settings import Settings
from georesolve.service.store.ownership import PATIENCE_SECONDS, Ownership, owned
from georesolve.service.store.store import Store
from georesolve.workers.encryption import why_no_tls
from georesolve.workers.gpus import NoGpuError, choose_device
from georesolve.workers.logs import configure_log
from georesolve.workers.places import StoreFailed

logger = logging.getLogger(__name__)


def serve(settings: Settings) -> int:
    """Run the service until a signal ends it; returns the exit code of the process."""
    configure_log(settings.log_format)
    # That of a Ctrl-C ends the process as any other: Python's KeyboardInterrupt would wait for a
    # cluster that is just being opened.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with contextlib.ExitStack() as stack:
            sockets = [] if settings.role == "runner" else stack.enter_context(_listening(settings))
            # Where others work, too, the lease tells which of them runs jobs.
            shared = settings.role is not None or settings.database is not None
            return _serve(settings, sockets, stack.enter_context(owned(settings.data_dir, shared)))
    except (CannotStart, NoGpuError) as error:
        logger.error("%s", error)
        return 1


def _serve(settings: Settings, sockets: list[socket.socket], ownership: Ownership) -> int:
    addresses = _addresses(sockets)
    if settings.role is not None:
        prepare(settings, is_alone=ownership.is_alone)
        ownership.share()
        if settings.role == "runner":
            return runner.run(settings)
        logger.info("listens at %s", addresses)
        return front.run(settings, sockets)
    # In a process of its own: this one stays as it is now, for those that are forked from it.
    checking = kept.fork("check", partial(prepare, settings, is_alone=ownership.is_alone))
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
        ending = kept.keep(runs)
    signal.signal(ending, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {ending})
    # Not taken by the first process of a container.
    signal.raise_signal(ending)
    return 0


def prepare(settings: Settings, *, is_alone: bool) -> None:
    """Bring the database up to date, and refuse what the service cannot run with.

    Parameters
    ----------
    is_alone
        Whether no other process works in the data folder: then what earlier ones left is removed.

    Raises
    ------
    CannotStart, NoGpuError
    """
    try:
        with closing(Store(settings.data_dir, settings.database, settings.store)) as store:
            store.refuse_other_folder()
            if settings.role != "runner":
                refuse_unprotected(settings, store.keys)
            if settings.role != "front" and not settings.cluster().is_existing:
                choose_device(settings.device)
            elif settings.role != "front" and (why := why_no_tls(settings.scheduler)):
                raise CannotStart(why)
            library = library_of(settings, store)
            store.jobs_place.make()
            if is_alone:
                ingest.sweep(settings)
            # Others may work in the same object store, with folders of their own.
            if is_alone and not (settings.store and settings.database):
                store.forget_holder()
                library.sweep()
                endings.sweep(store)
    except StoreFailed as failed:
        raise CannotStart(
            f"the object store does not answer, or refuses: {failed}; its address and keys are "
            "AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION of the "
            "environment"
        ) from None


def _addresses(sockets: list[socket.socket]) -> str:
    places = (one.getsockname()[:2] for one in sockets)
    return ", ".join(
        f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        for host, port in places
    )


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[list[socket.socket]]:
    """Sockets that listen on all addresses of the host, taken before anything else is begun.

    Raises
    ------
    CannotStart
    """
    until = time.monotonic() + PATIENCE_SECONDS
    place = f"{settings.host or '*'} port {settings.port}"
    with contextlib.ExitStack() as stack:
        try:
            found = socket.getaddrinfo(
                settings.host or None,
                settings.port,
                type=socket.SOCK_STREAM,
                flags=socket.AI_PASSIVE,
            )
            sockets = [
                stack.enter_context(_listening_at(str(address[0]), int(address[1]), family, until))
                for family, *_, address in found
            ]
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (while")[0]
            raise CannotStart(
                f"the service cannot listen on {place}: {reason}; stop what does, or take another "
                "with --host and --port"
            ) from None
        yield sockets


def _listening_at(host: str, port: int, family: int, until: float) -> socket.socket:
    while True:
        try:
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            # A service that was killed has fronts that end a moment later.
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(0.05)
