"""The entrance of every request: its id, path, HEAD as GET, bounds of its body, line in the log."""

import asyncio
import logging
import re
import time
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from georesolve.service import errors
from georesolve.service.clock import new_id
from georesolve.service.http.bodies import WITH_BODY, bounded
from georesolve.service.http.handlers import problem_response
from georesolve.service.links import own_path
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.workers.logs import about

logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"
_CREDENTIALS = "Authorization, X-API-Key"
"""Headers with a key, by which answers differ."""
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_JOB_PATH = re.compile(r"/jobs/([0-9a-f]{32})(?:/|$)")
_LONGEST_PATH = 300
_CLIENT_HAS_GONE = 499
"""What proxies write into their logs for a client that did not wait for its answer."""


class Entrance:
    """Stands around all else that a request passes, and is passed once each way.

    It gives the request an id, and writes down what came of it, without queries and headers: they
    may hold what is secret.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._root_path = settings.root_path
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, method = time.perf_counter(), scope["method"]
        if self._root_path:
            _put_below(self._root_path, scope)
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        id = given if _SANE_ID.fullmatch(given) else new_id()
        status: int | None = None
        job, received_bytes = _job_of(scope["path"]), 0

        async def counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            return message

        async def noted(message: Message) -> None:
            nonlocal status, job
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered[HEADER] = id
                _refuse_shared_caches(answered)
                status, job = message["status"], job or _job_of(answered.get("location", ""))
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                # What is written leaves when the loop has its turn: before the log and all else.
                await asyncio.sleep(0)

        taken: Receive = counted
        if method == "HEAD":
            scope, taken, send = _as_get(scope, send)
        elif method in WITH_BODY:
            taken = bounded(scope, headers, counted, self._settings)
        with about(request_id=id):
            try:
                await self._app(scope, taken, noted)
            except Exception:
                if status is not None:
                    raise
                # Here, and not by Starlette outside of this: the answer must have its id.
                logger.exception("the request failed")
                problem = errors.Problem("an error of the service; its log has the details")
                await problem_response(problem, HTTPConnection(scope))(scope, taken, noted)
            finally:
                status, seconds = status or _CLIENT_HAS_GONE, time.perf_counter() - start
                self._write(method, scope, status, job, seconds)
                route = _route_of(scope)
                self._metrics.count_request(route, method, status, seconds, received_bytes)

    def _write(
        self, method: str, scope: Scope, status: int, job: str | None, seconds: float
    ) -> None:
        # As it came: what is decoded could break the line.
        path, client = quote(scope["path"])[:_LONGEST_PATH], address_of(scope)
        fields = {
            "client": client,
            "method": method,
            "path": path,
            "status": status,
            "seconds": round(seconds, 6),
            "owner": scope.get("state", {}).get("owner"),
            "job": job,
        }
        known = {name: value for name, value in fields.items() if value not in (None, "")}
        line = "%s %s %s %d in %.3f s"
        logger.info(line, client, method, path, status, seconds, extra=known)


def _refuse_shared_caches(headers: MutableHeaders) -> None:
    """Keep an answer out of shared caches, and out of all caches unless the answer allows them."""
    caching = headers.get("Cache-Control", "no-store")
    is_private = caching.startswith("private")
    headers["Cache-Control"] = caching if is_private else f"private, {caching}"
    headers.add_vary_header(_CREDENTIALS)


def _put_below(root: str, scope: Scope) -> None:
    """Put a request below the path of a proxy, which links then carry and routes do not know."""
    path = scope["path"]
    if not path.startswith(f"{root}/"):
        path = f"{root}/" if path == root else root + path
    scope.update(path=path, root_path=root)


def _as_get(scope: Scope, send: Send) -> tuple[Scope, Receive, Send]:
    """A HEAD as the GET that FastAPI's routes name, whose answer ends where its body begins."""
    has_ended = asyncio.Event()

    async def without_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            if has_ended.is_set():
                return
            has_ended.set()
            message = {**message, "body": b"", "more_body": False}
        await send(message)

    async def until_ended() -> Message:
        # A stream that goes on for as long as somebody listens ends with its first piece.
        await has_ended.wait()
        return {"type": "http.disconnect"}

    # A HEAD has no range: what it asks for is the length of the whole.
    headers = [pair for pair in scope["headers"] if pair[0] != b"range"]
    return {**scope, "method": "GET", "headers": headers}, until_ended, without_body


def _job_of(path: str) -> str | None:
    found = _JOB_PATH.search(path)
    return found[1] if found else None


def _route_of(scope: Scope) -> str:
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
