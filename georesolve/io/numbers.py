"""Columns that are computed with: coordinates, distances, and what is summed."""

import math
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from georesolve.io.errors import InvalidInput

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_WHOLE_NUMBER = r"^[+-]?[0-9]+$"
_MAX_DIGITS = 76
_SUMMABLE = "a finite number of 64 bits, or nothing"
_NO_NUMBER = pa.array(["", "-", "na", "n/a", "nan", "null", "none"])
# In the language of whoever saved it: #N/A, #NV, #WERT!, #REF!, #DIV/0!; LibreOffice has Err:502.
_SPREADSHEET_ERROR = r"^(?i:#[^0-9\s]\S*|err:[0-9]{3})$"


class Values(NamedTuple):
    """Column of a summary; both arrays are null where a row has no value.

    `values` are the candidates of a minimum or maximum. `addends` are the same numbers, exact, as
    int64, uint64, float64, decimal128 or decimal256, each decimal of the greatest precision.
    """

    values: pa.Array
    addends: pa.Array

    @property
    def sum_type(self) -> pa.DataType:
        """Type of a sum: the type of the addends, but float64 for text with fractions."""
        is_float = pa.types.is_floating(self.values.type)
        return pa.float64() if is_float else self.addends.type


def degrees(array: pa.Array) -> np.ndarray:
    """Coordinates as an array of numpy, NaN where they are null."""
    # `fill_null` copies also where there is nothing to fill.
    filled = array.fill_null(math.nan) if array.null_count else array
    numbers: np.ndarray = filled.to_numpy()
    return numbers


def _as_numbers(column: pa.ChunkedArray, file: str, name: str, what: str) -> np.ndarray:
    """Numbers, or texts of numbers as CSV has them, as float64: NaN where there is none."""
    type = column.type
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        texts = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, None)
    else:
        check_numeric(pa.field(name, type), file, what)
    return degrees(pc.cast(column, pa.float64(), safe=False).combine_chunks())


def check_numeric(field: pa.Field, file: str, what: str = "degrees") -> None:
    """Refuse a column, of coordinates or of something else, that holds no numbers."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise InvalidInput(
            f"{file}: the column {field.name!r} holds {kind}, not numbers: give {what} as numbers",
            [{"file": file, "column": field.name, "row": 0, "detail": f"holds {kind}"}],
        )


def cleaned(column: pa.ChunkedArray, decimal_point: str) -> pa.ChunkedArray:
    """Text to be cast to numbers, and null for what people and spreadsheets write for none."""
    trimmed = pc.utf8_trim_whitespace(column)
    is_none = pc.or_(
        pc.is_in(pc.utf8_lower(trimmed), value_set=_NO_NUMBER),
        pc.match_substring_regex(trimmed, _SPREADSHEET_ERROR),
    )
    text = pc.if_else(is_none, pa.scalar(None, pa.string()), trimmed)
    if decimal_point == ",":
        # A point as well: nobody knows what it means, so it must not make a number.
        text = pc.replace_substring(pc.replace_substring(text, ".", "?"), ",", ".")
    return text


def distances(column: pa.ChunkedArray, name: str, first_row: int = 0) -> np.ndarray:
    """The distances that a column of the observations has from a row on; raises InvalidInput."""
    metres = _as_numbers(column, "observations", name, "metres")
    bad = ~((metres >= 0) & (metres < np.inf))
    _refuse("observations", column, name, bad, first_row, "0 or more metres")
    return metres


def summary_values(column: pa.ChunkedArray, name: str) -> Values:
    """Return a column as summaries need it; raises InvalidInput."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text_values(column, name)
    check_numeric(pa.field(name, kind), "summary", "what is summed")
    values = column.combine_chunks()
    if pa.types.is_floating(kind):
        addends = values.cast(pa.float64())
        values = pc.if_else(pc.is_nan(addends), None, values)
        addends = pc.if_else(pc.is_nan(addends), None, addends)
        _refuse("summary", column, name, np.isinf(degrees(addends)), 0, _SUMMABLE)
    elif pa.types.is_decimal(kind):
        addends = values.cast(_widest(kind.precision, kind.scale))
    else:
        addends = values if pa.types.is_uint64(kind) else values.cast(pa.int64())
    return Values(values, addends)


def _text_values(column: pa.ChunkedArray, name: str) -> Values:
    """Numbers in text: int64 where all are whole and fit, else float64 with exact addends."""
    numbers = _as_numbers(column, "summary", name, "what is summed")
    # A sum without such as "1,5" would look like one of all.
    is_word = np.isnan(numbers) & cleaned(column, ".").is_valid().to_numpy()
    _refuse("summary", column, name, np.isinf(numbers) | is_word, 0, _SUMMABLE)
    floats = pa.array(numbers, mask=np.isnan(numbers))
    trimmed = pc.utf8_trim_whitespace(column).combine_chunks()
    texts = pc.if_else(floats.is_valid(), trimmed, None)
    if (decimals := _decimals(texts)) is None:
        return Values(floats, floats)
    if pc.all(pc.match_substring_regex(texts, _WHOLE_NUMBER), min_count=0).as_py():
        try:
            integers = decimals.cast(pa.int64())
        except pa.ArrowInvalid:
            return Values(floats, decimals)
        return Values(integers, integers)
    return Values(floats, decimals)


def _decimals(texts: pa.Array) -> pa.Array | None:
    """Numbers in text as decimals; None where one has an exponent or needs more than 76 digits."""
    if pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        return None
    lengths, points = pc.utf8_length(texts), pc.find_substring(texts, ".")
    has_point = pc.greater_equal(points, 0)
    scales = pc.if_else(has_point, pc.subtract(pc.subtract(lengths, points), 1), 0)
    scale = pc.max(scales).as_py() or 0
    digits = scale + (pc.max(pc.if_else(has_point, points, lengths)).as_py() or 0)
    return None if digits > _MAX_DIGITS else texts.cast(_widest(digits, scale))


def _widest(digits: int, scale: int) -> pa.DataType:
    """Return the decimal type of the greatest precision in 128 bits, or 256 if it needs them."""
    return pa.decimal128(38, scale) if digits <= 38 else pa.decimal256(_MAX_DIGITS, scale)


def _refuse(
    file: str, column: pa.ChunkedArray, name: str, bad: np.ndarray, first_row: int, allowed: str
) -> None:
    if bad.any():
        place = int(bad.argmax())
        row, detail = first_row + place, f"holds {column[place].as_py()!r:.80}"
        raise InvalidInput(
            f"{file}: the column {name!r} {detail} in row {row}, where it must hold {allowed}",
            [{"file": file, "column": name, "row": row, "detail": detail}],
        )
