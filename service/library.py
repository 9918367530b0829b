"""The datasets that the service keeps: their files and their rows in the store, together."""

import asyncio

from service.errors import DatasetInUse, NoSuchDataset
from service.ingest import Ingested
from service.store import DatasetRow, Store, new_id, now
from workers.files import move_durably


class Library:
    """Keeps datasets: a file without a row is nobody's, a row without a file never stands."""

    def __init__(self, store: Store) -> None:
        self._store = store
        folder = store.dataset_path("any").parent
        folder.mkdir(parents=True, exist_ok=True)
        known = store.dataset_ids()
        for file in folder.iterdir():
            if file.name.partition(".")[0] not in known:
                file.unlink()

    async def keep(self, ingested: Ingested, *, registered: bool) -> DatasetRow:
        """Keep a dataset just made; durable once this returns."""
        return await asyncio.to_thread(self._keep, ingested, registered)

    def _keep(self, ingested: Ingested, registered: bool) -> DatasetRow:
        id = new_id()
        path = self._store.dataset_path(id)
        move_durably(ingested.dataset.path, path)
        self._store.add_dataset(
            DatasetRow(id, now(), registered, ingested.dataset, ingested.seconds)
        )
        return self.get(id)

    def get(self, id: str) -> DatasetRow:
        """The dataset with this id.

        Raises
        ------
        NoSuchDataset
        """
        row = self._store.dataset(id)
        if row is None:
            raise NoSuchDataset(f"there is no dataset {id!r}")
        return row

    def remove(self, id: str) -> None:
        """Remove a dataset and its file.

        Raises
        ------
        NoSuchDataset
        DatasetInUse
            While a job that is not finished needs it.
        """
        row = self.get(id)
        if not self._store.remove_dataset(id):
            raise DatasetInUse(f"a job that is not finished needs the dataset {id!r}; dismiss it")
        row.dataset.path.unlink(missing_ok=True)

    def release(self, id: str) -> None:
        """Remove a dataset that came with a request, once no live job needs it."""
        row = self._store.dataset(id)
        if row is not None and not row.registered and self._store.remove_dataset(id):
            row.dataset.path.unlink(missing_ok=True)
