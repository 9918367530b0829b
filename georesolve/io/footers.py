"""Parquet footers, so that row groups of several files can be joined without decoding them.

A footer is a struct of Apache Thrift in its compact protocol (`thrift-compact-protocol.md` of
apache/thrift, `parquet.thrift` of apache/parquet-format). All of it is kept as it is, but for the
numbers that depend on where a row group lies.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

MAGIC = b"PAR1"
"""How a Parquet file begins and ends."""
_LENGTH_BYTES = 4
_TAIL = _LENGTH_BYTES + len(MAGIC)
_BLOCK_BYTES = 1 << 18
"""Larger ones are taken from the system anew each time, and to touch them takes twice as long as to
copy them."""

# Types of the compact protocol: those that a footer has.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64 = range(1, 7)
_BINARY, _LIST, _STRUCT = 8, 9, 12
_LONG_LIST = 15
"""What stands in place of the size of a list that has as many values or more."""

_ROWS, _OFFSET, _ORDINAL = range(3)
"""What is noted of a row group: its number of rows, offsets in the file, and its own number."""
_Fields = dict[int, Any]
"""The fields of a struct that are noted, by their ids, and those of structs in it."""
_NUM_ROWS, _ROW_GROUPS = 3, 4
_COLUMN_META_DATA: _Fields = {9: _OFFSET, 10: _OFFSET, 11: _OFFSET, 14: _OFFSET}
_COLUMN_CHUNK: _Fields = {2: _OFFSET, 3: _COLUMN_META_DATA, 4: _OFFSET, 6: _OFFSET}
_ROW_GROUP: _Fields = {1: _COLUMN_CHUNK, 3: _ROWS, 5: _OFFSET, 7: _ORDINAL}

_OWN_ORDINAL = -1


class Movable(NamedTuple):
    """A row group as it stands in a footer, but for what depends on where it lies."""

    rows: int
    pieces: list[bytes]
    """The bytes before, between and behind the numbers that depend on that."""
    numbers: list[int]
    """These: offsets in a file that has this row group alone, and -1 for its own number."""

    def placed(self, ordinal: int, shift: int) -> bytes:
        """It as the one of some number, so many bytes further on than in its own file."""
        content = bytearray(self.pieces[0])
        for number, piece in zip(self.numbers, self.pieces[1:], strict=True):
            _write_integer(content, ordinal if number == _OWN_ORDINAL else number + shift)
            content += piece
        return bytes(content)

    @property
    def start(self) -> int:
        """Where it begins in its file."""
        return min(number for number in self.numbers if number != _OWN_ORDINAL)

    def alone(self) -> Self:
        """It as the first of a file."""
        shift = len(MAGIC) - self.start
        moved = [one if one == _OWN_ORDINAL else one + shift for one in self.numbers]
        return self._replace(numbers=moved)

    def as_json(self) -> list[Any]:
        """It for JSON."""
        return [self.rows, [piece.decode("latin-1") for piece in self.pieces], self.numbers]

    @classmethod
    def of_json(cls, given: Any) -> Self:
        """It as `as_json` wrote it; raises TypeError or ValueError of what is none."""
        rows, pieces, numbers = given
        return cls(rows, [piece.encode("latin-1") for piece in pieces], numbers)


class Footer:
    """The footer of a Parquet file, from byte `start` on, with its row groups; ValueError."""

    def __init__(self, file: bytes | memoryview) -> None:
        stop = len(file) - _TAIL
        if stop < 0 or bytes(file[-len(MAGIC) :]) != MAGIC:
            raise ValueError(f"{len(file)} bytes that do not end as a Parquet file does")
        length = int.from_bytes(file[stop : stop + _LENGTH_BYTES], "little")
        if length > stop:
            raise ValueError(f"a Parquet footer of {length} bytes in a file of {len(file)}")
        self.start = stop - length
        content = bytes(file[self.start : stop])
        scan = _Scan(content)
        self.groups: list[Movable] = []
        edges = [0]
        for id, type in scan.fields():
            start = scan.at
            if id == _ROW_GROUPS:
                self.groups = [scan.row_group() for _ in range(scan.list()[0])]
            else:
                scan.value(type)
            if id in (_NUM_ROWS, _ROW_GROUPS):
                edges += start, scan.at
        before, behind_rows, before_groups, behind = edges[1:]
        self._before = content[:before]
        self._between = content[behind_rows:before_groups]
        self._behind = content[behind:]

    def ending(self, rows: int, groups: list[bytes]) -> bytes:
        """The end of a Parquet file with such a footer, but other row groups of so many rows."""
        content = bytearray(self._before)
        _write_integer(content, rows)
        content += self._between
        content.append(min(len(groups), _LONG_LIST) << 4 | _STRUCT)
        if len(groups) >= _LONG_LIST:
            _write_varint(content, len(groups))
        content += b"".join(groups) + self._behind
        return bytes(content) + len(content).to_bytes(_LENGTH_BYTES, "little") + MAGIC


class Growing:
    """The footer of a file that is made of row groups, which grows by theirs."""

    def __init__(self) -> None:
        self.rows = 0
        self._size_bytes = 0
        self._groups: list[bytes] = []

    def add(self, groups: Iterable[Movable], size_bytes: int) -> None:
        """Append the row groups of a file, which have so many bytes."""
        for group in groups:
            self._groups.append(group.placed(len(self._groups), self._size_bytes))
            self.rows += group.rows
        self._size_bytes += size_bytes

    def ending(self, footer: Footer) -> bytes:
        """All that stands behind the last row group, with what else some footer says."""
        return footer.ending(self.rows, self._groups)


def append(target: Path, others: Iterable[Path]) -> None:
    """Append the row groups of other files of the same schema to a Parquet file.

    If all but the last are of whole row groups, its bytes are those of one writer that had all
    rows.
    """
    growing = Growing()
    with target.open("r+b") as file:
        end, footer = _footer_of(target)
        growing.add(footer.groups, end - len(MAGIC))
        for path in others:
            file.seek(end)
            file.truncate()
            own_end, own = _footer_of(path)
            with path.open("rb") as source:
                source.seek(len(MAGIC))
                shutil.copyfileobj(source, file, _BLOCK_BYTES)
            growing.add(own.groups, own_end - len(MAGIC))
            end += own_end - len(MAGIC)
        # The footer of the last file was copied with it.
        file.seek(end)
        file.truncate()
        file.write(growing.ending(footer))


def footer_start(path: Path) -> int:
    """Where the footer of a file begins; it is not read."""
    with path.open("rb") as file:
        end = file.seek(max(0, file.seek(0, 2) - _TAIL))
        return max(0, end - int.from_bytes(file.read(_LENGTH_BYTES), "little"))


def _footer_of(path: Path) -> tuple[int, Footer]:
    """Where the footer of a file begins, and what it says; only this much is read."""
    with path.open("rb") as file:
        start = file.seek(footer_start(path))
        return start, Footer(file.read())


class _Scan:
    """Passes over the values of a footer one after the other, and notes some numbers.

    Large sets have footers of many thousand values, which are read while other threads wait.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0
        self._noted: list[tuple[int, int, int, int]] = []

    def fields(self) -> Iterator[tuple[int, int]]:
        """Ids and types of the fields of a struct; the value of each is to be passed over."""
        id = 0
        while head := self._byte():
            id = id + (head >> 4) if head >> 4 else self._integer()
            yield id, head & 15

    def row_group(self) -> Movable:
        """The next value, which is a row group."""
        content, start, rows = self._content, self.at, 0
        self._noted = []
        self.value(_STRUCT, _ROW_GROUP)
        pieces: list[bytes] = []
        numbers: list[int] = []
        for what, begin, end, number in self._noted:
            if what == _ROWS:
                rows = number
            # Zero is what writers put where they have nothing to say.
            elif what == _ORDINAL or number:
                pieces.append(content[start:begin])
                numbers.append(_OWN_ORDINAL if what == _ORDINAL else number)
                start = end
        return Movable(rows, [*pieces, content[start : self.at]], numbers)

    def value(self, type: int, wanted: Any = None) -> None:
        """Pass over a value, and note what is wanted of it."""
        if type in (_I16, _I32, _I64):
            start, number = self.at, self._integer()
            if wanted is not None:
                self._noted.append((wanted, start, self.at, number))
        elif type == _BINARY:
            size = self._varint()
            self.at += size
        elif type == _LIST:
            size, of = self.list()
            for _ in range(size):
                self.value(of, wanted)
        elif type == _STRUCT:
            for id, of in self.fields():
                self.value(of, wanted.get(id) if wanted else None)
        elif type == _BYTE:
            self.at += 1
        elif type not in (_TRUE, _FALSE):  # of a field, and its value
            raise ValueError(f"a Parquet footer has no values of type {type}")

    def list(self) -> tuple[int, int]:
        """How many values follow, and of which type."""
        head = self._byte()
        size, type = head >> 4, head & 15
        return self._varint() if size == _LONG_LIST else size, type

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def _integer(self) -> int:
        zigzag = self._varint()
        return zigzag >> 1 ^ -(zigzag & 1)


def _write_varint(content: bytearray, value: int) -> None:
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)


def _write_integer(content: bytearray, value: int) -> None:
    _write_varint(content, value << 1 ^ value >> 63)
