"""The dashboard of an own cluster: answered by the names of this machine, to its own pages only.

Dask's own answers any name. A page of another site can have its name lead to this machine, and then
reads the dashboard in the browser of whoever opens that page here.
"""

from typing import Any
from urllib.parse import urlsplit

from distributed import Scheduler
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule, RuleRouter

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def guard_dashboard(scheduler: Scheduler, address: str) -> None:
    """Let a dashboard be asked by the names of this machine alone, if it listens on loopback.

    Parameters
    ----------
    address
        Where it listens: beyond loopback it may be called by any name.
    """
    host = address.rpartition(":")[0]
    names = _LOOPBACK_NAMES | {host}
    is_loopback = host in _LOOPBACK_NAMES or host.startswith("127.") or host == "::1"
    server = scheduler.http_server
    matcher = _OwnPages(names if is_loopback else None)
    # What no rule matches is answered 404.
    server.request_callback = RuleRouter([Rule(matcher, scheduler.http_application)])


class _OwnPages(Matcher):
    """Matches requests for one of some names, or any, which no page of another origin sends."""

    def __init__(self, names: frozenset[str] | None) -> None:
        self._names = names

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Called by tornado; None for no match."""
        origin = request.headers.get("Origin")
        is_own = origin is None or urlsplit(origin).netloc.lower() == request.host.lower()
        is_named = self._names is None or request.host_name.lower() in self._names
        return {} if is_own and is_named else None
