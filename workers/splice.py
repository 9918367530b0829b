"""Parquet files of one schema joined into one without decoding them: bytes move, offsets follow."""

import io
from collections.abc import Callable

import pyarrow as pa

from workers import footers
from workers.result import write_rows


class Splice:
    """A Parquet file made of the row groups of others.

    Its bytes are those that one writer would have written that had all row groups.

    Parameters
    ----------
    write
        Takes the bytes of the file, piece by piece.
    """

    def __init__(self, write: Callable[[bytes | memoryview], object]) -> None:
        self._write = write
        self._size = 0
        self._groups: list[footers.Struct] = []
        self._append(footers.MAGIC)

    def add(self, parquet: memoryview) -> None:
        """Append the row groups of a file.

        Raises
        ------
        ValueError
            When it is no Parquet file.
        """
        content, footer = footers.split(parquet)
        shift = self._size - len(footers.MAGIC)
        for group in footers.row_groups(footer):
            footers.move(group, len(self._groups), shift)
            self._groups.append(group)
        self._append(content)

    def finish(self, schema: pa.Schema) -> int:
        """Write the end of the file, and tell how many rows it has.

        Parameters
        ----------
        schema
            Of the files, with the metadata of this one.
        """
        encoded = io.BytesIO()
        write_rows(encoded, schema.empty_table())
        _, footer = footers.split(encoded.getbuffer())
        footer = footers.join(footer, self._groups)
        self._append(footers.ending(footer))
        return footers.rows(footer)

    def _append(self, content: bytes | memoryview) -> None:
        self._write(content)
        self._size += len(content)
