"""The nearest shapes of every observation on a CPU, and all within a distance.

Each observation walks the trees of a `shapes.ShapeIndex` by itself: that of the areas, whose
polygons are at a distance of 0 where they hold it, then that of the pieces. Observations that
follow each other are neighbours: the worst of the best of one and the way from it are together a
bound of the next one's, with which its walk begins.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.arcs import MARGIN, arc_chord2, arc_point
from georesolve.kernels.bearing import direction_deg
from georesolve.kernels.boxes_cpu import ALL, NO_LIMIT, STACK, WIDTH
from georesolve.kernels.coordinates_cpu import (
    answer_of,
    chord2_within,
    measure_part,
    readable,
    unit_vectors,
)
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.lanes_cpu import children_within, lowest_bit
from georesolve.kernels.order_cpu import ROW, in_windows
from georesolve.kernels.query import Answer, Degrees, Found, Pairs, Query, Within
from georesolve.kernels.shapes import Polygons, ShapeIndex, holds
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.walk_cpu import looks, put, walk
from georesolve.kernels.ways import Algorithm
from georesolve.kernels.within_cpu import RUN, put_in_order

_GRAIN = 64
"""Observations that are worth a thread."""
_FEW = 1 << 10
"""Shapes within a distance that there is memory for at first."""
_MANY = 1.0 + 2.0**-50
"""More than what two products and a sum of a bound are rounded by."""


class Place(NamedTuple):
    """An observation: its unit vector, and its degrees, the longitude from -180 up to 180."""

    x: float
    y: float
    z: float
    lat: float
    lon: float


class Near(NamedTuple):
    """Collects the k nearest shapes of a place, of the tree of areas or of pieces."""

    place: Place
    in_areas: bool
    arcs: np.ndarray
    row: np.ndarray
    polygons: Polygons
    reference: np.ndarray
    key: np.ndarray


class Around(NamedTuple):
    """Collects all shapes within a bound of a place.

    `table` (n, 2) finds the entry of a row among `chord2` and `rows`, half as many, of which `used`
    are used; what is not of the observation `stamp` is free.
    """

    place: Place
    in_areas: bool
    arcs: np.ndarray
    row: np.ndarray
    polygons: Polygons
    bound: float
    stamp: int
    table: np.ndarray
    chord2: np.ndarray
    rows: np.ndarray
    used: np.ndarray


class Nearest(NamedTuple):
    """Finds the nearest arc of a shape: its squared chord and, in `arc`, its number."""

    place: Place
    arcs: np.ndarray
    row: np.ndarray
    own: int
    chord2: np.ndarray
    arc: np.ndarray


@njit(inline="always")
def _chord2(collector, tree, item):  # type: ignore[no-untyped-def]
    """The row of a piece or an area, and its squared chord."""
    place, arcs = collector.place, collector.arcs
    first, stop = tree.items[item, 0], tree.items[item, 1]
    if collector.in_areas:
        inside = holds(
            collector.polygons, arcs, first, place.x, place.y, place.z, place.lat, place.lon
        )
        return collector.polygons.row[first], 0.0 if inside else np.inf
    chord2 = np.inf
    for i in range(first, stop):
        chord2 = min(chord2, arc_chord2(place.x, place.y, place.z, arcs[i]))
    return collector.row[first], chord2


@looks(Near)
def _take_near(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    reference, key = collector.reference, collector.key
    last = key.size - 1
    while bits:
        row, chord2 = _chord2(collector, tree, node * WIDTH + lowest_bit(bits))
        bits &= bits - 1
        if closer(chord2, row, key[last], reference[last]):
            place = 0
            while place < last and reference[place] != row:
                place += 1
            if reference[place] != row or chord2 < key[place]:
                put(key, reference, place, chord2, row)
                worst = min(worst, key[last])
                bits &= children_within(tree.boxes, node, box, worst)
    return worst, 0


@looks(Around)
def _take_around(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    table, chord2, rows, used = collector.table, collector.chord2, collector.rows, collector.used
    while bits:
        row, c = _chord2(collector, tree, node * WIDTH + lowest_bit(bits))
        bits &= bits - 1
        if c > collector.bound:
            continue
        at = row % table.shape[0]
        while table[at, 0] == collector.stamp and rows[table[at, 1]] != row:
            at = (at + 1) % table.shape[0]
        if table[at, 0] == collector.stamp:
            chord2[table[at, 1]] = min(chord2[table[at, 1]], c)
            continue
        if 2 * used[0] >= table.shape[0]:
            # It ends the walk, which begins again with more memory.
            used[0] = -1
            return -1.0, 0
        table[at, 0], table[at, 1] = collector.stamp, used[0]
        chord2[used[0]], rows[used[0]] = c, row
        used[0] += 1
    return worst, 0


@looks(Nearest)
def _take_nearest(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    place, chord2, arc = collector.place, collector.chord2, collector.arc
    while bits:
        item = node * WIDTH + lowest_bit(bits)
        bits &= bits - 1
        if collector.row[tree.items[item, 0]] == collector.own:
            for i in range(tree.items[item, 0], tree.items[item, 1]):
                c = arc_chord2(place.x, place.y, place.z, collector.arcs[i])
                if closer(c, i, chord2[0], arc[0]):
                    chord2[0], arc[0] = c, i
    return worst, 0


@njit(inline="always")
def _show(tree, collector, box, worst, brute, stack):  # type: ignore[no-untyped-def]
    """Show a collector what is within a bound, or by brute force all."""
    if brute:
        box = np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
        worst = ALL
    if tree.items.shape[0]:
        walk(tree, collector, box, worst, 0, 0, NO_LIMIT, stack)


@njit(inline="always")
def _place(points, lat_deg, lon_deg, i, box):  # type: ignore[no-untyped-def]
    x, y, z = points[i, 0], points[i, 1], points[i, 2]
    box[0], box[1], box[2], box[3], box[4], box[5] = x, y, z, x, y, z
    lon = lon_deg[i] - 360.0 if lon_deg[i] >= 180.0 else lon_deg[i]
    return Place(x, y, z, lat_deg[i], lon)


@njit(cache=True, nogil=True, error_model="numpy")
def _search_near(  # type: ignore[no-untyped-def]
    thread, threads, pieces, areas, polygons, arcs, row, points, lat_deg, lon_deg, order, brute,
    reference, key,
):  # fmt: skip
    box = np.empty(6)
    stack = np.empty(STACK, np.int64)
    k = reference.shape[1]
    n = order.size
    before = Place(0.0, 0.0, 0.0, 0.0, 0.0)
    reach = ALL
    for at in range(n * thread // threads, n * (thread + 1) // threads):
        i = order[at] & ROW
        place = _place(points, lat_deg, lon_deg, i, box)
        rows, chords = reference[i], key[i]
        for j in range(k):
            rows[j], chords[j] = ROW, np.inf
        way = squared_chord(place.x, place.y, place.z, before.x, before.y, before.z)
        # Both roots may be less than the true ones.
        root = math.sqrt(reach) + math.sqrt(way) + 2.0 * MARGIN
        worst = min(ALL, root * root * _MANY)
        near = Near(place, True, arcs, row, polygons, rows, chords)
        _show(areas, near, box, 0.0, brute, stack)
        near = Near(place, False, arcs, row, polygons, rows, chords)
        _show(pieces, near, box, min(worst, chords[k - 1]), brute, stack)
        before, reach = place, min(ALL, chords[k - 1])
        for j in range(k):
            rows[j] = rows[j] if chords[j] < np.inf else -1


@njit(cache=True, nogil=True, error_model="numpy")
def _search_around(  # type: ignore[no-untyped-def]
    thread, threads, pieces, areas, polygons, arcs, row, points, lat_deg, lon_deg, order, brute,
    first_of_all, bounds, counts, starts, reference, distance_m,
):  # fmt: skip
    box = np.empty(6)
    stack = np.empty(STACK, np.int64)
    n = order.size
    used = np.zeros(1, np.int64)
    size = _FEW
    table = np.full((2 * size, 2), -1, np.int64)
    chord2, rows = np.empty(size + RUN), np.empty(size + RUN)
    ordered = np.empty(size + RUN), np.empty(size + RUN)
    ranks = np.empty(RUN, np.int64)
    for at in range(n * thread // threads, n * (thread + 1) // threads):
        i = order[at] & ROW
        place = _place(points, lat_deg, lon_deg, i, box)
        bound = bounds[first_of_all + i if bounds.size > 1 else 0]
        while True:
            used[0] = 0
            found = Around(place, True, arcs, row, polygons, bound, at, table, chord2, rows, used)
            _show(areas, found, box, 0.0, brute, stack)
            if used[0] >= 0:
                found = Around(
                    place, False, arcs, row, polygons, bound, at, table, chord2, rows, used
                )
                _show(pieces, found, box, min(bound, ALL), brute, stack)
            if used[0] >= 0:
                break
            size *= 2
            table = np.full((2 * size, 2), -1, np.int64)
            chord2, rows = np.empty(size + RUN), np.empty(size + RUN)
            ordered = np.empty(size + RUN), np.empty(size + RUN)
        if starts.size == 0:
            counts[i] = used[0]
            continue
        put_in_order((chord2, rows), 0, used[0], ordered, 0, ranks)
        measure_part(ordered[0][: used[0]])
        for j in range(used[0]):
            distance_m[starts[i] + j] = ordered[0][j]
            reference[starts[i] + j] = np.int64(ordered[1][j])


@njit(cache=True, nogil=True, error_model="numpy")
def _search_points(  # type: ignore[no-untyped-def]
    thread, threads, pieces, arcs, shapes, points, lat_deg, lon_deg, reference, bounds, lat, lon
):
    """Write where the nearest point of a shape is, of each observation's own one."""
    box = np.empty(6)
    stack = np.empty(STACK, np.int64)
    chord2, arc = np.empty(1), np.empty(1, np.int64)
    n = reference.size
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        lat[i], lon[i] = math.nan, math.nan
        if reference[i] < 0:
            continue
        place = _place(points, lat_deg, lon_deg, i, box)
        lat[i], lon[i] = place.lat, lon_deg[i]
        if bounds[i] == 0.0:
            continue
        chord2[0], arc[0] = np.inf, ROW
        nearest = Nearest(place, arcs, shapes.row, reference[i], chord2, arc)
        walk(pieces, nearest, box, min(bounds[i], ALL), 0, 0, NO_LIMIT, stack)
        end, x, y, z = arc_point(place.x, place.y, place.z, arcs[arc[0]])
        if end < 2:
            lat[i], lon[i] = shapes.lat_deg[arc[0], end], shapes.lon_deg[arc[0], end]
        else:
            north = direction_deg(z, math.sqrt(x * x + y * y))
            east = direction_deg(y, x)
            lat[i] = north - 360.0 if north > 180.0 else north
            lon[i] = east - 360.0 if east >= 180.0 else east


