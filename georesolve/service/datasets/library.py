"""The datasets that the service keeps: their files and their rows in the store, together."""

import copy
import errno
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Self

from sqlalchemy.exc import SQLAlchemyError

from georesolve.io.datasets import Dataset, InMemory, looks_whole
from georesolve.io.index_files import IndexFolder
from georesolve.io.local_files import sha256_of
from georesolve.io.source_files import SourceFiles
from georesolve.io.storage import Folder, Object
from georesolve.service import errors, pools
from georesolve.service.clock import in_hours, is_id, new_id, now
from georesolve.service.settings import Settings
from georesolve.service.store.engine import Admission
from georesolve.service.store.rows import DatasetRow
from georesolve.service.store.store import Store

logger = logging.getLogger(__name__)

_TAKEN_SECONDS = 3600.0
"""A set that was made and that no job needs after so long, nobody will ask for."""
_NOTED_FROM = 0.95
"""The part of its time that a dataset must have lost before its use is noted."""
_MOST_USED = 1024
_USED_SECONDS = 60.0
_SEEN_SECONDS = 1.0
"""So long small requests use a dataset without a look at its file, for which the event loop would
wait while a disk hangs."""


class _Used(NamedTuple):
    """A dataset that was used: when its file was seen last, and how long its row holds."""

    row: DatasetRow
    seen: float
    until: float


class _RegisteredMeanwhile(Exception):
    """Another request registered the same content first."""


def library_of(settings: Settings, store: Store) -> "Library":
    """The datasets of a service."""
    return Library(store, settings.dataset_hours, settings.index_bytes, settings.keep_free)


