"""Whether what is kept may be removed now: while a backup is made, it stays."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path


class Removals:
    """The lock of a data folder's removals: of all processes on a machine, free when one dies."""

    def __init__(self, data_dir: Path) -> None:
        # The folder itself: a full disk has no room for a file, and to remove makes room.
        self._folder = data_dir

    @contextmanager
    def allowed(self) -> Iterator[bool]:
        """Whether files may be removed; if so, no backup begins before this ends."""
        with self._opened() as folder:
            try:
                flock(folder, LOCK_SH | LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have no file be removed; waits for what is being removed, and for another backup."""
        with self._opened() as folder:
            flock(folder, LOCK_EX)
            yield

    @contextmanager
    def _opened(self) -> Iterator[int]:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield folder
        finally:
            os.close(folder)