def _searched(index: ShapeIndex) -> tuple:  # type: ignore[type-arg]
    return index.pieces, index.areas, index.polygons, index.arcs, index.shapes.row


def search(
    index: ShapeIndex, observations: Degrees, query: Query, by: Algorithm, *, measure: bool = False
) -> Found | Answer:
    """The k nearest shapes of every observation."""
    n = observations.lat_deg.size
    found = Found(np.full((n, query.k), -1, np.int64), np.full((n, query.k), np.inf))
    degrees = readable(observations)
    for part, points, order in in_windows(degrees, 1, index.n_references):
        in_threads(
            _search_near, threads_for(order.size, _GRAIN), *_searched(index), points,
            *(one[part] for one in degrees), order, by == "brute", *(one[part] for one in found),
        )  # fmt: skip
    return answer_of(found) if measure else found


def _search(
    index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm, counts: np.ndarray,
    found: Pairs,
) -> None:  # fmt: skip
    degrees = readable(observations)
    for part, points, order in in_windows(degrees, 1, index.n_references):
        counts[part] = 0
        starts = found.starts[part.start : part.stop + 1]
        in_threads(
            _search_around, threads_for(order.size, _GRAIN), *_searched(index), points,
            *(one[part] for one in degrees), order, by == "brute", part.start, asked.chord2,
            counts[part], starts, *found[1:],
        )  # fmt: skip


