"""Who may ask: the key of a request names its owner; without keys, only this machine asks."""

import base64
import contextlib
import hmac
import logging
import math
import shlex
import time
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from georesolve.service import errors, pools
from georesolve.service.clock import now
from georesolve.service.http.answers import prefers_page
from georesolve.service.http.entrance import address_of
from georesolve.service.http.handlers import problem_response
from georesolve.service.http.parameters import refuse_repeated
from georesolve.service.links import own_path
from georesolve.service.metrics import Metrics
from georesolve.service.settings import KeyRole, Settings
from georesolve.service.store.keys import Key, Keys, hash_of, prefix_of
from georesolve.service.store.store import Store

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez", "/readyz", "/healthz"})
"""Paths open to everybody; only operators get more than the status."""
_ALIVE = "/livez"
"""It waits for nothing, the keys included."""
DOCUMENTATION = "/docs"
METRICS = "/metrics"
_PAGES = (f"{DOCUMENTATION}/", "/api/")
"""What people look at in a browser, besides the page at `/`."""
_READ_SECONDS = 1
"""After this long keys are read again: so soon one made or revoked counts."""
_NOTE_SECONDS = 60.0
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_WINDOW_SECONDS = 60.0
_WRONG_A_WINDOW = 120
_MOST_ADDRESSES = 10_000
_NETWORK_BITS = 64
"""A host of IPv6 may take any address of such a network."""


def refuse_unprotected(settings: Settings, keys: Keys) -> None:
    """Refuse to listen where others can reach the service, unless keys protect it."""
    if settings.is_open or keys.all():
        return
    folder = f"--data-dir {shlex.quote(str(settings.data_dir))}"
    place = "--database-url URL" if settings.database else folder
    raise errors.CannotStart(
        f"host is {settings.host!r}, which others can reach, and there are no API keys: make one "
        f"with 'georesolve keys create NAME {place}', listen on 127.0.0.1, or give --insecure if "
        "something in front of the service authenticates"
    )


class Access:
    """Gives a request the owner of its key, and the service as the owner sees it, or refuses it.

    The owner is the id of the key; it is empty while the service needs none.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._wrong_keys = WrongKeys()
        self._valid, self._valid_until = dict[str, Key](), 0.0
        self._has_keys = False
        self._reading = pools.Shared[None]()
        self._is_open = settings.is_open
        self._hosts = settings.hosts()
        self._origins = settings.origins()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and own_path(scope) != _ALIVE:
            connection = HTTPConnection(scope)
            try:
                self._check_host(connection)
                owner, role = await self._caller_of(connection)
                whole = connection.app.state.service
                connection.state.owner = owner
                connection.state.is_operator = not owner or role != "user"
                connection.state.service = whole.of(owner, sees_all=role == "admin")
                refuse_repeated(connection)
            except errors.Problem as problem:
                if own_path(scope) not in OPEN_PATHS:
                    await problem_response(problem, connection)(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _check_host(self, connection: HTTPConnection) -> None:
        """Refuse names that are not ours: a page could have its own name lead to this machine."""
        host = _without_port(connection.headers.get("host", ""))
        if "*" not in self._hosts and host not in self._hosts:
            raise errors.UnknownHost(
                f"the request is for the host {host[:80]!r}, and this service answers for "
                f"{', '.join(self._hosts)}: name others in the setting allowed_hosts"
            )

    async def _caller_of(self, connection: HTTPConnection) -> tuple[str, KeyRole]:
        keys: Keys = connection.app.state.service.store.keys
        if time.monotonic() > self._valid_until:
            await self._reading("keys", lambda: self._read(keys))
        valid = self._valid
        # A service that has had a key needs one, also after the last key is revoked.
        if not self._has_keys and self._is_open:
            _refuse_other_sites(connection, self._origins)
            return "", "user"
        given, by_browser = _key_of(connection)
        if by_browser:
            # A browser sends it along with whatever a page of any site asks for.
            _refuse_other_sites(connection, self._origins)
        key = valid.get(prefix_of(given))
        if key is None or not hmac.compare_digest(key.sha256, hash_of(given)):
            raise self._refusal(connection)
        _refuse_beyond(key, connection)
        if key.last_used is None or key.last_used < now(-_NOTE_SECONDS):
            # A note less is no reason to refuse a request.
            with contextlib.suppress(SQLAlchemyError):
                await pools.database(keys.note_use, key)
        return key.id, key.role

    async def _read(self, keys: Keys) -> None:
        """Read the keys that were not revoked, by what they begin with."""
        try:
            known = await pools.database(keys.all)
        except SQLAlchemyError as error:
            # What stands outside of the handlers of errors answers for itself.
            logger.error("the keys cannot be read: %s", error)
            raise errors.store_away() from error
        self._valid = {key.prefix: key for key in known if key.revoked is None}
        self._has_keys = bool(known)
        self._valid_until = time.monotonic() + _READ_SECONDS

    def _refusal(self, connection: HTTPConnection) -> errors.Problem:
        """The answer to a wrong key; the right one is taken from any address, at any time."""
        self._metrics.wrong_keys.inc()
        address = address_of(connection.scope)
        seconds = self._wrong_keys.count(address)
        if seconds:
            return errors.TooManyWrongKeys(
                f"the key that was sent opens nothing here, and too many such keys came from "
                f"{address}: come again with a right one, or in {seconds} s",
                headers={"Retry-After": str(seconds)},
            )
        return errors.Unauthorized(
            "the key that was sent opens nothing here: it is wrong, or was revoked",
            headers=_challenge(connection, 'Bearer error="invalid_token"'),
        )


class WrongKeys:
    """Counts wrong keys by address, of the addresses that sent one last."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}

    def count(self, address: str) -> int:
        """Count one; returns the seconds until this address may send more, 0 for at once."""
        host, now = address, time.monotonic()
        with contextlib.suppress(ValueError):
            if isinstance(ip := ip_address(address), IPv6Address):
                host = str(ip_network((ip, _NETWORK_BITS), strict=False))
        since, count = self._counts.pop(host, (now, 0))
        if now >= since + _WINDOW_SECONDS:
            since, count = now, 0
        self._counts[host] = since, count + 1
        if len(self._counts) > _MOST_ADDRESSES:
            del self._counts[next(iter(self._counts))]
        return 0 if count < _WRONG_A_WINDOW else math.ceil(since + _WINDOW_SECONDS - now)


