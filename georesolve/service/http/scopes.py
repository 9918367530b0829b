"""Requests as routes know them: below the path that a proxy shows, and HEAD as GET."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
