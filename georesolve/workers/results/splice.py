"""Parquet files of row groups that were encoded apart: bytes stay as they are, offsets follow."""

import hashlib
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from georesolve.workers.results.parts import Part, RowGroup
from georesolve.workers.results.result import write_rows
from georesolve.workers.storage.footers import MAGIC, Footer, Growing, Movable


class Encoded(NamedTuple):
    """The rows of one row group, encoded; without rows it has neither content nor `group`."""

    content: memoryview
    group: Movable | None
    schema: pa.Schema
    sha256: str
    """Of the content."""


def encode(rows: pa.Table) -> Encoded:
    """Encode the rows of one row group, as `write_rows` does."""
    content, footer = _written(rows)
    sha256 = hashlib.sha256(content).hexdigest()
    return Encoded(content, footer.groups[0] if footer.groups else None, rows.schema, sha256)


def footer_of(schema: pa.Schema) -> Footer:
    """The footer of a file of ours without rows."""
    return _written(schema.empty_table())[1]


def _written(rows: pa.Table) -> tuple[memoryview, Footer]:
    sink = pa.BufferOutputStream()
    write_rows(sink, rows)
    file = memoryview(sink.getvalue()).cast("B")
    footer = Footer(file)
    return file[len(MAGIC) : footer.start], footer


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
        """Append a row group; nothing where it has no rows."""
        if encoded.group is None:
            return
        size = self._file.write(encoded.content)
        self._footer.add([encoded.group], size)
        self._groups.append(RowGroup(size, encoded.sha256))
        self._movable.append(encoded.group)

    def finish(self, schema: pa.Schema, name: str = "") -> tuple[Part, list[Movable]]:
        """Write the end of the file, by its schema with its metadata; returns what was written."""
        ending = self._footer.ending(footer_of(schema))
        self._file.write(ending)
        part = Part(name, self._footer.rows, tuple(self._groups), RowGroup.of(ending))
        return part, self._movable