class Library:
    """Keeps datasets for so many hours after their last use, 0 for ever, and their `indexes`."""

    def __init__(
        self, store: Store, dataset_hours: float = 0, index_bytes: int = 0, must_stay_free: int = 0
    ) -> None:
        self.store = store
        self._hours = dataset_hours
        # Rows as they were used last, and how long they hold: what an id stands for never changes
        # but in when it expires.
        self._used: dict[str, _Used] = {}
        # The ids that names stood for, by owner and name, and which state of the database said so.
        self._named: dict[tuple[str | None, str], tuple[str, object]] = {}
        self._looking_up = pools.Shared[DatasetRow]()
        until_noted = 3600 * self._hours * (1 - _NOTED_FROM) or _USED_SECONDS
        self._used_seconds = min(_USED_SECONDS, until_noted)
        self.indexes = IndexFolder(store.indexes_folder, index_bytes, must_stay_free)
        store.datasets_place.make()

    def forget_used(self) -> None:
        """Look for used datasets again: another front may have removed one."""
        self._used.clear()
        self._named.clear()

    def of(self, store: Store) -> Self:
        """The same with the store as one owner sees it; it touches no file."""
        own = copy.copy(self)
        own.store = store
        return own

    def expires(self) -> str | None:
        """When a dataset expires that is used now."""
        return in_hours(self._hours)

    def take_over(self) -> None:
        """Go on from what an earlier process left, while no other one has the datasets."""
        if not self._hours:
            self.store.keep_datasets_for_ever()
        place = self.store.datasets_place
        if isinstance(place, Folder):
            # Nobody writes any more what is half written.
            place.remove([name for name in place.names() if name[0] == "." and id_in(name)])
        self.indexes.keep_only(self.store.registered_digests())

    def register(self, made: DatasetRow, admit: Admission | None = None) -> tuple[DatasetRow, bool]:
        """Register a dataset just made; the second is False when its content already was."""
        row = self.store.registered_dataset(made.dataset)
        if row is not None and self.store.prolong_dataset(row.id, self.expires()):
            if not _is_whole(row.dataset):
                logger.error("the dataset %s was damaged, and is replaced", row.id)
                self._place(made.dataset, row.id)
            return self.get(row.id), False
        try:
            return self.keep(made, admit, registered=True), True
        except _RegisteredMeanwhile:
            return self.register(made, admit)

    def keep(
        self, made: DatasetRow, admit: Admission | None = None, *, registered: bool = False
    ) -> DatasetRow:
        """Keep a dataset just made, if it is admitted; durable once this returns."""
        id, dataset = new_id(), made.dataset
        stays = isinstance(dataset.file, SourceFiles)
        row = replace(
            made,
            id=id,
            kind="dataset" if registered else "input",
            owner=self.store.owner or "",
            created=now(),
            # Unless its file is there by then and it is registered, or its job is accepted.
            expires=now(_TAKEN_SECONDS),
            size_bytes=dataset.size_bytes,
            dataset=replace(
                dataset,
                file=dataset.file if stays else self.store.dataset_file(id),
                digest=dataset.sha256,
            ),
        )
        self.store.add_dataset(row, admit)
        try:
            self._place(dataset, id)
            if not registered:
                return row
            expires = self.expires()
            if not self.store.register_dataset(id, expires):
                if not self.store.has(id):
                    raise errors.NotReady(
                        f"the store of the service took more than {_TAKEN_SECONDS:g} s for the "
                        "file, and what was stored is removed: send it again"
                    )
                if isinstance(dataset.file, Path) and isinstance(row.dataset.file, Path):
                    row.dataset.file.replace(dataset.file)
                raise _RegisteredMeanwhile
        except BaseException:
            with suppress(SQLAlchemyError):
                self.release(id)
            raise
        return replace(row, expires=expires)

    def get(self, id: str) -> DatasetRow:
        """The dataset with this id or name; ``places`` is its newest version, ``places@3`` one."""
        row = self.store.dataset(self._id_of(id))
        if row is None:
            raise _unknown(id)
        return row

    def _id_of(self, text: str) -> str:
        if is_id(text):
            return text
        version = self.store.changes.version()
        if id := self.store.names.find(text):
            self._named[self.store.owner, text] = id, version
            return id
        raise _unknown(text)

    def whole(self, id: str, *, every_byte: bool = False) -> DatasetRow:
        """The dataset with this id, if its footer, or `every_byte`, is whole: DatasetDamaged."""
        row = self.get(id)
        if _is_whole(row.dataset) if every_byte else looks_whole(row.dataset):
            return row
        # One that was removed meanwhile is none.
        row = self.get(id)
        logger.error("the file of the dataset %s is damaged or missing", id)
        mend = (
            "register the same content again, which mends it under its id"
            if row.kind == "dataset"
            else "send the request again, with its files"
        )
        raise errors.DatasetDamaged(
            f"the file of the dataset {id!r} is damaged or missing on the disk of the service: "
            f"{mend}"
        )

    def use(self, id: str) -> DatasetRow:
        """The dataset with this id, which from now on is kept for as long again."""
        # A name is looked up each time: it may stand for another dataset now.
        id = self._id_of(id)
        used = self._used.get(id)
        # Who removes a dataset removes its file.
        if used is not None and self._holds(used) and looks_whole(used.row.dataset):
            self._used[id] = used._replace(seen=monotonic())
            return used.row
        if len(self._used) >= _MOST_USED:
            self._used.clear()
        row = self.whole(id)
        if self._hours and row.expires and row.expires < now(3600 * self._hours * _NOTED_FROM):
            self._used.pop(id, None)
            try:
                self.store.prolong_dataset(row.id, self.expires())
            except SQLAlchemyError as error:
                # What only reads goes on; the next use is noted.
                if not errors.is_disk_full(error):
                    raise
        else:
            # It expires long after what is said of it here is asked for again.
            self._used[id] = _Used(row, monotonic(), monotonic() + self._used_seconds)
        return row

    async def used(self, id: str) -> DatasetRow:
        """As `use`, called by a thread for all who ask for the same dataset meanwhile.

        Threads hardly get a turn beside an event loop that has much to do: 64 of them took seconds.
        """
        whose = self.store.owner, id
        return await self._looking_up(whose, lambda: self.store.files(self.use, id))

    def known(self, id: str) -> DatasetRow | None:
        """The dataset with this id or name if it was used a moment ago: no file is looked at.

        What a name stands for holds until the database changes.
        """
        if not is_id(id):
            id, version = self._named.get((self.store.owner, id), ("", None))
            if version is None or version != self.store.changes.version():
                return None
        used = self._used.get(id)
        is_seen = used is not None and monotonic() <= used.seen + _SEEN_SECONDS
        return used.row if used and is_seen and self._holds(used) else None

    def _holds(self, used: "_Used") -> bool:
        """Whether what the database said of a dataset still holds for this owner."""
        return self.store.sees(used.row.owner) and monotonic() <= used.until

    def remove(self, id: str) -> None:
        """Remove a dataset and its file; DatasetInUse while a job that is not finished needs it."""
        row = self.get(id)
        if names := [name for name in self.store.names.of([row.id])[row.id] if "@" not in name]:
            is_others = row.owner != (self.store.owner or "")
            if id not in names and not is_others:
                raise errors.DatasetInUse(
                    f"the dataset {id!r} is the newest version of {names[0]!r}: replace that, or "
                    f"remove it with DELETE /datasets/{names[0]}"
                )
            # To an admin a name is one of the admin's own, and others' datasets have their ids.
            own, until = self.store.of(row.owner).names, self.expires()
            for name in names if is_others else [id]:
                for version in own.remove(name, until):
                    # Those that a job needs go later.
                    self.discard(version)
        elif not self.discard(row.id):
            raise errors.DatasetInUse(f"an unfinished job needs the dataset {id!r}; dismiss it")

    def discard(self, id: str, **as_it_was: str) -> bool:
        """Remove a set and its file; False when it is needed, or not as it was: `Store.let_go`."""
        with self.store.removing() as may_remove:
            kept = self.store.let_go(id, **as_it_was)
            if kept is None:
                return False
            self._used.pop(id, None)
            # Its file goes after the backup, by the sweeper.
            if may_remove:
                self.store.datasets_place.remove([f"{id}.parquet"])
                if kept.kind == "dataset" and kept.sha256:
                    # Another owner may have the same content: then it is built once more.
                    self.indexes.forget(kept.sha256)
                self.store.forget(id)
        return True

    def indexes_of(self, one: DatasetRow) -> IndexFolder | None:
        """Where the index of a dataset is kept; None of one that goes with its request."""
        return self.indexes if one.kind == "dataset" else None

    def release(self, id: str) -> None:
        """Remove a set that was just made, unless it was registered or its job accepted."""
        try:
            if not self.discard(id, state="incoming") and not self.store.has(id):
                # The sweeper forgot it before its file was here: to send it took too long.
                self.store.datasets_place.remove([f"{id}.parquet"])
        except OSError as error:
            logger.warning("the file of the dataset %s stays for now: %s", id, error)

    def _place(self, dataset: Dataset, id: str) -> None:
        """Put the file of a dataset just made where it is kept; those of its owner stay."""
        if isinstance(dataset.file, SourceFiles):
            return
        file = dataset.file
        assert not isinstance(file, Object), "it was just made"
        content = file.file if isinstance(file, InMemory) else file
        self.store.datasets_place.keep(content, f"{id}.parquet")


def _unknown(id: str) -> errors.Problem:
    return errors.NoSuchDataset(f"there is no dataset {id[:80]!r}")


def id_in(name: str) -> str | None:
    """The id in the name of a dataset's file, be it half written; None for files of others."""
    id, dot, suffix = name.removeprefix(".").partition(".")
    return id if is_id(id) and f"{dot}{suffix}".startswith(".parquet") else None


def _is_whole(dataset: Dataset) -> bool:
    """Whether the file of a dataset has the bytes that it was made with; an object, its footer."""
    try:
        if isinstance(dataset.file, Path):
            return looks_whole(dataset) and sha256_of(dataset.file) == dataset.sha256
        return looks_whole(dataset)
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise
