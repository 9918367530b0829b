"""Runs of chunks that take much longer than others: when they are computed a second time."""

import time
from collections import Counter
from collections.abc import Iterable

from georesolve.workers.plan import Run

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

    def note(self, seconds: float) -> None:
        """Take note of a finished run: its fellows may take as long."""
        self._longest_seconds = max(self._longest_seconds, seconds)
        self.begin()

    def begin(self) -> None:
        """Take note that runs were submitted: they have all the time again."""
        self._since = time.monotonic()

    def among(self, running: Iterable[Run]) -> list[Run]:
        """Those that are late, and have no copy.

        None is before one of their fellows has finished, and shown how long one takes.
        """
        patience = _PATIENCE_SECONDS + _TIMES_LONGER * self._longest_seconds
        if not self._longest_seconds or time.monotonic() - self._since < patience:
            return []
        return [run for run, times in Counter(running).items() if times == 1]