def count(index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm) -> np.ndarray:
    """How many shapes lie within the distance of every observation."""
    counts = np.empty(observations.lat_deg.size, np.int64)
    none = np.empty(0, np.int64)
    _search(index, observations, asked, by, counts, Pairs(none, none, np.empty(0)))
    return counts


def pairs(index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm) -> Pairs:
    """All shapes within the distance of every observation, nearest first, equals by row."""
    counts = count(index, observations, asked, by)
    starts = np.append(0, counts.cumsum())
    found = Pairs(starts, np.empty(starts[-1], np.int64), np.empty(starts[-1]))
    _search(index, observations, asked, by, counts, found)
    return found


def points(
    index: ShapeIndex, observations: Degrees, reference: np.ndarray, distance_m: np.ndarray
) -> Degrees:
    """See `kernels.nearest_points`."""
    lat, lon = np.empty(reference.size), np.empty(reference.size)
    vectors = unit_vectors(*observations)
    bounds = chord2_within(np.nan_to_num(distance_m))
    # The greatest squared chord of 0 m is more than 0.
    bounds[distance_m == 0.0] = 0.0
    in_threads(
        _search_points, threads_for(reference.size, _GRAIN), index.pieces, index.arcs,
        index.shapes, vectors, *readable(observations), reference, bounds, lat, lon,
    )  # fmt: skip
    return Degrees(lat, lon)
