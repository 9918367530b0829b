"""A file that never changes as an HTTP answer: whole, a range of it, or 304 (RFC 9110, 13, 14)."""

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from georesolve.service.errors import BadRange, RangeNotSatisfiable
from georesolve.service.http.handlers import problem_response

_WANTED = re.compile(r"(^|,)\s*sha-256\s*=\s*(10|[1-9])\s*(,|$)")


def file_response(
    path: Path,
    sha256: str,
    media_type: str,
    name: str,
    request: Request,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer with a file, or with 304 to whom has it already.

    Parameters
    ----------
    sha256
        Of the bytes of the file: its strong ETag.
    name
        What a browser calls the file when it saves it.
    headers
        Further headers of the answer.

    Raises
    ------
    FileNotFoundError
        When it is not there any more. From then on it may be removed: the answer is whole.
    """
    etag = f'"{sha256}"'
    headers = {**(headers or {}), "ETag": etag, "Cache-Control": "private, immutable"}
    if wants_digest(request):
        digest = base64.b64encode(bytes.fromhex(sha256)).decode()
        headers["Repr-Digest"] = f"sha-256=:{digest}:"
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
    # For other methods it means something else, which no client of theirs can want.
    if request.method == "GET" and known & {etag, f"W/{etag}", "*"}:
        return Response(status_code=304, headers=headers)
    return _File(path.open("rb"), media_type=media_type, filename=name, headers=headers)


def wants_digest(request: Request) -> bool:
    """Whether a client wants the file counted now, and told its checksum (RFC 9530)."""
    return bool(_WANTED.search(request.headers.get("want-repr-digest", "")))


class _File(FileResponse):
    """Starlette's, of a file that is held open, with errors that are problems."""

    def __init__(self, file: BinaryIO, **answer: Any) -> None:
        # Starlette opens a path again for each range: this one stays when the name is gone.
        descriptor = file.fileno()
        super().__init__(f"/proc/self/fd/{descriptor}", stat_result=os.fstat(descriptor), **answer)
        self._held = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        unit = Request(scope).headers.get("range", "").partition("=")[0].strip().lower()
        if unit != "bytes":
            # One that the server does not know is to be ignored.
            headers = [pair for pair in scope["headers"] if pair[0] != b"range"]
            scope = {**scope, "headers": headers}
        refusal: Response | None = None

        async def as_problem(message: Message) -> None:
            nonlocal refusal
            if message["type"] == "http.response.start" and message["status"] >= 400:
                refusal = self._refusal(message, Request(scope))
            if refusal is None:
                await send(message)

        with self._held:
            await super().__call__(scope, receive, as_problem)
        if refusal is not None:
            await refusal(scope, receive, send)

    def _refusal(self, start: Message, request: Request) -> Response:
        given = request.headers.get("range", "")[:200]
        size = self.headers["content-length"]
        if start["status"] == 416:
            problem = RangeNotSatisfiable(
                f"Range is {given!r}, but the file has {size} bytes: ask for some of these",
                headers={"Content-Range": f"bytes */{size}"},
            )
        else:
            problem = BadRange(
                f"Range is {given!r}, which is no range: write it as in 'bytes=0-499'"
            )
        return problem_response(problem, request)
