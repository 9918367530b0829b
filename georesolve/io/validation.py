"""What is refused of points, and of two sets that do not fit each other, and what is remarked.

By what evidence, `io.evidence` says. A table of Europe alone proves no swapped axes, as
all of it is within 90 degrees of Greenwich: two sets together may.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from georesolve.io.columns import Columns, OnInvalid, Reading, listed
from georesolve.io.datasets import Dataset, PointSet
from georesolve.io.errors import InvalidInput, InvalidOption, wrong
from georesolve.io.evidence import Evidence, InvalidRow

if TYPE_CHECKING:
    # What decodes files loads no more than it needs.
    from georesolve.query import MatchOptions

DOZEN = 12
"""Fewer points may lie anywhere for good reasons."""
_FAR_DEGREES = 10


class Findings(NamedTuple):
    """What the rows of a table showed, and where its coordinates come from.

    `points` is the geometry column, or the member of a GeoJSON feature, that they were taken out
    of; None where the user has the `columns`.
    """

    columns: Columns
    points: str | None
    evidence: Evidence

    def refuse(self, points: PointSet, reading: Reading, file: str) -> None:
        """Refuse a table for what all of its rows showed; `points` counted them."""
        is_of_shapes = reading.takes_shapes and (reading.edges or reading.densify_m) is not None
        if is_of_shapes and points.outlines is None and points.rows:
            raise InvalidOption(
                f"{file}: edges and densify_m are for lines and polygons, and it has points alone: "
                "leave them out"
            )
        if reading.coordinates == "check":
            self._refuse_implausible(reading, file)
        are_swapped = self.evidence.may_be_swapped
        refuse_invalid(
            points,
            file,
            reading.on_invalid,
            points=self.points,
            how_to_swap=self._how_to_swap(reading.prefix) if are_swapped else None,
            swapped=self._swapped() if are_swapped else {},
        )

    def _refuse_implausible(self, reading: Reading, file: str) -> None:
        # Columns that were made of points are not the user's.
        names = self.columns[:2] if self.points is None else ("latitude", "longitude")
        found = self.evidence.verdict(
            names,
            self._how_to_swap(reading.prefix),
            keeps_invalid=reading.on_invalid == "null",
            prefix=reading.prefix,
        )
        if found is None:
            return
        is_lon = found.kind in ("metres", "scaled") and abs(found.lon) > abs(found.lat)
        raise wrong(
            file,
            f"{found.example(names)}: {found.kind}",
            found.told(names, "row {}".format),
            column=self.points or names[is_lon],
            row=found.row,
        ).mended_by(file, *self._ways_around(found.kind))

    def _ways_around(self, kind: str) -> list[dict[str, str | None]]:
        """Options that let a table be read which does not look like degrees."""
        if kind == "metres":
            # Trust in metres would make wrong degrees of metres.
            return [{"crs": None}]
        trust: dict[str, str | None] = {"coordinates": "trust"}
        return [self._swapped(), trust] if kind == "swapped" and self._swapped() else [trust]

    def _swapped(self) -> dict[str, str | None]:
        """Options that swap latitudes and longitudes; none for points of one column."""
        lat, lon, _ = self.columns
        return {} if self.points is not None else {"lat": lon, "lon": lat}

    def _how_to_swap(self, prefix: str) -> str:
        if self.points is not None:
            return f"write the points in {self.points!r} with their longitude first"
        lat, lon, _ = self.columns
        return f"send the options {prefix}lat={lon} and {prefix}lon={lat}"


def refuse_invalid(
    dataset: PointSet,
    file: str,
    on_invalid: OnInvalid,
    *,
    points: str | None = None,
    how_to_swap: str | None = None,
    swapped: dict[str, str | None] | None = None,
) -> None:
    """Refuse points with invalid coordinates, unless they are to be kept.

    `points` is what the coordinates were taken out of, None where the user has columns of them.
    `how_to_swap` says what to do if the axes are swapped, None unless all would be valid then;
    `swapped` are the options for that.
    """
    if on_invalid == "null" or not dataset.invalid_rows:
        return
    errors = [_invalid_row(row, dataset, points, file) for row in dataset.first_invalid]
    first = errors[0]
    advice = "mend them, or keep them with the option on_invalid=null"
    if how_to_swap is not None:
        advice = (
            f"all coordinates are valid once they are swapped: if the axes are, {how_to_swap}; if "
            f"not, {advice}"
        )
    raise InvalidInput(
        f"{file}: {dataset.invalid_rows} of {dataset.rows} rows have invalid coordinates, the "
        f"first one row {first['row']}: {first['detail']}; {advice}",
        errors,
    ).mended_by(file, *([swapped] if swapped else []), {"on_invalid": "null"})


def _invalid_row(
    row: InvalidRow, dataset: PointSet, points: str | None, file: str
) -> dict[str, Any]:
    lat_is_good = -90 <= row.lat_deg <= 90
    value = row.lon_deg if lat_is_good else row.lat_deg
    allowed = f"allowed are degrees from {'-180 to 360' if lat_is_good else '-90 to 90'}"
    if points is None:
        column = dataset.lon if lat_is_good else dataset.lat
        what = "is null or not a number" if math.isnan(value) else f"holds {value!r}"
        detail = f"column {column!r} {what}, {allowed}"
    elif math.isnan(value):
        column, detail = points, f"there is no point in {points!r}"
    else:
        column, axis = points, "longitude" if lat_is_good else "latitude"
        detail = f"the point in {points!r} has the {axis} {value!r}, {allowed}"
    return {"file": file, "column": column, "row": row.row, "detail": detail}


Box = tuple[float, float, float, float]
"""West, south, east and north in degrees."""


def looks_swapped(observations: Box | None, references: Box | None) -> list[str]:
    """What there is to say of two sets by their extents: that the axes of one look swapped."""
    if observations is None or references is None:
        return []
    west, south, east, north = references
    apart = min(shared for shared, _ in _shared(observations, references)) < 0
    together = _shared(observations, (south, west, north, east))
    if not apart or not all(shared >= least / 2 > 0 for shared, least in together):
        return []
    return [
        f"the axes of one set look swapped: observations have {_told(observations)}, references "
        f"{_told(references)}, which lie apart as they are, and together once latitude and "
        "longitude of one set are swapped. If they are swapped, name the columns of that set the "
        "other way round (observation_lat and observation_lon, or reference_lat and reference_lon)"
    ]


def of_extents(observations: Box | None, references: Box | None) -> list[str]:
    """What there is to say of where two sets lie: that axes look swapped, or that it is far apart.

    Far is farther than either set is wide.
    """
    if observations is None or references is None:
        return []
    both = observations, references
    for at, turn in ((0, 360.0), (1, math.inf)):
        begins, ends = ([one[side] for one in both] for side in (at, at + 2))
        widest = max(end - begin for begin, end in zip(begins, ends, strict=True))
        apart = min(max(begins) - min(ends), turn - max(ends) + min(begins))
        if apart > max(widest, _FAR_DEGREES):
            return looks_swapped(*both) or [
                f"the two sets lie far apart: observations have {_told(observations)}, references "
                f"{_told(references)}. If they should not, see which coordinate reference system "
                "each was made in"
            ]
    return looks_swapped(*both)


def _shared(one: Box, other: Box) -> list[tuple[float, float]]:
    """Degrees that two extents share, below 0 where they lie apart, and that the smaller one has.

    First those of longitude, then of latitude.
    """
    return [
        (
            min(one[at + 2], other[at + 2]) - max(one[at], other[at]),
            min(one[at + 2] - one[at], other[at + 2] - other[at]),
        )
        for at in (0, 1)
    ]


def _told(box: Box) -> str:
    west, south, east, north = box
    return f"latitudes from {south:.6g} to {north:.6g} and longitudes from {west:.6g} to {east:.6g}"


def remarks(observations: Dataset, references: Dataset) -> list[str]:
    """What looks wrong with two sets that were taken all the same, in words."""
    sets = {"observations": observations, "references": references}
    return of_extents(observations.bbox, references.bbox) + [
        remark
        for name, points in sets.items()
        for remark in [*_of_null_island(points, name), *of_file(points, name)]
    ]


def _of_null_island(points: PointSet, name: str) -> list[str]:
    rows, first = points.null_island
    if rows < DOZEN:
        return []
    return [
        f"{name}: {rows} rows are at exactly (0, 0), which devices report that have no position; "
        f"they were resolved as they are. The first of them, counted from 0: "
        f"{', '.join(map(str, first))}"
    ]


def of_file(points: PointSet, name: str) -> list[str]:
    """Warnings about one table by itself: those of its reader, and edges around the world."""
    rows, first = points.wide_edges
    if not rows:
        return [*points.warnings]
    return [
        *points.warnings,
        f"{name}: {rows} rows have an edge of more than 180 degrees of longitude, which goes the "
        f"long way around the world. The first of them, counted from 0: "
        f"{', '.join(map(str, first))}. If they cross 180 degrees, cut them there, or give "
        "edges='spherical' (--edges spherical of the command), which takes the shorter way",
    ]


def check_match(
    observations: PointSet,
    references: PointSet,
    options: "MatchOptions",
    on_invalid: OnInvalid,
    pointer: Callable[[str], str] = "/{}".format,
) -> None:
    """Check that two sets can be matched; `pointer` tells where an option stands in a request."""
    if not references.rows:
        raise wrong("references", "the table has no rows, so nothing can be matched")
    if observations.outlines is not None:
        column = observations.outlines.column
        raise wrong(
            "observations",
            f"the column {column!r} holds lines or polygons, and observations are points: give "
            "points, or these as the references",
            column=column,
        )
    refuse_invalid(observations, "observations", on_invalid)
    refuse_invalid(references, "references", on_invalid)
    are_shapes = references.outlines is not None
    if (asked := options.filters) is not None:
        refuse_filters(options.earth, are_shapes=are_shapes)
        for role, dataset in {"observation": observations, "reference": references}.items():
            for option in ("by", "time"):
                named = getattr(asked, f"{role}_{option}") or ()
                names = (named,) if isinstance(named, str) else named
                _check_columns(dataset, names, option, pointer, f" in the {role}s")
    if options.earth != "sphere" and are_shapes:
        raise InvalidOption(
            f"earth={options.earth!r} is for points, but one set has lines or polygons, to which "
            "distances are measured on a sphere alone: leave it out",
            [{"pointer": pointer("earth"), "detail": "lines and polygons are on the sphere"}],
        )
    for name in ("exclude_self", "once"):
        if getattr(options, name) and observations.sha256 != references.sha256:
            raise InvalidOption(
                f"{name} is for a set resolved against itself, but observations and references "
                "differ: send the same dataset as both, or leave it out",
                [{"pointer": pointer(name), "detail": "the two sets differ"}],
            )
    if isinstance(options.distance_m, str):
        either = " in the observations, and a distance is a number of metres or a column's name"
        _check_columns(observations, (options.distance_m,), "distance_m", pointer, either)
    own, summed = options.in_order(observations, references)
    _check_columns(summed, tuple(options.summarised), "summary", pointer)
    carried = {f"{options.summary_by}_{name}" for name in options.of_observations(own)}
    if twice := carried.intersection(options.made):
        raise InvalidOption(
            f"the result would have two columns {min(twice)!r}, one of the summary and one that it "
            "carries: leave one out"
        )
    _check_columns(references, options.columns, "columns", pointer)
    _check_columns(observations, options.observation_columns, "observation_columns", pointer)


def refuse_filters(earth: str, *, are_shapes: bool) -> None:
    """Refuse references that are not searched by group and in time."""
    if are_shapes:
        raise InvalidOption("by and time are for points: leave them out for lines and polygons")
    if earth != "sphere":
        raise InvalidOption(
            f"by and time are searched on the sphere alone: leave out earth={earth!r}"
        )


def _check_columns(
    dataset: PointSet,
    names: tuple[str, ...],
    option: str,
    pointer: Callable[[str], str],
    where: str = "",
) -> None:
    for name in names:
        if name not in dataset.columns:
            no_such = f"no column {name[:80]!r}{where}; found {listed(dataset.columns)}"
            place = {"pointer": pointer(option), "detail": no_such}
            raise InvalidOption(f"{option}: there is {no_such}", [place])
