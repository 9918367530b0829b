"""The nearest shapes of every observation on a GPU, and all within a distance.

A thread takes an observation, and neighbours on the curve are in one warp: they walk alike. A walk
of a tree of a `shapes.ShapeIndex` gives its items, those in the nearest boxes first. Answers are
made by the formulas of `kernels.arcs` and `kernels.shapes`, which are rounded alike on both.

A shape has several stretches, and may be found by each: lists have a row once (`shapes_cpu.offer`);
what is within a distance is sorted, and of equal rows the nearest is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda, float64, int64

from georesolve.kernels.arcs import arc_chord2
from georesolve.kernels.arithmetic import total
from georesolve.kernels.boxes_cpu import ALL, STACK, WIDTH
from georesolve.kernels.coordinates_cuda import answer_of
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.launch_cuda import stride
from georesolve.kernels.order_cuda import extent, order
from georesolve.kernels.outlines_cpu import holds
from georesolve.kernels.passes import check_passes
from georesolve.kernels.query import Answer, Degrees, Found, Pairs, Query, Within
from georesolve.kernels.shapes import Polygons, ShapeIndex
from georesolve.kernels.shapes_cpu import offer
from georesolve.query import Algorithm

if TYPE_CHECKING:
    import cupy as cp

_LEVEL = 40
"""A place on the stack has its level from this bit on: 0 of items, 1 of the lowest boxes."""
_PART = 1 << 22
"""Observations whose shapes within a distance are sorted together."""
_MOST_FOUND = 1 << 26
"""Stretches and areas that they find together, at most, but for a single one."""
_NONE = 1 << 62
"""A row behind all others."""


@cuda.jit(device=True, forceinline=True)
def _gap2(boxes, node, child, x, y, z):  # type: ignore[no-untyped-def]
    gap_x = max(total(boxes[node, 0, child], -x), total(x, -boxes[node, 3, child]), 0.0)
    gap_y = max(total(boxes[node, 1, child], -y), total(y, -boxes[node, 4, child]), 0.0)
    gap_z = max(total(boxes[node, 2, child], -z), total(z, -boxes[node, 5, child]), 0.0)
    return squared_chord(gap_x, gap_y, gap_z, 0.0, 0.0, 0.0)


@cuda.jit(device=True, forceinline=True)
def _observation(along, place, lat_deg, lon_deg, vectors):  # type: ignore[no-untyped-def]
    """The row, the vector and the degrees of an observation, its longitude from -180 up to 180."""
    i = along[place]
    lon = lon_deg[i]
    lon = total(lon, -360.0) if lon >= 180.0 else lon
    return i, vectors[i, 0], vectors[i, 1], vectors[i, 2], lat_deg[i], lon


@cuda.jit(device=True, forceinline=True)
def _begin(boxes, levels, x, places, gaps):  # type: ignore[no-untyped-def]
    """Put the root of a tree on the stack, if there is one and a vector; returns its top."""
    if boxes.shape[0] == 0 or math.isnan(x):
        return 0
    places[0] = int64(levels.size - 1) << _LEVEL | int64(boxes.shape[0] - 1)
    gaps[0] = 0.0
    return 1


@cuda.jit(device=True)
def _next_item(boxes, levels, x, y, z, worst, places, gaps, top):  # type: ignore[no-untyped-def]
    """The next item that may be within a bound, or -1; and the top of the stack."""
    while top > 0:
        top -= 1
        if gaps[top] > worst:
            continue
        level = places[top] >> _LEVEL
        at = places[top] & ((1 << _LEVEL) - 1)
        if level == 0:
            return at, top
        below = at * WIDTH
        if level > 1:
            below = levels[level - 2] + (at - levels[level - 1]) * WIDTH
        first = top
        for child in range(WIDTH):
            gap2 = _gap2(boxes, at, child, x, y, z)
            if gap2 <= worst:
                # The nearest is on top.
                place = top
                while place > first and gaps[place - 1] < gap2:
                    gaps[place], places[place] = gaps[place - 1], places[place - 1]
                    place -= 1
                gaps[place], places[place] = gap2, (level - 1) << _LEVEL | (below + child)
                top += 1
    return int64(-1), 0


@cuda.jit(device=True, forceinline=True)
def _nearest_of(arcs, start, stop, x, y, z):  # type: ignore[no-untyped-def]
    chord2 = math.inf
    for i in range(start, stop):
        chord2 = min(chord2, arc_chord2(x, y, z, arcs[i]))
    return chord2


@cuda.jit(cache=True)
def search_near(  # type: ignore[no-untyped-def]
    items, boxes, levels, area_items, area_boxes, area_levels, arcs, rows, polygon_row, holds_south,
    first, span, starts, edge, straight, edge_lon, edge_lat, lat_deg, lon_deg, vectors, along,
    brute, reference, key,
):  # fmt: skip
    """A thread an observation, striding over the grid: the list of its k nearest shapes."""
    polygons = Polygons(
        polygon_row, holds_south, first, span, starts, edge, straight, edge_lon, edge_lat
    )
    places, gaps = cuda.local.array(STACK, int64), cuda.local.array(STACK, float64)
    last = key.shape[1] - 1
    for place in range(cuda.grid(1), along.size, cuda.gridsize(1)):
        i, x, y, z, lat, lon = _observation(along, place, lat_deg, lon_deg, vectors)
        nearest, chords = reference[i], key[i]
        for j in range(last + 1):
            nearest[j], chords[j] = _NONE, math.inf
        top = _begin(area_boxes, area_levels, x, places, gaps)
        worst = ALL if brute else 0.0
        while True:
            item, top = _next_item(area_boxes, area_levels, x, y, z, worst, places, gaps, top)
            if item < 0:
                break
            polygon = area_items[item, 0]
            if holds(polygons, arcs, polygon, x, y, z, lat, lon):
                offer(nearest, chords, 0.0, polygon_row[polygon])
        top = _begin(boxes, levels, x, places, gaps)
        while True:
            worst = ALL if brute else min(ALL, chords[last])
            item, top = _next_item(boxes, levels, x, y, z, worst, places, gaps, top)
            if item < 0:
                break
            start = items[item, 0]
            chord2 = _nearest_of(arcs, start, items[item, 1], x, y, z)
            offer(nearest, chords, chord2, rows[start])
        for j in range(last + 1):
            if chords[j] == math.inf:
                nearest[j] = -1


@cuda.jit(cache=True)
def search_around(  # type: ignore[no-untyped-def]
    items, boxes, levels, area_items, area_boxes, area_levels, arcs, rows, polygon_row, holds_south,
    first, span, starts, edge, straight, edge_lon, edge_lat, lat_deg, lon_deg, vectors, along,
    brute, bounds, begins, counts, of, row, chord2,
):  # fmt: skip
    """Count the stretches and areas within a distance of each observation, or write their rows.

    `counts` becomes their number in either case; nothing is written beyond where `begins` says that
    the next observation begins.
    """
    polygons = Polygons(
        polygon_row, holds_south, first, span, starts, edge, straight, edge_lon, edge_lat
    )
    places, gaps = cuda.local.array(STACK, int64), cuda.local.array(STACK, float64)
    for place in range(cuda.grid(1), along.size, cuda.gridsize(1)):
        i, x, y, z, lat, lon = _observation(along, place, lat_deg, lon_deg, vectors)
        bound = bounds[i if bounds.size > 1 else 0]
        worst = ALL if brute else min(ALL, bound)
        into = begins[i] if row.size else int64(0)
        capacity = begins[i + 1] - into if row.size else int64(0)
        count = int64(0)
        top = _begin(boxes, levels, x, places, gaps)
        while True:
            item, top = _next_item(boxes, levels, x, y, z, worst, places, gaps, top)
            if item < 0:
                break
            start = items[item, 0]
            found = _nearest_of(arcs, start, items[item, 1], x, y, z)
            if found <= bound:
                if count < capacity:
                    of[into + count], row[into + count] = i, rows[start]
                    chord2[into + count] = found
                count += 1
        top = _begin(area_boxes, area_levels, x, places, gaps)
        worst = ALL if brute else 0.0
        while True:
            item, top = _next_item(area_boxes, area_levels, x, y, z, worst, places, gaps, top)
            if item < 0:
                break
            polygon = area_items[item, 0]
            if bound >= 0.0 and holds(polygons, arcs, polygon, x, y, z, lat, lon):
                if count < capacity:
                    of[into + count], row[into + count] = i, polygon_row[polygon]
                    chord2[into + count] = 0.0
                count += 1
        counts[i] = count


def _resident(index: ShapeIndex) -> tuple[Any, ...]:
    """What the kernels ask of an index, on the device; copied there once."""
    import cupy as cp

    if index.resident is None:
        given = *index.stretches, *index.areas, index.arcs, index.shapes.row, *index.polygons
        index.resident = tuple(
            cp.asarray(np.ascontiguousarray(one)) if isinstance(one, np.ndarray) else one
            for one in given
        )
    return index.resident


def _seen(observations: Degrees) -> tuple[cp.ndarray, ...]:
    """Degrees, unit vectors, and the order along the curve."""
    rows, vectors, _ = order(observations, extent(observations))
    return (*observations, vectors, rows)


def search(
    index: ShapeIndex, observations: Degrees, query: Query, by: Algorithm, *, measure: bool = False
) -> Found | Answer:
    """The k nearest shapes of every observation."""
    import cupy as cp

    n = observations.lat_deg.size
    found = Found(cp.empty((n, query.k), cp.int64), cp.empty((n, query.k)))
    if n:
        stride(search_near, n, *_resident(index), *_seen(observations), by == "brute", *found)
    return answer_of(found) if measure else found


def _parts(
    index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm
) -> Iterator[tuple[int, cp.ndarray, cp.ndarray, cp.ndarray]]:
    """Number of the observations of a part; of each pair the observation, row, squared chord."""
    import cupy as cp

    bounds = cp.asarray(asked.chord2)
    for start in range(0, max(1, observations.lat_deg.size), _PART):
        some = slice(start, start + _PART)
        yield from _of_part(index, *_some(observations, bounds, some), by)


def _some(observations: Degrees, bounds: cp.ndarray, some: slice) -> tuple[Degrees, cp.ndarray]:
    own = bounds[some] if bounds.size > 1 else bounds
    return Degrees(*(one[some] for one in observations)), own


def _of_part(
    index: ShapeIndex, part: Degrees, bounds: cp.ndarray, by: Algorithm
) -> Iterator[tuple[int, cp.ndarray, cp.ndarray, cp.ndarray]]:
    import cupy as cp

    n = part.lat_deg.size
    counts, begins = cp.zeros(n, cp.int64), cp.zeros(n + 1, cp.int64)
    of, row, chord2 = cp.empty(0, cp.int64), cp.empty(0, cp.int64), cp.empty(0)
    found = 0
    if n:
        request = *_resident(index), *_seen(part), by == "brute", bounds, begins
        stride(search_around, n, *request, counts, of, row, chord2)
        cp.cumsum(counts, out=begins[1:])
        found = int(begins[-1])
    if found > _MOST_FOUND and n > 1:
        # What stretches and areas find takes memory before rows are told apart.
        for half in (slice(0, n // 2), slice(n // 2, n)):
            yield from _of_part(index, *_some(part, bounds, half), by)
        return
    if found:
        of, row = cp.empty(found, cp.int64), cp.empty(found, cp.int64)
        chord2 = cp.empty(found)
        written = cp.empty_like(counts)
        stride(search_around, n, *request, written, of, row, chord2)
        check_passes(counts, written)
        nearest = _sorted(chord2, row, of)
        of, row, chord2 = of[nearest], row[nearest], chord2[nearest]
        is_first = cp.ones(found, bool)
        is_first[1:] = (of[1:] != of[:-1]) | (row[1:] != row[:-1])
        of, row, chord2 = of[is_first], row[is_first], chord2[is_first]
    yield n, of, row, chord2


def _sorted(*keys: cp.ndarray) -> cp.ndarray:
    """An order by keys, the last one first; whole numbers are below 2^53."""
    import cupy as cp

    return cp.lexsort(cp.stack([key.astype(cp.float64) for key in keys]))


def count(index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm) -> cp.ndarray:
    """How many shapes lie within the distance of every observation."""
    import cupy as cp

    parts = _parts(index, observations, asked, by)
    return cp.concatenate([cp.bincount(of, minlength=n)[:n] for n, of, _, _ in parts])


def count_by_row(
    index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm
) -> cp.ndarray:
    """How many observations lie within the distance of every shape."""
    import cupy as cp

    counts = cp.zeros(index.n_references, cp.int64)
    for _, _, row, _ in _parts(index, observations, asked, by):
        counts += cp.bincount(row, minlength=counts.size)[: counts.size]
    return counts


def pairs(index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm) -> Pairs:
    """All shapes within the distance of every observation, nearest first, equals by row."""
    import cupy as cp

    each: list[tuple[cp.ndarray, ...]] = []
    for n, of, row, chord2 in _parts(index, observations, asked, by):
        nearest = _sorted(row, chord2, of)
        each.append((cp.bincount(of, minlength=n)[:n], row[nearest], chord2[nearest]))
    counts, row, chord2 = map(cp.concatenate, zip(*each, strict=True))
    starts = cp.zeros(counts.size + 1, cp.int64)
    cp.cumsum(counts, out=starts[1:])
    return Pairs(starts, *answer_of(Found(row, chord2)))
