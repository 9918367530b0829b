"""Requests that may be sent twice: one key, one job.

As draft-ietf-httpapi-idempotency-key-header has it: the same key with the same content gives the
same job again, with other content it is refused, and so it is while the first is being received.
A job and its key are written in one transaction, so the promise outlives whatever dies.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from georesolve.service.database.rows import Repeat
from georesolve.service.errors import KeyInUse


class Claim:
    """A request that is being received; while it is, no other with its key is."""

    def __init__(self, key: str | None, end: Callable[[], None]) -> None:
        self.key = key
        self.end = end
        """Says that the request is accepted: from now on its key stands in the store."""

    def of(self, *content: Any) -> Repeat | None:
        """The key with what was sent; None without a key.

        Parameters
        ----------
        content
            Texts and dataclasses that name all that the answer depends on.
        """
        if self.key is None:
            return None
        named = json.dumps(content, sort_keys=True, default=asdict)
        return Repeat(self.key, hashlib.sha256(named.encode()).hexdigest())


class Claims:
    """The requests with a key that this process is receiving."""

    def __init__(self) -> None:
        self._receiving: set[tuple[str, str]] = set()

    @contextmanager
    def claim(self, owner: str, key: str | None) -> Iterator[Claim]:
        """Claim the key of a request, if it has one, until it is accepted or refused.

        Raises
        ------
        KeyInUse
            While another request with it is being received.
        """
        with ExitStack() as held:
            if key is not None:
                if (owner, key) in self._receiving:
                    raise KeyInUse(
                        f"a request with the Idempotency-Key {key!r} is being received: send this "
                        "one again when that one is answered",
                        headers={"Retry-After": "1"},
                    )
                self._receiving.add((owner, key))
                held.callback(self._receiving.remove, (owner, key))
            yield Claim(key, held.close)
