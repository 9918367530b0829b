"""Lines and polygons as arcs: how their edges run, and which side of them polygons are.

An edge is a great-circle arc where a file or the user says that edges are spherical. Else it is
straight in longitude and latitude, as in GeoJSON and GeoParquet, and followed by so many arcs that
none of them is farther from it than `densify_m`.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import shapely

from georesolve.io.columns import Edges, Reading
from georesolve.io.datasets import ROW_GROUP, Dataset, Edging, Outlines, read_rows
from georesolve.io.errors import InvalidInput
from georesolve.io.evidence import Evidence, RowSample
from georesolve.io.geometry import decode_wkb, flawed
from georesolve.kernels.query import EARTH_RADIUS_M, is_valid
from georesolve.kernels.shapes import Shapes

_POINT, _POLYGON, _COLLECTION = 0, 3, 7
_HALF_WAY_DEG = 180.0
"""Degrees of longitude beyond which an edge goes the long way around the world."""
_STEP_DEG = 30.0
"""Degrees of longitude and of latitude that an arc of a straight edge spans at most."""
_SLACK = 1.05
"""Of the arcs that the curvature of a straight edge asks for, which holds of short ones."""
_BEYOND_DEG = 1e-9
"""Degrees beyond -180 or a pole that are rounding: 0.1 mm. Natural Earth has such points."""
_ROUNDED = 2.0**-46
"""What the area of a ring may be off, relative to that below its edges together."""
_OPPOSITE = 2.0**-40
"""Square of the sum of two unit vectors that are opposite: up to 6 m."""


class _Paths(NamedTuple):
    """Rings, lines and points, the row and the polygon of each, and whether it is a hole."""

    geometry: np.ndarray
    row: np.ndarray
    polygon: np.ndarray
    is_hole: np.ndarray
    polygon_row: np.ndarray


class _Edges(NamedTuple):
    """Ends of edges in degrees, as given, and the path of each."""

    lon: np.ndarray
    lat: np.ndarray
    path: np.ndarray


class Outline(NamedTuple):
    """Geometries as edges, of each of which so many `arcs` are made.

    `lon` and `lat` are where each begins. What is missing, empty or flawed has no edges and begins
    nowhere; missing ones are not flawed.
    """

    paths: _Paths
    edges: _Edges
    arcs: np.ndarray
    lon: np.ndarray
    lat: np.ndarray
    flaws: dict[int, str]
    """By row, ascending, why it is no shape."""


def outline_of(geometries: np.ndarray, how: Edging) -> Outline:
    """The edges of an array of shapely."""
    why = _flaws(geometries, how)
    paths = _paths(geometries[why == ""], np.flatnonzero(why == ""))
    edges = _edges(paths)
    if how.edges == "spherical":
        opposite = np.unique(paths.row[edges.path[_are_opposite(edges)]])
        if opposite.size:
            why[opposite] = "an edge of it is 180 degrees long: say which way, by a point between"
            paths = _paths(geometries[why == ""], np.flatnonzero(why == ""))
            edges = _edges(paths)
    lon, lat = np.full((2, len(geometries)), np.nan)
    lon[paths.row[edges.path[::-1]]] = edges.lon[::-1, 0]
    lat[paths.row[edges.path[::-1]]] = edges.lat[::-1, 0]
    flaws = {row: why[row] for row in np.flatnonzero(why != "").tolist()}
    arcs = np.ones(edges.path.size, np.int64)
    if how.edges == "planar":
        arcs = _number_of_arcs(edges, how.densify_m)
    return Outline(paths, edges, arcs, lon, lat, flaws)


def shapes_of(outline: Outline, how: Edging) -> Shapes:
    """The arcs of geometries."""
    paths, edges, number = outline[:3]
    holds_south = np.zeros(paths.polygon_row.size, bool)
    bounds, room = np.flatnonzero(paths.polygon[edges.path] >= 0), 0.0
    if how.edges == "spherical":
        np.logical_xor.at(holds_south, *_sides(paths, edges, oriented=how.oriented))
        ends, bounds = _eastwards(edges), bounds[:0]
    else:
        edges = _west_first(edges)
        ends, room = _followed(edges, number), 2 * how.densify_m / EARTH_RADIUS_M
    path = edges.path.repeat(number)
    return Shapes(
        paths.row[path], *ends, paths.polygon[path], paths.polygon_row, holds_south,
        paths.polygon[edges.path[bounds]], edges.lat[bounds], edges.lon[bounds], np.array([room]),
    )  # fmt: skip


def together(parts: Iterable[tuple[int, Shapes]]) -> Shapes:
    """Shapes of rows that follow each other, each with the first of them, as those of all."""
    made, polygons = [], 0
    for first_row, shapes in parts:
        moved = shapes._replace(
            row=shapes.row + first_row,
            polygon=np.where(shapes.polygon < 0, -1, shapes.polygon + polygons),
            polygon_row=shapes.polygon_row + first_row,
            edge_polygon=shapes.edge_polygon + polygons,
        )
        made.append(moved)
        polygons += shapes.polygon_row.size
    return Shapes(*map(np.concatenate, zip(*made, strict=True)))


def read_shapes(points: Dataset, start: int, stop: int) -> Shapes:
    """The shapes of some rows of a dataset, counted from the first of these."""
    assert points.outlines is not None, "there are some"
    column, how, _ = points.outlines

    def read(first: int) -> tuple[int, Shapes]:
        last = min(first + ROW_GROUP, stop)
        rows = read_rows(points.file, first, last, [column, points.lat, points.lon])
        geometries, _ = decode_wkb(rows[column].to_numpy())
        # What was kept although it is not on the globe.
        geometries[~is_valid(*(rows[name].to_numpy() for name in (points.lat, points.lon)))] = None
        return first - start, shapes_of(outline_of(geometries, how), how)

    return together(map(read, range(start, max(stop, start + 1), ROW_GROUP)))


def _flaws(geometries: np.ndarray, how: Edging) -> np.ndarray:
    why = np.full(len(geometries), "", object)
    kinds = shapely.get_type_id(geometries)
    why[shapely.is_empty(geometries)] = "it is empty"
    for row in np.flatnonzero(kinds >= _COLLECTION):
        why[row] = f"it is a {geometries[row].geom_type}: give its parts rows of their own"
    known = np.flatnonzero(why == "")
    coordinates, of = shapely.get_coordinates(geometries[known], return_index=True)
    (lon, lat), row = coordinates.T, known[of]
    bad = np.flatnonzero(~is_valid(*_on_globe(lat, lon)))
    for i in bad[np.unique(row[bad], return_index=True)[1]]:
        why[row[i]] = (
            f"it has a point at longitude {float(lon[i])!r} and latitude {float(lat[i])!r}: "
            "allowed are degrees from -180 to 360 and from -90 to 90"
        )
    if how.edges == "planar":
        parts, of = shapely.get_parts(geometries[known], return_index=True)
        west, _, east, _ = shapely.bounds(parts).T
        wide = known[of[east - west > 360.0 + _BEYOND_DEG]]
        why[wide[why[wide] == ""]] = "it is wider than 360 degrees of longitude"
    return why


def _paths(geometries: np.ndarray, rows: np.ndarray) -> _Paths:
    parts, of = shapely.get_parts(geometries, return_index=True)
    has_points = ~shapely.is_empty(parts)
    parts, part_row = parts[has_points], rows[of[has_points]]
    is_polygon = shapely.get_type_id(parts) == _POLYGON
    at = np.flatnonzero(is_polygon)
    rings, ring_of = shapely.get_rings(parts[at], return_index=True)
    # Of the rings of a polygon the first bounds it, the others are holes.
    is_hole = np.append(False, ring_of[1:] == ring_of[:-1])[: ring_of.size]
    others = np.flatnonzero(~is_polygon)
    part = np.concatenate([at[ring_of], others])
    order = np.argsort(part, kind="stable")
    none = np.full(others.size, -1)
    return _Paths(
        np.concatenate([rings, parts[others]])[order],
        part_row[part[order]],
        np.concatenate([ring_of, none])[order],
        np.concatenate([is_hole, none >= 0])[order],
        part_row[at],
    )


def _edges(paths: _Paths) -> _Edges:
    coordinates, path = shapely.get_coordinates(paths.geometry, return_index=True)
    first = np.flatnonzero(path[:-1] == path[1:]) if path.size else path
    # A point is an edge of no length, between the rows of lines.
    alone = np.flatnonzero(shapely.get_type_id(paths.geometry[path]) == _POINT)
    start = np.concatenate([first, alone])
    stop = np.concatenate([first + 1, alone])
    order = np.argsort(start, kind="stable")
    ends = coordinates[np.stack([start[order], stop[order]], axis=1)]
    lat, lon = _on_globe(ends[:, :, 1], ends[:, :, 0])
    return _Edges(lon, lat, path[start[order]])


def _on_globe(lat: np.ndarray, lon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes; those that are hardly beyond the globe are on its border."""
    near_lat, near_lon = np.clip(lat, -90.0, 90.0), np.maximum(lon, -180.0)
    return (
        np.where(np.abs(lat - near_lat) <= _BEYOND_DEG, near_lat, lat),
        np.where(np.abs(lon - near_lon) <= _BEYOND_DEG, near_lon, lon),
    )


