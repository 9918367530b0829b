"""Answers with an entity tag: whole, ranges of a file, or 304 (RFC 9110, 13 and 14)."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, NamedTuple

from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import Headers
from starlette.responses import MalformedRangeHeader
from starlette.responses import RangeNotSatisfiable as NoSuchRange
from starlette.types import Receive, Scope, Send

from georesolve.intake.representations import Format
from georesolve.service.errors import BadRange, RangeNotSatisfiable
from georesolve.workers.files import Look

BLOCK_BYTES = 1 << 20
_CHECKED_BYTES = 64 << 20
"""So much is checked before an answer begins; what follows is checked in its turn."""


Run = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a thread."""


class Piece(NamedTuple):
    """Bytes of an answer that lie in one file.

    Attributes
    ----------
    start, stop
        Which bytes.
    check
        Raises a problem when the file is damaged.
    """

    start: int
    stop: int
    check: Callable[[], Awaitable[None]]


def prefers_page(headers: Headers) -> bool:
    """Whether a browser asks for something to look at: it names HTML, which no program does."""
    return "text/html" in ",".join(headers.getlist("accept")).lower()


def unchanged(request: Request, headers: Mapping[str, str]) -> Response | None:
    """304 with these headers, if `If-None-Match` names their `ETag`; else None.

    A tag that a proxy has made weak is the same one. For other methods than GET the header means
    something else, which no client of what is answered here can want.
    """
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
    etag = headers["ETag"]
    if request.method == "GET" and known & {etag, f"W/{etag}", "*"}:
        return Response(status_code=304, headers=dict(headers))
    return None


async def file_response(
    run: Run,
    open_file: Callable[[], BinaryIO],
    size_bytes: int,
    etag: str,
    modified: Look,
    format: Format,
    request: Request,
    headers: Mapping[str, str] | None = None,
    *,
    name: str | None = None,
    pieces: Iterable[Piece] = (),
) -> Response:
    """Answer with the bytes of a file, or with 304 to whom has them already.

    Parameters
    ----------
    run
        Calls what asks for the file in a thread: `Store.files`.
    open_file
        Opens it, to be read anywhere.
    etag
        What stands between the quotes of the strong ETag.
    modified
        A file that tells since when they are so.
    headers
        Further headers of the answer.
    name
        What a browser calls the file when it saves it; None for the name of the format.
    pieces
        What of it is checked before it is read.

    Raises
    ------
    FileNotFoundError
        When a file is not there any more.
    """
    headers = {**(headers or {}), "ETag": f'"{etag}"', "Cache-Control": "private, immutable"}
    if (known := unchanged(request, headers)) is not None:
        return known
    return _Answer(
        _Content(run, await run(open_file), size_bytes, pieces),
        modified,
        media_type=format.media_type,
        filename=name or format.name,
        headers=headers,
    )


class _Content:
    """What Starlette reads an answer from: a file, each piece of which is checked before."""

    def __init__(self, run: Run, file: BinaryIO, size_bytes: int, pieces: Iterable[Piece]) -> None:
        self._run = run
        self.file = file
        self.size_bytes = size_bytes
        self._unchecked = list(pieces)

    async def check(self, start: int, stop: int) -> None:
        """Check the pieces that some bytes lie in; raises their problem."""
        for piece in [one for one in self._unchecked if one.start < stop and start < one.stop]:
            await piece.check()
            self._unchecked.remove(piece)

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Close the file in the end, in a thread: it waits for one that may be reading still."""
        try:
            yield
        finally:
            await asyncio.shield(self._run(self.file.close))

    async def seek(self, offset: int) -> None:
        """Go elsewhere."""
        self.file.seek(offset)

    async def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        at = self.file.tell()
        size = min(size, self.size_bytes - at)
        await self.check(at, at + size)
        block: bytes = await self._run(self.file.read, size)
        if len(block) < size:
            raise OSError(f"a file is {size - len(block)} bytes shorter than it was")
        return block


class _Answer(FileResponse):
    """Starlette's, of a file that is open, with errors that are problems."""

    chunk_size = BLOCK_BYTES

    def __init__(self, content: _Content, modified: Look, **answer: Any) -> None:
        self._content = content
        seconds = modified.changed_ns // 10**9
        told = os.stat_result((0, 0, 0, 0, 0, 0, content.size_bytes, 0, seconds, seconds))
        super().__init__("", stat_result=told, **answer)

    @asynccontextmanager
    async def _open_file(self) -> AsyncIterator[Any]:
        # What Starlette reads from, in place of a file that it would open.
        yield self._content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; raises the problem of a range that is none, or that it has not."""
        headers = Headers(scope=scope)
        unit, if_range = headers.get("range", "").partition("=")[0], headers.get("if-range")
        is_heeded = scope["method"] == "GET" and unit.strip().lower() == "bytes"
        if not is_heeded or (if_range is not None and not self._should_use_range(if_range)):
            kept = [pair for pair in scope["headers"] if pair[0] != b"range"]
            scope = {**scope, "headers": kept}
        async with self._content.closing():
            start, stop = self._wanted(Headers(scope=scope).get("range"))
            await self._content.check(start, min(stop, start + _CHECKED_BYTES))
            await super().__call__(scope, receive, send)

    def _wanted(self, given: str | None) -> tuple[int, int]:
        """From which byte to which one is asked for."""
        size = self._content.size_bytes
        if given is None:
            return 0, size
        try:
            ranges = self._parse_range_header(given, size)
        except MalformedRangeHeader:
            raise BadRange(
                f"Range is {given[:200]!r}, which is no range: write it as in 'bytes=0-499'"
            ) from None
        except NoSuchRange:
            raise RangeNotSatisfiable(
                f"Range is {given[:200]!r}, but the file has {size} bytes: ask for some of these",
                headers={"Content-Range": f"bytes */{size}"},
            ) from None
        return (ranges[0][0], ranges[-1][1]) if ranges else (0, size)
