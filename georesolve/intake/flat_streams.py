"""Arrow streams of plain columns, read without a decoder that a stranger's bytes could take over.

pyarrow reads such a stream in C++, so it does that in a sandbox, which takes longer than a small
search. Here the metadata (flatbuffers, as `format/Message.fbs` of Arrow has them) are read by
Python, and columns are what numpy finds between two checked ends of the body: numbers, and texts
whose offsets are checked. Whatever is not that plain (nested columns, dictionaries, compression) or
not right is left to the reader of all streams, which also tells what is wrong.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _RECORD_BATCH = 1, 3
_INT, _FLOAT, _UTF8, _LARGE_UTF8 = 2, 3, 5, 20
_FLOATS = {1: "<f4", 2: "<f8"}
_OFFSETS = {_UTF8: "<i4", _LARGE_UTF8: "<i8"}
_TEXTS = {_UTF8: pa.StringArray, _LARGE_UTF8: pa.LargeStringArray}
_MOST_COLUMNS = 64
_PAIR = "<qq"


class _NotPlain(Exception):
    """The stream is not one of plain columns, or not right."""


class _Column(NamedTuple):
    """A column: what its type is called, and the numpy type of its numbers or of its offsets."""

    name: str
    kind: int
    dtype: np.dtype


def flat_table(content: bytes | bytearray) -> pa.Table | None:
    """The rows of an Arrow stream; None where only the reader of all streams can tell."""
    try:
        return _table(memoryview(content).toreadonly())
    except (_NotPlain, struct.error, ValueError, pa.ArrowInvalid):
        return None


def _table(content: memoryview) -> pa.Table:
    columns: list[_Column] = []
    batches = []
    for kind, header, body in _messages(content):
        if (kind == _SCHEMA) == bool(columns):
            raise _NotPlain
        if kind == _SCHEMA:
            columns = list(_columns(header))
        elif kind == _RECORD_BATCH:
            batches.append(_batch(columns, header, body))
        else:
            raise _NotPlain
    if not batches or len({one.name for one in columns}) < len(columns):
        raise _NotPlain
    return pa.Table.from_batches(batches)


class _Flat(NamedTuple):
    """A table of flatbuffers: its bytes, and where it begins in them.

    Reads beyond the bytes raise struct.error, and those before them find other bytes of the same.
    """

    bytes: memoryview
    at: int

    def place(self, slot: int) -> int | None:
        """Where a field is; None where it has its default."""
        vtable = self.at - _unpack("<i", self.bytes, self.at)
        if 4 + 2 * slot >= _unpack("<H", self.bytes, vtable):
            return None
        offset = _unpack("<H", self.bytes, vtable + 4 + 2 * slot)
        return self.at + offset if offset else None

    def number(self, slot: int, format: str) -> int:
        """A number; all that are read here are 0 by default."""
        place = self.place(slot)
        return 0 if place is None else _unpack(format, self.bytes, place)

    def child(self, slot: int) -> "_Flat":
        """A table that a field leads to."""
        return _Flat(self.bytes, self._there(slot))

    def vector(self, slot: int) -> tuple[int, int]:
        """How many elements a vector has, and where they begin."""
        if self.place(slot) is None:
            return 0, 0
        start = self._there(slot)
        return _unpack("<I", self.bytes, start), start + 4

    def children(self, slot: int) -> "Iterator[_Flat]":
        """The tables of a vector."""
        count, start = self.vector(slot)
        for place in range(start, start + 4 * count, 4):
            yield _Flat(self.bytes, place + _unpack("<I", self.bytes, place))

    def text(self, slot: int) -> str:
        """A text; empty where there is none."""
        length, start = self.vector(slot)
        return bytes(self.bytes[start : start + length]).decode()

    def _there(self, slot: int) -> int:
        place = self.place(slot)
        if place is None:
            raise _NotPlain
        return place + _unpack("<I", self.bytes, place)


def _unpack(format: str, content: memoryview, at: int) -> int:
    return int(struct.unpack_from(format, content, at)[0])


def _messages(content: memoryview) -> Iterator[tuple[int, _Flat, memoryview]]:
    """The kind, the header and the body of each message."""
    at = 0
    while at + 8 <= len(content):
        size = _unpack("<I", content, at + 4)
        if content[at : at + 4] != _CONTINUES:
            raise _NotPlain
        if not size:
            return
        head = content[at + 8 : at + 8 + size]
        message = _Flat(head, _unpack("<I", head, 0))
        at += 8 + size
        length = message.number(3, "<q")
        if not 0 <= length <= len(content) - at:
            raise _NotPlain
        yield message.number(1, "<B"), message.child(2), content[at : at + length]
        at += length


def _columns(schema: _Flat) -> Iterator[_Column]:
    if any(one.text(0) != "pandas" for one in schema.children(2)):
        raise _NotPlain
    if schema.number(0, "<h") or not 0 < schema.vector(1)[0] <= _MOST_COLUMNS:
        raise _NotPlain
    for field in schema.children(1):
        # A dictionary, columns within, or what says that the column is more than it looks.
        if field.place(4) is not None or field.vector(5)[0] or field.vector(6)[0]:
            raise _NotPlain
        kind = field.number(2, "<B")
        yield _Column(field.text(0), kind, _dtype(kind, field.child(3)))


def _dtype(kind: int, type: _Flat) -> np.dtype:
    if kind == _INT:
        bits, sign = type.number(0, "<i"), "i" if type.number(1, "<B") else "u"
        if bits in (8, 16, 32, 64):
            return np.dtype(f"<{sign}{bits // 8}")
    if kind == _FLOAT and (precision := type.number(0, "<h")) in _FLOATS:
        return np.dtype(_FLOATS[precision])
    if kind in _OFFSETS:
        return np.dtype(_OFFSETS[kind])
    raise _NotPlain


def _batch(columns: list[_Column], header: _Flat, body: memoryview) -> pa.RecordBatch:
    rows = header.number(0, "<q")
    (n_nodes, node), (n_buffers, buffer) = header.vector(1), header.vector(2)
    expected = sum(3 if one.kind in _OFFSETS else 2 for one in columns)
    if header.place(3) is not None or (n_nodes, n_buffers) != (len(columns), expected):
        raise _NotPlain
    nodes = struct.iter_unpack(_PAIR, header.bytes[node : node + 16 * n_nodes])
    buffers = (
        _within(body, *extent)
        for extent in struct.iter_unpack(_PAIR, header.bytes[buffer : buffer + 16 * n_buffers])
    )
    arrays = []
    for column, (length, nulls) in zip(columns, nodes, strict=True):
        if length != rows or not 0 <= nulls <= rows:
            raise _NotPlain
        bits = next(buffers)
        missing = None
        if nulls:
            # Of as many bits as there are rows: fewer are no such array.
            octets = np.frombuffer(bits, np.uint8, (rows + 7) // 8)
            missing = np.unpackbits(octets, count=rows, bitorder="little") == 0
            if np.count_nonzero(missing) != nulls:
                raise _NotPlain
        arrays.append(_array(column, rows, missing, buffers))
    return pa.RecordBatch.from_arrays(arrays, [one.name for one in columns])


def _within(body: memoryview, start: int, length: int) -> memoryview:
    if not 0 <= start <= start + length <= len(body):
        raise _NotPlain
    return body[start : start + length]


def _array(column: _Column, rows: int, missing: Any, buffers: Iterator[memoryview]) -> pa.Array:
    if column.kind not in _OFFSETS:
        # A copy, because where they lie in the stream no processor may want to read them.
        values = np.frombuffer(next(buffers), column.dtype, rows).copy()
        return pa.array(values, mask=missing, from_pandas=False)
    offsets, text = next(buffers), next(buffers)
    ends = np.frombuffer(offsets, column.dtype, rows + 1 if rows else 0).copy()
    ends = ends if rows else np.zeros(1, column.dtype)
    if ends[0] < 0 or ends[-1] > len(text) or (np.diff(ends) < 0).any():
        raise _NotPlain
    array = _TEXTS[column.kind].from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(bytes(text)))
    array.validate(full=True)
    if missing is None:
        return array
    return pc.if_else(pa.array(missing), pa.scalar(None, array.type), array)
