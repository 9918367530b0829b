"""Bytes that have a strong ETag as an HTTP answer: whole, ranges, or 304 (RFC 9110, 13 and 14).

Of Starlette's own names `_Answer` overrides `_open_file` and `_parse_range_header`, and `_wanted`
asks `_should_use_range`: a file is opened, checked and closed here, and its errors are problems.
`tests/service/test_answers.py` notices when one of them changes.
"""

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, NamedTuple

from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import Headers
from starlette.responses import MalformedRangeHeader
from starlette.responses import RangeNotSatisfiable as NoSuchRange
from starlette.types import Receive, Scope, Send

from georesolve.service.errors import BadRange, RangeNotSatisfiable
from georesolve.workers.files import Look

BLOCK_BYTES = 1 << 20
_CHECKED_BYTES = 64 << 20
"""So much is checked before an answer begins; what follows is checked in its turn."""


Run = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a thread."""


class Span(NamedTuple):
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


class File(NamedTuple):
    """Bytes that never change.

    Attributes
    ----------
    open
        Opens them, to be read anywhere.
    etag
        What stands between the quotes of the strong ETag.
    modified
        A file that tells since when they are so.
    name
        What a browser calls them when it saves them.
    spans
        What of them is checked before it is read.
    """

    open: Callable[[], BinaryIO]
    size_bytes: int
    etag: str
    modified: Look
    media_type: str
    name: str
    spans: Iterable[Span] = ()


def unchanged(request: Request, headers: Mapping[str, str]) -> Response | None:
    """304 if the client has an answer already, which has these headers, the `ETag` among them.

    A tag that a proxy has made weak is the same one.
    """
    etag = headers["ETag"]
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
    # For other methods it means something else, which no client of theirs can want.
    if request.method == "GET" and known & {etag, f"W/{etag}", "*"}:
        return Response(status_code=304, headers=headers)
    return None


def prefers_page(headers: Headers) -> bool:
    """Whether a browser asks for something to look at: it names HTML, which no program does."""
    return "text/html" in ",".join(headers.getlist("accept")).lower()


async def file_response(
    run: Run, file: File, request: Request, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with a file, with ranges of it, or with 304.

    Parameters
    ----------
    run
        Calls what asks for the file in a thread: `Store.files`.
    headers
        Further headers of the answer.

    Raises
    ------
    FileNotFoundError
        When it is not there any more.
    """
    tag = {"ETag": f'"{file.etag}"', "Cache-Control": "private, immutable"}
    headers = {**(headers or {}), **tag}
    return unchanged(request, headers) or _Answer(run, file, await run(file.open), headers)


class _Answer(FileResponse):
    """Starlette's, of a file that is open, with errors that are problems."""

    chunk_size = BLOCK_BYTES

    def __init__(self, run: Run, file: File, content: BinaryIO, headers: Mapping[str, str]) -> None:
        self._content = _Content(run, content, file)
        seconds = file.modified.changed_ns // 10**9
        told = os.stat_result((0, 0, 0, 0, 0, 0, file.size_bytes, 0, seconds, seconds))
        super().__init__("", 200, headers, file.media_type, None, file.name, told)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; raises the problem of a range that is none, or that it has not."""
        try:
            await self._content.check(*self._wanted(scope))
            await super().__call__(scope, receive, send)
        finally:
            self._content.end()

    def _wanted(self, scope: Scope) -> tuple[int, int]:
        """From which byte to which one a request asks for; what is checked of them at first."""
        headers, size = Headers(scope=scope), self._content.size_bytes
        given, if_range = headers.get("range"), headers.get("if-range")
        ranges = []
        if (
            given
            and scope["method"] == "GET"
            and (not if_range or self._should_use_range(if_range))
        ):
            ranges = self._parse_range_header(given, size)
        start, stop = (ranges[0][0], ranges[-1][1]) if ranges else (0, size)
        return start, min(stop, start + _CHECKED_BYTES)

    @classmethod
    def _parse_range_header(cls, given: str, size: int) -> list[tuple[int, int]]:
        if given.partition("=")[0].strip().lower() != "bytes":
            # A unit that nobody knows: the file comes whole.
            return []
        try:
            return super()._parse_range_header(given, size)
        except MalformedRangeHeader:
            raise BadRange(
                f"Range is {given[:200]!r}, which is no range: write it as in 'bytes=0-499'"
            ) from None
        except NoSuchRange:
            raise RangeNotSatisfiable(
                f"Range is {given[:200]!r}, but the file has {size} bytes: ask for some of these",
                headers={"Content-Range": f"bytes */{size}"},
            ) from None

    @asynccontextmanager
    async def _open_file(self) -> AsyncIterator[Any]:
        yield self._content


class _Content:
    """What Starlette reads an answer from: a file, each span of which is checked before."""

    def __init__(self, run: Run, content: BinaryIO, file: File) -> None:
        self._run = run
        self._content = content
        self.size_bytes = file.size_bytes
        self._unchecked = list(file.spans)
        self._reading = threading.Lock()
        self._has_ended = False

    async def check(self, start: int, stop: int) -> None:
        """Check the spans that some bytes lie in; raises their problem."""
        for span in [one for one in self._unchecked if one.start < stop and start < one.stop]:
            await span.check()
            self._unchecked.remove(span)

    async def seek(self, offset: int) -> None:
        """Go elsewhere."""
        self._content.seek(offset)

    async def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        at = self._content.tell()
        size = min(size, self.size_bytes - at)
        await self.check(at, at + size)
        block: bytes = await self._run(self._read, size)
        if len(block) < size:
            raise OSError(f"a file is {size - len(block)} bytes shorter than it was")
        return block

    def _read(self, size: int) -> bytes:
        try:
            with self._reading:
                return self._content.read(size)
        finally:
            if self._has_ended:
                self._close()

    def end(self) -> None:
        """Close the file: at once, or by the thread that still reads it. Takes no turn for that."""
        self._has_ended = True
        self._close()

    def _close(self) -> None:
        if self._reading.acquire(blocking=False):
            self._content.close()
            self._reading.release()
