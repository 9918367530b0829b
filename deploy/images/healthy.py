#!/usr/bin/env python3
"""Whether a container does its work: exits with 0 if so, and else with 1 and the reason.

``healthy URL``: the URL answers with success. ``healthy --worker URL``: the Dask scheduler whose
dashboard is there has a worker of this host.
"""

import socket
import sys
import urllib.request

# The images ask every few seconds: only the standard library, which is quick to import.
_SECONDS = 4


def why_not(arguments: list[str]) -> str | None:
    """What is wrong, or None."""
    url = arguments[-1]
    try:
        if arguments[0] != "--worker":
            get(url)
            return None
        # Of the pages that list workers the one of JSON fails while metrics have odd names.
        workers = get(f"{url}/info/main/workers.html").decode()
        own = socket.gethostbyname_ex(socket.gethostname())[2]
    except OSError as error:
        return f"{url}: {error}"
    if any(f"://{address}:" in workers for address in own):
        return None
    return f"the scheduler has no worker on {', '.join(own)}"


def get(url: str) -> bytes:
    """The body of a successful answer."""
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
        content: bytes = answer.read()
        return content


if __name__ == "__main__":
    sys.exit(why_not(sys.argv[1:]))
