"""How many jobs may be unfinished: of the whole service, and of one key."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from service.database.store import Store
from service.errors import QueueFull, TooManyJobs
from service.settings import Settings


class Quotas:
    """Gives places in the queue, one to a job."""

    def __init__(self, settings: Settings) -> None:
        self._queue = settings.queue_jobs
        self._own = settings.key_jobs
        self._lock = threading.Lock()

    @contextmanager
    def place(self, store: Store) -> Iterator[None]:
        """Hold a free place, into which the caller puts a job of the store's owner.

        Raises
        ------
        QueueFull, TooManyJobs
        """
        # One at a time: between the look and the entry nobody else takes the last place.
        with self._lock:
            self.refuse_when_full(store)
            yield

    def refuse_when_full(self, store: Store) -> None:
        """Refuse a job for which there is no place; raises as above."""
        everyone, own = store.count_live()
        if everyone >= self._queue:
            raise QueueFull(
                f"{everyone} jobs of the service wait or run, and {self._queue} may: come again "
                "later",
                headers={"Retry-After": "10"},
            )
        if store.owner and own >= self._own:
            raise TooManyJobs(
                f"{own} jobs of this key wait or run, and {self._own} may: wait for one to end, or "
                "dismiss one",
                headers={"Retry-After": "5"},
            )
