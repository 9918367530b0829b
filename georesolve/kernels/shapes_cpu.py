"""The nearest shapes of every observation on a CPU, and all within a distance.

Neighbours on the curve are looked at in blocks. One walk of each tree of a `shapes.ShapeIndex`
finds the candidates of a block: stretches within its bound, and areas that some of it may be in.
Then every arc of a candidate is compared with all of the block, in a loop without branches.

The bound of a block, for the nearest, comes from the one in its middle, which walks the trees by
itself: no other has its k nearest farther away than that one and the way to it together. Where a
block has many candidates, its observations have little in common, and each walks by itself. The
middle begins with the bound that the middle before it gives in the same way.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.arcs import MARGIN, arc_chord2, arc_point, chord2_of, near_parts
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
from georesolve.kernels.lanes_cpu import (
    borrowed,
    children_within,
    lowest_bit,
    prefetch_for_write,
)
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import ROW, in_windows
from georesolve.kernels.outlines_cpu import holds
from georesolve.kernels.query import Answer, Degrees, Found, Pairs, Query, Within
from georesolve.kernels.shapes import BoxTree, Polygons, ShapeIndex
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.walk_cpu import look, put, walk
from georesolve.kernels.within_cpu import NO_PAIRS, RUN, count_then_fill, put_in_order
from georesolve.query import Algorithm

_BLOCK = 32
"""Observations that share a walk."""
_GRAIN = 2 * _BLOCK
"""Observations that are worth a thread."""
_FEW = 1 << 8
"""Candidates that there is memory for at first."""
_MANY = 1.0 + 2.0**-50
"""More than what two products and a sum of a bound are rounded by."""
_WINDOW = 1 << 21
"""Observations sorted at a time for the nearest, or more: blocks of more of them are smaller."""
_MOST_COUNTS = 1 << 24
"""Counts of shapes by all threads together."""


class Searched(NamedTuple):
    """What a search needs of an index."""

    stretches: BoxTree
    areas: BoxTree
    arcs: np.ndarray
    row: np.ndarray
    polygons: Polygons


class Near(NamedTuple):
    """Collects the k nearest shapes of one observation, of the tree of areas or of stretches."""

    place: np.ndarray
    in_areas: bool
    searched: Searched
    reference: np.ndarray
    key: np.ndarray


class Gather(NamedTuple):
    """Collects the places of items within a bound, in the order of a tree, as long as they fit."""

    found: np.ndarray
    used: np.ndarray


class Nearest(NamedTuple):
    """Finds the nearest arc of a shape: its squared chord and, in `arc`, its number."""

    place: np.ndarray
    searched: Searched
    own: int
    chord2: np.ndarray
    arc: np.ndarray


@look.of(Near)
def _take_near(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    place, in_areas, (_, _, arcs, rows, polygons), reference, key = collector
    last = key.size - 1
    while bits:
        item = node * WIDTH + lowest_bit(bits)
        bits &= bits - 1
        first, stop = tree.items[item, 0], tree.items[item, 1]
        chord2 = np.inf
        if in_areas:
            row, chord2 = polygons.row[first], 0.0
            if not holds(polygons, arcs, first, place[0], place[1], place[2], place[3], place[4]):
                continue
        else:
            row = rows[first]
            for i in range(first, stop):
                chord2 = min(chord2, arc_chord2(place[0], place[1], place[2], arcs[i]))
        if offer(reference, key, chord2, row):
            worst = min(worst, key[last])
            bits &= children_within(tree.boxes, node, box, worst)
    return worst, 0


@njit(inline="always")
def offer(reference, key, chord2, row):  # type: ignore[no-untyped-def]
    """Put a shape into a list of distinct ones where it belongs; whether it does."""
    last = key.size - 1
    if not closer(chord2, row, key[last], reference[last]):
        return False
    at = 0
    while at < last and reference[at] != row:
        at += 1
    if reference[at] == row and not chord2 < key[at]:
        return False
    put(key, reference, at, chord2, row)
    return True


@look.of(Gather)
def _gather(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    found, used = collector
    while bits:
        if used[0] == found.size:
            # It ends the walk.
            used[0] = -1
            return -1.0, 0
        found[used[0]] = node * WIDTH + lowest_bit(bits)
        bits &= bits - 1
        used[0] += 1
    return worst, 0


@look.of(Nearest)
def _take_nearest(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    place, (_, _, arcs, rows, _), own, chord2, arc = collector
    while bits:
        item = node * WIDTH + lowest_bit(bits)
        bits &= bits - 1
        if rows[tree.items[item, 0]] == own:
            for i in range(tree.items[item, 0], tree.items[item, 1]):
                c = arc_chord2(place[0], place[1], place[2], arcs[i])
                if closer(c, i, chord2[0], arc[0]):
                    chord2[0], arc[0] = c, i
    return worst, 0


@njit(nogil=True, error_model="numpy")
def _show(tree, collector, box, worst, brute, stack):  # type: ignore[no-untyped-def]
    """Show a collector what is within a bound, or by brute force all."""
    if brute:
        box = np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
        worst = ALL
    if tree.items.shape[0]:
        walk(tree, collector, box, worst, 0, 0, NO_LIMIT, stack)


@njit(nogil=True, error_model="numpy")
def _gathered(tree, found, used, box, worst, brute, stack):  # type: ignore[no-untyped-def]
    """All that is within a bound, in memory that is as large as it takes; in `used` how many."""
    while True:
        used[0] = 0
        _show(tree, Gather(found, used), box, worst, brute, stack)
        if used[0] >= 0:
            return found
        found = np.empty(2 * found.size, np.int64)


@njit(inline="always")
def _load(points, order, first, used, at, lanes, box):  # type: ignore[no-untyped-def]
    """Load the unit vectors of some observations, and the box around them."""
    box[:3], box[3:] = np.inf, -np.inf
    for lane in range(used):
        i = order[first + lane] & ROW
        at[lane] = i
        prefetch_for_write(points, order[min(first + used + lane, order.size - 1)] & ROW, 0)
        for axis in range(3):
            value = points[i, axis]
            lanes[axis, lane] = value
            box[axis] = min(box[axis], value)
            box[3 + axis] = max(box[3 + axis], value)


@njit(inline="always")
def _load_degrees(lat_deg, lon_deg, used, at, lanes):  # type: ignore[no-untyped-def]
    """Load their latitudes, and their longitudes from -180 up to 180, which polygons ask for."""
    for lane in range(used):
        lon = lon_deg[at[lane]]
        lanes[3, lane] = lat_deg[at[lane]]
        lanes[4, lane] = lon - 360.0 if lon >= 180.0 else lon


@njit(nogil=True, error_model="numpy")
def _compare(arcs, first, stop, lanes, sines2, chord2):  # type: ignore[no-untyped-def]
    """Lower the squared chords of some observations to those to the nearest of some arcs."""
    x, y, z = lanes[0, : chord2.size], lanes[1, : chord2.size], lanes[2, : chord2.size]
    for lane in range(chord2.size):
        sines2[lane] = math.inf
    for i in range(first, stop):
        arc = arcs[i]
        far = 0
        for lane in range(chord2.size):
            ends, sine2, is_far = near_parts(x[lane], y[lane], z[lane], arc)
            far |= is_far
            chord2[lane] = ends if ends < chord2[lane] else chord2[lane]
            nearer = (sine2 < sines2[lane]) & (not is_far)
            sines2[lane] = sine2 if nearer else sines2[lane]
        if far:
            for lane in range(chord2.size):
                chord2[lane] = min(chord2[lane], arc_chord2(x[lane], y[lane], z[lane], arc))
    for lane in range(chord2.size):
        # Of none it is far more than any.
        chord = chord2_of(sines2[lane])
        chord2[lane] = chord if chord < chord2[lane] else chord2[lane]


@njit(nogil=True, error_model="numpy")
def _reaches(boxes, item, lanes, bounds):  # type: ignore[no-untyped-def]
    """Whether the box of an item is within the bound of one of some observations."""
    box = boxes[item // WIDTH, :, item % WIDTH]
    x, y, z = lanes[0, : bounds.size], lanes[1, : bounds.size], lanes[2, : bounds.size]
    reached = 0
    for lane in range(bounds.size):
        east = max(box[0] - x[lane], x[lane] - box[3], 0.0)
        north = max(box[1] - y[lane], y[lane] - box[4], 0.0)
        up = max(box[2] - z[lane], z[lane] - box[5], 0.0)
        reached |= east * east + north * north + up * up <= bounds[lane]
    return reached != 0


@njit(inline="always")
def _is_held(item, searched, lanes, lane):  # type: ignore[no-untyped-def]
    """Whether an observation is in the polygon of an area."""
    areas, node, child = searched.areas, item // WIDTH, item % WIDTH
    for axis in range(3):
        value = lanes[axis, lane]
        if not areas.boxes[node, axis, child] <= value <= areas.boxes[node, 3 + axis, child]:
            return False
    return holds(
        searched.polygons, searched.arcs, areas.items[item, 0],
        lanes[0, lane], lanes[1, lane], lanes[2, lane], lanes[3, lane], lanes[4, lane],
    )  # fmt: skip


@njit(inline="always")
def _bound(chord2, way2):  # type: ignore[no-untyped-def]
    """What is at most so far from a place is at most so far from another one."""
    # Both roots may be less than the true ones.
    root = math.sqrt(chord2) + math.sqrt(way2) + 2.0 * MARGIN
    return min(ALL, root * root * _MANY)


@njit(inline="always")
def _way2(lanes, lane, other, other_lane):  # type: ignore[no-untyped-def]
    return squared_chord(
        lanes[0, lane], lanes[1, lane], lanes[2, lane],
        other[0, other_lane], other[1, other_lane], other[2, other_lane],
    )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def _walk_alone(searched, lanes, lane, worst, brute, reference, key, box, stack):  # type: ignore[no-untyped-def]
    """Write the list of one observation, whose k nearest are within a bound."""
    reference[:], key[:] = ROW, np.inf
    place = lanes[:, lane].copy()
    for axis in range(3):
        box[axis] = box[3 + axis] = place[axis]
    _show(searched.areas, Near(place, True, searched, reference, key), box, 0.0, brute, stack)
    worst = min(worst, key[key.size - 1])
    _show(
        searched.stretches, Near(place, False, searched, reference, key), box, worst, brute, stack
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _search_near(  # type: ignore[no-untyped-def]
    thread, threads, searched, points, lat_deg, lon_deg, order, brute, reference,
    key,
):  # fmt: skip
    searched, reference, key = borrowed(searched), borrowed(reference), borrowed(key)
    k = reference.shape[1]
    n_blocks = (order.size + _BLOCK - 1) // _BLOCK
    stack, used = np.empty(STACK, np.int64), np.zeros(1, np.int64)
    found, holding = np.empty(_FEW, np.int64), np.empty(_FEW, np.int64)
    lanes, before = np.zeros((5, _BLOCK)), np.zeros((5, 1))
    at = np.empty(_BLOCK, np.int64)
    box, own_box = np.empty(6), np.empty(6)
    sines2, chords, worsts = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    own, own_key = np.empty(k, np.int64), np.empty(k)
    # Of all observations of a block the first, and so on, and room for a row of each.
    lists = np.empty((k, _BLOCK)), np.empty((k, _BLOCK), np.int64), np.empty(_BLOCK, np.int64)
    reach = ALL
    for block in range(n_blocks * thread // threads, n_blocks * (thread + 1) // threads):
        first = block * _BLOCK
        n = min(_BLOCK, order.size - first)
        _load(points, order, first, n, at, lanes, box)
        _load_degrees(lat_deg, lon_deg, n, at, lanes)
        middle = n // 2
        worst = _bound(reach, _way2(lanes, middle, before, 0))
        _walk_alone(searched, lanes, middle, worst, brute, own, own_key, own_box, stack)
        reach = min(ALL, own_key[k - 1])
        for axis in range(3):
            before[axis, 0] = lanes[axis, middle]
        worst = 0.0
        for lane in range(n):
            prefetch_for_write(reference, at[lane], 0)
            prefetch_for_write(key, at[lane], 0)
            worsts[lane] = _bound(reach, _way2(lanes, lane, before, 0))
            worst = max(worst, worsts[lane])
        used[0] = -1 if brute else 0
        if not brute:
            _show(searched.stretches, Gather(found, used), box, worst, False, stack)
        if used[0] < 0:
            for lane in range(n):
                _walk_alone(
                    searched, lanes, lane, worsts[lane], brute, own, own_key, own_box, stack
                )
                for j in range(k):
                    lists[0][j, lane], lists[1][j, lane] = own_key[j], own[j]
        else:
            n_found = used[0]
            lists[0][:], lists[1][:] = np.inf, ROW
            holding = _take_areas(searched, holding, used, lanes, lists, chords[:n], box, stack)
            _take_stretches(searched, found[:n_found], lanes, worsts[:n], lists, sines2, chords[:n])
        for lane in range(n):
            for j in range(k):
                c = lists[0][j, lane]
                key[at[lane], j] = c
                reference[at[lane], j] = lists[1][j, lane] if c < np.inf else -1


@njit(nogil=True, error_model="numpy")
def _offer_all(chords, row, lists):  # type: ignore[no-untyped-def]
    """As `offer`, to the lists of some observations: what is put in goes on with what it moves."""
    carried = lists[2][: chords.size]
    carried[:] = row
    for j in range(lists[0].shape[0]):
        keys, rows = lists[0][j, : chords.size], lists[1][j, : chords.size]
        for lane in range(chords.size):
            c, own, other, other_row = chords[lane], carried[lane], keys[lane], rows[lane]
            goes = (c < other) | ((c == other) & (own < other_row))
            keys[lane] = c if goes else other
            rows[lane] = own if goes else other_row
            # Nothing of the shape is left to put in where it has been found again.
            chords[lane] = np.inf if other_row == row else (other if goes else c)
            carried[lane] = ROW if other_row == row else (other_row if goes else own)


@njit(nogil=True, error_model="numpy")
def _take_areas(searched, holding, used, lanes, lists, chords, box, stack):  # type: ignore[no-untyped-def]
    """Put what holds observations into their lists."""
    holding = _gathered(searched.areas, holding, used, box, 0.0, False, stack)
    nowhere = np.zeros(chords.size)
    for item in holding[: used[0]]:
        if not _reaches(searched.areas.boxes, item, lanes, nowhere):
            continue
        for lane in range(chords.size):
            chords[lane] = 0.0 if _is_held(item, searched, lanes, lane) else np.inf
        _offer_all(chords, searched.polygons.row[searched.areas.items[item, 0]], lists)
    return holding


@njit(nogil=True, error_model="numpy")
def _take_stretches(searched, found, lanes, worsts, lists, sines2, chords):  # type: ignore[no-untyped-def]
    """Put the nearest of some stretches into lists, whose worst are bounded already."""
    tree, worst = searched.stretches, lists[0][-1]
    for item in found:
        if not _reaches(tree.boxes, item, lanes, worsts):
            continue
        first, stop = tree.items[item, 0], tree.items[item, 1]
        chords[:] = np.inf
        _compare(searched.arcs, first, stop, lanes, sines2, chords)
        is_near = False
        for lane in range(chords.size):
            is_near |= chords[lane] <= worsts[lane]
        if is_near:
            _offer_all(chords, searched.row[first], lists)
            for lane in range(chords.size):
                worsts[lane] = min(worsts[lane], worst[lane])


@njit(cache=True, nogil=True, error_model="numpy")
def _search_around(  # type: ignore[no-untyped-def]
    thread, threads, searched, points, lat_deg, lon_deg, order, brute, first_of_all,
    limits, counts, of_rows, starts, reference, distance_m, totals,
):  # fmt: skip
    """Count the shapes within a distance, by observation or by row, or write them.

    `counts` becomes the number of shapes of each observation. The pass that writes only changes
    `counts` where they are wrong, and sets `totals` to the number of shapes of each thread.
    """
    searched = borrowed(searched)
    fills, by_row = starts.size > 0, of_rows.size > 0
    stack, used = np.empty(STACK, np.int64), np.zeros(1, np.int64)
    near, holding = np.empty(_FEW, np.int64), np.empty(_FEW, np.int64)
    lanes = np.zeros((5, _BLOCK))
    at, ends = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    max_ends = np.empty(_BLOCK, np.int64)
    box, bounds = np.empty(6), np.empty(_BLOCK)
    sines2, chords = np.empty(_BLOCK), np.empty(_BLOCK)
    pairs = np.empty(RUN), np.empty(RUN)
    ordered = np.empty(RUN), np.empty(RUN)
    ranks = np.empty(RUN, np.int64)
    first, stop = order.size * thread // threads, order.size * (thread + 1) // threads
    n, alone, total = _BLOCK, 0, 0
    while first < stop:
        n = min(n, stop - first)
        _load(points, order, first, n, at, lanes, box)
        worst, end = 0.0, 0
        for lane in range(n):
            i = first_of_all + at[lane]
            bounds[lane] = limits[i if limits.size > 1 else 0]
            worst = max(worst, bounds[lane])
            ends[lane] = max_ends[lane] = end
            if fills:
                end += starts[at[lane] + 1] - starts[at[lane]]
                max_ends[lane] = end
        near = _gathered(searched.stretches, near, used, box, min(worst, ALL), brute, stack)
        n_near = used[0]
        wide2 = (box[3] - box[0]) ** 2 + (box[4] - box[1]) ** 2 + (box[5] - box[2]) ** 2
        if n > 1 and n_near > _FEW and wide2 > worst:
            # They have little in common, and neither have those that follow.
            n, alone = 1, n
            continue
        holding = _gathered(searched.areas, holding, used, box, 0.0, brute, stack)
        n_holding = used[0]
        if n_holding:
            _load_degrees(lat_deg, lon_deg, n, at, lanes)
        if pairs[0].size < end + RUN:
            pairs = np.empty(2 * end + RUN), np.empty(2 * end + RUN)
            ordered = np.empty(2 * end + RUN), np.empty(2 * end + RUN)
        n_kept = 0
        for j in range(n_near):
            if brute or _reaches(searched.stretches.boxes, near[j], lanes, bounds[:n]):
                row = searched.row[searched.stretches.items[near[j], 0]]
                near[n_kept] = row << 32 | near[j]
                n_kept += 1
        n_near = n_kept
        for j in range(n_holding):
            row = searched.polygons.row[searched.areas.items[holding[j], 0]]
            holding[j] = row << 32 | holding[j]
        if n_near > 1:
            near[:n_near].sort()
        if n_holding > 1:
            holding[:n_holding].sort()
        i_near, i_holding = 0, 0
        # Row by row, as a shape has several stretches and areas.
        while i_near < n_near or i_holding < n_holding:
            row = near[i_near] >> 32 if i_near < n_near else holding[i_holding] >> 32
            if i_holding < n_holding:
                row = min(row, holding[i_holding] >> 32)
            for lane in range(n):
                chords[lane] = np.inf
            while i_near < n_near and near[i_near] >> 32 == row:
                item = near[i_near] & ROW
                _compare(
                    searched.arcs,
                    searched.stretches.items[item, 0],
                    searched.stretches.items[item, 1],
                    lanes,
                    sines2,
                    chords[:n],
                )
                i_near += 1
            while i_holding < n_holding and holding[i_holding] >> 32 == row:
                item = holding[i_holding] & ROW
                for lane in range(n):
                    if chords[lane] > 0.0 and _is_held(item, searched, lanes, lane):
                        chords[lane] = 0.0
                i_holding += 1
            for lane in range(n):
                if chords[lane] <= bounds[lane]:
                    if fills and ends[lane] < max_ends[lane]:
                        pairs[0][ends[lane]], pairs[1][ends[lane]] = chords[lane], row
                    if by_row:
                        of_rows[thread, row] += 1
                    ends[lane] += 1
        begin = 0
        for lane in range(n):
            i = at[lane]
            if ends[lane] != max_ends[lane]:
                # Most have none, and memory that is far away is not touched for them.
                counts[i] = ends[lane] - begin
            if not fills:
                continue
            size = max_ends[lane] - begin
            put_in_order(pairs, begin, size, ordered, 0, ranks)
            measure_part(ordered[0][:size])
            for j in range(size):
                distance_m[starts[i] + j] = ordered[0][j]
                reference[starts[i] + j] = np.int64(ordered[1][j])
            begin += size
        total += begin
        first += n
        alone -= 1
        n = 1 if alone > 0 else _BLOCK
    totals[thread] = total


@njit(cache=True, nogil=True, error_model="numpy")
def _search_points(  # type: ignore[no-untyped-def]
    thread, threads, searched, shape_lat, shape_lon, points, lat_deg, lon_deg, reference,
    bounds, lat, lon,
):  # fmt: skip
    """Write where the nearest point of a shape is, of each observation's own one."""
    searched = borrowed(searched)
    box, stack = np.empty(6), np.empty(STACK, np.int64)
    chord2, arc = np.empty(1), np.empty(1, np.int64)
    n = reference.size
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        lat[i], lon[i] = lat_deg[i], lon_deg[i]
        if reference[i] < 0:
            lat[i], lon[i] = math.nan, math.nan
        if reference[i] < 0 or bounds[i] == 0.0:
            continue
        place = points[i, :3].copy()
        box[:3], box[3:] = place, place
        chord2[0], arc[0] = np.inf, ROW
        nearest = Nearest(place, searched, reference[i], chord2, arc)
        walk(searched.stretches, nearest, box, min(bounds[i], ALL), 0, 0, NO_LIMIT, stack)
        end, x, y, z = arc_point(place[0], place[1], place[2], searched.arcs[arc[0]])
        if end < 2:
            lat[i], lon[i] = shape_lat[arc[0], end], shape_lon[arc[0], end]
        else:
            north = direction_deg(z, math.sqrt(x * x + y * y))
            east = direction_deg(y, x)
            lat[i] = north - 360.0 if north > 180.0 else north
            lon[i] = east - 360.0 if east >= 180.0 else east


