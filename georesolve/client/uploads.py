"""Files that are sent to a service ahead of a request, and go on where a connection broke.

The service keeps what has come (tus 1.0), also when it is killed and started again: after a break
it is asked how much that is, and the rest is sent.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from georesolve.client.bodies import AtService, Body, file_body, media_type, metadata
from georesolve.client.errors import ServiceError, ServiceRefused, ServiceUnreachable
from georesolve.client.exchange import PASSING, Exchange, logger

RESUMED_BYTES = 16 << 20
"""Larger files are sent this way; smaller ones come with their request, and again if it breaks."""
_BYTES = "application/offset+octet-stream"
_TUS = {"Tus-Resumable": "1.0.0"}
_CONFLICT = 409
"""Another request still sends, as the service has not seen its end; or the offset is another."""


@asynccontextmanager
async def uploaded(
    exchange: Exchange, path: Path, show: Callable[[int, int | None], None]
) -> AsyncIterator[AtService]:
    """Have a file at the service for the requests in here; it is removed behind them.

    Parameters
    ----------
    show
        Told how many bytes of the file have been sent, and of how many.

    Raises
    ------
    ServiceRefused, ServiceUnreachable
    """
    whole = file_body(path)
    await exchange.wire.work(whole.count)
    headers = {
        "Upload-Length": str(whole.size),
        "Upload-Metadata": metadata(filename=path.name, filetype=media_type(path)),
        "Repr-Digest": whole.digest,
    }
    begun = await exchange.ask("POST", "/uploads", headers={**headers, **_TUS})
    address = f"/uploads/{begun.json()['id']}"
    try:
        await _send(exchange, address, path, whole.size, show)
        yield AtService(f"upload:{begun.json()['id']}")
    finally:
        with exchange.wire.shielded():
            await _forget(exchange, address)


async def _send(
    exchange: Exchange,
    address: str,
    path: Path,
    size: int,
    show: Callable[[int, int | None], None],
) -> None:
    patience = exchange.patience(PASSING | {_CONFLICT})
    offset, has_broken = 0, False
    while offset < size:
        try:
            if has_broken:
                there = await _where_to_go_on(exchange, address)
                if there > offset:
                    patience.renew()
                offset, has_broken = there, False
                show(offset, size)
            rest = Body([path], _BYTES, start=offset, is_decoded=False)
            rest.on_sent = lambda sent, _, start=offset: show(start + sent, size)  # type: ignore[misc]
            offset = await _append(exchange, address, offset, rest)
        except (ServiceRefused, ServiceUnreachable) as error:
            has_broken = True
            await patience.after(error)


async def _where_to_go_on(exchange: Exchange, address: str) -> int:
    """How many bytes have come, once the service has seen the end of the request that broke off."""
    async with exchange.stream("HEAD", address, headers=_TUS) as response:
        offset = int(response.headers["upload-offset"])
    # Nothing, to hear that it is refused before all the rest is sent.
    return await _append(exchange, address, offset, Body([], _BYTES, is_decoded=False))


async def _append(exchange: Exchange, address: str, offset: int, body: Body) -> int:
    headers = {"Upload-Offset": str(offset), **_TUS}
    async with exchange.stream("PATCH", address, headers=headers, body=body) as response:
        return int(response.headers["upload-offset"])


async def _forget(exchange: Exchange, address: str) -> None:
    try:
        async with exchange.stream("DELETE", address, headers=_TUS):
            pass
    except ServiceError as error:
        logger.warning("%s is not removed, and expires: %s", address, error)
