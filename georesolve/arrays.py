"""Columns of arrays and frames as Arrow, for this process and for a service."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

OTHERS = (
    "a dict of columns such as {'lat': ..., 'lon': ...}: records make a frame with "
    "pandas.DataFrame(records), an array of shape (n, 2) is {'lat': a[:, 0], 'lon': a[:, 1]}"
)
"""What is said to users of a table that is none."""
_NO_COLUMN = (pa.ArrowException, OverflowError, TypeError, ValueError)


class NoColumn(ValueError):
    """Values that Arrow has no column for; `column`, `row` and `detail` say which."""

    def __init__(self, column: str, row: int, value: Any) -> None:
        self.column, self.row = column, row
        self.detail = f"holds {value!r:.80} ({type(value).__name__})"
        super().__init__(
            f"the column {column!r} cannot be read: row {row} {self.detail}, which fits no column "
            "with the rows before it: give all rows one type, such as text, or numbers of up to "
            "64 bits"
        )


def as_table(columns: Mapping[str, Any], table: str) -> pa.Table:
    """Arrays and lists by name; what is masked is missing.

    Raises
    ------
    NoColumn
    ValueError
        When they are not of one length.
    """
    arrays = {str(name): _as_array(values) for name, values in columns.items()}
    shapes = [array.shape for array in arrays.values()]
    if any(len(shape) != 1 or shape != shapes[0] for shape in shapes):
        raise ValueError(
            f"{table}: {' and '.join(arrays)} must have one shape (n,), got "
            f"{' and '.join(map(str, shapes))}"
        )
    return pa.table({name: as_column(array, name) for name, array in arrays.items()})


def _as_array(values: Any) -> np.ndarray:
    # An array of CuPy is copied by no other call.
    values = values.get() if type(values).__module__.startswith("cupy") else values
    array = np.asanyarray(values)
    # numpy makes a text of each of several objects, if one is.
    is_made = array.dtype.kind == "U" and isinstance(values, list | tuple)
    return np.array(values, object) if is_made else array


def as_column(values: Any, name: str) -> pa.Array:
    """An array, or a column of pandas, as Arrow: what is masked is missing; raises NoColumn."""
    try:
        if not isinstance(values.dtype, np.dtype):
            return pa.Array.from_pandas(values)
        array = values if isinstance(values, np.ndarray) else values.to_numpy()
        numbers = array.astype(array.dtype.newbyteorder("="), copy=False)
        mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
        # NaN stays one in numbers: coordinates need no mask.
        is_number = array.dtype.kind in "fiu"
        return pa.array(np.ma.getdata(numbers), mask=mask, from_pandas=not is_number)
    except _NO_COLUMN:
        # The first row with which those up to it are no column.
        row = bisect_left(range(len(values) - 1), True, key=lambda i: not _fit(values[: i + 1]))
        raise NoColumn(name, row, next(iter(np.asarray(values)[row:]), None)) from None


def _fit(values: Any) -> bool:
    try:
        pa.array(np.asarray(values), from_pandas=True)
    except _NO_COLUMN:
        return False
    return True
