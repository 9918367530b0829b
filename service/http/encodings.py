"""Bodies that were packed for the way: they are unpacked before anything reads them."""

import asyncio
import zlib
from collections.abc import AsyncIterator

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from georesolve.service.disk import LOOK_BYTES, Disk
from georesolve.service.errors import InvalidRequest, TooLarge, UnsupportedFormat
from georesolve.service.http.bounds import media_type, most_bytes
from georesolve.service.settings import Settings
from georesolve.service.uploads.receiving import Digest

_GZIP = ("gzip", "x-gzip")
_PIECE_BYTES = 1 << 20


class PackedBody:
    """Unpacks a body that was sent with `Content-Encoding: gzip`, to as much as may be sent."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            await self._app(scope, receive, send)
            return
        plain = {**scope, "headers": list(scope["headers"])}
        for name in ("content-encoding", "content-digest", "content-length"):
            del MutableHeaders(scope=plain)[name]
        messages = self._messages(
            plain, encoding, Digest(headers.get("content-digest", "")), receive
        )
        is_coming = True

        async def unpacked() -> Message:
            nonlocal is_coming
            message = await (anext(messages) if is_coming else receive())
            is_coming = message.get("more_body", False)
            return message

        await self._app(plain, unpacked, send)

    async def _messages(
        self, scope: Scope, encoding: str, digest: Digest, receive: Receive
    ) -> AsyncIterator[Message]:
        if encoding not in _GZIP:
            raise UnsupportedFormat(
                f"the Content-Encoding {encoding[:80]!r} is not supported: send gzip, or none",
                headers={"Accept-Encoding": "gzip"},
            )
        is_json = media_type(Headers(scope=scope)) == "application/json"
        limit = most_bytes(scope, self._settings)
        looked_at = size = 0
        is_coming = True
        unpacker = zlib.decompressobj(zlib.MAX_WBITS + 16)
        while is_coming:
            message = await receive()
            if message["type"] != "http.request":
                yield message
                return
            packed, is_coming = message.get("body", b""), message.get("more_body", False)
            # The digest is that of what is sent (RFC 9530).
            digest.add(packed)
            while packed:
                if unpacker.eof:
                    unpacker = zlib.decompressobj(zlib.MAX_WBITS + 16)
                try:
                    piece = unpacker.decompress(packed, _PIECE_BYTES)
                except zlib.error as error:
                    raise InvalidRequest(f"the body is not what gzip packs: {error}") from None
                packed = unpacker.unconsumed_tail or unpacker.unused_data
                size += len(piece)
                if size > limit:
                    raise TooLarge(
                        f"the body unpacks to more than the limit of {limit} bytes: send less"
                    )
                if not is_json and size >= looked_at:
                    disk: Disk = scope["app"].state.service.disk
                    await asyncio.to_thread(disk.refuse_when_low)
                    looked_at = size + LOOK_BYTES
                yield {"type": "http.request", "body": piece, "more_body": True}
        if size and not unpacker.eof:
            raise InvalidRequest(
                "the body breaks off: it is not all that gzip packed; send it whole"
            )
        digest.check()
        yield {"type": "http.request", "body": b"", "more_body": False}
