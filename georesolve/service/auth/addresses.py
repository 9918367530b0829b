"""Where requests come from, and how many wrong keys came from there."""

import math
import time
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import Scope

_WINDOW_SECONDS = 60.0
_WRONG_A_WINDOW = 120
_MOST_ADDRESSES = 10_000
_NETWORK_BITS = 64
"""A host of IPv6 may take any address of such a network."""


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


class WrongKeys:
    """Counts wrong keys by address, of the addresses that sent one last."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}

    def count(self, address: str) -> int:
        """Count one; returns the seconds until this address may send more, 0 for at once."""
        host, now = _host(address), time.monotonic()
        since, count = self._counts.pop(host, (now, 0))
        if now >= since + _WINDOW_SECONDS:
            since, count = now, 0
        self._counts[host] = since, count + 1
        if len(self._counts) > _MOST_ADDRESSES:
            del self._counts[next(iter(self._counts))]
        return 0 if count < _WRONG_A_WINDOW else math.ceil(since + _WINDOW_SECONDS - now)


def _host(address: str) -> str:
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        return str(ip_network((ip, _NETWORK_BITS), strict=False))
    return address
