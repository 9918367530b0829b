"""One reader a format: a file becomes a schema and batches, or a problem that says where it is bad.

They run in the child process of `service.datasets.decoding`; they do not check coordinates, and
they count rows only where a file declares them.
"""

import codecs
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from service.datasets.columns import Reading, find_columns
from service.datasets.formats import InputFormat
from service.errors import InvalidInput, Problem, TooLarge
from workers.datasets import streamed

BATCH_ROWS = 65_536
_SNIFFED_BYTES = 1 << 16
_SEPARATORS = ",;\t|"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_PACKERS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"PK\x03\x04": "zip",
}
_MAGIC_BYTES = max(map(len, _PACKERS))
_NOT_UTF_8 = "text that is not UTF-8: declare its charset, as in 'text/csv; charset=windows-1252'"


class Source(NamedTuple):
    """A file to decode.

    Attributes
    ----------
    path, format
        Where it lies, and how to read it.
    reading
        How the user wants it to be read.
    file
        What to call it in errors.
    charset
        The encoding of its text, where the client declared one.
    """

    path: Path
    format: InputFormat
    reading: Reading
    file: str
    charset: str | None = None


class Table(NamedTuple):
    """What a reader gives.

    Attributes
    ----------
    schema, batches
        The table.
    declared_rows
        How many rows the file says it has, None where it does not say.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    declared_rows: int | None = None


def read(source: Source, most_columns: int) -> Table:
    """Open a file with the reader of its format.

    Raises
    ------
    Problem
        When it cannot be read; for one when it is compressed as a whole.
    """
    with source.path.open("rb") as handle:
        head = handle.read(_MAGIC_BYTES)
    for magic, packer in _PACKERS.items():
        if head.startswith(magic):
            raise InvalidInput(
                f"{source.file}: the file is compressed with {packer}: send it unpacked"
            )
    if source.format == "geojson":
        return _read_geojson(source, most_columns)
    return _READERS[source.format](source)


def _read_parquet(source: Source) -> Table:
    file = streamed(source.path)
    batches = _validated(file.iter_batches(BATCH_ROWS))
    return Table(file.schema_arrow, batches, file.metadata.num_rows)


def _read_arrow(source: Source) -> Table:
    with source.path.open("rb") as handle:
        is_file = handle.read(6) == b"ARROW1"
    handle = pa.OSFile(str(source.path))
    if is_file:
        reader = pa.ipc.open_file(handle)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        reader = pa.ipc.open_stream(handle)
        batches = iter(reader)
    return Table(reader.schema, _validated(batches))


def _validated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Memory laid out by a stranger, and text of bytes: nothing may be followed unchecked.
    for batch in batches:
        batch.validate(full=True)
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def _read_csv(source: Source) -> Table:
    with source.path.open("rb") as handle:
        head = handle.read(_SNIFFED_BYTES)
    encoding = _encoding_of(head, source)
    # Newlines in quotes: without it pyarrow may cut a quoted value in two, and make rows of it.
    delimiter = _separator_of(head.decode(encoding, errors="replace"))
    parse = {"delimiter": delimiter, "newlines_in_values": True}
    # Only for the names of the columns; rows that are wrong are found when all are read.
    skip_ragged = pa.csv.ParseOptions(**parse, invalid_row_handler=lambda row: "skip")
    read_options = pa.csv.ReadOptions(encoding=encoding)
    try:
        with pa.csv.open_csv(source.path, read_options, skip_ragged) as reader:
            header = reader.schema.names
    except pa.ArrowInvalid as error:
        if "cannot infer number of columns" in str(error):
            raise InvalidInput(
                f"{source.file}: its first line is no header: write the names of the columns "
                "there, close every quote, and use fewer bytes than a megabyte for it"
            ) from None
        raise
    columns = find_columns(header, source.reading, source.file)
    # Text is carried as it is; only an empty field is null. What is a whole number in every row
    # becomes one afterwards, if it can be written back the same.
    types = dict.fromkeys(header, pa.string())
    types |= {columns.lat: pa.float64(), columns.lon: pa.float64()}
    convert = pa.csv.ConvertOptions(
        column_types=types,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    try:
        table = pa.csv.read_csv(source.path, read_options, pa.csv.ParseOptions(**parse), convert)
    except pa.ArrowInvalid:
        # With one thread the errors of pyarrow tell the row.
        read_options.use_threads = False
        table = _read_csv_slowly(source, header, read_options, parse, convert)
    if _has_newlines(header, table):
        _check_quotes(source, encoding, delimiter)
    table = pa.table(
        {
            name: column if name in columns[:2] else _whole_numbers(column)
            for name, column in zip(header, table.columns, strict=True)
        }
    )
    return Table(table.schema, iter(table.to_batches(BATCH_ROWS)), table.num_rows)


def _has_newlines(header: list[str], table: pa.Table) -> bool:
    texts = [*table.columns, pa.chunked_array([header], pa.string())]
    return any(
        pc.any(pc.match_substring_regex(text, "[\r\n]")).as_py()
        for text in texts
        if pa.types.is_string(text.type)
    )


def _check_quotes(source: Source, encoding: str, delimiter: str) -> None:
    """Refuse a quote that is not closed, or closed within a value: it swallows rows unseen.

    pyarrow lets both pass; Python's reader is slow, so it looks only where values have newlines.
    """
    csv.field_size_limit(sys.maxsize)
    with source.path.open(encoding=encoding, newline="") as handle:
        rows = csv.reader(handle, delimiter=delimiter, strict=True)
        started = 1
        try:
            for _ in rows:
                started = rows.line_num + 1
        except csv.Error as error:
            raise InvalidInput(
                f"{source.file}: the row that starts in line {started} has a quote that is not "
                f"closed, or not at the end of its value ({error}): close it, and double those "
                "that belong to the text",
                [{"file": source.file, "line": started, "detail": str(error)}],
            ) from None


def _whole_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as int64 where that loses nothing: no leading zero, no sign, no digit too many."""
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column
    return numbers if numbers.cast(pa.string()).equals(column) else column


