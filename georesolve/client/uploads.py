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
    offset = 0
    while offset < size:
        rest = Body([path], _BYTES, start=offset)
        rest.on_sent = lambda sent, _, start=offset: show(start + sent, size)  # type: ignore[misc]
        headers = {"Upload-Offset": str(offset), **_TUS}
        try:
            async with exchange.stream("PATCH", address, headers=headers, body=rest) as response:
                offset = int(response.headers["upload-offset"])
        except (ServiceRefused, ServiceUnreachable) as error:
            await patience.after(error)
            there = await exchange.ask("HEAD", address, headers=_TUS)
            before, offset = offset, int(there.headers["upload-offset"])
            if offset > before:
                patience.renew()
            show(offset, size)


async def _forget(exchange: Exchange, address: str) -> None:
    try:
        async with exchange.stream("DELETE", address, headers=_TUS):
            pass
    except ServiceError as error:
        logger.warning("%s is not removed, and expires: %s", address, error)
