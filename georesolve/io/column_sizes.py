"""How many bytes of memory it takes to carry values; files tell only what is encoded.

A few bytes of Parquet may be a text of megabytes in each of many rows, or a list of as many zeros.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_OFFSET_BYTES = 4
# Beside the values themselves, by the peak of processes that carry them: `tests/workers/peaks.py`.
_ITEM_BYTES = 24
"""Of an item of a list: Arrow takes it by an index, Parquet writes it with two levels, and all
three grow by doubling."""
_MEMBER_BYTES = 8
"""Of a member of a struct at least: a bit of it is decoded as a number with a level."""
_RECORD_BYTES = 16
"""Of a struct beside its members: as an object of Python it takes many times what they do."""
_TEXTS = {pa.string(), pa.binary(), pa.large_string(), pa.large_binary()}
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class Width(NamedTuple):
    """Bytes that columns of a dataset take in memory."""

    total: int = 0
    """In all rows."""
    group: int = 0
    """In the row group of the dataset that takes most."""
    row: int = 0
    """In the row that takes most."""

    def beside(self, other: "Width") -> "Width":
        """Both columns together: at most, as their widest rows need not be the same."""
        return Width(*map(sum, zip(self, other, strict=True)))

    def followed(self, other: "Width") -> "Width":
        """The same column with other row groups behind its own."""
        group, row = max(self.group, other.group), max(self.row, other.row)
        return Width(self.total + other.total, group, row)


class Carried(NamedTuple):
    """Widths of the columns that a result carries, of each set together."""

    observations: Width = Width()
    references: Width = Width()


NOTHING = Carried()


def value_bytes(array: pa.Array) -> "int | np.ndarray":
    """Bytes of memory that it takes to carry each value: one number where all take the same.

    The values alone decide, not how they are cut or encoded: a dictionary counts as what it stands
    for, a null of variable length as an empty value.
    """
    type = array.type
    if pa.types.is_primitive(type):
        # Most are, and to ask for all others takes longer than to count one of these.
        width: int = max(1, type.bit_width // 8)
        return width
    if isinstance(type, pa.BaseExtensionType):
        return value_bytes(array.storage)
    if pa.types.is_dictionary(type):
        return _taken(value_bytes(array.dictionary), array.indices)
    if type in _VIEWS:
        return value_bytes(array.cast(_VIEWS[type]))
    if pa.types.is_struct(type):
        total: int | np.ndarray = _RECORD_BYTES
        for member in map(value_bytes, array.flatten()):
            is_same = isinstance(member, int)
            total += max(member, _MEMBER_BYTES) if is_same else np.maximum(member, _MEMBER_BYTES)
        return total
    if pa.types.is_nested(type):
        return _list_bytes(array)
    if type in _TEXTS:
        return _host(pc.binary_length(array)) + _OFFSET_BYTES
    # What takes no memory itself is spelled out in JSON.
    return 1 if pa.types.is_null(type) else max(1, type.bit_width // 8)


def _taken(each: "int | np.ndarray", indices: pa.Array) -> "int | np.ndarray":
    if isinstance(each, int):
        return each
    if not each.size:
        return np.zeros(len(indices), np.int64)
    taken = each[_host(indices)]
    return np.where(indices.is_valid(), taken, 0) if indices.null_count else taken


def _list_bytes(array: pa.Array) -> np.ndarray:
    if pa.types.is_map(array.type):
        array = array.cast(pa.list_(array.type.field(0)))
    # Of those that are null neither has anything.
    lengths, values = _host(pc.list_value_length(array)), value_bytes(array.flatten())
    values = values + _ITEM_BYTES
    if isinstance(values, int):
        return lengths * values + _OFFSET_BYTES
    before = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(lengths)
    bytes: np.ndarray = before[ends] - before[ends - lengths] + _OFFSET_BYTES
    return bytes


def _host(numbers: pa.Array) -> np.ndarray:
    counted = numbers.fill_null(0) if numbers.null_count else numbers
    host: np.ndarray = counted.to_numpy(zero_copy_only=False).astype(np.int64)
    return host
