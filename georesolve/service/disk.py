"""How much of the disk must stay free, whether it can be written, and whether it lost a bit."""

import asyncio
import errno
import logging
import math
import os
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from georesolve.io.local_files import Look
from georesolve.service import errors, pools
from georesolve.service.settings import Settings

LOOK_BYTES = 16 << 20
"""After so many bytes of what is stored as it comes the disk is looked at again."""

_PROBE_SECONDS = 5.0
_HUNG_SECONDS = 30.0
_PROBE_BYTES = 64 << 10
_MOST_WHOLE = 10_000
_SMALL_BYTES = 16 << 20
"""So much is counted in some hundredths of a second."""

logger = logging.getLogger(__name__)


class Trouble(NamedTuple):
    """Why nothing can be written, in words, and whether that is because the disk is full."""

    reason: str
    is_full: bool


@contextmanager
def locked(folder: Path, kind: int = LOCK_EX) -> Iterator[None]:
    """Hold the lock of a folder, which ends with this process at the latest."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder."""
    with suppress(BlockingIOError), locked(folder, LOCK_EX | LOCK_NB):
        return False
    return True


@contextmanager
def removing(data_dir: Path) -> Iterator[bool]:
    """Whether what is kept may be removed: it stays while a backup holds the lock of its folder.

    If so, no backup begins before this ends. It is the folder itself, as a full disk has no room
    for a file, and to remove makes room.
    """
    with ExitStack() as stack:
        may_remove = False
        with suppress(BlockingIOError):
            stack.enter_context(locked(data_dir, LOCK_SH | LOCK_NB))
            may_remove = True
        yield may_remove


class Probe:
    """Tells whether something can be written: its own thread tries it, once in five seconds."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._write = write
        self._trouble: Trouble | None = None
        self._tried_at = -math.inf
        self._starting = threading.Lock()
        self._trying: threading.Thread | None = None

    def trouble(self, patience_seconds: float = 0.0) -> Trouble | None:
        """Why it could not be written lately, if a try under way ends in time; None if it could."""
        with self._starting:
            trying, seconds = self._trying, time.monotonic() - self._tried_at
            if trying is None or (seconds >= _PROBE_SECONDS and not trying.is_alive()):
                trying = threading.Thread(target=self._try, name="probe", daemon=True)
                trying.start()
                self._trying, self._tried_at = trying, time.monotonic()
        trying.join(patience_seconds)
        seconds = time.monotonic() - self._tried_at
        if trying.is_alive() and seconds > _HUNG_SECONDS:
            return Trouble(f"a write has not ended for {seconds:.0f} s", False)
        return self._trouble

    def _try(self) -> None:
        try:
            self._write()
            self._trouble = None
        except (OSError, SQLAlchemyError) as error:
            logger.warning("it cannot be written: %s", error)
            number = error.errno if isinstance(error, OSError) else None
            reason = os.strerror(number) if number else ""
            self._trouble = Trouble(reason or type(error).__name__, errors.is_disk_full(error))


class Disk:
    """Keeps some of the disk free: what runs and what looks after the service need room, too."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.data_dir
        # Whether sets and results lie on it, and not in an object store.
        self.holds_all = settings.store is None
        self.must_stay_free = settings.keep_free
        self.writable = Probe(self._write)

    def space(self) -> dict[str, int]:
        """Bytes that are free and used."""
        usage = shutil.disk_usage(self._folder)
        return {"free": usage.free, "used": usage.used}

    def _write(self) -> None:
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def is_low(self) -> bool:
        """Whether no job can begin, because what it writes lies here and too little is free."""
        return self.holds_all and self.left() < 0

    def left(self) -> int:
        """Bytes that may be stored, below 0 when too few are free as it is."""
        return self.space()["free"] - self.must_stay_free

    def refuse_when_low(self, coming: int = 0) -> None:
        """Refuse to store so many bytes, or as many as come, without room: StorageFull."""
        free = self.space()["free"]
        if free - coming < self.must_stay_free:
            needs = f", {coming} bytes are coming" if coming else ""
            raise errors.StorageFull(
                f"the disk of the service has {free} bytes free{needs}, and "
                f"{self.must_stay_free} must stay free: remove datasets and results that are no "
                "longer needed, or come again later"
            )


class Checks:
    """Reads files to compare them with their digests: when first asked, and when they changed."""

    def __init__(self) -> None:
        # One file at a time, but for small ones.
        self._reading = asyncio.Lock()
        # Files that had their digest when they looked like that, the one used last at the end.
        self._whole: OrderedDict[str, Look] = OrderedDict()
        self._checking = pools.Shared[bool]()

    async def is_whole(self, key: str, look: Callable[[], Look], check: Callable[[], bool]) -> bool:
        """Whether `check` finds a file whole; asked again only when `look` has changed. OSError."""
        if key in self._whole and await pools.disk(look) == self._whole.get(key):
            return True
        return await self._checking(key, lambda: self._check(key, look, check))

    async def _check(self, key: str, look: Callable[[], Look], check: Callable[[], bool]) -> bool:
        try:
            before = await pools.disk(look)
            async with nullcontext() if before.size < _SMALL_BYTES else self._reading:
                is_whole = await pools.disk(check)
            self._whole.pop(key, None)
            # What came into it meanwhile changed how it looks.
            if is_whole and before == await pools.disk(look):
                self._whole[key] = before
                if len(self._whole) > _MOST_WHOLE:
                    self._whole.popitem(last=False)
            return is_whole
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
