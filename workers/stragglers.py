"""Chunks that take much longer than their fellows: when they are computed a second time."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from georesolve.workers.plan import Chunk

_PATIENCE_SECONDS = 5.0
_TIMES_LONGER = 3.0


class Stragglers:
    """The stragglers of one job, of which a copy may run beside each.

    A worker may hang in a read, or share its processor with others. The first of the two to finish
    counts: both write the same bytes.
    """

    def __init__(self) -> None:
        self._longest_seconds = 0.0
        self._since = time.monotonic()

    def note(self, record: dict[str, Any]) -> None:
        """Take note of a finished chunk: its fellows may take as long."""
        self._longest_seconds = max(self._longest_seconds, sum(record["seconds"].values()))
        self.begin()

    def begin(self) -> None:
        """Take note that chunks were submitted: they have all the time again."""
        self._since = time.monotonic()

    def among(self, running: Iterable[Chunk]) -> list[Chunk]:
        """Those of the running chunks that are late, and have no copy.

        None is before one of their fellows has finished, and shown how long a chunk takes.
        """
        patience = _PATIENCE_SECONDS + _TIMES_LONGER * self._longest_seconds
        if not self._longest_seconds or time.monotonic() - self._since < patience:
            return []
        return [chunk for chunk, times in Counter(running).items() if times == 1]
