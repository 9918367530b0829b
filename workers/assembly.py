"""The result of a job put together from its part files, as they come and without decoding them."""

import io
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.workers.checksum import Checksum
from georesolve.workers.files import durable
from georesolve.workers.jobs import Job
from georesolve.workers.partitions import part_path
from georesolve.workers.plan import Chunk, observations_a_group
from georesolve.workers.result import provenance, write_rows
from georesolve.workers.splice import Splice


class Result(NamedTuple):
    """A finished result file.

    Attributes
    ----------
    rows, size_bytes
        Number of its rows and of its bytes.
    sha256
        Of the file, in hexadecimal: of a large one it is known some moments later.
    """

    rows: int
    size_bytes: int
    sha256: Future[str]


class Assembly:
    """A result file that grows by parts, in the order of their rows whatever order they come in.

    Its bytes depend on the two inputs, the options and the version of georesolve alone: not on
    devices, workers, chunks or time.
    """

    def __init__(self, job: Job, path: Path, file: BinaryIO, stack: ExitStack) -> None:
        self._job = job
        self._carried = job.widths()
        self._file = file
        self._checksum = stack.enter_context(Checksum(path))
        self._appender = stack.enter_context(_thread())
        self._appended: deque[Future[None]] = deque()
        self._syncer = stack.enter_context(_thread())
        self._synced: Future[None] | None = None
        self._splice = Splice(file)
        self._next_row = 0
        # Parts that came before their turn, by their first row.
        self._early: dict[int, Chunk] = {}
        self._schema: pa.Schema | None = None
        # Rows that do not make a row group yet, and their first observation.
        self._rest: tuple[int, pa.Table] | None = None

    def add(self, chunk: Chunk) -> None:
        """Have the part of a chunk appended, or wait its turn; chunks are dealt out meanwhile.

        Raises
        ------
        OSError
            When an earlier part could not be appended.
        """
        self._appended.append(self._appender.submit(self._take, chunk))
        while self._appended and self._appended[0].done():
            self._appended.popleft().result()

    def _take(self, chunk: Chunk) -> None:
        self._early[chunk.start] = chunk
        while self._next_row in self._early:
            chunk = self._early[self._next_row]
            self._append(chunk)
            # Only now: nothing is appended behind a part that could not be.
            del self._early[chunk.start]
            self._next_row = chunk.stop
        self._file.flush()
        self._checksum.follow(self._file.tell())
        self._sync()

    def _append(self, chunk: Chunk) -> None:
        part = part_path(self._job, chunk)
        self._schema = self._schema or pq.read_schema(part)
        if self._rest is None and self._is_edge(chunk.start) and self._is_edge(chunk.stop):
            self._splice.add_file(part)
            return
        start, table = chunk.start, pq.read_table(part)
        if self._rest is not None:
            start, rest = self._rest
            table = pa.concat_tables([rest, table])
        of = table["observation"].to_numpy()
        for group in Chunk(start, chunk.stop).row_groups(self._job.options.k, self._carried):
            first, last = np.searchsorted(of, group)
            rows = table.slice(first, last - first)
            if not self._is_edge(group.stop):
                self._rest = group.start, rows
                return
            encoded = io.BytesIO()
            write_rows(encoded, rows)
            self._splice.add(encoded.getbuffer())
        self._rest = None

    def _is_edge(self, row: int) -> bool:
        grain = observations_a_group(self._job.options.k, self._carried)
        return row % grain == 0 or row == self._job.observations.rows

    def finish(self, counts: dict[str, int]) -> Result:
        """Write the end, once all parts are there.

        Parameters
        ----------
        counts
            Number of result rows by status.
        """
        for appended in self._appended:
            appended.result()
        assert not self._early, "all parts are there"
        assert self._schema is not None, "there is a part, if an empty one"
        rows = self._splice.finish(self._schema.with_metadata(provenance(self._job, counts)))
        self._file.flush()
        if self._synced is not None:
            # An error of the disk is told once: not again to who closes the file.
            self._synced.result()
        size = self._file.tell()
        return Result(rows, size, self._checksum.finish(size))

    def _sync(self) -> None:
        # To the disk while other chunks are resolved, so that little is left to do at the end.
        if self._synced is not None:
            if not self._synced.done():
                return
            self._synced.result()
        self._synced = self._syncer.submit(os.fdatasync, self._file.fileno())


@contextmanager
def assembly(job: Job) -> Iterator[Assembly]:
    """Open the result of a job; it appears complete on success, and not at all on any error."""
    with durable(job.result) as temporary, temporary.open("wb") as file, ExitStack() as stack:
        yield Assembly(job, temporary, file, stack)


@contextmanager
def _thread() -> Iterator[ThreadPoolExecutor]:
    thread = ThreadPoolExecutor(1, thread_name_prefix="assembly")
    try:
        yield thread
    finally:
        # On an error, what is not begun yet is not wanted any more.
        thread.shutdown(cancel_futures=True)
