"""The result of a job put together from its part files, as they come and without decoding them."""

import hashlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workers import footers
from workers.files import durable
from workers.jobs import Job
from workers.partitions import part_path
from workers.plan import Chunk
from workers.result import observations_a_group, provenance, write_rows


class Result(NamedTuple):
    """A finished result file."""

    rows: int
    size_bytes: int
    sha256: str


class Assembly:
    """A result file that grows by parts, in the order of their rows whatever order they come in.

    Its bytes are those that Arrow would have written had it had all rows at once. They depend on
    the two inputs, the options and the version of georesolve alone: not on devices, workers, chunks
    or time.
    """

    def __init__(self, job: Job, file: BinaryIO, hasher: ThreadPoolExecutor) -> None:
        self._job = job
        self._next_row = 0
        # Parts that came before their turn, by their first row.
        self._early: dict[int, Chunk] = {}
        self._grain = observations_a_group(job.options.k)
        self._file = file
        self._hasher = hasher
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._schema: pa.Schema | None = None
        self._groups: list[footers.Struct] = []
        # Rows that do not make a row group yet.
        self._rest: pa.Table | None = None
        self._write(footers.MAGIC)

    def add(self, chunk: Chunk) -> None:
        """Append the part of a chunk, and those that waited for it, or have it wait its turn."""
        self._early[chunk.start] = chunk
        while self._next_row in self._early:
            chunk = self._early.pop(self._next_row)
            self._next_row = chunk.stop
            self._append(chunk)

    def _append(self, chunk: Chunk) -> None:
        part = pa.memory_map(str(part_path(self._job, chunk))).read_buffer()
        self._schema = self._schema or pq.read_schema(part)
        if self._rest is None and self._is_edge(chunk.start) and self._is_edge(chunk.stop):
            self._splice(memoryview(part).cast("B"))
            return
        table = pq.read_table(part)
        if self._rest is not None:
            table = pa.concat_tables([self._rest, table])
        if self._is_edge(chunk.stop):
            whole, self._rest = table, None
        else:
            edge = chunk.stop - chunk.stop % self._grain
            rows = int(np.searchsorted(table["observation"].to_numpy(), edge))
            whole, self._rest = table.slice(0, rows), table.slice(rows)
        encoded = io.BytesIO()
        write_rows(encoded, whole, self._job.options.k)
        self._splice(encoded.getbuffer())

    def _is_edge(self, row: int) -> bool:
        return row % self._grain == 0 or row == self._job.observations.rows

    def _splice(self, parquet: memoryview) -> None:
        content, footer = footers.split(parquet)
        shift = self._size - len(footers.MAGIC)
        for group in footers.row_groups(footer):
            footers.move(group, len(self._groups), shift)
            self._groups.append(group)
        self._write(content)

    def finish(self, counts: dict[str, int]) -> Result:
        """Write the end, once all parts are there.

        Parameters
        ----------
        counts
            Number of result rows by status.
        """
        assert self._next_row == self._job.observations.rows, "all parts are there"
        assert self._schema is not None, "there is a part, if an empty one"
        empty = self._schema.with_metadata(provenance(self._job, counts)).empty_table()
        encoded = io.BytesIO()
        write_rows(encoded, empty, self._job.options.k)
        _, footer = footers.split(encoded.getbuffer())
        footer = footers.join(footer, self._groups)
        self._write(footers.ending(footer))
        self._file.flush()
        return Result(footers.rows(footer), self._size, self._sha256.hexdigest())

    def _write(self, content: bytes | memoryview) -> None:
        hashed = self._hasher.submit(self._sha256.update, content)
        self._file.write(content)
        self._size += len(content)
        hashed.result()


@contextmanager
def assembly(job: Job) -> Iterator[Assembly]:
    """Open the result of a job; it appears complete on success, and not at all on any error."""
    with (
        durable(job.result) as temporary,
        temporary.open("wb") as file,
        ThreadPoolExecutor(1, thread_name_prefix="sha256") as hasher,
    ):
        yield Assembly(job, file, hasher)
