#!/usr/bin/env python3
"""Whether a container does its work: exits with 0 if so, and else with 1 and the reason.

``healthy URL``: the URL answers with success. ``healthy --worker URL``: the Dask scheduler whose
dashboard is there has a running worker of this host.
"""

import json
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
        workers = json.loads(get(f"{url}/json/identity.json"))["workers"].values()
        own = set(socket.gethostbyname_ex(socket.gethostname())[2])
    except OSError as error:
        return f"{url}: {error}"
    running = {worker["host"] for worker in workers if worker["status"] == "running"}
    if own & running:
        return None
    return f"workers run on {sorted(running) or 'no host'}, and this one is {sorted(own)}"


def get(url: str) -> bytes:
    """The body of a successful answer."""
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
        content: bytes = answer.read()
        return content


if __name__ == "__main__":
    sys.exit(why_not(sys.argv[1:]))
