"""What may be unfinished and kept: jobs of the whole service and of a key, bytes of a key."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from georesolve.service.database.store import Store
from georesolve.service.errors import Problem, QueueFull, StorageFull, TooManyJobs
from georesolve.service.settings import Settings


class Storage(NamedTuple):
    """Bytes that an owner keeps, and may keep.

    Attributes
    ----------
    used
        By datasets and results, and by unfinished jobs as far as they are known.
    quota
        None without a key: then the disk is the bound.
    """

    used: int
    quota: int | None

    @property
    def left(self) -> int | None:
        """Bytes that may be kept yet; None for as many as the disk has."""
        return None if self.quota is None else max(0, self.quota - self.used)

    def full(self, coming: int) -> Problem:
        """The problem of what finds no room."""
        return StorageFull(
            f"the datasets, results and unfinished jobs of this key take {self.used} bytes, "
            f"{coming} would come, and {self.quota} may be kept: remove datasets and results that "
            "are no longer needed, or wait until they expire",
            headers={"Retry-After": "60"},
        )


class Quotas:
    """Gives places in the queue, one to a job, and room for what is kept."""

    def __init__(self, settings: Settings) -> None:
        self._queue = settings.queue_jobs
        self._own = settings.key_jobs
        self._bytes = settings.key_bytes
        self._lock = threading.Lock()
        # Bytes of what is being kept and is not in the store yet, by owner.
        self._coming = Counter[str]()

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

    def storage(self, store: Store) -> Storage:
        """What the owner of a store keeps, and may keep."""
        owner = store.owner or ""
        used = store.kept_bytes() + self._coming[owner]
        return Storage(used, self._bytes if owner else None)

    @contextmanager
    def room(self, store: Store, size_bytes: int) -> Iterator[None]:
        """Hold room for what the caller keeps meanwhile for the owner of a store.

        Raises
        ------
        StorageFull
        """
        owner = store.owner or ""
        with self._lock:
            storage = self.storage(store)
            if storage.left is not None and size_bytes > storage.left:
                raise storage.full(size_bytes)
            self._coming[owner] += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._coming[owner] -= size_bytes
