"""A data folder belongs to one service, or to processes of one that were started one by one."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from georesolve.service.database.identity import make_data_dir
from georesolve.service.database.reserve import Reserve
from georesolve.service.errors import CannotStart

PATIENCE_SECONDS = 3.0
"""The children of a service that was killed are killed with it, and end some moments later."""


class Ownership:
    """The lock of a data folder, which all processes hold that were forked from this one.

    Attributes
    ----------
    is_alone
        Whether no other service and no other process of this one worked in the folder when it was
        taken.
    """

    def __init__(self, lock: TextIO, *, shared: bool) -> None:
        self._lock = lock
        self._shared = shared
        self.is_alone = self._has(fcntl.LOCK_EX)

    def _has(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def take(self) -> bool:
        """Wait a moment for the lock; returns whether it is held."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.is_alone and not (self._shared and self._has(fcntl.LOCK_SH)):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
            self.is_alone = self._has(fcntl.LOCK_EX)
        return True

    def share(self) -> None:
        """Let others in, if they may be: what one who is alone does is done."""
        if self._shared:
            fcntl.flock(self._lock, fcntl.LOCK_SH)


@contextmanager
def owned(data_dir: Path, shared: bool) -> Iterator[Ownership]:
    """Own a data folder; the kernel ends the ownership with the last process that has it.

    Parameters
    ----------
    shared
        Whether others may have it, too, who say the same.

    Raises
    ------
    CannotStart
        When it cannot be made or written to, or another process owns it: two would take up and
        sweep away each other's work.
    """
    make_data_dir(data_dir)
    with (data_dir / "lock").open("a+") as lock:
        ownership = Ownership(lock, shared=shared)
        if not ownership.take():
            lock.seek(0)
            raise CannotStart(
                f"the data folder {data_dir} is in use by process {lock.read().strip()}: "
                "stop that one, or take another folder"
            )
        if ownership.is_alone:
            lock.truncate(0)
            number = f"{os.getpid()}\n".encode()
            Reserve(data_dir).spend(lambda: os.write(lock.fileno(), number))
        yield ownership
