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
    footer
        Of a file that has it alone.
    sha256
        Of the content.
    """

    content: memoryview
    footer: footers.Struct
    schema: pa.Schema
    sha256: str


def encode(rows: pa.Table) -> Encoded:
    """Encode the rows of one row group, as `write_rows` does."""
    sink = pa.BufferOutputStream()
    write_rows(sink, rows)
    content, footer = footers.split(memoryview(sink.getvalue()).cast("B"))
    return Encoded(content, footer, rows.schema, hashlib.sha256(content).hexdigest())


class Footer:
    """The footer of a file that is made of row groups of others, which grows by theirs.

    Attributes
    ----------
    size_bytes
        Of the file up to the end of the last row group.
    """

    def __init__(self) -> None:
        self.size_bytes = len(footers.MAGIC)
        self._groups: list[footers.Encoded] = []

    @property
    def rows(self) -> int:
        """Of all row groups."""
        return sum(group.rows for group in self._groups)

    def add(self, footer: footers.Struct, size_bytes: int) -> None:
        """Take over the row groups of another file, which has so many bytes of them."""
        shift = self.size_bytes - len(footers.MAGIC)
        for group in footers.row_groups(footer):
            footers.move(group, len(self._groups), shift)
            # Encoded as they come: of a large result that would be long at the end.
            self._groups.append(footers.encode(group))
        self.size_bytes += size_bytes

    def ending(self, schema: pa.Schema) -> bytes:
        """All that stands behind the last row group of the file.

        Parameters
        ----------
        schema
            Of the rows, with the metadata of the file.
        """
        return footers.ending(footers.join(encode(schema.empty_table()).footer, self._groups))


class Spliced(NamedTuple):
    """What was written: number of rows, row groups, and what stands behind these."""

    rows: int
    groups: list[RowGroup]
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
        file.write(footers.MAGIC)

    def add(self, encoded: Encoded) -> None:
        """Append a row group; nothing where it has no rows."""
        size = self._file.write(encoded.content)
        self._footer.add(encoded.footer, size)
        if size:
            self._groups.append(RowGroup(size, encoded.sha256))

    def finish(self, schema: pa.Schema) -> Spliced:
        """Write the end of the file.

        Parameters
        ----------
        schema
            Of the rows, with the metadata of the file.
        """
        ending = self._footer.ending(schema)
        self._file.write(ending)
        return Spliced(self._footer.rows, self._groups, ending)
