"""Columns by which references are left out: groups of equal values, and windows of time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from georesolve.engine.backends import backend_on
from georesolve.engine.durations import NANOSECONDS, nanoseconds
from georesolve.io.datasets import Dataset, read_rows
from georesolve.io.errors import InvalidInput, InvalidOption, wrong
from georesolve.io.tables import first_unfit
from georesolve.kernels import FilteredIndex, Filters, build_filtered_index
from georesolve.kernels.devices import Device
from georesolve.kernels.filters import GREATEST
from georesolve.kernels.query import Degrees
from georesolve.query import FilterOptions, MatchOptions

MISSING, ELSEWHERE = -1, -2
"""Groups of an observation without a value, and of one with values that no reference has."""
_GROUPS = "text, whole numbers, booleans, dates, or categories of these"
_WIDE = pa.decimal128(38)
"""Type of integers of more than 64 bits, as DuckDB exports HUGEINT."""
_INTEGERS = (pa.int64(), pa.uint64(), _WIDE)
_TIMES = "timestamps, dates or whole numbers (in CSV and JSON times are text: take Parquet)"
_USUAL_SHARE = 1 / 128
"""Of all time, what an observation asks for where nobody says it."""


def _values(table: pa.Table, name: str, role: str) -> pa.Array:
    if name not in table.column_names:
        raise InvalidOption(
            f"{role}: there is no column {name!r} to match by; there are "
            f"{', '.join(map(repr, table.column_names)) or 'none'}"
        )
    values = table[name].combine_chunks()
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _group_kind(role: str, name: str, kind: pa.DataType) -> pa.DataType:
    """The type as which values of a column are compared."""
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        return pa.large_string()
    if pa.types.is_uint64(kind):
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_decimal128(kind) and kind.scale == 0:
        return _WIDE
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return kind
    raise _refused(role, name, kind, "by", _GROUPS)


def _time_kind(role: str, name: str, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamps without a zone" if kind.tz is None else "timestamps with a zone"
    if pa.types.is_date(kind):
        return "dates"
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return "whole numbers"
    raise _refused(role, name, kind, "time", _TIMES)


def _refused(role: str, name: str, kind: pa.DataType, option: str, takes: str) -> InvalidInput:
    return wrong(
        role,
        f"the column {name!r} holds {kind}, and {option} takes {takes}: cast it, as nothing is "
        "rounded or read as another type",
        column=name,
    )


def _cast(values: pa.Array, kind: pa.DataType, role: str, name: str, first_row: int) -> pa.Array:
    try:
        return pc.cast(values, kind)
    except pa.ArrowInvalid:
        row = first_unfit(len(values), lambda rows: pc.cast(values.slice(0, rows), kind))
        raise _unfit(role, name, first_row + row, values[row], f"{kind} holds") from None


def _unfit(role: str, name: str, row: int, value: pa.Scalar, allowed: str) -> InvalidInput:
    detail = f"holds {_text(value)}"
    report = f"the column {name!r} {detail} in row {row}: allowed is what {allowed}"
    return wrong(role, detail, report, column=name, row=row)


def _text(value: pa.Scalar) -> str:
    # Python has no times after the year 9999.
    return str(value.cast(pa.string()))


class _Column(NamedTuple):
    """A column of the references that groups are made of: its values, and the groups with it.

    Of the first column these are the values.
    """

    name: str
    kind: pa.DataType
    values: pa.Array
    groups: pa.Array | None

    def numbers(self, values: pa.Array, role: str, name: str, first_row: int) -> np.ndarray:
        """The numbers of values among those of the references; see `MISSING` and `ELSEWHERE`."""
        kind = _group_kind(role, name, values.type)
        if pa.types.is_null(kind) or pa.types.is_null(self.kind):
            return np.where(np.asarray(values.is_null()), MISSING, ELSEWHERE)
        value_set = self.values
        if kind != self.kind and {kind, self.kind} <= {*_INTEGERS}:
            # Neither of the types holds all values of the other.
            kind, value_set = _WIDE, pc.cast(value_set, _WIDE)
        elif kind != self.kind:
            raise InvalidInput(
                f"by: the column {name!r} of the {role} holds {values.type}, and {self.name!r} of "
                f"the references {self.kind}: values of different types are never equal: cast one"
            )
        values = _cast(values, kind, role, name, first_row)
        numbers = np.asarray(pc.index_in(values, value_set=value_set).fill_null(ELSEWHERE))
        return np.where(np.asarray(values.is_null()), MISSING, numbers)

    def numbered(self, both: np.ndarray) -> np.ndarray:
        """The numbers of groups among those of the references; those below 0 stay."""
        if self.groups is None:
            return both
        found = np.asarray(pc.index_in(pa.array(both), value_set=self.groups).fill_null(ELSEWHERE))
        return np.where(both < 0, both, found)


def _numbered(values: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The number of each value, by when it comes first, and the values by number."""
    encoded = values.dictionary_encode()
    return np.asarray(encoded.indices.fill_null(MISSING)).astype(np.int64), encoded.dictionary


