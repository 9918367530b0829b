"""A data folder belongs to one service, or to processes of one that were started one by one."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from georesolve.service.errors import CannotStart
from georesolve.service.store.identity import make_data_dir

PATIENCE_SECONDS = 3.0
"""The children of a service that was killed are killed with it, and end some moments later."""


class Ownership(NamedTuple):
    """The lock of a data folder, which all processes hold that were forked from this one.

    Attributes
    ----------
    is_alone
        Whether no other service and no other process of this one worked in the folder when it was
        taken.
    share
        Lets others in, if they may be: what one who is alone does is done.
    """

    is_alone: bool
    share: Callable[[], None]


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
    until = time.monotonic() + PATIENCE_SECONDS
    with (data_dir / "lock").open("a+") as lock:
        while not (is_alone := _holds(lock, fcntl.LOCK_EX)):
            if shared and _holds(lock, fcntl.LOCK_SH):
                break
            if time.monotonic() > until:
                lock.seek(0)
                raise CannotStart(
                    f"the data folder {data_dir} is in use by process {lock.read().strip()}: "
                    "stop that one, or take another folder"
                )
            time.sleep(0.05)
        if is_alone:
            lock.truncate(0)
            with suppress(OSError):
                # On a full disk nobody is told the number; what makes room shall start.
                os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        yield Ownership(is_alone, partial(fcntl.flock, lock, kind))


def _holds(lock: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
