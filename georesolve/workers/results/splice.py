"""Parquet files of row groups that were encoded apart: bytes stay as they are, offsets follow."""

from collections.abc import Iterable
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from georesolve.io.footers import MAGIC, Footer, Growing, Movable
from georesolve.io.result_files import write_rows
from georesolve.workers.results.parts import Part, RowGroup


class Encoded(NamedTuple):
    """Row groups, encoded one behind the other; without rows there are none, and no content."""

    content: memoryview
    groups: list[tuple[Movable, RowGroup]]
    schema: pa.Schema


def encode(tables: Iterable[pa.Table]) -> Encoded:
    """Encode tables, a row group each, as `write_rows` does."""
    content, footer, schema = _written(tables)
    starts = (group.start - len(MAGIC) for group in footer.groups)
    each = (RowGroup.of(content[slice(*edges)]) for edges in pairwise([*starts, len(content)]))
    alone = (group.alone() for group in footer.groups)
    return Encoded(content, list(zip(alone, each, strict=True)), schema)


def footer_of(schema: pa.Schema) -> Footer:
    """The footer of a file of ours without rows."""
    return _written([schema.empty_table()])[1]


def _written(tables: Iterable[pa.Table]) -> tuple[memoryview, Footer, pa.Schema]:
    sink = pa.BufferOutputStream()
    schema = write_rows(sink, tables)
    file = memoryview(sink.getvalue()).cast("B")
    footer = Footer(file)
    return file[len(MAGIC) : footer.start], footer, schema


class Splice:
    """A Parquet file made of encoded row groups, written from its begin.

    Its bytes are those that one writer would have written that had all rows.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._footer = Growing()
        self._groups: list[RowGroup] = []
        self._movable: list[Movable] = []
        file.write(MAGIC)

    def add(self, encoded: Encoded) -> None:
        """Append row groups."""
        self._file.write(encoded.content)
        for movable, group in encoded.groups:
            self._footer.add([movable], group.size_bytes)
            self._groups.append(group)
            self._movable.append(movable)

    def finish(self, schema: pa.Schema, name: str = "") -> tuple[Part, list[Movable]]:
        """Write the end of the file, by its schema with its metadata; returns what was written."""
        ending = self._footer.ending(footer_of(schema))
        self._file.write(ending)
        part = Part(name, self._footer.rows, tuple(self._groups), RowGroup.of(ending))
        return part, self._movable
