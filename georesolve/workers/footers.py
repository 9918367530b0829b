"""Parquet footers taken apart and put together, so that files can be joined without decoding them.

A footer is a struct of Apache Thrift in its compact protocol [1]_, and what its fields mean is in
the Parquet format [2]_. What is read is kept as it is, known or not: only what a move changes is
touched.

References
----------
.. [1] https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
.. [2] https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from itertools import pairwise
from typing import Any, NamedTuple

MAGIC = b"PAR1"
"""How a Parquet file begins and ends."""
_LENGTH_BYTES = 4
_TAIL = _LENGTH_BYTES + len(MAGIC)

# Types of the compact protocol: those that a footer has.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64 = range(1, 7)
_BINARY, _LIST, _STRUCT = 8, 9, 12
_LONG_LIST = 15
"""What stands in place of the size of a list that has as many values or more."""


class Typed(NamedTuple):
    """A value and its type in the compact protocol; what is of no concern here is raw bytes."""

    type: int
    value: Any


Struct = dict[int, Typed]
"""The fields of a struct by their ids, in the order in which they stand."""


class Movable(NamedTuple):
    """A row group as it stands in a footer, but for what depends on where it lies.

    Attributes
    ----------
    rows
        Number of its rows.
    pieces
        The bytes before, between and behind the numbers that depend on that.
    numbers
        These: offsets in a file that has this row group alone, and -1 for its own number.
    """

    rows: int
    pieces: list[bytes]
    numbers: list[int]


class _Number(int):
    """One of the numbers of a movable row group."""


_ORDINAL = _Number(-1)


class FileMetaData:
    """Ids of the fields of a footer that are used here."""

    NUM_ROWS, ROW_GROUPS = 3, 4


class RowGroup:
    """Ids of the fields of a row group."""

    COLUMNS, NUM_ROWS, FILE_OFFSET, ORDINAL = 1, 3, 5, 7


class ColumnChunk:
    """Ids of the fields of a column in a row group: those that are offsets, and its metadata."""

    OFFSETS, META_DATA = (2, 4, 6), 3


class ColumnMetaData:
    """Ids of the fields of a column's metadata that are offsets: of pages and of a Bloom filter."""

    OFFSETS = (9, 10, 11, 14)


_Read = dict[int, "_Read"]
"""The fields of a struct that are read, and those of the structs that they are or list."""
_COLUMN_META_DATA: _Read = {id: {} for id in ColumnMetaData.OFFSETS}
_COLUMN_CHUNK: _Read = {
    **{id: {} for id in ColumnChunk.OFFSETS},
    ColumnChunk.META_DATA: _COLUMN_META_DATA,
}
_ROW_GROUP: _Read = {
    RowGroup.COLUMNS: _COLUMN_CHUNK,
    RowGroup.NUM_ROWS: {},
    RowGroup.FILE_OFFSET: {},
    RowGroup.ORDINAL: {},
}
_FILE_META_DATA: _Read = {FileMetaData.NUM_ROWS: {}, FileMetaData.ROW_GROUPS: _ROW_GROUP}


def split(file: memoryview) -> tuple[memoryview, Struct]:
    """The row groups of a Parquet file as they stand, and its footer.

    Raises
    ------
    ValueError
        When the bytes are no Parquet file.
    """
    content = _content(file)
    return file[len(MAGIC) : len(file) - _TAIL - len(content)], read(file[-_TAIL - len(content) :])


def read(ending: bytes | memoryview) -> Struct:
    """The footer in the end of a Parquet file, which may be all of that; raises as `split`."""
    return _Reader(_content(ending)).struct(_FILE_META_DATA)


def _content(file: bytes | memoryview) -> bytes:
    """The footer as it stands."""
    stop = len(file) - _TAIL
    if stop < 0 or bytes(file[-len(MAGIC) :]) != MAGIC:
        raise ValueError(f"{len(file)} bytes that do not end as a Parquet file does")
    length = int.from_bytes(file[stop : stop + _LENGTH_BYTES], "little")
    if length > stop:
        raise ValueError(f"a Parquet footer of {length} bytes in a file of {len(file)}")
    return bytes(file[stop - length : stop])


def ending(footer: Struct) -> bytes:
    """The end of a Parquet file: its footer, the length of that, and the magic bytes."""
    content = bytearray()
    _write_struct(content, footer)
    return bytes(content) + len(content).to_bytes(_LENGTH_BYTES, "little") + MAGIC


def row_groups(footer: Struct) -> list[Struct]:
    """The row groups of a footer."""
    groups: list[Struct] = footer[FileMetaData.ROW_GROUPS].value.value
    return groups


