"""What holds for the body of every request: how large and slow it may be, its digest, gzip."""

import asyncio
import base64
import hashlib
import zlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from georesolve.service import errors, pools
from georesolve.service.disk import LOOK_BYTES, Disk
from georesolve.service.links import own_path
from georesolve.service.settings import Settings

WITH_BODY = ("POST", "PUT", "PATCH")
_GZIP = ("gzip", "x-gzip")
_PIECE_BYTES = 1 << 20
_DIGESTS = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}


def media_type(headers: Headers) -> str:
    """The media type of a body without its parameters, in lower case; empty if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_other_types(request: Request, wanted: str, how: str) -> None:
    """Refuse a body of another media type; `how` is what to do, behind "send" and the type."""
    given = media_type(request.headers)
    if given != wanted:
        raise errors.UnsupportedFormat(
            f"the media type {given[:80] or 'none'} is not supported here: send {wanted} {how}"
        )


def bounded(scope: Scope, headers: Headers, receive: Receive, settings: Settings) -> Receive:
    """What receives the body of a request: it ends one that is too large, or pauses for long.

    So it does where the disk has no room, or `Content-Digest` is that of other bytes. Gzip is
    unpacked.
    """
    body = _Body(scope, headers, receive, settings)
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body.receive
    for name in ("content-encoding", "content-length"):
        del MutableHeaders(scope=scope)[name]
    messages = body.unpacked(encoding)

    async def unpacked() -> Message:
        # What comes behind the body is not packed.
        return await anext(messages, None) or await body.receive()

    return unpacked


def _unpack(unpacker: Any, packed: bytes) -> tuple[Any, bytes, bytes]:
    """Unpack until there is a piece; the rest is packed still, for the unpacker that is given."""
    piece = bytearray()
    while packed and len(piece) < _PIECE_BYTES:
        if unpacker.eof:
            unpacker = zlib.decompressobj(zlib.MAX_WBITS + 16)
        try:
            piece += unpacker.decompress(packed, _PIECE_BYTES - len(piece))
        except zlib.error as error:
            raise errors.InvalidRequest(f"the body is not what gzip packs: {error}") from None
        packed = unpacker.unconsumed_tail or unpacker.unused_data
    return unpacker, bytes(piece), packed


class _Body:
    """The body of one request, counted as it comes."""

    def __init__(self, scope: Scope, headers: Headers, receive: Receive, most: Settings) -> None:
        self._scope = scope
        self._receive = receive
        self._pause = most.body_seconds
        path, length = own_path(scope), headers.get("content-length", "")
        is_inline = media_type(headers) == "application/json" or path in ("/nearest", "/within")
        self._limit = most.inline_bytes if is_inline else most.upload_bytes
        self._advice = "send files, or arrays in smaller pieces" if is_inline else "send less"
        self._declared = int(length) if length.isdecimal() else 0
        # What comes after a body is that the client has gone.
        self._is_coming = self._declared > 0 or "transfer-encoding" in headers
        # What is inline stays in memory unless a job is made of it, which looks for itself; a body
        # that is a file is stored, whatever it is called.
        self._is_stored = self._is_coming and (not is_inline or path.startswith("/datasets"))
        self._size = self._looked_at = 0
        # RFC 9530; unknown kinds say nothing.
        self._digests: dict[str, tuple[str, Any]] = {}
        for one in headers.getlist("content-digest"):
            for name, _, value in (member.partition("=") for member in one.split(",")):
                if (kind := name.strip()) in _DIGESTS:
                    self._digests[kind] = value.strip().strip(":"), _DIGESTS[kind]()

    async def receive(self) -> Message:
        if self._declared > self._limit:
            raise errors.TooLarge(
                f"the body has {self._declared} bytes, and the limit is {self._limit} bytes: "
                f"{self._advice}"
            )
        if self._is_stored:
            await self._look(self._size, self._declared - self._size)
        try:
            async with asyncio.timeout(self._pause if self._is_coming else None):
                message = await self._receive()
        except TimeoutError:
            raise errors.BodyTimeout(
                f"nothing came for {self._pause:g} s after {self._size} bytes of the body, and a "
                f"pause may have {self._pause:g} s: send it again, with shorter ones",
                headers={"Connection": "close"},
            ) from None
        self._is_coming = self._is_coming and message.get("more_body", False)
        piece = message.get("body", b"")
        self._size += len(piece)
        for _, counted in self._digests.values():
            counted.update(piece)
        if self._size > self._limit:
            raise errors.TooLarge(
                f"{self._size} bytes of the body came, more than the limit of {self._limit} bytes, "
                f"and no more are taken: {self._advice}"
            )
        is_last = message["type"] == "http.request" and not message.get("more_body", False)
        for name, (digest, counted) in self._digests.items() if is_last else ():
            found = base64.b64encode(counted.digest()).decode()
            if found != digest:
                raise errors.InvalidRequest(
                    f"Content-Digest says {name}=:{digest[:100]}:, and what came has "
                    f"{name}=:{found}: send it again"
                )
        return message

    async def unpacked(self, encoding: str) -> AsyncIterator[Message]:
        """The same body unpacked; `encoding` is how it was packed."""
        if encoding not in _GZIP:
            raise errors.UnsupportedFormat(
                f"the Content-Encoding {encoding[:80]!r} is not supported: send gzip, or none",
                headers={"Accept-Encoding": "gzip"},
            )
        size, is_coming, owner = 0, True, self._scope.get("state", {}).get("owner") or ""
        unpacker = zlib.decompressobj(zlib.MAX_WBITS + 16)
        while is_coming:
            message = await self.receive()
            if message["type"] != "http.request":
                yield message
                return
            packed, is_coming = message.get("body", b""), message.get("more_body", False)
            while packed:
                # A body may have a member, or a hundred, for each byte that comes of it.
                unpacked = await pools.compute(owner, _unpack, unpacker, packed)
                unpacker, piece, packed = unpacked
                if not piece:
                    continue
                size += len(piece)
                if size > self._limit:
                    raise errors.TooLarge(
                        f"the body unpacks to more than the limit of {self._limit} bytes: send less"
                    )
                if self._is_stored:
                    await self._look(size)
                yield {"type": "http.request", "body": piece, "more_body": True}
        if size and not unpacker.eof:
            raise errors.InvalidRequest(
                "the body breaks off: it is not all that gzip packed; send it whole"
            )
        yield {"type": "http.request", "body": b"", "more_body": False}

    async def _look(self, size: int, coming: int = 0) -> None:
        """Look once in a while whether the disk has room for more of what is stored."""
        if size >= self._looked_at:
            disk: Disk = self._scope["app"].state.service.disk
            await pools.disk(disk.refuse_when_low, max(coming, 0))
            self._looked_at = size + LOOK_BYTES
