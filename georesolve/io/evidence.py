"""Coordinates that cannot be degrees: metres, scaled degrees, swapped axes, radians, by evidence.

`docs/input-output.md` has the rules and their reasons.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from georesolve.kernels.query import is_valid

_METRES = 1_000
_MOST_METRES = np.array([2.1e7, 6.1e7])
_MOST = 0.5
_DIFFERENT = 10
_TENTH = 0.1
_GLOBE_ROWS = 100
_GLOBE_END = 0.1
_GLOBE_SPAN = 1.5
# What float32 makes of pi is a little more.
_PI = math.pi + 1e-6
_FIRST_SHOWN = 10
_AT_ONCE = 65_536
"""Rows that stay in a processor's cache while they are looked at."""
_NAMED_RADIANS = re.compile(r"(?:.*[^a-z])?rad(?:ians?)?", re.IGNORECASE)

Array = np.ndarray[Any, np.dtype[np.float64]]
_Point = tuple[float, float]
_Bounds = tuple[_Point, _Point]
"""The least latitude and longitude, and the greatest."""
_NOWHERE: _Bounds = ((math.inf, math.inf), (-math.inf, -math.inf))


class RowSample(NamedTuple):
    """Number of rows that show something, and the first few of them."""

    rows: int = 0
    first: tuple[int, ...] = ()

    @classmethod
    def of(cls, rows: np.ndarray) -> Self:
        """Sample of ascending row numbers."""
        return cls(rows.size, tuple(rows[:_FIRST_SHOWN].tolist()))

    def followed(self, other: Self, first_row: int) -> Self:
        """Sample of two tables, the second of which begins with `first_row`."""
        first = (*self.first, *(first_row + row for row in other.first))[:_FIRST_SHOWN]
        return type(self)(self.rows + other.rows, first)


class InvalidRow(NamedTuple):
    """A row whose coordinates are not valid, as the dataset has them."""

    row: int
    lat_deg: float
    lon_deg: float


class Verdict(NamedTuple):
    """What the coordinates of a table prove to be instead of degrees: `rows` of `seen` say so."""

    kind: str
    """``metres``, ``scaled``, ``swapped`` or ``radians``."""
    rows: int
    seen: int
    what: str
    """What they look like, in words."""
    advice: str
    """What to do about it."""
    row: int
    """One of them, and its coordinates."""
    lat: float
    lon: float

    def told(self, names: tuple[str, str], where: Callable[[int], str]) -> str:
        """The refusal of the table in words, which calls latitude and longitude by `names`."""
        return (
            f"{self.rows} of {self.seen} rows look like {self.what}; {where(self.row)}, for one, "
            f"has {self.example(names)}. Coordinates are degrees: {self.advice}; or, if they are "
            "degrees, send the option coordinates=trust"
        )

    def example(self, names: tuple[str, str]) -> str:
        """The coordinates of that row."""
        return f"{names[0]}={self.lat!r}, {names[1]}={self.lon!r}"


