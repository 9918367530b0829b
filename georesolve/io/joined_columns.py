"""Columns of several files as those of one table: joined by name, with the lossless common type."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from georesolve.io.columns import Columns, Reading
from georesolve.io.errors import InvalidInput, wrong
from georesolve.io.storage import are_whole, partition_of

_UNITS = ("s", "ms", "us", "ns")
_EXACT_IN = {16: 11, 32: 24, 64: 53}
"""Bits of the largest integer below which each float type holds every integer."""
EXACT_INTEGERS = 2**53
"""Largest magnitude up to which float64 holds every integer."""


class ColumnType(NamedTuple):
    """Type that a column has in one file.

    `is_text` marks types that were inferred from text that can be restored exactly, as int64 in
    CSV and in names of folders.
    """

    type: pa.DataType
    file: str
    is_text: bool = False


class FileColumns(NamedTuple):
    """Columns of one file, and which of them have a role."""

    file: str
    roles: Columns
    geometry: str | None
    types: dict[str, ColumnType]


class Partitions:
    """Columns that the folders of several files are named by, as in `day=2026-11-22`."""

    def __init__(self, paths: Sequence[str], reading: Reading) -> None:
        """Take the paths of the files below the folder that is read."""
        rows = [partition_of(path, reading) for path in paths]
        columns: dict[str, pa.Array] = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            texts = [row.get(name) for row in rows]
            array = pa.array(texts, pa.string())
            columns[name] = array.cast(pa.int64()) if are_whole(texts) else array
        self._values = pa.RecordBatch.from_pydict(columns)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._values.schema

    def row(self, number: int) -> dict[str, Any]:
        """Values of one file."""
        return {name: self._values[name][number].as_py() for name in self.schema.names}


class JoinedColumns:
    """Columns of several files, joined by name.

    Coordinates, id and geometry have the names that the first file with such a column uses. A
    column that is not `selected`, and not among the roles, is never a reason to refuse; None
    selects all. `types` has the types of the selected columns, `names` for each file the names of
    its columns by those of the table. Selected columns without a common type are `refusals`.
    """

    def __init__(
        self, files: Sequence[FileColumns], selected: Collection[str] | None, role: str
    ) -> None:
        self._files, self._role = files, role
        id = next((each.roles.id for each in files if each.roles.id), None)
        self.roles = files[0].roles._replace(id=id)
        self.geometry = next((each.geometry for each in files if each.geometry), None)
        self.names = [self._renamed(each) for each in files]
        self.columns: dict[str, list[ColumnType]] = {}
        for each, names in zip(files, self.names, strict=True):
            for name, in_file in names.items():
                self.columns.setdefault(name, []).append(each.types[in_file])
        self.types: dict[str, pa.DataType] = {}
        self.refusals: dict[str, InvalidInput] = {}
        # A refusal of a column that no file has lists the columns of all.
        lists_all = selected is None or not self.columns.keys() >= set(selected)
        for name, types in self.columns.items():
            if name in self.roles[:2]:
                self.types[name] = pa.float64()
            elif lists_all or name in (*(selected or ()), self.roles.id):
                type = common_type(types)
                if type is not None:
                    self.types[name] = type
                elif selected is None or name in (*selected, self.roles.id):
                    self.types[name] = types[0].type
                    self.refusals[name] = refuse_types(name, types, role)

    def lacking(self, name: str) -> str | None:
        """Return the first file that has no such column."""
        files = zip(self._files, self.names, strict=True)
        return next((each.file for each, names in files if name not in names), None)

    def _renamed(self, file: FileColumns) -> dict[str, str]:
        roles = dict(zip(file.roles, self.roles, strict=True))
        if file.geometry is not None:
            roles[file.geometry] = self.geometry
        names: dict[str, str] = {}
        for name in file.types:
            joined = roles.get(name) or name
            if joined != name and joined in file.types and joined not in roles:
                raise wrong(
                    f"{self._role} ({file.file})",
                    f"{name!r} would be called {joined!r}",
                    f"its column {name!r} is what {self._files[0].file} calls {joined!r}, and "
                    "another column of it has that name: name the columns to read with the options "
                    "lat, lon, id and geometry, or rename one",
                    column=name,
                )
            names[joined] = name
        return names


def common_type(types: Sequence[ColumnType]) -> pa.DataType | None:
    """Return the narrowest type that holds all values of these types without loss, or None.

    64-bit integers with floats give float64, which `cast` checks value by value.
    """
    plain = {_plain(each.type) for each in types}
    if pa.string() in plain:
        plain = {pa.string() if each.is_text else _plain(each.type) for each in types}
    plain.discard(pa.null())
    if len(plain) > 1:
        return _common(plain)
    # Equal types are not simplified: a dictionary stays a dictionary.
    exact = {each.type for each in types if not pa.types.is_null(each.type)}
    return exact.pop() if len(exact) == 1 else next(iter(plain), pa.null())


def refuse_types(column: str, types: Sequence[ColumnType], role: str) -> InvalidInput:
    """Make the refusal of a column without a common type, naming two files."""
    pairs = ((first, second) for i, second in enumerate(types) for first in types[:i])
    first, second = next(
        (pair for pair in pairs if common_type(pair) is None), (types[0], types[-1])
    )
    return refuse_pair(column, first, second, role)


def refuse_pair(column: str, first: ColumnType, second: ColumnType, role: str) -> InvalidInput:
    """Make the refusal of a column whose values do not fit one type, naming two files."""
    kinds = {_kind(first.type), _kind(second.type)}
    why = "no type holds the values of both without loss"
    if kinds == {"integer", "float"}:
        why = f"float64 holds integers up to {EXACT_INTEGERS} only, and larger ones are there"
    elif kinds == {"timestamp"}:
        why = "times with a time zone and times without one do not compare"
        if (first.type.tz is None) == (second.type.tz is None):
            why = "the finest unit does not hold the earliest or latest time"
    return wrong(
        role,
        f"{first.type} in {first.file}, {second.type} in {second.file}",
        f"the column {column!r} is {first.type} in {first.file} and {second.type} in "
        f"{second.file}: {why}; write the column with one type in all files, or leave the column "
        "out of the request",
        column=column,
    )


def _plain(type: pa.DataType) -> pa.DataType:
    """Return the type of the values, however Arrow lays them out."""
    if pa.types.is_dictionary(type):
        return _plain(type.value_type)
    if type in (pa.large_string(), pa.string_view()):
        return pa.string()
    if type in (pa.large_binary(), pa.binary_view()):
        return pa.binary()
    return type


def _kind(type: pa.DataType) -> str:
    for kind in ("integer", "floating", "decimal", "timestamp", "time", "duration", "date"):
        if getattr(pa.types, f"is_{kind}")(type):
            return "float" if kind == "floating" else kind
    return ""


def _common(types: Collection[pa.DataType]) -> pa.DataType | None:
    kinds = {_kind(type) for type in types}
    if kinds <= {"integer", "float"}:
        return _number(types)
    if len(kinds) > 1:
        return None
    match kinds.pop():
        case "decimal":
            return _decimal(types)
        case "timestamp":
            zones = {type.tz for type in types}
            if None in zones and len(zones) > 1:
                return None
            return pa.timestamp(_finest(types), zones.pop() if len(zones) == 1 else "UTC")
        case "time":
            unit = _finest(types)
            return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        case "duration":
            return pa.duration(_finest(types))
        case "date":
            return pa.date64()
    return None


def _finest(types: Collection[pa.DataType]) -> Any:
    return max((type.unit for type in types), key=_UNITS.index)


def _number(types: Collection[pa.DataType]) -> pa.DataType | None:
    integers = [type for type in types if pa.types.is_integer(type)]
    floats = [type.bit_width for type in types if pa.types.is_floating(type)]
    signed = max((one.bit_width for one in integers if pa.types.is_signed_integer(one)), default=0)
    unsigned = max(
        (one.bit_width for one in integers if pa.types.is_unsigned_integer(one)), default=0
    )
    if not floats:
        bits = max(signed, 2 * unsigned) if signed else unsigned
        name = f"int{bits}" if signed else f"uint{bits}"
        return getattr(pa, name)() if bits <= 64 else None
    digits = max(signed - 1, unsigned)
    exact = min((width for width, bits in _EXACT_IN.items() if bits >= digits), default=64)
    width = max(exact, *floats)
    return {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[width]


def _decimal(types: Collection[pa.DataType]) -> pa.DataType | None:
    scale = max(type.scale for type in types)
    digits = max(type.precision - type.scale for type in types) + scale
    if digits > 76:
        return None
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