def _searched(index: ShapeIndex) -> Searched:
    return Searched(index.stretches, index.areas, index.arcs, index.shapes.row, index.polygons)


def search(
    index: ShapeIndex, observations: Degrees, query: Query, by: Algorithm, *, measure: bool = False
) -> Found | Answer:
    """The k nearest shapes of every observation."""
    n = observations.lat_deg.size
    found = Found(kept(n, query.k, dtype=np.int64), kept(n, query.k))
    degrees = readable(observations)
    for part, points, order in in_windows(degrees, _BLOCK, index.n_references, least=_WINDOW):
        own = Found(found.reference[part], found.key[part])
        if order.size < len(points):
            own.reference.fill(-1)
            own.key.fill(np.inf)
        in_threads(
            _search_near, threads_for(order.size, _GRAIN), _searched(index), points,
            *(one[part] for one in degrees), order, by == "brute", *own,
        )  # fmt: skip
    return answer_of(found) if measure else found


_NO_ROWS = np.empty((0, 0), np.int64)


def _search(
    index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm, counts: np.ndarray,
    found: Pairs, of_rows: np.ndarray = _NO_ROWS,
) -> int:  # fmt: skip
    degrees, total = readable(observations), 0
    for part, points, order in in_windows(degrees, _BLOCK, index.n_references):
        threads = threads_for(order.size, _GRAIN)
        totals = np.zeros(min(threads, len(of_rows)) if of_rows.size else threads, np.int64)
        in_threads(
            _search_around, totals.size, _searched(index), points, *(one[part] for one in degrees),
            order, by == "brute", part.start, asked.chord2, counts[part], of_rows,
            found.starts[part.start : part.stop + 1], *found[1:], totals,
        )  # fmt: skip
        total += int(totals.sum())
    return total