def _both(group: np.ndarray, numbers: np.ndarray, n_values: int) -> np.ndarray:
    """Groups told apart by one more column; what is missing is so whatever the others are."""
    lost = np.where((group == MISSING) | (numbers == MISSING), MISSING, ELSEWHERE)
    return np.where(np.minimum(group, numbers) >= 0, group * n_values + numbers, lost)


def _instants(role: str, name: str, values: pa.Array, unit: str, first_row: int = 0) -> np.ndarray:
    """Times as whole numbers of a unit, 0 where one is missing."""
    if pa.types.is_timestamp(values.type):
        values = _cast(values, pa.timestamp(unit, values.type.tz), role, name, first_row)
    elif pa.types.is_date(values.type):
        values = pc.cast(_cast(values, pa.date32(), role, name, first_row), pa.int32())
    return np.array(_cast(values, pa.int64(), role, name, first_row).fill_null(0))


def _each(filters: Filters, change: Callable[[Any], Any]) -> Filters:
    time = None if filters.time is None else change(filters.time)
    return filters._replace(group=change(filters.group), time=time)


class Narrowed(NamedTuple):
    """What some observations may match, in memory of the host, and the unit of its times."""

    filters: Filters
    unit: str
    keys: "Keys"
    options: MatchOptions

    def rows(self, start: int, stop: int) -> "Narrowed":
        """That of some of them."""
        return self._replace(filters=_each(self.filters, lambda one: one[start:stop]))

    @property
    def how(self) -> tuple[Any, ...]:
        """What tells the index that is searched from others of the same references.

        Windows of all widths share one, but where times rank: what is built for that fits a window.
        """
        asked = self.options.filters or FilterOptions()
        window = (asked.max_time, asked.time_direction) if self.filters.by_time else ()
        return asked.reference_by, asked.reference_time, self.unit, *window

    def built(self, degrees: Degrees, device: Device, start: int = 0) -> FilteredIndex:
        """The index of the references from `start` on that lie on a device."""
        keys, asked = self.keys, self.options.filters or FilterOptions()
        to_device, part = backend_on(device).to_device, slice(start, start + degrees.lat_deg.size)
        group, time, share = keys.group[part], None, _USUAL_SHARE
        if self.filters.time is not None:
            there = keys.there(self.unit)[part]
            if asked.max_time is not None:
                placed = there[group >= 0]
                span = int(placed.max()) - int(placed.min()) if placed.size else 0
                # Twice the window is the fastest.
                times = 4 if asked.time_direction == "nearest" else 2
                share = min(1.0, times * keys.most_apart(asked, self.unit) / max(1, span))
            time = to_device(there)
        return build_filtered_index(*degrees, to_device(group), time, share=share)

    def on(self, index: FilteredIndex) -> Filters:
        """The filters, for a search of an index, which may be of a part of the references."""
        group = self.filters.group
        if index.n_groups < self.keys.sizes.size:
            group = np.where(group < index.n_groups, group, ELSEWHERE).astype(np.int32)
        filters = self.filters._replace(group=group)
        return _each(filters, backend_on(index.device).to_device)

    def candidates(self, first_row: int) -> np.ndarray:
        """How many references each of the observations, from `first_row` on, may match by group."""
        group, keys = self.filters.group, self.keys
        candidates: np.ndarray = np.append(keys.sizes, 0)[np.maximum(group, -1)]
        if self.options.exclude_self or self.options.once:
            candidates = candidates - (keys.group[first_row + np.arange(group.size)] == group)
        return candidates

    def _in_unit(self) -> str:
        are_numbers = not (
            pa.types.is_date(self.keys.time_type) or pa.types.is_timestamp(self.keys.time_type)
        )
        return "" if are_numbers else f" in {self.unit}"

    def with_apart(self, rows: pa.Table, first_row: int) -> pa.Table:
        """The rows of a result with the time of the reference less that of the observation."""
        here, keys = self.filters.time, self.keys
        if here is None:
            return rows
        reference = rows["reference"].combine_chunks()
        missing = np.asarray(reference.is_null())
        there = np.append(keys.there(self.unit), 0)[np.asarray(reference.fill_null(-1))]
        here = here[rows["observation"].to_numpy() - first_row]
        there = np.where(missing, here, there)
        apart = there - here
        is_beyond = (there ^ here) & (there ^ apart) < 0
        if is_beyond.any():
            pair = rows.slice(int(is_beyond.argmax()), 1)
            raise self._too_far_apart(
                pair["observation"][0].as_py(), pair["reference"][0].as_py(), first_row
            )
        is_date = pa.types.is_date(keys.time_type)
        numbers = pa.array(apart * 86_400 if is_date else apart, mask=missing)
        if is_date or pa.types.is_timestamp(keys.time_type):
            numbers = numbers.cast(pa.duration(self.unit))
        return rows.add_column(rows.column_names.index("status"), "time_apart", numbers)

    def _too_far_apart(self, observation: int, reference: int, first_row: int) -> InvalidInput:
        """Refusal of two rows whose time apart is beyond 64 bits."""
        assert self.filters.time is not None
        assert self.options.filters is not None
        names = self.options.filters.observation_time, self.options.filters.reference_time
        times = self.filters.time[observation - first_row], self.keys.there(self.unit)[reference]
        kind, advice = pa.int64(), "give smaller numbers"
        if pa.types.is_timestamp(self.keys.time_type):
            kind = pa.timestamp(self.unit)
            advice = "cast both columns to a coarser unit"
        errors = [
            {
                "file": role,
                "column": name,
                "row": row,
                "detail": f"holds {_text(pa.scalar(int(time), pa.int64()).cast(kind))}",
            }
            for role, name, row, time in zip(
                ("observations", "references"), names, (observation, reference), times, strict=True
            )
        ]
        both = " and ".join(
            f"the column {one['column']!r} of the {one['file']} {one['detail']} in row {one['row']}"
            for one in errors
        )
        unit = "" if kind == pa.int64() else f" {self.unit}"
        return InvalidInput(
            f"time_apart: {both}, {abs(int(times[0]) - int(times[1]))}{unit} apart, where 64 bits "
            f"hold {GREATEST}{unit}: {advice}, or leave out such rows",
            errors,
        )


