"""`matches.parquet`: how the rows of a result are encoded, and what its metadata say."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.io.datasets import in_dictionaries


class Rows(Protocol):
    """The rows of a result: those of a `pq.ParquetFile`, or `TableRows`."""

    @property
    def schema_arrow(self) -> pa.Schema: ...  # noqa: D102
    def iter_batches(  # noqa: D102
        self, batch_size: int, *, columns: list[str] | None = None, use_threads: bool = True
    ) -> Iterator[pa.RecordBatch]: ...


class TableRows:
    """The rows of a table, as a Parquet file gives them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def schema_arrow(self) -> pa.Schema:
        """What the columns are."""
        return self._table.schema

    def iter_batches(
        self, batch_size: int, *, columns: list[str] | None = None, use_threads: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """All rows, so many at a time."""
        table = self._table if columns is None else self._table.select(columns)
        return iter(table.to_batches(batch_size))


_WHOLE = ("observation", "rank", "reference")
_OWN = (*_WHOLE, "distance_m", "bearing_deg")


def write_rows(where: BinaryIO | pa.NativeFile, tables: Iterable[pa.Table]) -> pa.Schema:
    """Write tables as Parquet, a row group each, none of one without rows; returns their schema.

    Our whole numbers are written as differences, in as many bits as these need: 2 bytes a row where
    they would take 16, in the same time. Pages carry checksums: what was damaged on its way is
    found when it is read.
    """
    tables = iter(tables)
    first = next(tables)
    names = first.schema.names
    with pq.ParquetWriter(
        where,
        first.schema,
        compression={name: "none" if name in _OWN else "zstd" for name in names},
        use_dictionary=in_dictionaries(first.schema),
        column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in _WHOLE},
        write_page_checksum=True,
    ) as writer:
        for table in chain([first], tables):
            if table.num_rows:
                # In one piece: pages break where pieces do, and must not show the chunks.
                writer.write_table(table.combine_chunks(), table.num_rows)
    return first.schema


def opened(
    file: Path | BinaryIO | pa.NativeFile, footer: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """A result to go through once, by a `footer` parsed before; a damaged page raises OSError."""
    # pyarrow by itself keeps what it has read: at the end, all of it.
    return pq.ParquetFile(file, metadata=footer, pre_buffer=False, page_checksum_verification=True)
