"""What a reader takes, a file and how to read it, and what it gives: a schema and batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from georesolve.intake.columns import Reading
from georesolve.intake.errors import InvalidInput
from georesolve.intake.formats import InputFormat
from georesolve.intake.geometry import Geometry

BATCH_ROWS = 65_536


class Range(NamedTuple):
    """Some rows of a file, `stop` not included; of text with the bytes that they stand in."""

    start: int
    stop: int
    begin: int = 0
    end: int = 0


class Source(NamedTuple):
    """A file to decode: where it lies, how to read it, and what to call it in errors.

    `charset` is the encoding that the client declared of its text. A file packed with gzip is
    `unpacked` to a path first. `range` has the rows to read, None for all.
    """

    path: Path
    format: InputFormat
    reading: Reading
    file: str
    charset: str | None = None
    unpacked: Path | None = None
    range: Range | None = None


class Table(NamedTuple):
    """What a reader gives: a table, how many rows the file says it has, and where its points were.

    `points` is what the reader took coordinates out of, None where the file has columns of them.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    declared_rows: int | None = None
    points: Geometry | None = None


class BadCell(NamedTuple):
    """A value, a row or a column that cannot be read."""

    column: str | None
    row: int | None
    detail: str


CELLS_SHOWN = 10


def bad_cells(source: Source, cells: list[BadCell], rows: int) -> InvalidInput:
    """The problem of several; `rows` are refused, of which these are the first."""
    errors: list[dict[str, Any]] = []
    for cell in cells[:CELLS_SHOWN]:
        place = {"column": cell.column, "row": cell.row}
        known = {name: value for name, value in place.items() if value is not None}
        errors.append({"file": source.file, **known, "detail": cell.detail})
    first = errors[0]
    where = ", ".join(f"{name} {first[name]!r}" for name in ("column", "row") if name in first)
    others = f"; {rows} rows are refused, this is the first" if rows > 1 else ""
    return InvalidInput(
        f"{source.file}: {where}: {first['detail']}{others} (rows are counted from 0, without the "
        "header)",
        errors,
    )
