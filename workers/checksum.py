"""The SHA-256 of a file, counted while the file grows."""

import hashlib
import threading
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
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
        self._is_wanted = True
        self._sha256: Future[str] = Future()
        # Sizes that the file has by now; None when there are no more.
        self._sizes: SimpleQueue[int | None] = SimpleQueue()
        # A process that ends does not wait for it: whoever needs the checksum counts again.
        threading.Thread(target=self._run, name="checksum", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_wanted = error is None
        self._sizes.put(None)

    def follow(self, size: int) -> None:
        """Have the file counted up to a size that it has by now."""
        self._sizes.put(size)

    def finish(self, size: int) -> Future[str]:
        """The checksum of the file, in hexadecimal, which grows no more and has this size."""
        self.follow(size)
        return self._sha256

    def _run(self) -> None:
        with self._file:
            try:
                self._sha256.set_result(self._count())
            except Exception as error:
                self._sha256.set_exception(error)

    def _count(self) -> str:
        sha256, counted = hashlib.sha256(), 0
        while (size := self._sizes.get()) is not None:
            while counted < size and self._is_wanted:
                block = self._file.read(min(_BLOCK_BYTES, size - counted))
                if not block:
                    raise OSError(f"a file of {size} bytes ends after {counted}")
                sha256.update(block)
                counted += len(block)
        if not self._is_wanted:
            raise OSError("the file was not finished")
        return sha256.hexdigest()
