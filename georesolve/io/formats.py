"""What a reader takes, a file, its format and how to read it, and what it gives: batches.

A file has the format of its first bytes, of its media type, or of its name.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from georesolve.io.columns import Reading
from georesolve.io.errors import InvalidInput, UnsupportedFormat
from georesolve.io.geometry import Geometry

if TYPE_CHECKING:
    from georesolve.io.outlines import ShapeReader

BATCH_ROWS = 65_536
InputFormat = Literal["parquet", "arrow", "csv", "geojson", "layer"]
"""A layer is what GDAL reads: see `io.layers`."""
_MEDIA_TYPES: dict[InputFormat, set[str]] = {
    "parquet": {"application/vnd.apache.parquet", "application/x-parquet"},
    "arrow": {"application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"},
    "csv": {"text/csv", "application/csv", "text/tab-separated-values"},
    "geojson": {"application/geo+json", "application/json", "application/geo+json-seq"},
}
_SUFFIXES: dict[InputFormat, set[str]] = {
    "parquet": {"parquet", "pq", "geoparquet"},
    "arrow": {"arrows", "arrow", "feather"},
    "csv": {"csv", "tsv"},
    "geojson": {"geojson", "json", "geojsonl", "geojsons", "ndjson"},
}
# Each in full, so that no text can begin with it.
_FIRST_BYTES: dict[InputFormat, tuple[bytes, ...]] = {
    "parquet": (b"PAR1\x15",),
    "arrow": (b"ARROW1\0\0", b"\xff\xff\xff\xff"),
}
HEAD_BYTES = 128
"""So many first bytes tell what a file is."""
_GZIP = b"\x1f\x8b"
_PACKED_HEAD_BYTES = 4096
SHAPEFILE = b"\0\0\x27\x0a" + bytes(20)
"""How the first file of a shapefile begins."""
_ZIP = rb"PK\x03\x04"
# Behind all else that is such an archive: what it holds is seen when it is read.
_LAYERS = rb"SQLite format 3\0.{52}GPKG|" + re.escape(SHAPEFILE) + rb"|fgb\x03fgb|" + _ZIP
# How a file begins that is not read, what it is, and what to send instead.
_EXCEL = rb"PK\x03\x04.{26}(?:\[Content_Types\]\.xml|_rels/|docProps/|xl/)"
_OPEN_DOCUMENT = rb"PK\x03\x04.{26}mimetypeapplication/vnd\.oasis\.opendocument"
# The first that fits; a ZIP archive has the name of its first member in byte 30.
_OTHERS = [
    (_EXCEL, "an Excel workbook", "save it as CSV"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office file of before 2007", "save it as CSV"),
    (_OPEN_DOCUMENT, "an OpenDocument file", "save it as CSV"),
    (rb"SQLite format 3\0(?!.{52}GPKG)", "an SQLite database", "write its table as Parquet or CSV"),
    (_GZIP, "compressed with gzip twice", "send it unpacked"),
    (rb"BZh[1-9]1AY&SY", "compressed with bzip2", "send it unpacked"),
    (rb"\x28\xb5\x2f\xfd", "compressed with zstd", "send it unpacked"),
    (rb"\xfd7zXZ\0", "compressed with xz", "send it unpacked"),
]


class Range(NamedTuple):
    """Some rows of a file, `stop` not included; of text with the bytes that they stand in."""

    start: int
    stop: int
    begin: int = 0
    end: int = 0


class Source(NamedTuple):
    """A file to decode: where it lies, how to read it, and what to call it in errors.

    `charset` is the encoding that the client declared of its text. A file packed with gzip is
    `unpacked` to a path first. `range` has the rows to read, None for all. Threads decode row
    groups of Parquet `side_by_side`, if all are read: not where memory is confined.
    """

    path: Path
    format: InputFormat
    reading: Reading
    file: str
    charset: str | None = None
    unpacked: Path | None = None
    range: Range | None = None
    side_by_side: bool = False


class Table(NamedTuple):
    """What a reader gives: a table, how many rows the file says it has, and where its points were.

    `points` is what the reader took coordinates out of, None where the file has columns of them;
    `shapes` has taken the lines and polygons among these. `warnings` are warnings about the file,
    complete once all batches have been read.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    declared_rows: int | None = None
    points: Geometry | None = None
    shapes: "ShapeReader | None" = None
    warnings: Sequence[str] = ()


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


def format_of(
    path: Path, media_type: str | None, name: str | None, file: str
) -> tuple[InputFormat, bool]:
    """Recognise the format of a file, and whether it is packed with gzip: then of what it holds."""
    with path.open("rb") as handle:
        head = handle.read(_PACKED_HEAD_BYTES)
    is_packed = head.startswith(_GZIP)
    if is_packed:
        # What is wrong with it shows when all of it is unpacked.
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS + 16).decompress(head, HEAD_BYTES)
        except zlib.error:
            head = b""
        name = name and re.sub(r"\.gz$", "", name, flags=re.IGNORECASE)
    return input_format(media_type, name, head[:HEAD_BYTES], file), is_packed


def input_format(media_type: str | None, name: str | None, head: bytes, file: str) -> InputFormat:
    """Recognise the format of an upload: by `HEAD_BYTES` of it, then media type, then file name.

    General media types such as octet-stream say nothing.
    """
    for format, beginnings in _FIRST_BYTES.items():
        if head.startswith(beginnings):
            return format
    for beginning, what, advice in _OTHERS:
        if re.match(beginning, head, re.DOTALL):
            raise UnsupportedFormat(
                f"{file}: the file is {what}: {advice}", [{"file": file, "detail": what}]
            )
    if re.match(_LAYERS, head, re.DOTALL):
        return "layer"
    essence = (media_type or "").partition(";")[0].strip().lower()
    suffix = (name or "").rpartition(".")[2].lower()
    for told, known in ((essence, _MEDIA_TYPES), (suffix, _SUFFIXES)):
        for format, names in known.items():
            if told in names:
                return format
    if name is None:
        # A body has none.
        raise UnsupportedFormat(
            f"{file}: its media type ({essence[:80] or 'none'}) does not tell the format: send the "
            "header Content-Type: text/csv or application/geo+json; all others need none"
        )
    called = repr(name[:80]) if name else "none"
    # Files of a machine have no media type to speak of.
    typed = f", nor does its media type ({essence[:80]})" if essence else ""
    raise UnsupportedFormat(
        f"{file}: its name ({called}) does not tell the format{typed}: give Parquet, Arrow, "
        "GeoPackage, FlatGeobuf or a zipped shapefile, or name it .csv or .geojson"
    )
