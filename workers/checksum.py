"""The SHA-256 of a file, counted while the file grows."""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

_BLOCK_BYTES = 2**20


class Checksum:
    """The SHA-256 of a file that grows, counted in a thread behind who writes it.

    A hash takes bytes one after the other: 1.3 GB a second, however many cores there are. A file
    that is written faster is finished before its checksum, and whoever has no need of that goes on.

    As a context it lasts as long as the file is written; `finish` is called within, and what it
    gives may come later.

    Parameters
    ----------
    path
        The file, which is there.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._hash = hashlib.sha256()
        self._size = 0
        self._is_wanted = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checksum")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_wanted = error is None
        self._thread.submit(self._file.close)
        self._thread.shutdown(wait=False)

    def follow(self, size: int) -> None:
        """Have the file counted up to a size that it has by now."""
        self._thread.submit(self._read, size)

    def finish(self, size: int) -> Future[str]:
        """The checksum of the file, in hexadecimal, which grows no more and has this size."""
        return self._thread.submit(self._total, size)

    def _read(self, size: int) -> None:
        while self._size < size and self._is_wanted:
            block = self._file.read(min(_BLOCK_BYTES, size - self._size))
            if not block:
                raise OSError(f"a file of {size} bytes ends after {self._size}")
            self._hash.update(block)
            self._size += len(block)

    def _total(self, size: int) -> str:
        # What could not be read before fails here again, where it is told.
        self._read(size)
        return self._hash.hexdigest()
