"""CSV as spreadsheets and statisticians write it: decimal commas, `NA`, `sep=;`, unnamed columns.

Text is carried as it is, and only an empty field is null. A column of whole numbers becomes one of
integers, if it can be written back the same.
"""

import codecs
import csv
import io
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from georesolve.io.columns import find_columns
from georesolve.io.errors import InvalidInput, wrong
from georesolve.io.formats import (
    BATCH_ROWS,
    CELLS_SHOWN,
    BadCell,
    Source,
    Table,
    bad_cells,
)
from georesolve.io.numbers import cleaned

_SNIFFED_BYTES = 1 << 16
_SEPARATORS = ",;\t|"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What Excel reads, and writes, to say how its fields are separated.
_EXCEL_LINE = re.compile(rf"sep=([{_SEPARATORS}])\s*?(?:\n|$)", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d*(?:[eE][+-]?\d*)?")
_NUMBER = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?))$"
_CHARSET: dict[str, str | None] = {"charset": "windows-1252"}
_WITH_CHARSET = "text/csv; charset=windows-1252"
# No text that was decoded holds it.
_UNDECODED = "\udfff"
_REPLACED = "\N{REPLACEMENT CHARACTER}"

Rows = np.ndarray[Any, np.dtype[np.int64]]


class _Dialect(NamedTuple):
    """How a file is written: its encoding, its separator, and how many lines precede its header."""

    encoding: str
    delimiter: str
    skipped: int

    def read_options(self, *, use_threads: bool = True) -> pa.csv.ReadOptions:
        return pa.csv.ReadOptions(
            encoding=self.encoding, skip_rows=self.skipped, use_threads=use_threads
        )

    def parse_options(self, on_ragged: Any = None) -> pa.csv.ParseOptions:
        # Newlines in quotes: without it pyarrow may cut a quoted value in two, and make rows of it.
        return pa.csv.ParseOptions(
            delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=on_ragged
        )

    def read(self, path: Path, convert: pa.csv.ConvertOptions) -> pa.Table:
        return pa.csv.read_csv(path, self.read_options(), self.parse_options(), convert)


def read_csv(source: Source) -> Table:
    """Read a CSV file, whose coordinates become float64."""
    dialect, head = _dialect_of(source)
    try:
        return _table(source, dialect, head)
    except UnicodeDecodeError:
        raise _undecoded(source, dialect) from None


def lines_before_rows(source: Source) -> int | None:
    """How many lines a CSV file has before its first row; None where bytes do not show lines."""
    dialect, _ = _dialect_of(source)
    return 1 + dialect.skipped if dialect.encoding == "utf-8" else None


def _dialect_of(source: Source) -> tuple[_Dialect, str]:
    """How a file is written, and its first characters."""
    with source.path.open("rb") as handle:
        start = handle.read(_SNIFFED_BYTES)
    encoding = _encoding_of(start, source)
    head = start.decode(encoding, errors="replace").lstrip("\ufeff")
    if excel := _EXCEL_LINE.match(head):
        return _Dialect(encoding, excel[1], 1), head
    try:
        separator = csv.Sniffer().sniff(_first_line(head), _SEPARATORS).delimiter
    except csv.Error:
        separator = ","
    return _Dialect(encoding, separator, 0), head


def _table(source: Source, dialect: _Dialect, head: str) -> Table:
    header = _header_of(source, dialect)
    names = [name.strip() for name in header]
    try:
        columns = find_columns([name for name in names if name], source.reading, source.file)
    except InvalidInput as refused:
        line = _first_line(head, dialect.skipped)[:80]
        after = " after 'sep='" if dialect.skipped else ""
        detail = f"{refused.detail} (the first line{after} is taken as the header: {line!r})"
        raise InvalidInput(detail, refused.errors) from None
    places = [names.index(name) for name in columns[:2]]
    decimal_point = "," if _has_decimal_commas(head, dialect, places) else "."
    numbers = dict.fromkeys((header[place] for place in places), pa.float64())
    convert = _conversion(header, numbers, decimal_point)
    if source.range is not None:
        start, stop, begin, end = source.range
        options = dialect.read_options(use_threads=False)
        if begin:
            options.skip_rows, options.column_names = 0, header
        with pa.OSFile(str(source.path)) as file:
            content = file.get_stream(begin, end - begin)
            table = pa.csv.read_csv(content, options, dialect.parse_options(), convert)
        table = _typed(table, names, places)
        # One of the ends of a range may be within quotes. If no value of any range holds a line
        # end, each of them ends where a row ends, and the next one begins with a row.
        if _has_newlines(header, table):
            raise InvalidInput(f"{source.file}: its values hold line ends: read it in one go")
        return _as_table(table, stop - start)
    try:
        table = dialect.read(source.path, convert)
    except pa.ArrowInvalid:
        table = _read_as_text(source, header, dialect)
        texts = [table.column(place) for place in places]
        trimmed = [cleaned(text, decimal_point) for text in texts]
        are_numbers = (pc.match_substring_regex(one, _NUMBER).fill_null(True) for one in trimmed)
        # The rows whose text is neither a number nor stands for none.
        bad = [np.flatnonzero(~one.to_numpy()) for one in are_numbers]
        rows = np.union1d(*bad)
        if rows.size:
            cells = []
            for row in rows[:CELLS_SHOWN].tolist():
                axis = 0 if row in bad[0] else 1
                detail = _not_numeric(texts[axis][row].as_py(), decimal_point)
                cells.append(BadCell(columns[axis], row, detail))
            raise bad_cells(source, cells, rows.size) from None
        for place, text in zip(places, trimmed, strict=True):
            table = table.set_column(place, header[place], text.cast(pa.float64()))
    table = _typed(table, names, places)
    warnings = _check_quotes(source, dialect) if _has_newlines(header, table) else []
    return _as_table(table, table.num_rows)._replace(warnings=warnings)


