"""Files that are complete or absent, whatever dies while they are written."""

import hashlib
import os
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from georesolve.io.errors import InvalidOption

if TYPE_CHECKING:
    import numpy as np
    from pyarrow import Buffer

_PIECE_BYTES = 1 << 16


def refuse_special_file(path: Path) -> None:
    """Refuse a device, pipe, socket or folder as the target of a rename, which would replace it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        # A missing folder has its own error.
        return
    # A link into /proc is an open file of a process: root may replace the link, /dev/stdout itself.
    is_open_file = path.is_symlink() and str(path.readlink()).startswith("/proc/")
    if is_open_file or not stat.S_ISREG(mode):
        raise InvalidOption(
            f"the output {str(path)!r} is no regular file but a device, a pipe, a socket or a "
            "folder, and writing would replace the entry: name a file, or - for standard output "
            "where a command allows that"
        )


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; on success it becomes `path`, on any error it is removed.

    The rename is atomic, but a power cut may damage what has been written lately.
    """
    refuse_special_file(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def durable(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, as `complete` does; the file survives a power cut."""
    with complete(path) as temporary:
        yield temporary
        sync(temporary)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and its parents; their names then survive a power cut."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have what a file or a folder holds survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(file: IO[bytes], array: "np.ndarray", offset: int) -> None:
    """Write an array into a file from a byte on, as many threads may do at once.

    A full disk raises OSError, where writing to mapped memory would end the process.
    """
    view = array.reshape(-1).view("u1").data
    while view:
        n = os.pwrite(file.fileno(), view, offset)
        view, offset = view[n:], offset + n


class Look(NamedTuple):
    """What changes with a file."""

    inode: int
    size: int
    changed_ns: int


def look_at(path: Path) -> Look:
    """A look at a file; another one differs when the file was written to or replaced meanwhile."""
    found = path.stat()
    return Look(found.st_ino, found.st_size, found.st_mtime_ns)


class Digest:
    """The SHA-256 of a file that is counted from its begin on, while more is appended to it."""

    def __init__(self) -> None:
        self._digest, self._counted = hashlib.sha256(), 0

    def count(self, path: Path, stop: int = sys.maxsize) -> str:
        """What it is in hexadecimal once the bytes before `stop` have been counted."""
        with path.open("rb") as file:
            file.seek(self._counted)
            while piece := file.read(min(_PIECE_BYTES, stop - self._counted)):
                self._digest.update(piece)
                self._counted += len(piece)
        return self._digest.hexdigest()


def sha256_of(file: "Path | Buffer") -> str:
    """The SHA-256 of a file's content, or of bytes, in hexadecimal."""
    if not isinstance(file, Path):
        return hashlib.sha256(file).hexdigest()
    return Digest().count(file)
