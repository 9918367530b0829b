"""Columns that are computed with: coordinates, distances, and what is summed."""

import math
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from georesolve.io.errors import InvalidInput

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_NO_NUMBER = pa.array(["", "-", "na", "n/a", "nan", "null", "none"])
# In the language of whoever saved it: #N/A, #NV, #WERT!, #REF!, #DIV/0!; LibreOffice has Err:502.
_SPREADSHEET_ERROR = r"^(?i:#[^0-9\s]\S*|err:[0-9]{3})$"


class Values(NamedTuple):
    """A column that is summed: int64 or float64, and whether each row has a value."""

    numbers: np.ndarray
    known: np.ndarray


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


def summed(column: pa.ChunkedArray, name: str) -> Values:
    """A column as it is summed, whole numbers as they are; raises InvalidInput."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    numbers = _as_numbers(column, "summary", name, "what is summed")
    bad = np.isinf(numbers)
    if pa.types.is_uint64(column.type):
        # Sums are made in int64.
        bad |= pc.greater(column, pa.scalar(2**63 - 1, pa.uint64())).fill_null(False).to_numpy()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        # A sum without such as "1,5" would look like one of all.
        bad |= np.isnan(numbers) & cleaned(column, ".").is_valid().to_numpy()
    _refuse("summary", column, name, bad, 0, "a finite number of 64 bits, or nothing")
    if pa.types.is_integer(column.type):
        whole = column.fill_null(0).cast(pa.int64()).to_numpy()
        return Values(whole, column.is_valid().to_numpy())
    return Values(numbers, ~np.isnan(numbers))


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