@dataclass
class Evidence:
    """What the coordinates of one table say, gathered batch by batch: its rows and their unit."""

    seen: int = 0
    """All rows."""
    rows: int = 0
    """Those that count: they have both numbers, and are not at exactly (0, 0)."""
    valid: int = 0
    valid_swapped: int = 0
    """Of those that count: valid with their axes swapped."""
    metres: int = 0
    """Of those that count: too large for degrees."""
    swapped: int = 0
    """Of those that count: valid with their axes swapped alone."""
    latitudes: set[float] = field(default_factory=set)
    """Some different latitudes of `swapped`."""
    bounds: _Bounds = _NOWHERE
    """Of those that count."""
    valid_bounds: _Bounds = _NOWHERE
    """Of all valid rows."""
    are_whole: bool = True
    """Whether all are whole numbers."""
    examples: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    """Row, latitude and longitude of the first row that shows something."""
    null_island: RowSample = field(default_factory=RowSample)
    """Rows at exactly (0, 0)."""
    wide_edges: RowSample = field(default_factory=RowSample)
    """Rows with a planar edge of more than 180 degrees of longitude."""
    first_invalid: list[InvalidRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Warnings about the file, in words."""

    @property
    def invalid_rows(self) -> int:
        """Rows whose coordinates are not valid: those at exactly (0, 0) are."""
        return self.seen - self.valid - self.null_island.rows

    @property
    def facts(self) -> dict[str, Any]:
        """What the rows say of a dataset: see `datasets.Facts`."""
        return {
            "rows": self.seen,
            "invalid_rows": self.invalid_rows,
            "bbox": self.bbox,
            "first_invalid": tuple(self.first_invalid),
            "null_island": self.null_island,
            "wide_edges": self.wide_edges,
            "warnings": tuple(self.warnings),
        }

    def extend(self, other: "Evidence") -> None:
        """Take what was gathered of the rows behind these."""
        for kind, (row, lat, lon) in other.examples.items():
            self.examples.setdefault(kind, (self.seen + row, lat, lon))
        self.null_island = self.null_island.followed(other.null_island, self.seen)
        self.wide_edges = self.wide_edges.followed(other.wide_edges, self.seen)
        self.warn(other.warnings)
        for one in other.first_invalid[: _FIRST_SHOWN - len(self.first_invalid)]:
            self.first_invalid.append(one._replace(row=self.seen + one.row))
        for name in ("seen", "rows", "valid", "valid_swapped", "metres", "swapped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if len(self.latitudes) < _DIFFERENT:
            self.latitudes |= other.latitudes
        self.bounds = _wider(self.bounds, other.bounds)
        self.valid_bounds = _wider(self.valid_bounds, other.valid_bounds)
        self.are_whole = self.are_whole and other.are_whole

    def warn(self, warnings: Iterable[str]) -> None:
        """Append warnings about the file, each once."""
        self.warnings = list(dict.fromkeys([*self.warnings, *warnings]))

    def surround(self, other: "Evidence") -> None:
        """Extend the bounds of all valid rows to those of others, which are not counted."""
        self.valid_bounds = _wider(self.valid_bounds, other.valid_bounds)

    def add(self, lat: Array, lon: Array) -> None:
        """Take the next rows; missing numbers are NaN."""
        for start in range(0, lat.size, _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            own = lat[rows], lon[rows]
            self.extend(Evidence.of_valid(*own) or Evidence.of(*own))

    @classmethod
    def of(cls, lat: Array, lon: Array) -> Self:
        """That of some rows."""
        on_globe, is_zero = is_valid(lat, lon), (lat == 0) & (lon == 0)
        counted = np.isfinite(lat) & np.isfinite(lon) & ~is_zero
        swapped, invalid = is_valid(lon, lat) & counted, ~on_globe
        shown = {"radians": counted, "metres": np.empty(0, bool), "swapped": swapped & invalid}
        if (invalid & counted).any():
            beyond = np.maximum(np.abs(lat), np.abs(lon)) >= _METRES
            shown["metres"] = beyond & (lat != lon) & counted
        first = {kind: int(rows.argmax()) for kind, rows in shown.items() if rows.any()}
        own = lat[counted], lon[counted]
        bounds = valid_bounds = _bounds(*own)
        if (on_globe != counted).any():
            valid_bounds = _bounds(lat[on_globe], lon[on_globe])
        return cls(
            seen=lat.size,
            rows=int(counted.sum()),
            valid=int((on_globe & counted).sum()),
            valid_swapped=int(swapped.sum()),
            metres=int(shown["metres"].sum()),
            swapped=int(shown["swapped"].sum()),
            latitudes={*np.unique(lat[shown["swapped"]])[:_DIFFERENT].tolist()},
            bounds=bounds,
            valid_bounds=valid_bounds,
            are_whole=_are_whole(*own),
            examples={kind: (i, float(lat[i]), float(lon[i])) for kind, i in first.items()},
            null_island=RowSample.of(np.flatnonzero(is_zero)),
            first_invalid=[
                InvalidRow(i, float(lat[i]), float(lon[i]))
                for i in np.flatnonzero(invalid)[:_FIRST_SHOWN].tolist()
            ],
        )

    @classmethod
    def of_valid(cls, lat: Array, lon: Array) -> Self | None:
        """That of rows that all count and are valid, as most are; None where some do not.

        One source for arrays of numpy and CuPy.
        """
        low, high = bounds = _bounds(lat, lon)
        if not (is_valid(*low) and is_valid(*high)):
            return None
        may_be_zero = low[0] <= 0 <= high[0] and low[1] <= 0 <= high[1]
        if may_be_zero and not lat.all() and ((lat == 0) & (lon == 0)).any():
            return None
        n = lat.size
        return cls(
            seen=n,
            rows=n,
            valid=n,
            valid_swapped=int(np.count_nonzero(np.abs(lon) <= 90)),
            bounds=bounds,
            valid_bounds=bounds,
            are_whole=_are_whole(lat, lon),
            examples={"radians": (0, float(lat[0]), float(lon[0]))},
        )

    @property
    def bbox(self) -> tuple[float, float, float, float] | None:
        """West, south, east and north of the valid rows; None when there are none."""
        (south, west), (north, east) = self.valid_bounds
        return (west, south, east, north) if south <= north else None

    def as_json(self) -> dict[str, Any]:
        """What JSON can hold of it: all."""
        return {**vars(self), "latitudes": [*self.latitudes]}

    @property
    def may_be_swapped(self) -> bool:
        """Whether all rows are valid once they are swapped, and a tenth is not as it is.

        One that is missing is not, and one typo among many is none.
        """
        all_count = self.rows + self.null_island.rows == self.seen
        return all_count and self._are_valid_swapped and self.swapped >= _TENTH * self.rows

    @property
    def _are_valid_swapped(self) -> bool:
        """Whether some rows that count are invalid, and all are valid once they are swapped."""
        return self.valid < self.rows == self.valid_swapped

    def verdict(
        self, names: tuple[str, str], how_to_swap: str, *, keeps_invalid: bool, prefix: str = ""
    ) -> Verdict | None:
        """What all rows prove to be instead of degrees, if so.

        `how_to_swap` says what to do where axes are swapped, `prefix` stands before options of
        this table alone. Where rows with invalid coordinates are not kept, they are refused anyway,
        and it is only said why.
        """
        lat_name, lon_name = names
        is_proven = not keeps_invalid or (self.rows > 1 and not self.valid)
        if is_proven and self.metres > 0 and self.metres >= _MOST * self.rows:
            low, high = self.bounds
            largest = np.maximum(np.negative(low), high)
            # Whole numbers too large for metres: a power of ten makes degrees of them.
            if self.are_whole and (largest > _MOST_METRES).any():
                scale = float(10.0 ** np.ceil(np.log10(largest / [90, 180])).max())
                _, lat, lon = self.examples["metres"]
                return self._verdict(
                    "scaled",
                    f"degrees times {scale:.0f}, stored as whole numbers: divided by it they are "
                    f"{lat / scale!r} and {lon / scale!r}",
                    "divide them by their scale",
                )
            return self._verdict(
                "metres",
                "metres of a projected CRS",
                "transform them to longitude and latitude on WGS 84 (EPSG:4326), or name their CRS "
                f"where they stand in columns ({prefix}crs=EPSG:25832)",
            )
        many = len(self.latitudes) >= _DIFFERENT and self.swapped >= _TENTH * self.rows
        may_tell = self.rows > 1 and len(self.latitudes) > 1 and self._are_valid_swapped
        if may_tell and (many or not self.valid):
            return self._verdict(
                "swapped",
                f"swapped axes: every row that has both numbers is valid with {lon_name!r} as "
                f"latitude and {lat_name!r} as longitude",
                how_to_swap,
            )
        if self._looks_like_radians(names):
            (south, west), (north, east) = self.bounds
            return self._verdict(
                "radians",
                f"radians: latitudes are from {south:.6g} to {north:.6g}, "
                f"longitudes from {west:.6g} to {east:.6g}",
                "multiply them by 180/pi",
            )
        return None

    def _verdict(self, kind: str, what: str, advice: str) -> Verdict:
        shown = "metres" if kind == "scaled" else kind
        rows = self.rows if kind == "radians" else getattr(self, shown)
        return Verdict(kind, rows, self.seen, what, advice, *self.examples[shown])

    def _looks_like_radians(self, names: tuple[str, str]) -> bool:
        (south, west), (north, east) = self.bounds
        if not self.rows or max(-south, north) > _PI / 2 or max(-west, east) > _PI:
            return False
        if all(_NAMED_RADIANS.fullmatch(name) for name in names):
            return True
        is_globe = min(-west, east) >= math.pi - _GLOBE_END and north - south >= _GLOBE_SPAN
        return self.rows >= _GLOBE_ROWS and is_globe


def _wider(one: _Bounds, other: _Bounds) -> _Bounds:
    """Bounds of all that is within either."""
    (south, west), (north, east) = one
    (low, left), (high, right) = other
    return (min(south, low), min(west, left)), (max(north, high), max(east, right))


def _bounds(lat: Array, lon: Array) -> _Bounds:
    """Bounds of some rows; NaN where there is one among them."""
    if not lat.size:
        return _NOWHERE
    return (float(lat.min()), float(lon.min())), (float(lat.max()), float(lon.max()))


def _are_whole(lat: Array, lon: Array) -> bool:
    """Whether all are whole numbers: most often the first of them tells that they are not."""
    firsts = all((axis[:1] % 1 == 0).all() for axis in (lat, lon))
    return firsts and bool((lat % 1 == 0).all() and (lon % 1 == 0).all())


def are_degrees(lat: Array, lon: Array) -> bool:
    """Whether all rows are valid, which shows in their bounds."""
    return not lat.size or all(is_valid(*corner) for corner in _bounds(lat, lon))
