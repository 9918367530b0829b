"""Uploads that go on after a break: a row and bytes each, and no state in any process.

How much of an upload is there its bytes tell; any front takes the next request.
"""

import base64
import copy
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self
from uuid import uuid4

from georesolve.service.clock import is_id, new_id, now
from georesolve.service.database.queries import Admission
from georesolve.service.database.store import Store
from georesolve.service.database.uploads import UploadRow
from georesolve.service.errors import (
    InvalidRequest,
    NoSuchUpload,
    UploadIncomplete,
    UploadInUse,
    WrongOffset,
)
from georesolve.service.uploads.contents import Files, Objects, no_such
from georesolve.service.uploads.receiving import REPR_DIGEST, Digest, Upload
from georesolve.workers.places import Folder

logger = logging.getLogger(__name__)

_NAMED = "upload:"
_PIECE_BYTES = 1 << 20
_NAMES, _TYPES = ("filename", "name"), ("filetype", "type")
"""What clients call the name and the media type of a file."""


def is_upload(text: str) -> bool:
    """Whether a text names an upload: ``upload:<id>``."""
    return text.strip().startswith(_NAMED)


class Progress(NamedTuple):
    """An upload, and how many of its bytes are there."""

    row: UploadRow
    offset: int


class ResumableUploads:
    """Uploads, their rows and files.

    Parameters
    ----------
    hours
        How long after its last use an upload expires.
    """

    def __init__(self, store: Store, hours: float) -> None:
        self._store = store
        self._hours = hours
        place = store.root.below("uploads")
        self._contents: Files | Objects = (
            Files(place.path) if isinstance(place, Folder) else Objects(place, store.uploads_folder)
        )

    def of(self, store: Store) -> Self:
        """The same with the store as one owner sees it."""
        own = copy.copy(self)
        own._store = store
        return own

    def create(self, size_bytes: int, about: str, digest: str, admit: Admission) -> UploadRow:
        """Begin an upload, if it is admitted; durable once this returns."""
        row = UploadRow(
            id=new_id(),
            owner=self._store.owner or "",
            created=now(),
            expires=now(3600 * self._hours),
            size_bytes=size_bytes,
            about=about,
            digest=digest,
        )
        self._contents.begin(row.id)
        try:
            self._store.uploads.add(row, admit)
        except BaseException:
            self._contents.remove(row.id)
            raise
        return row

    def get(self, id: str) -> Progress:
        """An upload, and how much of it is there.

        Raises
        ------
        NoSuchUpload
        """
        row = self._store.uploads.get(id) if is_id(id) else None
        if row is None:
            raise no_such(id)
        return Progress(row, self._contents.size(id))

    @contextmanager
    def opened(self, id: str, offset: int) -> Iterator[tuple[UploadRow, BinaryIO]]:
        """A file, to append to an upload behind so many bytes.

        Raises
        ------
        NoSuchUpload
        UploadInUse
            While another request appends to it.
        WrongOffset
            When another number of bytes is there.
        """
        self.get(id)
        with self._contents.appended(id, offset) as file:
            # It may have been removed before it was locked.
            progress = self.get(id)
            if offset != progress.offset:
                raise WrongOffset(
                    f"Upload-Offset is {offset}, and {progress.offset} bytes of the upload are "
                    f"there: go on from byte {progress.offset}",
                    headers={"Upload-Offset": str(progress.offset)},
                )
            yield progress.row, file

    def keep(self, id: str) -> Progress:
        """Let an upload expire later, and look how much of it is there.

        Raises
        ------
        NoSuchUpload
        """
        self._store.uploads.prolong(id, now(3600 * self._hours))
        return self.get(id)

    def taken(self, text: str, folder: Path, file: str) -> Upload:
        """A finished upload as a file of a request, in its folder.

        Parameters
        ----------
        text
            ``upload:<id>``.
        file
            What to call it in errors.

        Raises
        ------
        NoSuchUpload
        UploadInUse
        UploadIncomplete
        InvalidRequest
            When the bytes are not those of the digest that was given for them.
        """
        start = time.perf_counter()
        id = text.strip().removeprefix(_NAMED)
        progress = self.get(id)
        row = progress.row
        if progress.offset < row.size_bytes:
            raise UploadIncomplete(
                f"{file}: {progress.offset} of {row.size_bytes} bytes of the upload {id!r} are "
                "there: send the rest first"
            )
        # It shall not expire while it is used.
        self._store.uploads.prolong(id, now(3600 * self._hours))
        folder.mkdir(exist_ok=True)
        path = folder / f"{uuid4().hex}.received"
        self._contents.take(id, path)
        if path.stat().st_size < row.size_bytes:
            # It was removed while it was copied.
            raise no_such(id)
        if row.digest:
            digest = Digest(row.digest, REPR_DIGEST)
            with path.open("rb") as content:
                while piece := content.read(_PIECE_BYTES):
                    digest.add(piece)
            digest.check()
        about = metadata(row.about)
        media_type, name = (
            next((about[key] for key in keys if about.get(key)), None) for keys in (_TYPES, _NAMES)
        )
        return Upload(path, media_type, name, file, time.perf_counter() - start)

    def remove(self, id: str) -> None:
        """Remove an upload; a request that uses it has a file of its own.

        Raises
        ------
        NoSuchUpload
        """
        self.get(id)
        self._store.uploads.remove(id)
        self._contents.remove(id)

    def expire(self) -> list[str]:
        """Remove what has expired, and bytes without a row, if a file only to the quarantine.

        Returns ids of what has expired.
        """
        removed = []
        for id in self._store.uploads.expired():
            try:
                # Where bytes lie in a file, nobody else appends to it meanwhile.
                with self._contents.appended(id, 0):
                    if not self._store.uploads.remove(id, only_expired=True):
                        continue
                    self._contents.remove(id)
            except UploadInUse:
                continue
            except NoSuchUpload:
                self._store.uploads.remove(id, only_expired=True)
            except OSError as error:
                logger.warning("the upload %s stays for now: %s", id, error)
                continue
            removed.append(id)
        unknown = self._contents.unknown(self._store.uploads.ids)
        if isinstance(self._contents, Files):
            self._store.quarantine.take(self._contents.path(id) for id in unknown)
        else:
            for id in unknown:
                self._contents.remove(id)
        return removed


def metadata(text: str) -> dict[str, str]:
    """What an `Upload-Metadata` says: names, each with a text in base64.

    Raises
    ------
    InvalidRequest
    """
    pairs = (pair.split() for pair in text.split(",") if pair.strip())
    try:
        return {
            name: base64.b64decode("".join(value), validate=True).decode() for name, *value in pairs
        }
    except ValueError:
        raise InvalidRequest(
            f"Upload-Metadata is {text[:80]!r}: give names, each with a blank and its text in "
            "base64 behind it, and commas between them, such as 'filename b2JzLmNzdg=='"
        ) from None
