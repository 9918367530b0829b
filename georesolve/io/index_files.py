"""The index of a reference set in a file, which all processes map into their memory.

The file lies beside the set, and may be removed at any time: one that is missing, damaged, of
another set or of other sources of `kernels/` is written anew.
"""

import json
import logging
import mmap
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import ClassVar

import numpy as np

from georesolve import kernels
from georesolve.io.local_files import durable, make_folder
from georesolve.io.threads import side_by_side
from georesolve.kernels.cache import digest_of_sources

logger = logging.getLogger(__name__)

Index = kernels.ReferenceIndex | kernels.ShapeIndex

_SUFFIX = ".index"
_ALIGNMENT = mmap.PAGESIZE
_CHECKED_BYTES = 1 << 24
"""Of so many bytes each there is a checksum: threads count them side by side."""


def write_index(index: Index, path: Path, sha256: str) -> None:
    """Write the index of a set, one on a CPU, to a file that is complete or absent."""
    arrays = index.arrays()
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = (array.dtype.str, array.shape, end)
        end += array.nbytes + -array.nbytes % _ALIGNMENT
    head = {
        "kernels": digest_of_sources(),
        "set": sha256,
        "arrays": places,
        "bytes": end,
        "checksums": _checksums(arrays.values()),
    }
    # A line that fills whole pages, and begins with the checksum of the rest.
    text = json.dumps(head).encode()
    text += b" " * (-(len(text) + 10) % _ALIGNMENT)
    with durable(path) as temporary, temporary.open("wb") as file:
        file.write(b"%08x %b\n" % (zlib.crc32(text), text))
        for array in arrays.values():
            file.write(_bytes_of(array))
            file.write(bytes(-array.nbytes % _ALIGNMENT))


def map_index(path: Path, sha256: str) -> Index | None:
    """Map the index of a set from its file; None where there is none that can be used."""
    try:
        return _mapped(path, sha256)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("the index %s cannot be used, and is built anew: %s", path.name, error)
        return None


def _mapped(path: Path, sha256: str) -> Index:
    with path.open("rb") as file:
        line = file.readline()
        checksum, _, text = line.removesuffix(b"\n").partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            raise ValueError("its head is damaged")
        head = json.loads(text)
        if (head["kernels"], head["set"]) != (digest_of_sources(), sha256):
            raise ValueError("it is of another version, or of another set")
        if os.fstat(file.fileno()).st_size != len(line) + head["bytes"]:
            raise ValueError("it has not the length that it should have")
        # Private, and not read-only, although nothing is written to it: arrays that must not be
        # written to are of another type to numba, which would compile all kernels once more.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    arrays = {
        name: np.ndarray(shape, dtype, content, len(line) + start)
        for name, (dtype, shape, start) in head["arrays"].items()
    }
    if _checksums(arrays.values()) != head["checksums"]:
        raise ValueError("it is damaged")
    return kernels.index_of(arrays)


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _checksums(arrays: Iterable[np.ndarray]) -> list[int]:
    pieces = (
        content[start : start + _CHECKED_BYTES]
        for content in map(_bytes_of, arrays)
        for start in range(0, len(content), _CHECKED_BYTES)
    )
    return list(side_by_side(zlib.crc32, pieces))


@dataclass(frozen=True)
class IndexFolder:
    """The indexes of sets that stay; those that were opened longest ago go first."""

    path: Path
    """On storage that every worker sees."""
    most_bytes: int
    """What all files may take."""
    must_stay_free: int
    """On the disk."""
    pattern: ClassVar[str] = f"*{_SUFFIX}"

    def index(self, sha256: str, build: Callable[[], Index]) -> Index:
        """The index of a set, from its file; else one of several processes builds and keeps it."""
        path = self.path / f"{sha256}{_SUFFIX}"
        index = self._opened(path, sha256)
        if index is not None:
            return index
        with self._lock(sha256):
            index = self._opened(path, sha256) or build()
            try:
                if not path.exists() and self.has_room_for(index.nbytes):
                    write_index(index, path, sha256)
            except OSError as error:
                # It is there, in the memory of this process.
                logger.warning("the index %s cannot be kept: %s", path.name, error)
            # What all processes map takes memory once.
            return map_index(path, sha256) or index

    def _opened(self, path: Path, sha256: str) -> Index | None:
        index = map_index(path, sha256)
        # Without a file, or with one that is not to be used, there is none to be kept.
        with suppress(OSError):
            if index is None:
                path.unlink(missing_ok=True)
            else:
                os.utime(path)
        return index

    @contextmanager
    def _lock(self, sha256: str) -> Iterator[None]:
        """Hold a lock that the system lets go of when the process ends; none on a full disk."""
        path = self.path / f".{sha256}.lock"
        with ExitStack() as stack:
            with suppress(OSError):
                make_folder(self.path)
                file = stack.enter_context(path.open("w"))
                flock(file, LOCK_EX)
                # Who has opened it by now builds the index once more: it is the same.
                stack.callback(path.unlink, missing_ok=True)
            yield

    def has_room_for(self, size_bytes: int, scratch_bytes: int = 0) -> bool:
        """Make room for so many bytes, and more until they are written; False if there is none."""
        if size_bytes > self.most_bytes:
            return False
        files = self._files()
        while files and sum(files.values()) + size_bytes > self.most_bytes:
            self._drop_oldest(files)
        free = shutil.disk_usage(self.path).free - size_bytes - scratch_bytes
        return free >= self.must_stay_free

    def keep_free(self) -> None:
        """Let go of files while too little of the disk is free: nothing else can be made again."""
        # Where the folder is missing there are none.
        files = self._files()
        while files and shutil.disk_usage(self.path).free < self.must_stay_free:
            self._drop_oldest(files)

    def forget(self, sha256: str) -> None:
        """Remove the index of a set."""
        (self.path / f"{sha256}{_SUFFIX}").unlink(missing_ok=True)

    def keep_only(self, sets: Collection[str]) -> None:
        """Remove the indexes of all sets but some, and what killed processes have left."""
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if path.suffix != _SUFFIX or path.stem not in sets:
                path.unlink(missing_ok=True)

    def _drop_oldest(self, files: dict[Path, int]) -> None:
        oldest = next(iter(files))
        del files[oldest]
        oldest.unlink(missing_ok=True)

    def _files(self) -> dict[Path, int]:
        """The sizes of all index files, the one that was opened longest ago first."""
        found = []
        for path in self.path.glob(self.pattern):
            # Another process may remove it meanwhile.
            with suppress(FileNotFoundError):
                found.append((path, path.stat()))
        found.sort(key=lambda one: one[1].st_mtime_ns)
        return {path: stat.st_size for path, stat in found}
