"""The data folder belongs to one service process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataDirInUseError(RuntimeError):
    """Another service runs on the data folder."""


@contextmanager
def owned(data_dir: Path) -> Iterator[None]:
    """Own a data folder; the kernel ends the ownership with the process, however it ends.

    Raises
    ------
    DataDirInUseError
        When another process owns it: two would take up and sweep away each other's work.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise DataDirInUseError(
                f"the data folder {data_dir} is in use by process {lock.read().strip()}: "
                "stop that one, or take another folder"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
