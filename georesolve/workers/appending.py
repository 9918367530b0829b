"""Canonical files of consecutive rows joined into the first of them, without decoding them."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from georesolve.workers import footers

_TAIL_BYTES = 8
"""The length of the footer, and the magic bytes."""
_BLOCK_BYTES = 1 << 23


def append(target: Path, others: Iterable[Path]) -> None:
    """Append the row groups of other files of the same schema to a Parquet file.

    Its bytes are then those that one writer would have written that had all rows, if all files but
    the last are of whole row groups.

    Raises
    ------
    ValueError
        When one of them is no Parquet file.
    """
    rows = 0
    groups: list[bytes] = []
    with target.open("r+b") as file:
        size, footer = _footer(target)
        for group in map(footers.movable, footers.row_groups(footer)):
            groups.append(footers.placed(group, len(groups), 0))
            rows += group.rows
        for path in others:
            file.seek(size)
            file.truncate()
            content, other = _footer(path)
            with path.open("rb") as source:
                source.seek(len(footers.MAGIC))
                shutil.copyfileobj(source, file, _BLOCK_BYTES)
            for group in map(footers.movable, footers.row_groups(other)):
                groups.append(footers.placed(group, len(groups), size - len(footers.MAGIC)))
                rows += group.rows
            size += content - len(footers.MAGIC)
        # The footer of the last file was copied with it.
        file.seek(size)
        file.truncate()
        file.write(footers.ending(footers.join(footer, rows, groups)))


def _footer(path: Path) -> tuple[int, footers.Struct]:
    """Where the footer of a file begins, and what it says; only this much is read."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - _TAIL_BYTES))
        length = int.from_bytes(file.read(_TAIL_BYTES)[: -len(footers.MAGIC)], "little")
        start = end - _TAIL_BYTES - length
        if start < len(footers.MAGIC):
            raise ValueError(f"{end} bytes that do not end as a Parquet file does")
        file.seek(start)
        _, footer = footers.split(memoryview(footers.MAGIC + file.read()))
    return start, footer
