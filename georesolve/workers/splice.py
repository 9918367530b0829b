"""Parquet files of row groups that were encoded apart: bytes stay as they are, offsets follow."""

import hashlib
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from georesolve.workers import footers
from georesolve.workers.result import write_rows


class RowGroup(NamedTuple):
    """A row group in a file: the number of its bytes, and their SHA-256 in hexadecimal."""

    size_bytes: int
    sha256: str


def digest_of(groups: Iterable[RowGroup], ending_sha256: str) -> str:
    """The digest of a Parquet file, in hexadecimal: it says which bytes the file has.

    It is the SHA-256 of SHA-256s, one after the other, 32 bytes each: of every row group, in their
    order, and of all bytes behind the last one. So it is counted from those of parts, and is the
    same in whatever parts the row groups lie.
    """
    each = (*(group.sha256 for group in groups), ending_sha256)
    return hashlib.sha256(b"".join(map(bytes.fromhex, each))).hexdigest()


class Encoded(NamedTuple):
    """The rows of one row group, encoded.

    Attributes
    ----------
    content
        As it stands in a file; nothing of no rows.
    group
        What a footer says of it; None of no rows.
    sha256
        Of the content.
    """

    content: memoryview
    group: footers.Movable | None
    schema: pa.Schema
    sha256: str


def encode(rows: pa.Table) -> Encoded:
    """Encode the rows of one row group, as `write_rows` does."""
    content, footer = _split(rows)
    groups = [footers.movable(group) for group in footers.row_groups(footer)]
    sha256 = hashlib.sha256(content).hexdigest()
    return Encoded(content, groups[0] if groups else None, rows.schema, sha256)


def _split(rows: pa.Table) -> tuple[memoryview, footers.Struct]:
    sink = pa.BufferOutputStream()
    write_rows(sink, rows)
    return footers.split(memoryview(sink.getvalue()).cast("B"))


class Footer:
    """The footer of a file that is made of row groups, which grows by theirs.

    Attributes
    ----------
    rows
        Of all row groups.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._size_bytes = 0
        self._groups: list[bytes] = []

    def add(self, group: footers.Movable, size_bytes: int) -> None:
        """Append a row group, which has so many bytes."""
        self._groups.append(footers.placed(group, len(self._groups), self._size_bytes))
        self._size_bytes += size_bytes
        self.rows += group.rows

    def ending(self, schema: pa.Schema) -> bytes:
        """All that stands behind the last row group of the file.

        Parameters
        ----------
        schema
            Of the rows, with the metadata of the file.
        """
        _, empty = _split(schema.empty_table())
        return footers.ending(footers.join(empty, self.rows, self._groups))


class Spliced(NamedTuple):
    """What was written.

    Attributes
    ----------
    rows
        Their number.
    groups, movable
        The row groups, and what footers say of them.
    ending
        What stands behind them.
    """

    rows: int
    groups: list[RowGroup]
    movable: list[footers.Movable]
    ending: bytes


class Splice:
    """A Parquet file made of encoded row groups.

    Its bytes are those that one writer would have written that had all rows.

    Parameters
    ----------
    file
        Where it is written, from its begin.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._footer = Footer()
        self._groups: list[RowGroup] = []
        self._movable: list[footers.Movable] = []
        file.write(footers.MAGIC)

    def add(self, encoded: Encoded) -> None:
        """Append a row group; nothing where it has no rows."""
        if encoded.group is None:
            return
        size = self._file.write(encoded.content)
        self._footer.add(encoded.group, size)
        self._groups.append(RowGroup(size, encoded.sha256))
        self._movable.append(encoded.group)

    def finish(self, schema: pa.Schema) -> Spliced:
        """Write the end of the file.

        Parameters
        ----------
        schema
            Of the rows, with the metadata of the file.
        """
        ending = self._footer.ending(schema)
        self._file.write(ending)
        return Spliced(self._footer.rows, self._groups, self._movable, ending)