def check_filters(observations: Dataset, references: Dataset, options: MatchOptions) -> Narrowed:
    """What none of the observations may match, by the types of columns alone; InvalidInput."""
    asked = options.filters or FilterOptions()
    here = read_rows(observations.file, 0, 0, [*dict.fromkeys(asked.of_observations)])
    there = read_rows(references.file, 0, 0, [*dict.fromkeys(asked.of_references)])
    return Keys(asked, there, np.empty(0, bool)).bind(options, here)


class Keys:
    """The groups and times of references, and what these are for observations."""

    def __init__(self, options: FilterOptions, references: pa.Table, valid: np.ndarray) -> None:
        self._columns: list[_Column] = []
        self._instants: dict[str, np.ndarray] = {}
        group = np.zeros(references.num_rows, np.int64)
        for name in options.reference_by:
            values = _values(references, name, "references")
            kind = _group_kind("references", name, values.type)
            numbers, distinct = _numbered(pc.cast(values, kind))
            both = _both(group, numbers, max(1, len(distinct)))
            group, groups = numbers, None
            if self._columns:
                found, groups = _numbered(pa.array(both, mask=both < 0))
                group = np.where(both < 0, both, found)
            self._columns.append(_Column(name, kind, distinct, groups))
        # With those whose references all have no time: observations have their numbers.
        n_groups = int(group.max(initial=-1)) + 1
        self._time: pa.Array | None = None
        self._time_name = str(options.reference_time)
        if options.reference_time is not None:
            self._time = _values(references, options.reference_time, "references")
            _time_kind("references", options.reference_time, self._time.type)
            # A reference without a time is of no group.
            group[np.asarray(self._time.is_null())] = MISSING
        self.group = group.astype(np.int32)
        self.sizes = np.bincount(self.group[valid & (self.group >= 0)], minlength=n_groups)
        """How many references of each group may match."""

    @property
    def nbytes(self) -> int:
        """Memory that they take, in bytes."""
        arrays = [self.group, self._time, *self._instants.values()]
        arrays += [one for column in self._columns for one in column[2:]]
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def time_type(self) -> pa.DataType:
        """That of the times of the references, null where there are none."""
        return pa.null() if self._time is None else self._time.type

    def there(self, unit: str) -> np.ndarray:
        """The times of the references in a unit."""
        assert self._time is not None, "there are times"
        if unit not in self._instants:
            self._instants[unit] = _instants("references", self._time_name, self._time, unit)
        return self._instants[unit]

    def most_apart(self, options: FilterOptions, unit: str) -> int:
        """`max_time` in whole units of the times."""
        given, kind = options.max_time, self.time_type
        length = nanoseconds(given)
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            if length is None:
                raise InvalidOption(
                    f"max_time must be a length of time such as '15min', got {given!r}: a number "
                    "is for times that are numbers"
                )
            size = NANOSECONDS["d"] if pa.types.is_date(kind) else NANOSECONDS[unit]
            return int(length // size)
        if length is not None:
            raise InvalidOption(
                f"max_time is {given!r}, but times are whole numbers: give a number"
            )
        return int(given or 0)

    def bind(self, match: MatchOptions, observations: pa.Table, first_row: int = 0) -> Narrowed:
        """Filters of the observations from a row on, of which these are the columns."""
        options = match.filters or FilterOptions()
        rows = observations.num_rows
        group = np.zeros(rows, np.int64)
        for name, column in zip(options.observation_by, self._columns, strict=True):
            values = _values(observations, name, "observations")
            numbers = column.numbers(values, "observations", name, first_row)
            group = column.numbered(_both(group, numbers, max(1, len(column.values))))
        if self._time is None:
            return Narrowed(Filters(group.astype(np.int32)), "s", self, match)
        name = str(options.observation_time)
        values, theirs = _values(observations, name, "observations"), self._time
        own_kind = _time_kind("observations", name, values.type)
        their_kind = _time_kind("references", self._time_name, theirs.type)
        if own_kind != their_kind and not pa.types.is_null(values.type):
            raise InvalidInput(
                f"time: the observations have {own_kind} ({values.type}) and the references "
                f"{their_kind} ({theirs.type}): give both of one kind"
            )
        kinds = [one.type for one in (values, theirs) if pa.types.is_timestamp(one.type)]
        unit = min((kind.unit for kind in kinds), key=NANOSECONDS.__getitem__, default="s")
        time = _instants("observations", name, values, unit, first_row)
        group[np.asarray(values.is_null())] = MISSING
        most = GREATEST
        if options.max_time is not None:
            most = min(most, self.most_apart(options, unit))
            if most == GREATEST:
                self._check_span(time[group >= 0], unit, options.max_time)
        before = 0 if options.time_direction == "forward" else most
        after = 0 if options.time_direction == "backward" else most
        by_time, skips = options.rank_by == "time", not options.allow_exact
        filters = Filters(group.astype(np.int32), time, before, after, by_time, skips)
        return Narrowed(filters, unit, self, match)

    def _check_span(self, times: np.ndarray, unit: str, max_time: Any) -> None:
        """Refuse times that are farther apart than a `max_time` that 64 bits do not hold."""
        candidates = self.there(unit)[self.group >= 0]
        if not (times.size and candidates.size):
            return
        first, last = int(times.min()), int(times.max())
        span = max(int(candidates.max()) - first, last - int(candidates.min()))
        if span > GREATEST:
            raise InvalidInput(
                f"max_time={max_time!r} is beyond 64 bits in the unit of the times, and two of "
                f"these are {span} apart: give at most {GREATEST - 1}, or times of a coarser unit"
            )
