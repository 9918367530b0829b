"""SHA-256 of results, which may be known some moments after their jobs have ended."""

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Self

from sqlalchemy.exc import SQLAlchemyError

from service.database.rows import JobRow
from service.database.store import Store
from workers.files import sha256_of
from workers.jobs import RESULT_NAME

logger = logging.getLogger(__name__)


class Checksums:
    """The checksums of results: those that are counted, and those that stand in reports.

    A result is there as soon as its bytes are; its checksum is an ETag and a line of the report,
    and who asks for these waits for it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counting: dict[str, Future[str]] = {}
        self._is_open = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checksum")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What is not counted by now is counted when somebody asks for it.
        self._is_open = False
        self._thread.shutdown(wait=False, cancel_futures=True)

    def expect(self, id: str, sha256: Future[str]) -> None:
        """Write the checksum of a successful job's result down once it is counted."""
        self._counting[id] = sha256
        sha256.add_done_callback(partial(self._note, id))

    def _note(self, id: str, sha256: Future[str]) -> None:
        try:
            if self._is_open and sha256.exception() is None:
                self._store.note_checksum(id, sha256.result())
        except SQLAlchemyError:
            # Whoever asks for it has it counted again.
            logger.exception("job %s: the checksum of its result could not be noted", id)
        finally:
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
        if counting is None:
            counting = await asyncio.to_thread(self._noted_or_counted, job.id)
        return await asyncio.shield(asyncio.wrap_future(counting))

    def _noted_or_counted(self, id: str) -> Future[str]:
        row = self._store.job(id)
        if row is not None and row.report is not None and "sha256" in row.report:
            noted: Future[str] = Future()
            noted.set_result(row.report["sha256"])
            return noted
        counting = self._thread.submit(sha256_of, self._store.job_folder(id) / RESULT_NAME)
        self.expect(id, counting)
        return counting
