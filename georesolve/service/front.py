"""A front: the application under uvicorn, and what a signal does to it."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import MutableSequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from georesolve.service.app import create_app
from georesolve.service.http.accepting import Acceptor
from georesolve.service.http.connections import Connections, raise_descriptors
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings

logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 10
_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "frame-ancestors 'self'"),
    ("X-Frame-Options", "SAMEORIGIN"),
]
"""Of every answer: a browser takes none for what it is not called, and no page of another site
shows one in a frame."""


class _Server(uvicorn.Server):
    """Opens the application itself, and tells those who wait for a job when a signal ends it.

    uvicorn would print the stack of what goes wrong when it opens, and would close the application
    after the last request: some requests wait for a job.
    """

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
        """End the connections on which a client still sends or reads.

        uvicorn would cancel what answers them, and log that as an error with its stack.
        """
        for connection in list(self.server_state.connections):
            logger.warning("a connection is ended whose client did not within %d s", _DRAIN_SECONDS)
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal to end."""
        if sig == signal.SIGINT and self._is_kept:
            # The process that keeps this one has heard it, too.
            return
        store = getattr(self._app.state, "store", None)
        if store is not None:
            store.changes.stop()
        super().handle_exit(sig, frame)


def run(
    settings: Settings,
    sockets: list[socket.socket],
    metrics: Path | None = None,
    name: str = "",
    counts: MutableSequence[int] | None = None,
    own: int = 0,
) -> int:
    """Answer requests until a signal ends it; returns the exit code of the process.

    Parameters
    ----------
    counts, own
        See `Acceptor`.
    metrics, name
        See `Metrics`.
    """
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