def _are_opposite(edges: _Edges) -> np.ndarray:
    lat, lon = np.radians(edges.lat), np.radians(edges.lon)
    ends = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
    opposite: np.ndarray = (ends.sum(axis=2) ** 2).sum(axis=0) < _OPPOSITE
    return opposite


def _within_180(lon: np.ndarray) -> np.ndarray:
    """Longitudes from -180 up to, not including, 180; exact."""
    return np.where(lon >= 180.0, lon - 360.0, lon) + 0.0


def _ordered(is_turned: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return np.where(is_turned[:, None], ends[:, ::-1], ends)


def _eastwards(edges: _Edges) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of arcs, the western end first: the shorter way."""
    lon, lat = _within_180(edges.lon), edges.lat
    apart = lon[:, 1] - lon[:, 0]
    is_turned = np.where(np.abs(apart) > 180, apart > 0, apart < 0)
    is_turned |= (apart == 0) & (lat[:, 0] > lat[:, 1])
    return _ordered(is_turned, lat), _ordered(is_turned, lon)


def _west_first(edges: _Edges) -> _Edges:
    """Edges that go one way, so that one of two polygons has the same points in both."""
    lon, lat, path = edges
    is_turned = (lon[:, 0] > lon[:, 1]) | ((lon[:, 0] == lon[:, 1]) & (lat[:, 0] > lat[:, 1]))
    return _Edges(_ordered(is_turned, lon), _ordered(is_turned, lat), path)


def _number_of_arcs(edges: _Edges, densify_m: float) -> np.ndarray:
    """How many arcs follow each straight edge, so that none is farther from it."""
    lon, lat = edges.lon, edges.lat
    east = np.radians(np.abs(lon[:, 1] - lon[:, 0]))
    north = np.radians(lat[:, 1] - lat[:, 0])
    poleward = np.radians(np.abs(lat).max(axis=1))
    crosses = (lat[:, 0] < 0) != (lat[:, 1] < 0)
    widest = np.where(crosses, 1.0, np.cos(np.radians(np.abs(lat).min(axis=1))))
    # The acceleration of a point that goes along the edge, but for what bends with the globe.
    bend = east * np.sin(poleward) * np.hypot(east * widest, 2 * north)
    count = np.sqrt(_SLACK * bend * EARTH_RADIUS_M / (8 * densify_m))
    for axis in (lon, lat):
        count = np.maximum(count, np.abs(axis[:, 1] - axis[:, 0]) / _STEP_DEG)
    number: np.ndarray = np.maximum(np.ceil(count), 1).astype(np.int64)
    return number


def _followed(edges: _Edges, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of arcs that follow straight edges, so many each."""
    lon, lat = edges.lon, edges.lat
    step = np.arange(number.sum()) - (number.cumsum() - number).repeat(number)
    of = number.repeat(number)
    made = []
    for axis in (lat, lon):
        first, last = axis[:, 0].repeat(number), axis[:, 1].repeat(number)
        each = [
            np.where(at == of, last, first + (last - first) * (at / of)) for at in (step, step + 1)
        ]
        made.append(np.stack(each, axis=1))
    return made[0], _within_180(made[1])


def _sides(paths: _Paths, edges: _Edges, *, oriented: bool) -> tuple[np.ndarray, np.ndarray]:
    """The polygon of each ring, and whether what the ring bounds has the south pole in it.

    What it bounds is on its left if it is `oriented`, on the right of a hole; else the smaller
    side.
    """
    lat = np.radians(edges.lat)
    apart = np.diff(_within_180(edges.lon))[:, 0]
    apart -= 360.0 * np.sign(apart) * (np.abs(apart) > 180.0)
    half = np.radians(apart) / 2
    # Between an arc and the equator, and from there to the south pole.
    area = 2 * np.arctan2(
        np.sin(half) * np.sin(lat.sum(axis=1) / 2),
        np.cos(half) * np.cos((lat[:, 1] - lat[:, 0]) / 2),
    ) + np.radians(apart)
    n = len(paths.row)
    below, turn, around = (
        np.bincount(edges.path, one, minlength=n) for one in (area, apart, np.abs(area))
    )
    is_around = np.abs(turn) > 180
    # What the meridians to the south pole meet an odd number of times.
    odd = np.where(is_around, 4 * np.pi - np.abs(below), np.abs(below))
    holds_south = odd > 2 * np.pi
    if oriented:
        is_right = np.where(is_around, turn < 0, below > 0)
        # A ring of no area has no sides; what is left of one is rounding.
        has_sides = is_around | (np.abs(below) > _ROUNDED * around)
        holds_south = has_sides & (is_right ^ paths.is_hole)
    ring = paths.polygon >= 0
    return paths.polygon[ring], holds_south[ring]


FINEST_M = 1e-3
"""As near arcs may have to follow edges: an edge of 10 degrees is 100 000 of them then."""


class ShapeReader:
    """Takes the lines and polygons of a geometry column, batch by batch.

    `about` is what GeoParquet says of the column. They are checked, and not kept unless `keeps`:
    what is written as a dataset is read of that again.
    """

    def __init__(self, about: dict[str, Any], reading: Reading, column: str, file: str) -> None:
        edges = reading.edges or about.get("edges") or "planar"
        if edges not in get_args(Edges):
            raise InvalidInput(
                f"{file}: the geometry column {column!r} says that its edges are {edges!r}: known "
                f"are {' and '.join(get_args(Edges))}; say which with the option edges"
            )
        oriented = about.get("orientation") == "counterclockwise"
        densify_m = reading.densify_m or about.get("densify_m") or Edging().densify_m
        if not isinstance(densify_m, int | float) or not FINEST_M <= densify_m < np.inf:
            raise InvalidInput(
                f"{file}: arcs are to follow edges within {densify_m!r} metres: give densify_m as "
                f"a number from {FINEST_M} on"
            )
        self.edging = Edging(edges, float(densify_m), oriented)
        self.keeps = True
        self.ends = Evidence()
        """What the ends of edges say."""
        self.wide_edges = RowSample()
        """Rows with a planar edge of more than 180 degrees of longitude."""
        self._keeps_invalid = reading.on_invalid == "null"
        self._column, self._file = column, file
        self._arcs = self._rows = 0
        self._taken: list[tuple[int, int, Shapes]] = []

    def outlines(self, rows: int) -> Outlines | None:
        """What is told of a set of so many rows, None if all are points."""
        arcs = self._arcs + rows - self._rows
        return Outlines(self._column, self.edging, arcs) if self._rows else None

    def take(self, geometries: np.ndarray, first_row: int) -> tuple[pa.Array, pa.Array]:
        """Take the shapes of some rows; where each of them begins, longitudes and latitudes."""
        outline = outline_of(geometries, self.edging)
        if outline.flaws and not self._keeps_invalid:
            raise flawed(outline.flaws, self._column, first_row, self._file)
        if self.edging.edges == "planar":
            paths, edges = outline.paths, outline.edges
            degrees = np.abs(edges.lon[:, 1] - edges.lon[:, 0])
            # An edge from -180 to 180 is the border of a map, as that of Antarctica.
            is_wide = (degrees > _HALF_WAY_DEG) & (degrees < 2 * _HALF_WAY_DEG)
            wide = RowSample.of(np.unique(paths.row[edges.path[is_wide]]))
            self.wide_edges = self.wide_edges.followed(wide, first_row)
        self.ends.add(outline.edges.lat.ravel(), outline.edges.lon.ravel())
        self._rows += len(geometries)
        self._arcs += int(outline.arcs.sum())
        if self.keeps:
            stop = first_row + len(geometries)
            self._taken.append((first_row, stop, shapes_of(outline, self.edging)))
        return pa.array(outline.lon), pa.array(outline.lat)

    def shapes(self, lat_deg: np.ndarray, lon_deg: np.ndarray) -> Shapes | None:
        """All shapes, those of rows that were not taken being points; None if all rows are."""
        if not self._taken:
            return None
        parts: list[tuple[int, Shapes]] = []
        row, edging = 0, self.edging
        for start, stop, shapes in [*self._taken, (lat_deg.size, lat_deg.size, None)]:
            parts.append((row, _points_as_shapes(lat_deg[row:start], lon_deg[row:start], edging)))
            if shapes is not None:
                parts.append((start, shapes))
            row = stop
        return together(parts)


def _points_as_shapes(lat_deg: np.ndarray, lon_deg: np.ndarray, edging: Edging) -> Shapes:
    points = shapely.points(lon_deg, lat_deg)
    points[~is_valid(lat_deg, lon_deg)] = None
    return shapes_of(outline_of(points, edging), edging)


MIXED_EDGES = "mixed"
"""Edges of a set whose files differ in them: no file can be written with such a column."""


class JoinedShapes:
    """Lines and polygons of several files, whose edges run as each file says."""

    def __init__(self, column: str) -> None:
        self._column = column
        self.keeps = True
        self._parts: list[tuple[int, ShapeReader | JoinedShapes]] = []
        self._rows: list[int] = []

    def add(self, first_row: int, rows: int, reader: "ShapeReader | JoinedShapes | None") -> None:
        """Append the shapes of the next file, whose rows have been read."""
        if reader is not None and reader.outlines(rows) is not None:
            self._parts.append((first_row, reader))
            self._rows.append(rows)

    @property
    def ends(self) -> Evidence:
        """Statistics of the ends of edges."""
        ends = Evidence()
        for _, reader in self._parts:
            ends.extend(reader.ends)
        return ends

    @property
    def wide_edges(self) -> RowSample:
        """Rows with a planar edge of more than 180 degrees of longitude."""
        sample = RowSample()
        for first_row, reader in self._parts:
            sample = sample.followed(reader.wide_edges, first_row)
        return sample

    def outlines(self, rows: int) -> Outlines | None:
        """Outlines of a set of that many rows, None if all are points."""
        each = [r.outlines(n) for (_, r), n in zip(self._parts, self._rows, strict=True)]
        present = [outlines for outlines in each if outlines is not None]
        if not present:
            return None
        edgings = {outlines.edging for outlines in present}
        edging = edgings.pop() if len(edgings) == 1 else Edging(MIXED_EDGES)
        arcs = rows - sum(self._rows) + sum(outlines.arcs for outlines in present)
        return Outlines(self._column, edging, arcs)

    def shapes(self, lat_deg: np.ndarray, lon_deg: np.ndarray) -> Shapes | None:
        """All shapes by row, rows without a line or a polygon as points; None without any."""
        if not self._parts:
            return None
        parts, row, edging = [], 0, Edging()
        for (start, reader), rows in zip(self._parts, self._rows, strict=True):
            stop = start + rows
            shapes = reader.shapes(lat_deg[start:stop], lon_deg[start:stop])
            assert shapes is not None, "the file has lines or polygons"
            parts.append((row, _points_as_shapes(lat_deg[row:start], lon_deg[row:start], edging)))
            parts.append((start, shapes))
            row = stop
        parts.append((row, _points_as_shapes(lat_deg[row:], lon_deg[row:], edging)))
        return together(parts)