def own(part: str = "") -> Any:
    """A dependency: the service, or a part of it, as the owner sees it whose key a request has."""

    # Async: FastAPI needs no thread for it.
    async def found(request: Request) -> Any:
        return getattr(request.state.service, part) if part else request.state.service

    return Depends(found)


OwnStore = Annotated[Store, own("store")]


def _refuse_beyond(key: Key, connection: HTTPConnection) -> None:
    """Refuse what a key may not do any more, or not by its role."""
    if key.has_expired:
        raise errors.KeyExpired(
            f"the key {key.prefix} of {key.name!r} expired at {key.expires}: ask the operator of "
            f"the service for a new one ('georesolve keys rotate {key.prefix}')",
            headers=_challenge(connection, 'Bearer error="invalid_token"'),
        )
    if key.role == "metrics" and own_path(connection.scope) not in (*OPEN_PATHS, METRICS):
        raise errors.Forbidden(
            f"the key {key.prefix} of {key.name!r} has the role metrics, which reads {METRICS} and "
            "nothing else: send a key with the role user"
        )
    if key.role == "user" and own_path(connection.scope) == METRICS:
        raise errors.Forbidden(
            f"the key {key.prefix} of {key.name!r} has the role user, and {METRICS} is for the "
            "roles metrics and admin: ask the operator of the service for such a key"
        )


def _refuse_other_sites(connection: HTTPConnection, allowed: tuple[str, ...]) -> None:
    """Refuse what a page of another site makes a browser send, unless its origin is allowed."""
    method = connection.scope.get("method", "GET")
    if method in _SAFE_METHODS:
        return
    # Browsers tell the site to loopback and over TLS only, and take all ports of a name for one.
    site, origin = map(connection.headers.get, ("sec-fetch-site", "origin"))
    is_own = site in ("same-origin", "none", None) and (
        origin is None
        or origin.partition("://")[2].lower() == connection.headers.get("host", "").lower()
    )
    if not is_own and not {origin, "*"} & set(allowed):
        raise errors.Forbidden(
            f"a page of another site ({(origin or 'unknown')[:80]}) sent this {method}, which only "
            "programs and the service's own pages may: name the origin in the setting cors_origins"
        )


def _key_of(connection: HTTPConnection) -> tuple[str, bool]:
    """The key of a request, and whether a browser sent it, as the password of Basic."""
    scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
    key = credentials.strip() if scheme.lower() == "bearer" else connection.headers.get("x-api-key")
    by_browser = not key and scheme.lower() == "basic"
    if by_browser:
        with contextlib.suppress(ValueError):
            key = base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    if not key:
        raise errors.Unauthorized(
            "this service asks for a key: send the header 'Authorization: Bearer KEY', or "
            "'X-API-Key: KEY'; a browser asks for a name and a password: any name, and the key",
            headers=_challenge(connection, "Bearer"),
        )
    return key, by_browser


def _challenge(connection: HTTPConnection, otherwise: str) -> dict[str, str]:
    """How to send a key; a browser that shows the answer asks for one by itself, told of Basic."""
    path = own_path(connection.scope)
    is_page = f"{path}/".startswith(_PAGES) or (path == "/" and prefers_page(connection.headers))
    is_basic = connection.headers.get("authorization", "").lower().startswith("basic ")
    asked = 'Basic realm="georesolve: any name, a key as password"'
    return {"WWW-Authenticate": asked if is_page or is_basic else otherwise}


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    # The colons of an IPv6 address stand in brackets.
    return (name if name and port.isdecimal() else host).strip("[]").rstrip(".").lower()
