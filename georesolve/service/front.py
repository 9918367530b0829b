"""A front: the application under uvicorn, where it listens, and what a signal does to it."""

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
import time
from collections.abc import Iterator, MutableSequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from georesolve.service import errors
from georesolve.service.app import create_app
from georesolve.service.http.connections import BACKLOG, Acceptor, Connections, raise_descriptors
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.service.store.identity import PATIENCE_SECONDS

logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 10
_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "frame-ancestors 'self'"),
    ("X-Frame-Options", "SAMEORIGIN"),
]
"""Of every answer: a browser takes none for what it is not called, and no page of another site
shows one in a frame."""


def addresses_of(sockets: list[socket.socket]) -> str:
    """Where sockets listen, as URLs for the log."""
    places = (one.getsockname()[:2] for one in sockets)
    return ", ".join(
        f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        for host, port in places
    )


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[list[socket.socket]]:
    """Sockets that listen on all addresses of the host, taken before anything else is begun."""
    until = time.monotonic() + PATIENCE_SECONDS
    place = f"{settings.host or '*'} port {settings.port}"
    with contextlib.ExitStack() as stack:
        try:
            at = settings.host or None, settings.port
            found = socket.getaddrinfo(*at, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            sockets = [
                stack.enter_context(_listening_at(str(address[0]), int(address[1]), family, until))
                for family, *_, address in found
            ]
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (while")[0]
            raise errors.CannotStart(
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


class _Server(uvicorn.Server):
    """Opens and closes the application itself; a signal is told to the requests that wait."""

    def __init__(self, app: FastAPI, config: uvicorn.Config, acceptor: Acceptor) -> None:
        super().__init__(config)
        self._acceptor = acceptor
        self._app = app
        self._is_kept = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        self._opened = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn before it answers requests."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._app.router.lifespan_context(self._app))
            await super().startup([])
            make: Any = self.config.http_protocol_class
            of_server = {"server_state": self.server_state, "app_state": self.lifespan.state}
            self._acceptor.start(partial(make, config=self.config, **of_server))
            self._opened = stack.pop_all()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn when it answers no more."""
        self._acceptor.stop()
        async with self._opened:
            hanging_up = asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self._hang_up)
            try:
                await super().shutdown(sockets)
            finally:
                hanging_up.cancel()

    def _hang_up(self) -> None:
        """End the connections on which a client still sends or reads; uvicorn would log a stack."""
        for connection in list(self.server_state.connections):
            logger.warning("a connection is ended whose client did not within %d s", _DRAIN_SECONDS)
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal to end."""
        if sig == signal.SIGINT and self._is_kept:
            # The process that keeps this one has heard it, too.
            return
        if (service := getattr(self._app.state, "service", None)) is not None:
            # Not here: it may come between any two steps of those who wait.
            asyncio.get_running_loop().call_soon_threadsafe(service.store.changes.stop)
        super().handle_exit(sig, frame)


def run(
    settings: Settings,
    sockets: list[socket.socket],
    metrics: Path | None = None,
    name: str = "",
    counts: MutableSequence[int] | None = None,
    own: int = 0,
) -> int:
    """Answer requests until a signal ends it; `Acceptor` says what `counts` and `own` are."""
    raise_descriptors()
    acceptor = Acceptor(sockets, counts or [0], own)
    connections = Connections(settings, acceptor)
    app = create_app(settings, Metrics(metrics, name))
    config = uvicorn.Config(
        app,
        http=connections.protocol,
        headers=_HEADERS,
        lifespan="off",
        ws="none",
        forwarded_allow_ips=settings.proxies,
        log_config=None,
        access_log=False,
        # By then no connection is left, and what they asked for has noticed.
        timeout_graceful_shutdown=2 * _DRAIN_SECONDS,
        # A connection ends itself; uvicorn's own timer forgets one that has sent something.
        timeout_keep_alive=math.ceil(2 * settings.idle_seconds),
    )
    _Server(app, config, acceptor).run(sockets)
    return 0
