"""Columns by which references are left out: groups of equal values, and windows of time."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from georesolve.intake.errors import InvalidInput, InvalidOption
from georesolve.intake.points import Points
from georesolve.kernels import FilteredIndex, Filters, build_filtered_index
from georesolve.kernels.devices import Device
from georesolve.kernels.filters import GREATEST, LEAST
from georesolve.workers.frames import backend_on
from georesolve.workers.jobs import MatchOptions

MISSING, ELSEWHERE = -1, -2
"""Groups of an observation without a value, and of one with values that no reference has."""
Direction = Literal["nearest", "backward", "forward"]
RankBy = Literal["distance", "time"]
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_NANOSECONDS = _UNITS | {"min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
_GROUPS = "text, whole numbers, booleans, dates, or categories of these"
_TIMES = "timestamps, dates or whole numbers"
_USUAL_SHARE = 1 / 128
"""Of all time, what an observation asks for where nobody says it."""


class FilterOptions(NamedTuple):
    """By which columns of each set, and how, references are left out or ranked."""

    observation_by: tuple[str, ...] = ()
    reference_by: tuple[str, ...] = ()
    observation_time: str | None = None
    reference_time: str | None = None
    max_time: Any = None
    time_direction: Direction = "nearest"
    allow_exact: bool = True
    rank_by: RankBy = "distance"

    @property
    def of_observations(self) -> list[str]:
        """The columns of the observations that are needed."""
        return [*self.observation_by, *filter(None, [self.observation_time])]

    @property
    def of_references(self) -> list[str]:
        """Likewise of the references."""
        return [*self.reference_by, *filter(None, [self.reference_time])]


@dataclass(frozen=True)
class FilteredOptions(MatchOptions):
    """How observations are matched, by group and in time."""

    filters: FilterOptions = field(default_factory=FilterOptions)  # type: ignore[misc]

    def told(self) -> dict[str, Any]:
        """What results say of them."""
        filters = {k: v if k != "max_time" or v is None else str(v)
                   for k, v in self.filters._asdict().items()}  # fmt: skip
        return {**super().told(), "filters": filters}


def nanoseconds(given: Any) -> Fraction | None:
    """A length of time in nanoseconds; None of what is none."""
    if isinstance(given, str):
        parts = _DURATION.fullmatch(given)
        known = parts and _NANOSECONDS.get(parts[2])
        return Fraction(parts[1]) * known if parts and known else None
    if isinstance(given, np.timedelta64):
        unit, size = np.datetime_data(given.dtype)
        # Months and years have no length, and 64 bits of nanoseconds hold 292 years.
        known = _NANOSECONDS.get({"D": "d", "m": "min"}.get(unit, unit))
        if np.isnat(given) or known is None:
            return None
        return Fraction(int(given.astype(np.int64)) * size * known)
    if isinstance(given, timedelta):
        more = int(getattr(given, "nanoseconds", 0))
        return Fraction(given // timedelta(microseconds=1) * 1000 + more)
    return None


def _values(table: pa.Table, name: str, role: str) -> pa.Array:
    if name not in table.column_names:
        raise InvalidOption(
            f"{role}: there is no column {name!r} to match by; there are "
            f"{', '.join(map(repr, table.column_names)) or 'none'}"
        )
    values = table[name]
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _group_kind(kind: pa.DataType) -> pa.DataType | None:
    """The type as which values of a kind are compared."""
    if any(
        is_text(kind)
        for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    ):
        return pa.large_string()
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.date32()
    return kind if pa.types.is_boolean(kind) or pa.types.is_null(kind) else None


def _time_kind(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        return "timestamps without a zone" if kind.tz is None else "timestamps with a zone"
    if pa.types.is_date(kind):
        return "dates"
    return "whole numbers" if pa.types.is_integer(kind) or pa.types.is_null(kind) else None


def _refused(role: str, name: str, kind: pa.DataType, option: str, takes: str) -> InvalidInput:
    more = ": cast it, as nothing is rounded or read as another type"
    return InvalidInput(
        f"{role}: the column {name!r} holds {kind}, and {option} takes {takes}{more}"
    )


def _cast(values: pa.Array, kind: pa.DataType, role: str, name: str) -> pa.Array:
    try:
        return pc.cast(values, kind)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"{role}: the column {name!r} does not fit {kind}: {error}") from None


class _Column(NamedTuple):
    """A column of the references that groups are made of: its values, and the groups with it."""

    name: str
    kind: pa.DataType
    values: pa.Array
    groups: pa.Array

    def numbers(self, own: pa.Array, role: str, name: str) -> np.ndarray:
        """The numbers of values among those of the references; see `MISSING` and `ELSEWHERE`."""
        kind = _group_kind(own.type)
        if kind is None:
            raise _refused(role, name, own.type, "by", _GROUPS)
        if pa.types.is_null(kind) or pa.types.is_null(self.kind):
            return np.where(np.asarray(own.is_null()), MISSING, ELSEWHERE)
        if kind != self.kind:
            raise InvalidInput(
                f"by: the column {name!r} of the {role} holds {own.type}, and {self.name!r} of the "
                f"references {self.kind}: values of different types are never equal, so cast one"
            )
        own = _cast(own, kind, role, name)
        found = np.asarray(pc.index_in(own, value_set=self.values).fill_null(ELSEWHERE))
        return np.where(np.asarray(own.is_null()), MISSING, found)

    def numbered(self, both: np.ndarray) -> np.ndarray:
        """The numbers of groups among those of the references; those below 0 stay."""
        found = np.asarray(pc.index_in(pa.array(both), value_set=self.groups).fill_null(ELSEWHERE))
        return np.where(both < 0, both, found)


def _both(group: np.ndarray, numbers: np.ndarray, n_values: int) -> np.ndarray:
    """Groups told apart by one more column; what is missing is so whatever the others are."""
    lost = np.where((group == MISSING) | (numbers == MISSING), MISSING, ELSEWHERE)
    return np.where(np.minimum(group, numbers) >= 0, group * n_values + numbers, lost)


def _instants(role: str, name: str, values: pa.Array, unit: str) -> np.ndarray:
    """Times as whole numbers of a unit; what is missing is before all."""
    if pa.types.is_timestamp(values.type):
        values = _cast(values, pa.timestamp(unit, values.type.tz), role, name)
    elif pa.types.is_date(values.type):
        values = pc.cast(pc.cast(values, pa.date32()), pa.int32())
    return np.array(_cast(values, pa.int64(), role, name).fill_null(LEAST - 1))


def _each(filters: Filters, change: Callable[[Any], Any]) -> Filters:
    """Filters whose arrays are changed."""
    arrays = {
        name: change(one)
        for name, one in filters._asdict().items()
        if one is not None and not isinstance(one, bool)
    }
    return filters._replace(**arrays)


class Narrowed(NamedTuple):
    """What some observations may match, in memory of the host, and the unit of its times."""

    filters: Filters
    unit: str

    def rows(self, start: int, stop: int) -> "Narrowed":
        """That of some of them."""
        return Narrowed(_each(self.filters, lambda one: one[start:stop]), self.unit)

    def on_device(self, device: Device) -> Filters:
        """The filters, for a search."""
        return _each(self.filters, backend_on(device).to_device)


class Keys:
    """The groups and times of references, and what these are for observations."""

    def __init__(self, options: FilterOptions, references: pa.Table) -> None:
        self._columns: list[_Column] = []
        self._indexes: dict[str, FilteredIndex] = {}
        self._instants: dict[str, np.ndarray] = {}
        group = np.zeros(references.num_rows, np.int64)
        for name in options.reference_by:
            values = _values(references, name, "references")
            kind = _group_kind(values.type)
            if kind is None:
                raise _refused("references", name, values.type, "by", _GROUPS)
            distinct = _cast(values, kind, "references", name).unique().drop_null()
            column = _Column(name, kind, distinct, pa.array([], pa.int64()))
            numbers = column.numbers(values, "references", name)
            both = _both(group, numbers, max(1, len(distinct)))
            column = column._replace(groups=pa.array(np.unique(both[both >= 0])))
            self._columns.append(column)
            group = column.numbered(both)
        self._time: pa.Array | None = None
        self._time_name = str(options.reference_time)
        if options.reference_time is not None:
            self._time = _values(references, options.reference_time, "references")
            if _time_kind(self._time.type) is None:
                kind = self._time.type
                raise _refused("references", options.reference_time, kind, "time", _TIMES)
            # A reference without a time is of no group.
            group[np.asarray(self._time.is_null())] = MISSING
        self.group = group.astype(np.int32)

    def index(
        self, options: FilterOptions, references: Points, unit: str | None, device: Device
    ) -> FilteredIndex:
        """The index of the references on a device; times are in a unit, or in theirs."""
        unit = unit or str(getattr(getattr(self._time, "type", None), "unit", "s"))
        if unit not in self._indexes:
            to_device, share = backend_on(device).to_device, _USUAL_SHARE
            time = None if self._time is None else self._there(unit)
            if time is not None and options.max_time is not None:
                placed = time[self.group >= 0]
                span = int(placed.max()) - int(placed.min()) if placed.size else 0
                # Twice the window is the fastest.
                times = 4 if options.time_direction == "nearest" else 2
                share = min(1.0, times * self._most_apart(options, unit) / max(1, span))
            self._indexes[unit] = build_filtered_index(
                to_device(references.lat_deg),
                to_device(references.lon_deg),
                to_device(self.group),
                None if time is None else to_device(time),
                share=share,
            )
        return self._indexes[unit]

    def _there(self, unit: str) -> np.ndarray:
        """The times of the references."""
        assert self._time is not None, "there are times"
        if unit not in self._instants:
            self._instants[unit] = _instants("references", self._time_name, self._time, unit)
        return self._instants[unit]

    def _most_apart(self, options: FilterOptions, unit: str) -> int:
        """`max_time` in whole units of the times."""
        assert self._time is not None, "there are times"
        given, kind = options.max_time, self._time.type
        length = nanoseconds(given)
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            if length is None:
                raise InvalidOption(
                    f"max_time must be a length of time such as '15min' or a timedelta, got "
                    f"{given!r}: a number is for times that are numbers"
                )
            size = _NANOSECONDS["d"] if pa.types.is_date(kind) else _UNITS[unit]
            return int(length // size)
        if length is not None:
            raise InvalidOption(
                f"max_time is {given!r}, but times are whole numbers: give a number"
            )
        return int(given // 1)

    def narrowed(self, options: FilterOptions, observations: pa.Table) -> Narrowed:
        """What observations may match, of whom these are the columns."""
        rows = observations.num_rows
        group = np.zeros(rows, np.int64)
        for name, column in zip(options.observation_by, self._columns, strict=True):
            values = _values(observations, name, "observations")
            numbers = column.numbers(values, "observations", name)
            group = column.numbered(_both(group, numbers, max(1, len(column.values))))
        if self._time is None:
            return Narrowed(Filters(group.astype(np.int32)), "s")
        name = str(options.observation_time)
        values, theirs = _values(observations, name, "observations"), self._time
        own_kind, their_kind = _time_kind(values.type), _time_kind(theirs.type)
        if own_kind is None:
            raise _refused("observations", name, values.type, "time", _TIMES)
        if own_kind != their_kind and not pa.types.is_null(values.type):
            raise InvalidInput(
                f"time: the observations have {own_kind} ({values.type}) and the references "
                f"{their_kind} ({theirs.type}): give both of one kind"
            )
        kinds = [one.type for one in (values, theirs) if pa.types.is_timestamp(one.type)]
        unit = min((kind.unit for kind in kinds), key=_UNITS.__getitem__, default="s")
        time = _instants("observations", name, values, unit)
        group[time < LEAST] = MISSING
        least, greatest = np.full(rows, LEAST), np.full(rows, GREATEST)
        most = GREATEST if options.max_time is None else self._most_apart(options, unit)
        if most < GREATEST:
            # No time is beyond 64 bits on the way.
            least = np.where(time < LEAST + most, LEAST, time - most)
            greatest = np.where(time > GREATEST - most, GREATEST, time + most)
        if options.time_direction == "backward":
            greatest = time
        elif options.time_direction == "forward":
            least = time
        by_time, skips = options.rank_by == "time", not options.allow_exact
        return Narrowed(
            Filters(group.astype(np.int32), least, greatest, time, by_time, skips), unit
        )

    def with_apart(self, rows: pa.Table, narrowed: Narrowed, first_row: int) -> pa.Table:
        """The rows of a result with the time of the reference less that of the observation."""
        if self._time is None:
            return rows
        reference = rows["reference"].combine_chunks()
        missing = np.asarray(reference.is_null())
        there = self._there(narrowed.unit)
        there = np.append(there, 0)[np.asarray(reference.fill_null(-1))]
        assert narrowed.filters.time is not None, "there are times"
        here = narrowed.filters.time[rows["observation"].to_numpy() - first_row]
        there = np.where(missing, here, there)
        apart = there - here
        if ((there ^ here) & (there ^ apart) < 0).any():
            raise InvalidInput("time_apart: two times are farther apart than 64 bits hold")
        is_date = pa.types.is_date(self._time.type)
        numbers = pa.array(apart * 86_400 if is_date else apart, mask=missing)
        if is_date or pa.types.is_timestamp(self._time.type):
            numbers = numbers.cast(pa.duration(narrowed.unit))
        return rows.add_column(rows.column_names.index("status"), "time_apart", numbers)
