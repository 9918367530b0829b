"""Where requests come from."""

from functools import lru_cache
from ipaddress import ip_address

from starlette.types import Scope


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