def _encoding_of(head: bytes, source: Source) -> str:
    """The encoding that was declared, or that the first bytes prove.

    It is not guessed: a wrong guess would change the names of things without a word.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    if source.charset is None:
        return "utf-8"
    try:
        return codecs.lookup(source.charset).name
    except LookupError:
        raise InvalidInput(f"{source.file}: there is no charset {source.charset!r}") from None


def _separator_of(head: str) -> str:
    try:
        return csv.Sniffer().sniff(head.splitlines()[0], _SEPARATORS).delimiter
    except (csv.Error, IndexError):
        return ","


def _read_csv_slowly(
    source: Source,
    header: list[str],
    read_options: pa.csv.ReadOptions,
    parse: dict[str, Any],
    convert: pa.csv.ConvertOptions,
) -> pa.Table:
    ragged: list[Any] = []

    def refuse(row: Any) -> str:
        ragged.append(row)
        return "error"

    parse_options = pa.csv.ParseOptions(**parse, invalid_row_handler=refuse)
    try:
        return pa.csv.read_csv(source.path, read_options, parse_options, convert)
    except pa.ArrowInvalid as error:
        if ragged:
            row = ragged[0]
            detail = f"{row.actual_columns} fields where the header has {row.expected_columns}"
            raise _bad_cell(source, None, row.number - 2, detail) from None
        place = re.search(r"column #(\d+): (?:Row #\d+: )?.*invalid UTF8", str(error))
        if place is not None:
            raise _bad_cell(source, header[int(place[1])], None, _NOT_UTF_8) from None
        place = re.search(r"column #(\d+): Row #(\d+): .*(invalid value '.*')", str(error))
        if place is None:
            raise
        column, row_number, value = header[int(place[1])], int(place[2]) - 2, place[3]
        raise _bad_cell(source, column, row_number, f"{value}: not a number") from None


def _bad_cell(source: Source, column: str | None, row: int | None, detail: str) -> Problem:
    place = {"column": column, "row": row}
    known = {name: value for name, value in place.items() if value is not None}
    where = ", ".join(f"{name} {value!r}" for name, value in known.items())
    return InvalidInput(
        f"{source.file}: {where}: {detail} (rows are counted from 0, without the header)",
        [{"file": source.file, **known, "detail": detail}],
    )


def _read_geojson(source: Source, most_columns: int) -> Table:
    document = json.loads(source.path.read_bytes())
    features = document.get("features") if isinstance(document, dict) else None
    if not isinstance(features, list) or document.get("type") != "FeatureCollection":
        raise InvalidInput(f"{source.file}: not a GeoJSON FeatureCollection")
    if "crs" in document and "CRS84" not in json.dumps(document["crs"]):
        raise InvalidInput(
            f"{source.file}: its member 'crs' is not CRS84: GeoJSON is longitude and latitude on "
            "WGS 84 (RFC 7946)"
        )
    rows = [_row_of(feature, row, source) for row, feature in enumerate(features)]
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["lon", "lat"]
    if len(names) > most_columns:
        # Here, before all of them have a value for every row.
        raise TooLarge(
            f"{source.file}: {len(names)} columns are more than the limit of {most_columns}"
        )
    table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    types = {f.name: pa.string() for f in table.schema if pa.types.is_null(f.type)}
    types |= {name: pa.float64() for name in ("lon", "lat")}
    schema = pa.schema([(f.name, types.get(f.name, f.type)) for f in table.schema])
    return Table(schema, iter(table.cast(schema).to_batches(BATCH_ROWS)), len(rows))


def _row_of(feature: Any, row: int, source: Source) -> dict[str, Any]:
    """A feature as a row: the coordinates of its point, its id, its properties."""
    if not isinstance(feature, dict) or not isinstance(feature.get("properties") or {}, dict):
        raise _bad_cell(source, None, row, "not a GeoJSON feature")
    geometry = feature.get("geometry")
    lon = lat = None
    if geometry is not None:
        point = geometry.get("coordinates") if isinstance(geometry, dict) else None
        if not isinstance(point, list) or geometry.get("type") != "Point" or len(point) < 2:
            raise _bad_cell(source, "geometry", row, "not a point")
        lon, lat = point[:2]
        for value in point:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _bad_cell(source, "geometry", row, f"{value!r} is not a number")
        lon, lat = float(lon), float(lat)
    id = {"id": feature["id"]} if "id" in feature else {}
    return {"lon": lon, "lat": lat, **id} | {
        name: value
        for name, value in (feature.get("properties") or {}).items()
        if name not in ("lon", "lat")
    }


_READERS: dict[InputFormat, Callable[[Source], Table]] = {
    "parquet": _read_parquet,
    "arrow": _read_arrow,
    "csv": _read_csv,
}
