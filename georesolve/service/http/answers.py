"""Answers: the format that is accepted, and bytes with a strong ETag, whole, in ranges, or as 304.

RFC 9110, 12 to 14.

Of Starlette's own names `_Answer` overrides `_open_file` and `_parse_range_header`, and `_wanted`
asks `_should_use_range`: a file is opened, checked and closed here, and its errors are problems.
`tests/service/test_answers.py` notices when one of them changes.
"""

import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import Headers
from starlette.responses import MalformedRangeHeader
from starlette.responses import RangeNotSatisfiable as NoSuchRange
from starlette.types import Receive, Scope, Send

from georesolve.io.local_files import Look
from georesolve.io.result_formats import FORMATS, LINES, PARQUET, Format
from georesolve.service import errors

BLOCK_BYTES = 1 << 20
_CHECKED_BYTES = 64 << 20
"""So much is checked before an answer begins; what follows is checked in its turn."""
_KEPT_HEADERS = 64
_OF_BODIES = ("content-length", "content-type", "server-timing")
_TAGS = re.compile(r'(W/)?"([^"]*)"')
_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", re.ASCII)

Run = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a thread."""


class Span(NamedTuple):
    """Bytes of an answer that lie in one file; `check` raises a problem when that is damaged."""

    start: int
    stop: int
    check: Callable[[], Awaitable[None]]


class File(NamedTuple):
    """Bytes that never change; `spans` of them are checked before they are read."""

    open: Callable[[], BinaryIO]
    size_bytes: int
    etag: str
    """What stands between the quotes."""
    modified: Look
    media_type: str
    name: str
    """What a browser calls them when it saves them."""
    spans: Iterable[Span] = ()


def saved_as(name: str, called: str) -> dict[str, str]:
    """What a program saves an answer as, and what a browser does: after what it is made of."""
    # A program that takes it as it is must not leave its folder.
    plain = quote(re.sub(r"[/\\]", "_", called), safe="")
    words = f"attachment; filename=\"{name}\"; filename*=UTF-8''{plain}"
    return {"Content-Disposition": words}


def prefers_page(headers: Headers) -> bool:
    """Whether a browser asks for something to look at: it names HTML, which no program does."""
    return "text/html" in ",".join(headers.getlist("accept")).lower()


def wanted_format(headers: Headers, default: Format = PARQUET) -> Format:
    """The format that a client likes best (RFC 9110, 12.5.1); `default` when it does not say.

    Of several ranges that name a format the most specific one counts. What stands in the header
    and is no range is passed over. Raises NotAcceptable when it likes none that there is.
    """
    return _wanted(",".join(headers.getlist("accept")), default)


# Almost every client sends one of a few headers, which take longer to read than anything else.
@lru_cache(_KEPT_HEADERS)
def _wanted(given: str, default: Format) -> Format:
    if not given.strip():
        return default
    ranges = given.lower().split(",")
    best = max((default, *FORMATS, LINES), key=lambda one: _quality(one, ranges))
    if not _quality(best, ranges):
        offered = ", ".join(one.media_type for one in FORMATS)
        raise errors.NotAcceptable(
            f"Accept is {given[:200]!r}, but a result is to be had as {offered}: accept one of "
            f"them, or leave the header out for {default.media_type}",
            headers={"Vary": "Accept"},
        )
    return best


def _quality(format: Format, ranges: list[str]) -> float:
    """How much the range that names a format most closely likes it; 0 if none names it."""
    any_subtype = f"{format.media_type.partition('/')[0]}/*"
    found = [(0, 0.0)]
    for one in ranges:
        essence, *pairs = (part.strip() for part in one.split(";"))
        named = (pair.partition("=") for pair in pairs if pair)
        parameters = {name.strip(): value.strip().strip('"') for name, _, value in named}
        quality = parameters.pop("q", "1")
        closeness = {"*/*": 1, any_subtype: 2, format.media_type: 3 + len(parameters)}.get(essence)
        has_them = parameters.items() <= format.parameters.items()
        if closeness and has_them and _QUALITY.fullmatch(quality):
            found.append((closeness, float(quality)))
    return max(found)[1]


def lists_tag(value: str, tag: str | None, *, weak: bool = False) -> bool:
    """Whether the value of If-Match or If-None-Match lists a tag, here without its quotes.

    `weak` compares as If-None-Match does: a proxy may have made the tag weak (RFC 9110, 8.8.3.2).
    """
    if value.strip() == "*":
        return True
    return any(tag == listed and (weak or not prefix) for prefix, listed in _TAGS.findall(value))


def refuse_unmatched(request: Request, etag: str | None, modified_s: int | None = None) -> None:
    """Refuse a request whose If-Match, or else If-Unmodified-Since, does not hold (RFC 9110, 13.2).

    `etag` has no quotes; an answer without a tag, None, matches `*` alone.
    """
    tags = _all_of(request, "if-match")
    if tags is not None:
        if not lists_tag(tags, etag):
            has = "no ETag" if etag is None else f'the ETag "{etag}"'
            raise errors.PreconditionFailed(
                f"{request.url.path} has {has}, and If-Match is {tags[:200]!r}: leave If-Match "
                "out, or read the resource again"
            )
        return
    date = _date_of(request, "if-unmodified-since")
    if modified_s is not None and date is not None and modified_s > date:
        raise errors.PreconditionFailed(
            f"{request.url.path} was modified at {formatdate(modified_s, usegmt=True)}, after "
            f"{request.headers['if-unmodified-since']!r}: read the resource again"
        )


def unchanged(
    request: Request, headers: Mapping[str, str], modified_s: int | None = None
) -> Response | None:
    """304 if the client has an answer with these headers; refuse as `refuse_unmatched` does."""
    tag = headers["ETag"].strip('"')
    refuse_unmatched(request, tag, modified_s)
    # Other methods have no answer that a client could keep.
    if request.method != "GET":
        return None
    tags, date = _all_of(request, "if-none-match"), _date_of(request, "if-modified-since")
    if tags is not None:
        is_known = lists_tag(tags, tag, weak=True)
    else:
        is_known = modified_s is not None and date is not None and modified_s <= date
    if not is_known:
        return None
    # An answer without a body must not announce the length of one.
    about = {name: value for name, value in headers.items() if name.lower() not in _OF_BODIES}
    return Response(status_code=304, headers=about)


def _all_of(request: Request, name: str) -> str | None:
    """All values of a header as one list; None without the header."""
    return ", ".join(request.headers.getlist(name)) if name in request.headers else None


def _date_of(request: Request, name: str) -> float | None:
    """The date of a header in seconds since 1970; None without a valid one (RFC 9110, 13.1.3)."""
    try:
        return parsedate_to_datetime(request.headers.get(name, "")).timestamp()
    except (ValueError, OverflowError):
        return None


async def file_response(
    run: Run, file: File, request: Request, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with a file that `run` asks for, ranges of it, or 304; FileNotFoundError."""
    tag = {"ETag": f'"{file.etag}"', "Cache-Control": "private, immutable"}
    headers, modified_s = {**(headers or {}), **tag}, file.modified.changed_ns // 10**9
    return unchanged(request, headers, modified_s) or _Answer(
        run, file, await run(file.open), headers
    )


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
        counts = scope["method"] == "GET" and (not if_range or self._should_use_range(if_range))
        ranges = self._parse_range_header(given, size) if given and counts else []
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
            raise errors.BadRange(
                f"Range is {given[:200]!r}, which is no range: write it as in 'bytes=0-499'"
            ) from None
        except NoSuchRange:
            raise errors.RangeNotSatisfiable(
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
        self._content.seek(offset)

    async def read(self, size: int) -> bytes:
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
