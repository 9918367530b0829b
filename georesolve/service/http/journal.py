"""What stands around every request: its path below a proxy, HEAD as GET, its id, its log line."""

import asyncio
import logging
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from georesolve.service.clock import new_id
from georesolve.service.errors import Problem
from georesolve.service.http.handlers import problem_response
from georesolve.service.metrics import Metrics
from georesolve.workers.logs import about

logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_JOB_PATH = re.compile(r"/jobs/([0-9a-f]{32})(?:/|$)")
_LONGEST_PATH = 300
_CLIENT_HAS_GONE = 499
"""What proxies write into their logs for a client that did not wait for its answer."""


@dataclass
class _Entry:
    """What came of a request."""

    status: int = _CLIENT_HAS_GONE
    job: str | None = None
    received_bytes: int = 0
    has_answer: bool = False


class Journal:
    """Gives every request an id, which its answer has too, and writes down what came of it.

    The id of a client is taken if it is short and plain. Queries and headers are not written down:
    they may hold what is secret.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        id = given if _SANE_ID.fullmatch(given) else new_id()
        entry, method, start = _Entry(), scope["method"], time.perf_counter()

        async def counted() -> Message:
            message = await receive()
            entry.received_bytes += len(message.get("body", b""))
            return message

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[HEADER] = id
                entry.status, entry.has_answer = message["status"], True
                entry.job = _job_of(headers.get("location", ""))
            await send(message)

        with about(request_id=id):
            try:
                await self._app(scope, counted, noted)
            except Exception:
                if entry.has_answer:
                    raise
                # Here, and not by Starlette outside of this: the answer must have its id.
                logger.exception("the request failed")
                problem = Problem("an error of the service; its log has the details")
                await problem_response(problem, HTTPConnection(scope))(scope, receive, noted)
            finally:
                self._write(method, scope, entry, time.perf_counter() - start)

    def _write(self, method: str, scope: Scope, entry: _Entry, seconds: float) -> None:
        # As it came: what is decoded could break the line.
        path = quote(scope["path"])[:_LONGEST_PATH]
        client = address_of(scope)
        fields = {
            "client": client,
            "method": method,
            "path": path,
            "status": entry.status,
            "seconds": round(seconds, 6),
            "owner": scope.get("state", {}).get("owner"),
            "job": _job_of(scope["path"]) or entry.job,
        }
        known = {name: value for name, value in fields.items() if value not in (None, "")}
        line = "%s %s %s %d in %.3f s"
        logger.info(line, client, method, path, entry.status, seconds, extra=known)
        self._metrics.count_request(
            route_of(scope), method, entry.status, seconds, entry.received_bytes
        )


def _job_of(path: str) -> str | None:
    found = _JOB_PATH.search(path)
    return found[1] if found else None


def route_of(scope: Scope) -> str:
    """The template of the path that a request matched; the path itself could be anything."""
    if "route" in scope:
        return str(scope["route"].path)
    # The pages that FastAPI itself adds have no parameters.
    is_known = "endpoint" in scope and not scope.get("path_params")
    return own_path(scope) if is_known else "none"


def address_of(scope: Scope) -> str:
    """The address of a client, as the proxies that are trusted tell it."""
    client = scope.get("client")
    return _address(client[0]) if client else "unknown"


@lru_cache(1024)
def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        # A proxy may tell anything, and it is written into the log.
        return "unknown"


class BelowRootPath:
    """Puts all requests below the path of a proxy, whether or not that has taken it off them.

    `path` then has it, and `root_path` is it: links and redirects carry it, routes do not know it.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            path = scope["path"]
            if path == self._root_path:
                path += "/"
            elif not path.startswith(f"{self._root_path}/"):
                path = self._root_path + path
            scope = {**scope, "path": path, "root_path": self._root_path}
        await self._app(scope, receive, send)


def own_path(scope: Scope) -> str:
    """The path of a request below that of the service."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


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
