"""The path below which a proxy shows the service."""

from starlette.types import ASGIApp, Receive, Scope, Send


class BelowRootPath:
    """Puts all requests below that path, whether or not the proxy has taken it off them.

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
