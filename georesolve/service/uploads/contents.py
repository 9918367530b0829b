"""Where the bytes of resumable uploads lie: a file each, or objects, one a request."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from georesolve.service.clock import is_id, new_id
from georesolve.service.errors import NoSuchUpload, Problem, UploadInUse
from georesolve.workers.files import make_folder
from georesolve.workers.places import Prefix

_ACCEPTED_SECONDS = 3600.0
"""A file without a row that is younger may be of an upload that is being entered."""
_DIGITS = 20
"""Of the byte at which an object begins, so that names are in the order of bytes."""


def no_such(id: str) -> Problem:
    """What a client is told of an upload that is not there."""
    return NoSuchUpload(
        f"there is no upload {id[:80]!r}: it may have expired; begin anew with POST /uploads"
    )


class Files:
    """A file each, as long as what is there.

    Whoever appends to it holds the kernel's lock on it, which ends with the process that holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folder(folder)

    def begin(self, id: str) -> None:
        """Have an upload of no bytes."""
        self.path(id).touch(exist_ok=False)

    def size(self, id: str) -> int:
        """How many bytes are there; raises NoSuchUpload."""
        try:
            return self.path(id).stat().st_size
        except FileNotFoundError:
            raise no_such(id) from None

    def appended(self, id: str, offset: int) -> AbstractContextManager[BinaryIO]:
        """A file to append to; raises NoSuchUpload, and UploadInUse while another does."""
        return self._locked(id, fcntl.LOCK_EX, "ab")

    def take(self, id: str, path: Path) -> None:
        """Have its bytes as a file, by a link; raises as `appended`."""
        with self._locked(id, fcntl.LOCK_SH, "rb"):
            os.link(self.path(id), path)

    def remove(self, id: str) -> None:
        """Remove what is there."""
        self.path(id).unlink(missing_ok=True)

    def unknown(self, known: Callable[[], set[str]]) -> list[str]:
        """Those that are not known, but for what is being entered."""
        young = time.time() - _ACCEPTED_SECONDS
        files = [path for path in self._folder.iterdir() if is_id(path.name)]
        old = {path.name for path in files if path.stat().st_mtime < young}
        return sorted(old - known()) if old else []

    def path(self, id: str) -> Path:
        """Where an upload lies."""
        return self._folder / id

    @contextmanager
    def _locked(self, id: str, kind: int, mode: str) -> Iterator[BinaryIO]:
        try:
            opened = self.path(id).open(mode, buffering=0)
        except FileNotFoundError:
            raise no_such(id) from None
        with opened as file:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UploadInUse(
                    f"another request is sending to the upload {id!r}: end it, or wait until it "
                    "has ended"
                ) from None
            yield cast(BinaryIO, file)


class Objects:
    """Objects, one a request that appends, whose names begin with the byte at which they begin.

    What a request sends becomes an object when it ends, or breaks off. Of two at the same time
    each has its own; what is there is what follows without a gap.
    """

    def __init__(self, place: Prefix, scratch: Path) -> None:
        self._place = place
        self._scratch = scratch
        make_folder(scratch)

    def begin(self, id: str) -> None:
        """Its row is all that an upload of no bytes has."""

    def size(self, id: str) -> int:
        """How many bytes are there."""
        return max((start + size for _, start, size in self._pieces(id)), default=0)

    @contextmanager
    def appended(self, id: str, offset: int) -> Iterator[BinaryIO]:
        """A file whose bytes will be those from an offset on."""
        # It has no name, so nothing of it is left when this process is killed.
        with tempfile.TemporaryFile(dir=self._scratch) as kept:
            path = Path(f"/proc/self/fd/{kept.fileno()}")
            try:
                with path.open("ab", buffering=0) as file:
                    yield cast(BinaryIO, file)
            finally:
                came = path.stat().st_size
                # Another request may have come further meanwhile.
                if came and offset + came > self.size(id):
                    self._place.below(id).keep(path, f"{offset:0{_DIGITS}d}-{new_id()}")

    def take(self, id: str, path: Path) -> None:
        """Have its bytes as a file; raises NoSuchUpload when it is removed meanwhile."""
        at, place = 0, self._place.below(id)
        try:
            with path.open("wb") as sink:
                for name, start, size in self._pieces(id):
                    with place.asked(name), place.open(name) as source:
                        source.seek(at - start)
                        shutil.copyfileobj(source, sink)
                    at = start + size
        except FileNotFoundError:
            raise no_such(id) from None

    def remove(self, id: str) -> None:
        """Remove what is there."""
        self._place.below(id).clear()

    def unknown(self, known: Callable[[], set[str]]) -> list[str]:
        """Those that are not known, and have not been for some time.

        The row of an upload is there before its first object; names of others are left alone.
        """
        found = {name for name in self._place.folders() if is_id(name)}
        before_ns = time.time_ns() - int(_ACCEPTED_SECONDS * 1e9)
        return sorted(
            id
            for id in (found - known() if found else ())
            if all(look.changed_ns < before_ns for look in self._place.below(id).looks().values())
        )

    def _pieces(self, id: str) -> list[tuple[str, int, int]]:
        """Names, offsets and sizes of objects that follow each other, and each go further."""
        pieces, at = [], 0
        for name, look in sorted(self._place.below(id).looks().items()):
            start = int(name[:_DIGITS])
            if start <= at < start + look.size:
                pieces.append((name, start, look.size))
                at = start + look.size
        return pieces
