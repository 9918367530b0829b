"""Which columns of a table hold the coordinates and the id."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from georesolve.io.errors import wrong

Role = Literal["observations", "references"]
PREFIXES: dict[Role, str] = {"observations": "observation_", "references": "reference_"}
"""What stands before the options and the columns of one of two tables."""
OnInvalid = Literal["error", "null"]
EVERY: Literal["*"] = "*"
"""What stands for the names of all columns of a table."""
Trust = Literal["check", "trust"]
Edges = Literal["planar", "spherical"]

LONGEST_NAME = 500
"""Characters that the name of a column has at most."""
LATITUDE_NAMES = (
    ("lat", "latitude", "y"),
    ("decimallatitude", "lat_dd", "lat_deg", "latitude_deg", "northing"),
)
LONGITUDE_NAMES = (
    ("lon", "lng", "longitude", "x"),
    ("long", "decimallongitude", "lon_dd", "long_dd", "lon_deg", "longitude_deg", "easting"),
)
"""Those of a later group count where there is none of an earlier one."""
ID_NAMES = (("id",),)
MEANT = frozenset(chain(*LATITUDE_NAMES, *LONGITUDE_NAMES, *ID_NAMES))
"""What may be taken for coordinates or an id."""
NAMED = ("lat", "lon", "geometry", "id", "layer", "crs")
"""What may be said of one of two tables alone."""


class Reading(NamedTuple):
    """How the user wants a table to be read; columns that are not named are recognised.

    `prefix` stands before the options that name columns of this table alone. `layer` is that of a
    file that has several; None for the only one, or the only one of points. `crs` is that of
    columns of coordinates, or of a layer that does not say its own; None for degrees. Lines and
    polygons are refused unless it `takes_shapes`. Their `edges` are None where the file says how
    they run, and `densify_m` where that is left to `io.outlines`. Of Parquet no more may be read
    than is `kept` besides coordinates and ids; None for all.
    """

    lat: str | None = None
    lon: str | None = None
    id: str | None = None
    geometry: str | None = None
    on_invalid: OnInvalid = "error"
    coordinates: Trust = "check"
    prefix: str = ""
    layer: str | None = None
    crs: str | None = None
    takes_shapes: bool = False
    edges: Edges | None = None
    densify_m: float | None = None
    kept: tuple[str, ...] | None = None


def reading_for(role: Role, both: Reading, options: object) -> Reading:
    """How to read one of two tables: the options of it alone count before those of both."""
    prefix = PREFIXES[role]
    all_own = {name: getattr(options, prefix + name, None) for name in NAMED}
    own = {name: column for name, column in all_own.items() if column is not None}
    # One way to find the points named for this table alone counts before the other for both.
    if "geometry" in own:
        both = both._replace(lat=None, lon=None)
    if "lat" in own or "lon" in own:
        both = both._replace(geometry=None)
    return both._replace(prefix=prefix, **own)


def needed_columns(names: list[str], given: Reading, geometry: str | None) -> list[str] | None:
    """Of the names of a table those that are needed; None for all, or where one is missing.

    All are that could be taken for coordinates or ids, so that a choice stays as it is.
    """
    named = {given.lat, given.lon, given.id, given.geometry, geometry} - {None}
    wanted = {*named, *(given.kept or ())}
    are_there = has_coordinates(names, given.lat, given.lon)
    # A refusal lists all columns. Parquet takes a dot for a path.
    if (
        given.kept is None
        or not wanted <= {*names}
        or not (given.geometry or geometry or are_there)
        or any("." in name for name in names)
    ):
        return None
    return [name for name in names if name in wanted or name.lower() in MEANT]


def has_coordinates(names: Collection[str], lat: str | None = None, lon: str | None = None) -> bool:
    """Whether columns of both coordinates are named, or recognised by their names."""
    lower = {name.lower() for name in names}
    axes = (lat, LATITUDE_NAMES), (lon, LONGITUDE_NAMES)
    return all(named or not lower.isdisjoint(chain(*groups)) for named, groups in axes)


class Columns(NamedTuple):
    """The columns of one table that have a meaning."""

    lat: str
    lon: str
    id: str | None


def find_columns(names: list[str], given: Reading, file: str) -> Columns:
    """Find the coordinate columns and the id column among the names of a table.

    A name that the user gave must exist; one not given is recognised, case-insensitively.
    """
    if len(set(names)) < len(names):
        [(name, times)] = Counter(names).most_common(1)
        what = f"the column {name!r} appears {times} times"
        detail = what if name else f"{times} columns have no name: give each one"
        raise wrong(file, detail, column=name)
    if given.geometry is not None:
        detail = (
            f"a column of points ({given.geometry!r}) is read of Parquet and Arrow, and not of "
            "text: name its columns of latitudes and longitudes"
        )
        if given.lat is not None or given.lon is not None:
            detail = (
                f"the options name a column of points ({given.geometry!r}) and one of coordinates "
                f"({given.lat or given.lon!r}) for one table: leave out one of them"
            )
        raise wrong(file, detail, column=given.geometry)
    prefix = given.prefix
    lat = _find(names, given.lat, LATITUDE_NAMES, f"{prefix}lat", file)
    lon = _find(names, given.lon, LONGITUDE_NAMES, f"{prefix}lon", file)
    if lat is None or lon is None:
        both = (
            (lat, "latitudes", LATITUDE_NAMES, "lat"),
            (lon, "longitudes", LONGITUDE_NAMES, "lon"),
        )
        missing = [
            (kind, f"one of {', '.join(chain(*known))}", f"{prefix}{option}=...")
            for column, kind, known, option in both
            if column is None
        ]
        kinds, expected, options = (" and ".join(each) for each in zip(*missing, strict=True))
        named: dict[str, str | None] = {
            option: None for column, *_, option in both if column is None
        }
        # A table with one of both columns has no geometries.
        other = f", or a geometry column with {prefix}geometry=..." if lat is lon else ""
        raise wrong(
            file,
            f"no column for {kinds.replace(' and ', ' or ')}: expected {expected}, in any case, "
            f"found {listed(names)}; name it with the option {options}{other}",
        ).mended_by(file, named)
    if lat == lon:
        detail = f"the column {lat!r} cannot hold both latitudes and longitudes"
        raise wrong(file, detail, column=lat)
    return Columns(lat, lon, _find(names, given.id, ID_NAMES, f"{prefix}id", file))


def _find(
    names: list[str],
    given: str | None,
    known: tuple[tuple[str, ...], ...],
    option: str,
    file: str,
) -> str | None:
    if given is not None:
        if given not in names:
            detail = f"there is no column {given!r}: found {listed(names)}"
            raise wrong(file, detail, column=given)
        return given
    groups = ([name for name in names if name.lower() in group] for group in known)
    found = next(filter(None, groups), [])
    if len(found) > 1:
        raise wrong(
            file,
            f"the columns {' and '.join(map(repr, found))} are ambiguous: name one with the option "
            f"{option!r}",
            column=found[0],
        )
    return found[0] if found else None


def unlike(taken: Collection[str], names: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    """Names that no column has."""
    while not set(names).isdisjoint(taken):
        names = tuple(prefix + name for name in names)
    return names


def listed(names: Sequence[str], most: int = 20) -> str:
    """Column names for an error, not more of them than help."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name[:80]) for name in names[:most]) + more if names else "no columns"
