"""What may be unfinished and kept: jobs of the whole service and of a key, bytes of a key."""

import shutil

from sqlalchemy import Connection

from georesolve.service import errors
from georesolve.service.settings import Settings
from georesolve.service.store.store import Store


class Quotas:
    """Bounds jobs and bytes: asked before, and again in the transaction that enters a job."""

    def __init__(self, settings: Settings) -> None:
        self._queue = settings.queue_jobs
        self._own = settings.key_jobs
        self._bytes = settings.key_bytes
        if settings.store is None:
            # Or one key could fill the disk for all.
            self._bytes = min(self._bytes, shutil.disk_usage(settings.data_dir).total // 2)

    def refuse_when_full(self, store: Store, connection: Connection | None = None) -> None:
        """Refuse a job for which there is no place; raises QueueFull or TooManyJobs."""
        everyone, own = store.count_live(connection)
        if everyone >= self._queue:
            raise errors.QueueFull(
                f"{everyone} jobs of the service wait or run, and {self._queue} may: come again "
                "later"
            )
        if store.owner and own >= self._own:
            raise errors.TooManyJobs(
                f"{own} jobs of this key wait or run, and {self._own} may: wait for one to end, or "
                "dismiss one"
            )

    def bytes_of(self, store: Store) -> int | None:
        """Bytes that the owner of a store may keep; None without a key: the disk is the bound."""
        return self._bytes if store.owner else None

    def left(self, store: Store, connection: Connection | None = None) -> int | None:
        """Bytes that the owner of a store may keep yet; None for as many as the disk has."""
        quota = self.bytes_of(store)
        return None if quota is None else max(0, quota - store.kept_bytes(connection))

    def refuse_without_room(
        self, store: Store, size_bytes: int, connection: Connection | None = None
    ) -> None:
        """Refuse what an owner may not keep besides what is kept; raises StorageFull."""
        left = self.left(store, connection)
        if left is not None and size_bytes > left:
            raise errors.StorageFull(
                f"the datasets, results and unfinished jobs of this key take "
                f"{store.kept_bytes(connection)} bytes, {size_bytes} would come, and {self._bytes} "
                "may be kept: remove datasets and results that are no longer needed, or wait until "
                "they expire"
            )
