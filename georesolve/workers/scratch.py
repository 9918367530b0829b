"""Words that are too many for memory, in files without a name, for as long as they are needed."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from georesolve.workers.files import write_at
from georesolve.workers.threads import side_by_side

_FILES = 16


class Scratch:
    """Files that threads write to by turns: a system lets one at a time write to a file."""

    def __init__(self, files: Sequence[IO[bytes]]) -> None:
        self._files = files
        self._ends = [0] * len(files)
        self._turn = 0
        self._lock = Lock()

    def add(self, *columns: np.ndarray) -> tuple[int, int]:
        """Write columns of 8 bytes a value, one behind the other, as many threads may at once.

        Returns the number of their file, and how many values stand before them.
        """
        with self._lock:
            number, self._turn = self._turn, (self._turn + 1) % len(self._files)
            start = end = self._ends[number]
            self._ends[number] += sum(column.size for column in columns)
        for column in columns:
            write_at(self._files[number], column, column.itemsize * end)
            end += column.size
        return number, start

    def mapped(self, dtype: Any) -> tuple[np.ndarray, ...]:
        """What each file holds."""
        return tuple(
            mapped(file, dtype, 0, os.fstat(file.fileno()).st_size // np.dtype(dtype).itemsize)
            for file in self._files
        )


@contextmanager
def scratch(folder: Path) -> Iterator[Scratch]:
    """Files in a folder, for as long as the context lasts."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(_FILES)]
        yield Scratch(files)
        # The system takes 60 ms to free a GiB of a file that goes.
        for _ in side_by_side(lambda file: file.close(), files):
            pass


def mapped(file: Path | IO[bytes], dtype: Any, offset: int, n: int) -> np.ndarray:
    """Map values of a file from a byte on.

    The array is not read-only, although nothing is written: that is another type to numba.
    """
    # A file of no bytes cannot be mapped; to numba a memmap is slower than an array.
    return np.asarray(np.memmap(file, dtype, "c", offset, (n,))) if n else np.empty(0, dtype)