def _typed(table: pa.Table, names: list[str], places: list[int]) -> pa.Table:
    """The columns that have a name or a value, as numbers where their text is that of numbers."""
    kept = [i for i, name in enumerate(names) if name or table.column(i).null_count < len(table)]
    return pa.Table.from_arrays(
        [table.column(i) if i in places else _whole_numbers(table.column(i)) for i in kept],
        names=[names[i] for i in kept],
    )


def _as_table(table: pa.Table, declared_rows: int) -> Table:
    return Table(table.schema, iter(table.to_batches(BATCH_ROWS)), declared_rows)


def _encoding_of(start: bytes, source: Source) -> str:
    """The encoding that was declared, or that the first bytes prove.

    It is not guessed: a wrong guess would change the names of things without a word.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding
    if source.charset is None:
        return "utf-8"
    try:
        # Some codecs are no encodings of text: zlib, base64.
        "".encode(source.charset)
        return codecs.lookup(source.charset).name
    except (LookupError, ValueError):
        raise InvalidInput(
            f"{source.file}: there is no charset {source.charset[:80]!r}: declare the encoding of "
            f"its text, as in '{_WITH_CHARSET}', or send UTF-8"
        ).mended_by(source.file, {"charset": None}, _CHARSET) from None


def _first_line(head: str, skipped: int = 0) -> str:
    """The first line that says something, as pyarrow sees it, behind those that are skipped."""
    return next(filter(str.strip, head.splitlines()[skipped:]), "")


def _header_of(source: Source, dialect: _Dialect) -> list[str]:
    # Only for the names of the columns; rows that are wrong are found when all are read.
    skip_ragged = dialect.parse_options(lambda row: "skip")
    try:
        with pa.csv.open_csv(source.path, dialect.read_options(), skip_ragged) as reader:
            names: list[str] = reader.schema.names
    except pa.ArrowInvalid as error:
        if "cannot infer number of columns" in str(error):
            raise InvalidInput(
                f"{source.file}: its first line is no header: write the names of the columns "
                "there, close every quote, and use fewer bytes than a megabyte for it"
            ) from None
        raise
    return names


def _has_decimal_commas(head: str, dialect: _Dialect, places: list[int]) -> bool:
    """Whether all coordinates at the head of a file that have a fraction have it after a comma."""
    rows = csv.reader(io.StringIO(head, newline=""), delimiter=dialect.delimiter)
    try:
        texts = [
            row[place].strip()
            for row in list(rows)[dialect.skipped + 1 :]
            for place in places
            if place < len(row)
        ]
    except csv.Error:
        return False
    with_commas = [text for text in texts if "," in text]
    are_plain = all(_DECIMAL_COMMA.fullmatch(text) for text in with_commas)
    return bool(with_commas) and are_plain and not any("." in text for text in texts)


def _conversion(
    header: list[str], types: dict[str, pa.DataType], decimal_point: str = "."
) -> pa.csv.ConvertOptions:
    return pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()) | types,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
        decimal_point=decimal_point,
    )


def _read_as_text(source: Source, header: list[str], dialect: _Dialect) -> pa.Table:
    """All columns as text, or the problem of what is not even that."""
    convert = _conversion(header, {})
    try:
        return dialect.read(source.path, convert)
    except pa.ArrowInvalid:
        ragged: list[BadCell] = []
        refused = 0

        def refuse(row: Any) -> str:
            nonlocal refused
            refused += 1
            if len(ragged) < CELLS_SHOWN:
                ragged.append(_ragged(row, dialect))
            return "skip"

        # With one thread the errors of pyarrow tell the row.
        options = dialect.read_options(use_threads=False)
        try:
            pa.csv.read_csv(source.path, options, dialect.parse_options(refuse), convert)
        except pa.ArrowInvalid as error:
            if "invalid UTF8" in str(error):
                raise _undecoded(source, dialect) from None
            if not ragged:
                raise
        raise bad_cells(source, ragged, refused) from None


def _ragged(row: Any, dialect: _Dialect) -> BadCell:
    detail = f"{row.actual_columns} fields where the header has {row.expected_columns}"
    if dialect.delimiter == "," and row.actual_columns > row.expected_columns:
        detail += ": a comma that separates no fields, a decimal one for one, needs quotes"
    return BadCell(None, row.number - 2 - dialect.skipped, detail)


def _not_numeric(value: str, decimal_point: str) -> str:
    detail = f"the value {value[:80]!r} is not a number"
    if decimal_point == ",":
        return f"{detail}, as the numbers at the head of the file are written, with a decimal comma"
    if _DECIMAL_COMMA.fullmatch(value.strip()):
        return f"{detail}; a decimal comma is understood where all coordinates are written with one"
    return detail


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return _UNDECODED, error.end


def _undecoded(source: Source, dialect: _Dialect) -> InvalidInput:
    """The problem of text that is not in its encoding, with its first places.

    pyarrow tells the column at most; Python's reader is slow, so it looks only then.
    """
    codecs.register_error("undecoded", _mark)
    csv.field_size_limit(sys.maxsize)
    taken_for = source.charset or dialect.encoding
    is_not = f"is not {taken_for.upper()}"
    advice = (
        f"declare its charset, as in '{_WITH_CHARSET}', if you send it over HTTP, or convert the "
        "file first: iconv -f windows-1252 -t utf-8"
    )
    cells: list[BadCell] = []
    refused = 0
    header: list[str] | None = None
    with source.path.open(encoding=dialect.encoding, errors="undecoded", newline="") as handle:
        lines = filter(None, csv.reader(handle, delimiter=dialect.delimiter))
        for row, values in enumerate(lines, -1 - dialect.skipped):
            if row == -1:
                header = [value.replace(_UNDECODED, _REPLACED).strip() for value in values]
            place = next((i for i, value in enumerate(values) if _UNDECODED in value), None)
            if place is None:
                continue
            refused += 1
            if len(cells) < CELLS_SHOWN:
                value = values[place].replace(_UNDECODED, _REPLACED)[:80]
                name = header[place] if header and place < len(header) else None
                what = f"the name {value!r}" if row < 0 else f"the value {value!r}"
                cells.append(BadCell(name, row if row >= 0 else None, f"{what} {is_not}"))
    if not cells:
        refusal = InvalidInput(f"{source.file}: its text {is_not}: {advice}")
    else:
        problem = bad_cells(source, cells, refused)
        refusal = InvalidInput(f"{problem.detail}: {advice}", problem.errors)
    return refusal.mended_by(source.file, {"charset": None}, _CHARSET)


def _has_newlines(header: list[str], table: pa.Table) -> bool:
    """Whether a text holds a line end; columns that became numbers need not be looked through."""
    texts = [*table.columns, pa.chunked_array([header], pa.string())]
    return any(
        pc.any(pc.match_substring_regex(text, "[\r\n]")).as_py()
        for text in texts
        if pa.types.is_string(text.type)
    )


def _check_quotes(source: Source, dialect: _Dialect) -> list[str]:
    """Refuse a quote that is not closed, or closed within a value: it swallows rows unseen.

    Returns a warning about values that look as if rows had been swallowed. pyarrow lets all of
    them pass; Python's reader is slow, so it looks only where values have newlines.
    """
    csv.field_size_limit(sys.maxsize)
    with source.path.open(encoding=dialect.encoding, newline="") as handle:
        rows = csv.reader(handle, delimiter=dialect.delimiter, strict=True)
        started, lines = 1, []
        try:
            for values in rows:
                if any(_may_be_rows(value, dialect.delimiter, len(values)) for value in values):
                    lines.append(started)
                started = rows.line_num + 1
        except csv.Error as error:
            told = (
                f"the row that starts in line {started} has a quote that is not closed, or not at "
                f"the end of its value ({error}): close it, and double those that belong to the "
                "text"
            )
            raise wrong(source.file, str(error), told, line=started) from None
    if not lines:
        return []
    shown = ", ".join(map(str, lines[:CELLS_SHOWN]))
    return [
        f"{source.file}: {len(lines)} rows have a quoted value with line breaks and as many "
        f"separators as a row: the file may have more rows than were read. They start in line "
        f"{shown}. If quotes are part of the text there, double them and put the value into quotes"
    ]


def _may_be_rows(value: str, delimiter: str, fields: int) -> bool:
    """Whether a value has the separators and the line break of a row of `fields` fields."""
    separators = value.count(delimiter)
    return separators >= max(1, fields - 1) and ("\n" in value or "\r" in value)


def _whole_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as int64 where that loses nothing: no leading zero, no sign, no digit too many."""
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column
    # What the cast takes and would write otherwise: 007, -0, 0x10.
    begins_with_zero = pc.and_(pc.starts_with(column, "0"), pc.greater(pc.binary_length(column), 1))
    is_other = pc.or_(begins_with_zero, pc.starts_with(column, "-0"))
    return column if pc.any(is_other).as_py() else numbers
