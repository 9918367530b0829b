"""Chunks that were lost with their workers, one of which may have ended these."""

import threading
from collections import Counter, deque

from georesolve.engine.plan import Chunk

_MOST_WORKER_DEATHS = 3
"""A chunk that ended so many workers is guilty: in its run, and in two trials."""


class WorkerLost(RuntimeError):
    """One chunk ended its workers again and again."""


class Suspects:
    """The suspects of one job, tried again one after the other: the innocent are not lost again.

    A `trial` is held while one is on trial, by one at a time of all jobs of a cluster.
    """

    def __init__(self, trial: threading.Lock) -> None:
        self.on_trial: Chunk | None = None
        self._trial = trial
        self._deaths: Counter[Chunk] = Counter()
        self._waiting: deque[Chunk] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + (self.on_trial is not None)

    def blame(self, chunk: Chunk) -> None:
        """Count a worker that died with a chunk in hand; raises WorkerLost at the third."""
        self._deaths[chunk] += 1
        if self._deaths[chunk] == _MOST_WORKER_DEATHS:
            raise WorkerLost(
                f"observations {chunk.start} to {chunk.stop - 1} ended their workers in "
                f"{_MOST_WORKER_DEATHS} attempts"
            )

    def add(self, chunk: Chunk) -> None:
        """Let a chunk wait for its trial; one that was lost in a trial is the next."""
        if self._deaths[chunk] > 1:
            self._waiting.appendleft(chunk)
        else:
            self._waiting.append(chunk)

    def call(self, patience_seconds: float) -> list[Chunk]:
        """The next one to be tried, if it is its turn within that time."""
        is_idle = self._waiting and self.on_trial is None
        if not is_idle or not self._trial.acquire(timeout=patience_seconds):
            return []
        self.on_trial = self._waiting.popleft()
        return [self.on_trial]

    def dismiss(self, chunk: Chunk) -> None:
        """End the trial of a chunk, if it is the one: it runs no more."""
        if chunk == self.on_trial:
            self.on_trial = None
            self._trial.release()

    def close(self) -> None:
        """End the trial, if there is one: other jobs can try theirs, whatever became of this."""
        if self.on_trial is not None:
            self.dismiss(self.on_trial)
