"""Bounds on what a request may send, held while it arrives."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import TooLarge
from service.settings import Settings


class BodyLimit:
    """Ends a request with 413 once its body is larger than allowed, declared or not."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_json = Headers(scope=scope).get("content-type", "").startswith("application/json")
        limit = self._settings.inline_bytes if is_json else self._settings.upload_bytes
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                advice = "send files, or arrays in smaller pieces" if is_json else "send less"
                raise TooLarge(f"the body is larger than the limit of {limit} bytes: {advice}")
            return message

        await self._app(scope, counted, send)
