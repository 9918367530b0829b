"""Chunks that were lost with their workers, one of which may have ended these."""

import threading
from collections import Counter, deque

from georesolve.workers.plan import Chunk

_TRIALS = 2
"""How often a chunk is tried again before it is held guilty."""


class WorkerLost(RuntimeError):
    """One chunk ended its workers again and again."""


class Suspects:
    """The suspects of one job, tried again one after the other.

    When a worker dies, Dask counts that against all that it had in hand, of whatever job. Which of
    them it was shows when they are tried apart from each other: the innocent are not lost again.

    Parameters
    ----------
    trial
        Held while a suspect is on trial: one at a time of all jobs of a cluster.
    """

    def __init__(self, trial: threading.Lock) -> None:
        self._trial = trial
        self._trials: Counter[Chunk] = Counter()
        self._waiting: deque[Chunk] = deque()
        self._on_trial: Chunk | None = None

    def __len__(self) -> int:
        return len(self._waiting) + (self._on_trial is not None)

    def add(self, chunk: Chunk) -> None:
        """Put a chunk that was lost among them.

        Raises
        ------
        WorkerLost
            When it has had its trials.
        """
        if self._trials[chunk] == _TRIALS:
            raise WorkerLost(
                f"observations {chunk.start} to {chunk.stop - 1} ended their workers in "
                f"{1 + _TRIALS} attempts"
            )
        self._waiting.append(chunk)

    def call(self, patience_seconds: float) -> list[Chunk]:
        """The next one to be tried, if it is its turn within that time."""
        if not self._waiting or self._on_trial is not None:
            return []
        if not self._trial.acquire(timeout=patience_seconds):
            return []
        self._on_trial = self._waiting.popleft()
        self._trials[self._on_trial] += 1
        return [self._on_trial]

    def dismiss(self, chunk: Chunk) -> None:
        """End the trial of a chunk, if it is the one: it runs no more."""
        if chunk == self._on_trial:
            self._on_trial = None
            self._trial.release()

    def close(self) -> None:
        """End the trial, if there is one: other jobs can try theirs, whatever became of this."""
        if self._on_trial is not None:
            self.dismiss(self._on_trial)
