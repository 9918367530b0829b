"""Uploads that go on after a break: a row and a file each, and no state in any process.

How much of an upload is there is the size of its file. Whoever appends to it holds the kernel's
lock on the file, which ends with the process that holds it; any front takes the next request.
"""

import base64
import copy
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self
from uuid import uuid4

from georesolve.service.clock import in_hours, is_id, new_id, now
from georesolve.service.database.store import Store
from georesolve.service.database.uploads import Admission, UploadRow
from georesolve.service.errors import (
    InvalidRequest,
    NoSuchUpload,
    UploadIncomplete,
    UploadInUse,
    WrongOffset,
)
from georesolve.service.uploads.receiving import REPR_DIGEST, Digest, Upload
from georesolve.workers.files import make_folder

_NAMED = "upload:"
_PIECE_BYTES = 1 << 20
_ACCEPTED_SECONDS = 3600.0
"""A file without a row that is younger may be of an upload that is being entered."""
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
        make_folder(store.uploads_folder)

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
            expires=self._later(),
            size_bytes=size_bytes,
            about=about,
            digest=digest,
        )
        path = self._path(row.id)
        path.touch(exist_ok=False)
        try:
            self._store.uploads.add(row, admit)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return row

    def get(self, id: str) -> Progress:
        """An upload, and how much of it is there.

        Raises
        ------
        NoSuchUpload
        """
        row = self._store.uploads.get(id) if is_id(id) else None
        try:
            if row is not None:
                return Progress(row, self._path(id).stat().st_size)
        except FileNotFoundError:
            pass
        raise NoSuchUpload(
            f"there is no upload {id[:80]!r}: it may have expired; begin anew with POST /uploads"
        )

    @contextmanager
    def opened(self, id: str, offset: int) -> Iterator[tuple[UploadRow, BinaryIO]]:
        """The file of an upload, to append to behind so many bytes; it is locked meanwhile.

        Raises
        ------
        NoSuchUpload
        UploadInUse
            While another request appends to it.
        WrongOffset
            When another number of bytes is there.
        """
        with self._locked(id, fcntl.LOCK_EX, "ab") as (progress, file):
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
        self._store.uploads.prolong(id, self._later())
        return self.get(id)

    def taken(self, text: str, folder: Path, file: str) -> Upload:
        """A finished upload as a file of a request: a link to the same bytes, in its folder.

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
        with self._locked(id, fcntl.LOCK_SH, "rb") as (progress, content):
            row = progress.row
            if progress.offset < row.size_bytes:
                raise UploadIncomplete(
                    f"{file}: {progress.offset} of {row.size_bytes} bytes of the upload {id!r} are "
                    "there: send the rest first"
                )
            digest = Digest(row.digest, REPR_DIGEST)
            while digest.is_known and (piece := content.read(_PIECE_BYTES)):
                digest.add(piece)
            digest.check()
            folder.mkdir(exist_ok=True)
            path = folder / f"{uuid4().hex}.received"
            os.link(self._path(id), path)
        self._store.uploads.prolong(id, self._later())
        about = metadata(row.about)
        media_type, name = (
            next((about[key] for key in keys if about.get(key)), None) for keys in (_TYPES, _NAMES)
        )
        return Upload(path, media_type, name, file, time.perf_counter() - start)

    def remove(self, id: str) -> None:
        """Remove an upload; a request that uses it has its own link to the bytes.

        Raises
        ------
        NoSuchUpload
        """
        self.get(id)
        self._store.uploads.remove(id)
        self._path(id).unlink(missing_ok=True)

    def expire(self) -> list[str]:
        """Remove what has expired, and files without a row; returns ids of the former."""
        removed = []
        for id in self._store.uploads.expired():
            try:
                with self._locked(id, fcntl.LOCK_EX, "ab"):
                    if not self._store.uploads.remove(id, only_expired=True):
                        continue
                    self._path(id).unlink(missing_ok=True)
            except UploadInUse:
                continue
            except NoSuchUpload:
                self._store.uploads.remove(id, only_expired=True)
            removed.append(id)
        young = time.time() - _ACCEPTED_SECONDS
        files = [path for path in self._store.uploads_folder.iterdir() if is_id(path.name)]
        old = [path for path in files if path.stat().st_mtime < young]
        known = self._store.uploads.ids() if old else set()
        for path in old:
            if path.name not in known:
                path.unlink(missing_ok=True)
        return removed

    def _later(self) -> str:
        expires = in_hours(self._hours)
        assert expires is not None, "an upload has its hours"
        return expires

    def _path(self, id: str) -> Path:
        return self._store.uploads_folder / id

    @contextmanager
    def _locked(self, id: str, kind: int, mode: str) -> Iterator[tuple[Progress, BinaryIO]]:
        self.get(id)
        try:
            file: BinaryIO = self._path(id).open(mode, buffering=0)  # type: ignore[assignment]
        except FileNotFoundError:
            self.get(id)
            raise
        with file:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UploadInUse(
                    f"another request is sending to the upload {id!r}: end it, or wait until it "
                    "has ended",
                    headers={"Retry-After": "1"},
                ) from None
            # It may have been removed before it was locked.
            yield self.get(id), file


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
