"""What holds for every request before its handler: bounds on its body, HEAD as GET."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from georesolve.service.disk import LOOK_BYTES, Disk
from georesolve.service.errors import BodyTimeout, TooLarge
from georesolve.service.http.prefix import own_path
from georesolve.service.settings import Settings

_LITTLE_BYTES = 256 << 10
"""So much takes less time than a thread takes to get its turn."""

T = TypeVar("T")


async def off_the_loop(function: Callable[[bytes | bytearray], T], content: bytes | bytearray) -> T:
    """Call a function with bytes, in a thread if they are many: others are answered meanwhile."""
    if len(content) <= _LITTLE_BYTES:
        return function(content)
    return await asyncio.to_thread(function, content)


def most_bytes(scope: Scope, settings: Settings) -> int:
    """Bytes that the body of a request has at most: files may have more than JSON and lookups."""
    is_json = media_type(Headers(scope=scope)) == "application/json"
    is_inline = is_json or own_path(scope) == "/nearest"
    return settings.inline_bytes if is_inline else settings.upload_bytes


class BodyLimit:
    """Ends a request whose body is larger than allowed, declared or not, or that pauses for long.

    It also ends one for which there is no room on the disk.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        # Only these have a body that is read.
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = most_bytes(scope, self._settings)
        is_inline = limit == self._settings.inline_bytes
        advice = "send files, or arrays in smaller pieces" if is_inline else "send less"
        declared = int(length) if (length := headers.get("content-length", "")).isdecimal() else 0
        has_body = declared > 0 or "transfer-encoding" in headers
        # What is inline stays in memory unless a job is made of it, which looks for itself; a body
        # that is a file is stored, whatever it is called.
        is_stored = has_body and (
            not is_inline or own_path(scope).startswith(("/datasets", "/uploads"))
        )
        # What comes after a body is that the client has gone.
        is_coming = has_body
        pause = self._settings.body_seconds
        received = looked_at = 0

        async def counted() -> Message:
            nonlocal received, looked_at, is_coming
            if declared > limit:
                raise TooLarge(
                    f"the body has {declared} bytes, and the limit is {limit} bytes: {advice}"
                )
            if is_stored and received >= looked_at:
                disk: Disk = scope["app"].state.service.disk
                await asyncio.to_thread(disk.refuse_when_low, max(declared - received, 0))
                looked_at = received + LOOK_BYTES
            try:
                async with asyncio.timeout(pause if is_coming else None):
                    message = await receive()
            except TimeoutError:
                raise BodyTimeout(
                    f"nothing came for {pause:g} s after {received} bytes of the body, and a pause "
                    f"may have {pause:g} s: send it again, with shorter ones",
                    headers={"Connection": "close"},
                ) from None
            is_coming = is_coming and message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > limit:
                raise TooLarge(
                    f"{received} bytes of the body came, more than the limit of {limit} bytes, and "
                    f"no more are taken: {advice}"
                )
            return message

        await self._app(scope, counted, send)


class HeadAsGet:
    """Answers HEAD as GET does, without the body: FastAPI's routes know only what they name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        has_ended = asyncio.Event()

        async def without_body(message: Message) -> None:
            if has_ended.is_set():
                return
            if message["type"] == "http.response.body":
                message = {**message, "body": b"", "more_body": False}
                has_ended.set()
            await send(message)

        async def until_ended() -> Message:
            # A stream that goes on for as long as somebody listens ends with its first piece.
            await has_ended.wait()
            return {"type": "http.disconnect"}

        # A HEAD has no range: what it asks for is the length of the whole.
        headers = [pair for pair in scope["headers"] if pair[0] != b"range"]
        as_get = {**scope, "method": "GET", "headers": headers}
        try:
            await self._app(as_get, until_ended, without_body)
        finally:
            # Who stands outside sees the route that was found.
            scope.update({name: as_get[name] for name in ("route", "endpoint") if name in as_get})


def media_type(headers: Headers) -> str:
    """The media type of a body without its parameters, in lower case; empty if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
