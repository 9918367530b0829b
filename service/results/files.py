"""Bytes that never change as an HTTP answer: whole, ranges, or 304 (RFC 9110, 13 and 14)."""

import asyncio
import base64
import os
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import Headers
from starlette.responses import MalformedRangeHeader
from starlette.responses import RangeNotSatisfiable as NoSuchRange
from starlette.types import Receive, Scope, Send

from georesolve.intake.representations import Format
from georesolve.service.errors import BadRange, RangeNotSatisfiable
from georesolve.service.http.conditions import is_known
from georesolve.workers.files import Look
from georesolve.workers.places import Object, read_at

_WANTED = re.compile(r"(^|,)\s*sha-256\s*=\s*(10|[1-9])\s*(,|$)")
_BLOCK_BYTES = 1 << 20
_HELD_FILES = 16
"""Files that an answer holds from its begin: what has no more of them arrives whole, although its
job is dismissed meanwhile."""
_CHECKED_BYTES = 64 << 20
"""So much is checked before an answer begins; what follows is checked in its turn."""


class Piece(NamedTuple):
    """Bytes of a file, as they stand in an answer.

    Attributes
    ----------
    open
        Opens the file; raises OSError.
    start, size_bytes
        Which bytes of it.
    check
        Raises a problem when the file is damaged.
    outlives
        Whether, once it is open, it can be read to its end although it is removed meanwhile.
    """

    open: Callable[[], BinaryIO]
    start: int
    size_bytes: int
    check: Callable[[], Awaitable[None]]
    outlives: bool = True


async def _nothing_to_check() -> None:
    pass


def whole_file(file: Path | Object, size_bytes: int) -> Piece:
    """All of a file that has been checked."""
    if isinstance(file, Object):
        return Piece(file.open, 0, size_bytes, _nothing_to_check, outlives=False)
    return Piece(lambda: file.open("rb"), 0, size_bytes, _nothing_to_check)


def file_response(
    pieces: Sequence[Piece],
    etag: str,
    modified: Look,
    format: Format,
    request: Request,
    headers: Mapping[str, str] | None = None,
    *,
    name: str | None = None,
) -> Response:
    """Answer with bytes of files, or with 304 to whom has them already.

    Parameters
    ----------
    etag
        What stands between the quotes of the strong ETag.
    modified
        A file that tells since when they are so.
    headers
        Further headers of the answer.
    name
        What a browser calls the file when it saves it; None for the name of the format.

    Raises
    ------
    FileNotFoundError
        When a file is not there any more.
    """
    quoted = f'"{etag}"'
    headers = {**(headers or {}), "ETag": quoted, "Cache-Control": "private, immutable"}
    # For other methods it means something else, which no client of theirs can want.
    if request.method == "GET" and is_known(request.headers, quoted):
        return Response(status_code=304, headers=headers)
    return _Answer(
        pieces,
        modified,
        media_type=format.media_type,
        filename=name or format.name,
        headers=headers,
    )


def repr_digest(sha256: str) -> dict[str, str]:
    """The header that tells the SHA-256 of a whole file (RFC 9530)."""
    return {"Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"}


def wants_digest(request: Request) -> bool:
    """Whether a client wants the file counted now, and told its checksum (RFC 9530)."""
    return bool(_WANTED.search(request.headers.get("want-repr-digest", "")))


class _Content:
    """The bytes of pieces, one after the other, to be read anywhere."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._edges = list(accumulate((piece.size_bytes for piece in pieces), initial=0))
        self.size_bytes = self._edges[-1]
        self._at = 0
        self._checked: set[int] = set()
        self._held: dict[int, BinaryIO] = {}
        try:
            for number, piece in enumerate(pieces[:_HELD_FILES]):
                if piece.outlives:
                    self._held[number] = piece.open()
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that are open."""
        for file in self._held.values():
            file.close()
        self._held.clear()

    async def check(self, start: int, stop: int) -> None:
        """Check the files that some bytes lie in; raises their problem."""
        number = max(0, bisect_right(self._edges, start) - 1)
        for piece, edge in zip(self._pieces[number:], self._edges[number:], strict=False):
            if edge >= stop:
                return
            if number not in self._checked:
                await piece.check()
                self._checked.add(number)
            number += 1

    async def seek(self, offset: int) -> None:
        """Go elsewhere."""
        self._at = offset

    async def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end of the last piece."""
        blocks = []
        while size and self._at < self.size_bytes:
            await self.check(self._at, self._at + 1)
            number = bisect_right(self._edges, self._at) - 1
            piece, within = self._pieces[number], self._at - self._edges[number]
            wanted = min(size, piece.size_bytes - within)
            block = await asyncio.to_thread(self._read, number, piece.start + within, wanted)
            if not block:
                raise OSError(f"a file is {wanted} bytes shorter than it was")
            blocks.append(block)
            self._at += len(block)
            size -= len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _read(self, number: int, start: int, size: int) -> bytes:
        if number not in self._held:
            # Another one than those that are held from the begin.
            for other in [one for one in self._held if one >= _HELD_FILES]:
                self._held.pop(other).close()
            self._held[number] = self._pieces[number].open()
        return read_at(self._held[number], start, size)


class _Answer(FileResponse):
    """Starlette's, of several files, with errors that are problems."""

    chunk_size = _BLOCK_BYTES

    def __init__(self, pieces: Sequence[Piece], modified: Look, **answer: Any) -> None:
        self._content = _Content(pieces)
        seconds = modified.changed_ns // 10**9
        told = os.stat_result((0, 0, 0, 0, 0, 0, self._content.size_bytes, 0, seconds, seconds))
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
        with self._content:
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
