"""Parquet files of one schema joined into one without decoding them: bytes move, offsets follow."""

import io
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from georesolve.workers import footers
from georesolve.workers.result import write_rows

_BLOCK_BYTES = 2**23
"""Moved at a time: so many that a thread seldom waits for the others between two of them."""


class Splice:
    """A Parquet file made of the row groups of others.

    Its bytes are those that one writer would have written that had all row groups.

    Parameters
    ----------
    file
        Where it is written, from its begin.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.write(footers.MAGIC)
        self._groups: list[footers.Encoded] = []
        # Takes no memory before it is written to.
        self._block = memoryview(bytearray(_BLOCK_BYTES))

    def add(self, parquet: memoryview) -> None:
        """Append the row groups of a file that is in memory.

        Raises
        ------
        ValueError
            When it is no Parquet file.
        """
        content, footer = footers.split(parquet)
        self._add_groups(footer)
        self._size += self._file.write(content)

    def add_file(self, path: Path) -> None:
        """Append the row groups of a file on the disk.

        Raises
        ------
        ValueError
            When it is no Parquet file.
        OSError
            When it cannot be read.
        """
        # Mapped for its footer alone: to touch the pages of all of it takes longer than a read.
        mapped = memoryview(pa.memory_map(str(path)).read_buffer()).cast("B")
        content, footer = footers.split(mapped)
        self._add_groups(footer)
        with path.open("rb", buffering=0) as source:
            source.seek(len(footers.MAGIC))
            end = self._size + len(content)
            while self._size < end:
                size = source.readinto(self._block[: end - self._size])
                if not size:
                    raise OSError(f"{path.name} ends {end - self._size} bytes before its footer")
                self._size += self._file.write(self._block[:size])

    def _add_groups(self, footer: footers.Struct) -> None:
        shift = self._size - len(footers.MAGIC)
        for group in footers.row_groups(footer):
            footers.move(group, len(self._groups), shift)
            # Encoded as they come: of a large result that would be long at the end.
            self._groups.append(footers.encode(group))

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
        joined = footers.join(footer, self._groups)
        self._size += self._file.write(footers.ending(joined))
        return footers.rows(joined)
