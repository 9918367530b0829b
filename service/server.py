"""`serve`: the application under uvicorn, its log, and what a signal does."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from georesolve.service.app import create_app
from georesolve.service.errors import CannotStart
from georesolve.service.http.connections import BACKLOG, Connections, raise_descriptors
from georesolve.service.settings import Settings
from georesolve.workers.gpus import NoGpuError
from georesolve.workers.logs import configure_log

logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 10
_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "frame-ancestors 'self'"),
    ("X-Frame-Options", "SAMEORIGIN"),
]
"""Of every answer: a browser takes none for what it is not called, and no page of another site
shows one in a frame."""


class CannotListenError(CannotStart):
    """The address to listen on is not to be had."""


class _Server(uvicorn.Server):
    """Opens the application itself, and stops jobs at the signal.

    uvicorn would print the stack of what goes wrong when it opens, and would stop jobs after the
    last request: some requests wait for a job.
    """

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app
        self._opened = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn before it answers requests."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._app.router.lifespan_context(self._app))
            await super().startup(sockets)
            telling = asyncio.create_task(self._tell(_addresses(sockets or [])))
            stack.callback(telling.cancel)
            self._opened = stack.pop_all()

    async def _tell(self, addresses: str) -> None:
        logger.info("listens at %s while its cluster opens", addresses)
        await self._app.state.service.supervisor.opened()
        logger.info("answers at %s", addresses)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn when it answers no more."""
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
        service = getattr(self._app.state, "service", None)
        if service is not None:
            service.supervisor.stop()
        super().handle_exit(sig, frame)


def _addresses(sockets: list[socket.socket]) -> str:
    places = (one.getsockname()[:2] for one in sockets)
    return ", ".join(
        f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        for host, port in places
    )


def serve(settings: Settings) -> int:
    """Run the service until a signal ends it; returns the exit code of the process."""
    configure_log(settings.log_format)
    # uvicorn raises a signal again when all has ended. That of a Ctrl-C then ends the process as
    # any other: Python's KeyboardInterrupt would wait for a cluster that is just being opened.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sockets = _listening(settings)
        raise_descriptors()
        connections = Connections(settings)
        app = create_app(settings)
        config = uvicorn.Config(
            app,
            http=connections.protocol(),
            headers=_HEADERS,
            backlog=BACKLOG,
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
        _Server(app, config).run(sockets)
    except (CannotStart, NoGpuError) as error:
        logger.error("%s", error)
        return 1
    return 0


def _listening(settings: Settings) -> list[socket.socket]:
    """Sockets that listen on all addresses of the host, taken before anything else is begun.

    Raises
    ------
    CannotListenError
    """
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
                stack.enter_context(socket.create_server(address[:2], family=family))
                for family, *_, address in found
            ]
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (while")[0]
            raise CannotListenError(
                f"the service cannot listen on {place}: {reason}; stop what does, or take another "
                "with --host and --port"
            ) from None
        stack.pop_all()
    return sockets
