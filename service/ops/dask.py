"""`/dask`: the Dask dashboard, reached through the service; only where a setting exposes it.

The dashboard knows no passwords and trusts who reaches it. What passes here is what it draws:
requests to read, and the connection that keeps a page up to date.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from urllib.parse import quote, urlsplit

import httpx
from fastapi import APIRouter, Request, Response, WebSocket
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from georesolve.service.auth.access import DASHBOARD, has_other_origin
from georesolve.service.context import Service
from georesolve.service.errors import Forbidden, NotReady, NotThere, Problem
from georesolve.service.http.handlers import problem_response

router = APIRouter(include_in_schema=False)

# Not the headers of a connection, and no key: that is ours.
_REQUEST_HEADERS = ("accept", "accept-encoding", "if-none-match", "if-modified-since", "range")
_ANSWER_HEADERS = (
    *("content-type", "content-length", "content-encoding", "content-range", "accept-ranges"),
    *("etag", "last-modified", "cache-control", "vary"),
)
_CONNECT_SECONDS = 10.0
# Pages that lead on to whatever address they are told.
_CLOSED = ("proxy/",)
_GOING_AWAY = 1001


@contextlib.asynccontextmanager
async def dashboard_client() -> AsyncIterator[httpx.AsyncClient]:
    """The client that asks the dashboard, for the life of an application."""
    # No answer is waited for with a limit: a profile of a long run takes its time.
    timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
    async with httpx.AsyncClient(timeout=timeout, trust_env=False) as client:
        yield client


@router.get(DASHBOARD)
@router.get(f"{DASHBOARD}/")
async def lead_to_status(request: Request) -> Response:
    """The page that the dashboard begins with."""
    return RedirectResponse(f"{request.scope['root_path']}{DASHBOARD}/status")


@router.get(f"{DASHBOARD}/{{path:path}}")
async def show_dashboard(request: Request, path: str) -> Response:
    """A page of the dashboard, or what it is made of."""
    client: httpx.AsyncClient = request.app.state.dashboard
    upstream = client.build_request(
        "GET",
        _address(request, path, "http"),
        headers={
            name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers
        },
    )
    try:
        answer = await client.send(upstream, stream=True)
    except httpx.TransportError as error:
        raise NotReady(
            f"the dashboard does not answer: {error}", headers={"Retry-After": "2"}
        ) from error
    headers = _chosen(answer.headers, _ANSWER_HEADERS)
    location = answer.headers.get("location", "")
    if location.startswith("/"):
        headers["location"] = f"{request.scope['root_path']}{DASHBOARD}{location}"
    return StreamingResponse(_body(answer), answer.status_code, headers)


def _chosen(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


@router.websocket(f"{DASHBOARD}/{{path:path}}")
async def keep_up_to_date(websocket: WebSocket, path: str) -> None:
    """The connection on which a page of the dashboard is kept up to date."""
    try:
        _refuse_other_origins(websocket)
        upstream = await _connected(websocket, _address(websocket, path, "ws"))
    except Problem as problem:
        # Handlers of errors do not answer websockets.
        await websocket.send_denial_response(problem_response(problem, websocket))
        return
    async with upstream:
        await websocket.accept(upstream.subprotocol)
        with contextlib.suppress(ConnectionClosed, WebSocketDisconnect):
            await _carry(websocket, upstream)
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        # The browser may have closed it before.
        await websocket.close(_GOING_AWAY)


async def _connected(websocket: WebSocket, address: str) -> ClientConnection:
    protocols = [Subprotocol(name) for name in websocket.scope["subprotocols"]]
    try:
        return await connect(
            address,
            subprotocols=protocols or None,
            compression=None,
            max_size=None,
            proxy=None,
            open_timeout=_CONNECT_SECONDS,
        )
    except (OSError, InvalidHandshake) as error:
        raise NotReady(f"the dashboard does not answer: {error}") from error


async def _carry(websocket: WebSocket, upstream: ClientConnection) -> None:
    """Carry messages both ways until one side closes."""
    ways = {
        asyncio.create_task(_up(websocket, upstream)),
        asyncio.create_task(_down(websocket, upstream)),
    }
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    for way in done:
        way.result()


async def _up(websocket: WebSocket, upstream: ClientConnection) -> None:
    while (message := await websocket.receive())["type"] == "websocket.receive":
        content = message.get("bytes")
        await upstream.send(message["text"] if content is None else content)


async def _down(websocket: WebSocket, upstream: ClientConnection) -> None:
    async for message in upstream:
        if isinstance(message, str):
            await websocket.send_text(message)
        else:
            await websocket.send_bytes(message)


def _refuse_other_origins(websocket: WebSocket) -> None:
    """Refuse pages of other sites: a browser lets them connect, and sends the key it knows.

    Raises
    ------
    Forbidden
    """
    if has_other_origin(websocket):
        origin = websocket.headers["origin"][:80]
        raise Forbidden(f"a page of another site ({origin}) may not connect to the dashboard")


def _address(connection: HTTPConnection, path: str, scheme: str) -> str:
    """Where the dashboard has what a path below ours names.

    Raises
    ------
    NotReady
        While there is no cluster, or it has no dashboard.
    NotThere
        For a path that leads away from the dashboard.
    """
    service: Service = connection.app.state.service
    steps = path.split("/")
    # Who follows the address drops empty and dotted steps on the way.
    if {".", ".."} & set(steps) or path.lstrip("/").startswith(_CLOSED):
        raise NotThere(f"{path[:80]!r} leads away from the dashboard, and is closed here")
    cluster = service.supervisor.cluster
    if cluster is None or cluster.dashboard_url is None:
        why = service.supervisor.trouble or "the cluster has no dashboard"
        raise NotReady(why, headers={"Retry-After": "2"})
    root = urlsplit(cluster.dashboard_url)
    # Of the path that was looked at: how it was written may read otherwise.
    own, query = quote(path), connection.url.query
    return (
        f"{scheme}{'s' * (root.scheme == 'https')}://{root.netloc}/{own}{'?' * bool(query)}{query}"
    )