def movable(group: Struct) -> Movable:
    """A row group that can be put anywhere."""
    if RowGroup.ORDINAL in group:
        group[RowGroup.ORDINAL] = Typed(_I16, _ORDINAL)
    _mark(group, (RowGroup.FILE_OFFSET,))
    for column in group[RowGroup.COLUMNS].value.value:
        _mark(column, ColumnChunk.OFFSETS)
        _mark(column[ColumnChunk.META_DATA].value, ColumnMetaData.OFFSETS)
    content = _Content()
    _write_struct(content, group)
    edges = [0, *content.edges, len(content)]
    pieces = [bytes(content[start:stop]) for start, stop in pairwise(edges)]
    return Movable(group[RowGroup.NUM_ROWS].value, pieces, content.numbers)


def placed(group: Movable, ordinal: int, shift: int) -> bytes:
    """A row group as the one of some number, so many bytes further on than in its own file."""
    content = bytearray(group.pieces[0])
    for number, piece in zip(group.numbers, group.pieces[1:], strict=True):
        _write_integer(content, ordinal if number == _ORDINAL else number + shift)
        content += piece
    return bytes(content)


def as_json(group: Movable) -> list[Any]:
    """A movable row group for JSON."""
    return [group.rows, [piece.decode("latin-1") for piece in group.pieces], group.numbers]


def of_json(given: Any) -> Movable:
    """A movable row group as `as_json` wrote it; raises TypeError or ValueError of what is none."""
    rows, pieces, numbers = given
    return Movable(rows, [piece.encode("latin-1") for piece in pieces], numbers)


def join(footer: Struct, rows: int, groups: list[bytes]) -> Struct:
    """A footer with other row groups, which have so many rows."""
    return footer | {
        FileMetaData.NUM_ROWS: Typed(_I64, rows),
        FileMetaData.ROW_GROUPS: Typed(_LIST, Typed(_STRUCT, groups)),
    }


def _mark(struct: Struct, ids: tuple[int, ...]) -> None:
    for id in ids:
        # Zero is what writers put where they have nothing to say.
        if id in struct and struct[id].value:
            struct[id] = Typed(struct[id].type, _Number(struct[id].value))


class _Content(bytearray):
    """What is written of a movable row group: its numbers, and where they belong."""

    def __init__(self) -> None:
        super().__init__()
        self.edges: list[int] = []
        self.numbers: list[int] = []


class _Reader:
    """Reads values one after the other.

    Large results have footers of many thousand values, which are read while other threads wait:
    most are passed over.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def struct(self, read: _Read) -> Struct:
        fields: Struct = {}
        id = 0
        while head := self._byte():
            delta, type = head >> 4, head & 15
            id = id + delta if delta else self._integer()
            if id in read:
                fields[id] = Typed(type, self._value(type, read[id]))
            else:
                start = self._at
                self._pass(type)
                fields[id] = Typed(type, self._content[start : self._at])
        return fields

    def _value(self, type: int, read: _Read) -> Any:
        if type in (_I16, _I32, _I64):
            return self._integer()
        if type == _LIST:
            size, of = self._list()
            return Typed(of, [self._value(of, read) for _ in range(size)])
        if type == _STRUCT:
            return self.struct(read)
        raise ValueError(f"a Parquet footer has a value of type {type} where a number should be")

    def _pass(self, type: int) -> None:
        if type in (_I16, _I32, _I64):
            while self._byte() & 0x80:
                pass
        elif type == _BINARY:
            size = self._varint()
            self._at += size
        elif type == _LIST:
            size, of = self._list()
            for _ in range(size):
                self._pass(of)
        elif type == _STRUCT:
            while head := self._byte():
                if not head >> 4:
                    self._varint()
                self._pass(head & 15)
        elif type == _BYTE:
            self._at += 1
        elif type not in (_TRUE, _FALSE):  # of a field, and its value
            raise ValueError(f"a Parquet footer has no values of type {type}")

    def _list(self) -> tuple[int, int]:
        head = self._byte()
        size, type = head >> 4, head & 15
        return self._varint() if size == _LONG_LIST else size, type

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def _integer(self) -> int:
        zigzag = self._varint()
        return zigzag >> 1 ^ -(zigzag & 1)


def _write_struct(content: bytearray, struct: Struct) -> None:
    before = 0
    for id, (type, value) in struct.items():
        delta = id - before
        if 0 < delta < 16:
            content.append(delta << 4 | type)
        else:
            content.append(type)
            _write_integer(content, id)
        _write_value(content, type, value)
        before = id
    content.append(0)


def _write_value(content: bytearray, type: int, value: Any) -> None:
    if isinstance(value, bytes):
        content += value
    elif isinstance(value, _Number):
        assert isinstance(content, _Content), "only a movable row group has such numbers"
        content.edges.append(len(content))
        content.numbers.append(int(value))
    elif type in (_I16, _I32, _I64):
        _write_integer(content, value)
    elif type == _LIST:
        of, values = value
        content.append(min(len(values), _LONG_LIST) << 4 | of)
        if len(values) >= _LONG_LIST:
            _write_varint(content, len(values))
        for one in values:
            _write_value(content, of, one)
    else:
        _write_struct(content, value)


def _write_varint(content: bytearray, value: int) -> None:
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)


def _write_integer(content: bytearray, value: int) -> None:
    _write_varint(content, value << 1 ^ value >> 63)
