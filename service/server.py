"""`serve`: the application under uvicorn, its log, and what a signal does."""

from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.app import create_app
from service.settings import Settings
from workers.logs import configure_log

_DRAIN_SECONDS = 10
_KEEP_ALIVE_SECONDS = 75
"""Longer than clients and proxies keep a connection: whoever closes first breaks no request."""


class _Server(uvicorn.Server):
    """Stops jobs at the signal, not after the last request: some requests wait for a job."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal to end."""
        service = getattr(self._app.state, "service", None)
        if service is not None:
            service.supervisor.stop()
        super().handle_exit(sig, frame)


def serve(settings: Settings) -> int:
    """Run the service until a signal ends it; returns the exit code of the process."""
    configure_log(settings.log_format)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        forwarded_allow_ips=settings.proxies,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    server = _Server(app, config)
    server.run()
    return 0 if server.started else 3
