"""Where requests come from."""

from ipaddress import ip_address

from starlette.types import Scope


def address_of(scope: Scope) -> str:
    """The address of a client, as the proxies that are trusted tell it."""
    try:
        return str(ip_address(scope["client"][0]))
    except (KeyError, TypeError, ValueError):
        # A proxy may tell anything, and it is written into the log.
        return "unknown"