count, pairs = count_then_fill(_search)


def count_by_row(
    index: ShapeIndex, observations: Degrees, asked: Within, by: Algorithm
) -> np.ndarray:
    """How many observations lie within the distance of every shape."""
    rows = max(1, index.n_references)
    of_rows = np.zeros((max(1, min(_MOST_COUNTS // rows, threads_for(1 << 62, 1))), rows), np.int64)
    counts = np.empty(observations.lat_deg.size, np.int64)
    _search(index, observations, asked, by, counts, NO_PAIRS, of_rows)
    return np.asarray(of_rows.sum(axis=0)[: index.n_references])


def points(
    index: ShapeIndex, observations: Degrees, reference: np.ndarray, distance_m: np.ndarray
) -> Degrees:
    """See `kernels.nearest_points`."""
    lat, lon = np.empty(reference.size), np.empty(reference.size)
    bounds = chord2_within(np.nan_to_num(distance_m))
    # The greatest squared chord of 0 m is more than 0.
    bounds[distance_m == 0.0] = 0.0
    # As `readable`: what comes from a table cannot be written to.
    reference = reference.view()
    reference.flags.writeable = False
    shapes = index.shapes
    in_threads(
        _search_points, threads_for(reference.size, _GRAIN), _searched(index),
        shapes.lat_deg, shapes.lon_deg, unit_vectors(*observations), *readable(observations),
        reference, bounds, lat, lon,
    )  # fmt: skip
    return Degrees(lat, lon)
