"""SHA-256 of results, which may be known some moments after their jobs have ended.

And whether files have theirs still: a disk may lose a bit, and a file that is served by its
checksum must have it.
"""

import asyncio
import errno
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Self

from sqlalchemy.exc import SQLAlchemyError

from georesolve.service.database.rows import JobRow
from georesolve.service.database.store import Store
from georesolve.workers.files import Look, look_at, sha256_of
from georesolve.workers.jobs import RESULT_NAME
from georesolve.workers.result import check_pages

logger = logging.getLogger(__name__)

_MOST_WHOLE = 10_000
_SMALL_BYTES = 16 << 20
"""So much is counted in some hundredths of a second."""


class Checksums:
    """The checksums of results: those that are counted, and those that stand in reports.

    A result is there as soon as its bytes are; its checksum is an ETag and a line of the report,
    and who asks for these waits for it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # Also those that are counted, but could not be noted.
        self._counting: dict[str, Future[str]] = {}
        self._noting = threading.Lock()
        self._is_open = True
        # Who counts again reads a whole file: one at a time, but for small ones.
        self._reading = threading.Lock()
        # Files that had their checksum when they looked like that, the one used last at the end.
        self._whole: OrderedDict[Path, tuple[str, Look]] = OrderedDict()
        self._checking: dict[Path, Future[bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What is not counted by now is counted when somebody asks for it.
        with self._noting:
            self._is_open = False

    @contextmanager
    def expected(self, id: str, sha256: Future[str]) -> Iterator[None]:
        """Have the checksum of a job's result at hand while the job ends, then write it down."""
        self._counting[id] = sha256
        try:
            yield
        finally:
            sha256.add_done_callback(partial(self._note, id))

    def _note(self, id: str, sha256: Future[str]) -> None:
        with self._noting:
            if not self._is_open:
                return
            error = sha256.exception()
            if error is not None:
                # Who asks later has it counted again.
                logger.warning("job %s: its checksum cannot be counted: %s", id, error)
            else:
                try:
                    self._store.note_checksum(id, sha256.result())
                except SQLAlchemyError:
                    logger.exception("job %s: the checksum of its result could not be noted", id)
                    return
                with suppress(OSError):
                    self.note_whole(self._result(id), sha256.result())
            self._counting.pop(id, None)

    async def of(self, job: JobRow) -> str:
        """The checksum of a successful job's result, in hexadecimal.

        One that was being counted when an earlier process ended is counted again.

        Raises
        ------
        OSError
            When the result is not there any more, or cannot be read.
        """
        if job.report is not None and "sha256" in job.report:
            return str(job.report["sha256"])
        counting = self._counting.get(job.id)
        # One that failed a moment ago may not be noted yet.
        if counting is None or (counting.done() and counting.exception()):
            counting = self._counting[job.id] = Future()
            counting.add_done_callback(partial(self._note, job.id))
            # A process that ends does not wait for it.
            again = threading.Thread(target=self._count, args=(job.id, counting), daemon=True)
            again.start()
        return await asyncio.shield(asyncio.wrap_future(counting))

    def _count(self, id: str, sha256: Future[str]) -> None:
        try:
            # It may have been noted since the row of the job was read.
            row = self._store.job(id)
            if row is not None and row.report is not None and "sha256" in row.report:
                sha256.set_result(row.report["sha256"])
                return
            with self._reading:
                # Nobody knows its checksum: those of its pages tell of damage.
                check_pages(self._result(id))
                sha256.set_result(sha256_of(self._result(id)))
        except Exception as error:
            # Whoever waits for it is told.
            sha256.set_exception(error)

    def _result(self, id: str) -> Path:
        return self._store.job_folder(id) / RESULT_NAME

    def note_whole(self, path: Path, sha256: str) -> None:
        """Note that a file has its checksum, which was counted just now.

        Raises
        ------
        FileNotFoundError
        """
        self._whole[path] = sha256, look_at(path)
        with suppress(KeyError):
            self._whole.move_to_end(path)
            if len(self._whole) > _MOST_WHOLE:
                self._whole.popitem(last=False)

    async def is_whole(self, path: Path, sha256: str, *, anew: bool = False) -> bool:
        """Whether a file has its checksum; counted when it is first asked for, or has changed.

        Parameters
        ----------
        anew
            Whether to count it in any case.

        Raises
        ------
        OSError
            When it is not there any more, or cannot be read.
        """
        if not anew and self._whole.get(path) == (sha256, look_at(path)):
            return True
        checking = self._checking.get(path)
        if checking is None:
            checking = self._checking[path] = Future()
            checking.add_done_callback(lambda _: self._checking.pop(path, None))
            # A process that ends does not wait for it.
            again = threading.Thread(target=self._check, args=(path, sha256, checking), daemon=True)
            again.start()
        return await asyncio.shield(asyncio.wrap_future(checking))

    def _check(self, path: Path, sha256: str, checking: Future[bool]) -> None:
        try:
            look = look_at(path)
            with nullcontext() if look.size < _SMALL_BYTES else self._reading:
                is_whole = sha256_of(path) == sha256
            if not is_whole:
                self._whole.pop(path, None)
            # What came into it meanwhile changed how it looks.
            elif look == look_at(path):
                self.note_whole(path, sha256)
            checking.set_result(is_whole)
        except OSError as error:
            if error.errno == errno.EIO:
                checking.set_result(False)
            else:
                checking.set_exception(error)
