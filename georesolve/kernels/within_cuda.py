"""All references within a distance of every observation, on a GPU: how many, and which.

Warps of neighbouring observations walk the tree as in `kernels.walk_cuda`, around a centre c, but
each has a bound D from the start. A walk counts; after a sum over the counts, which tells where the
pairs of each observation begin, the same walk writes them, in any order; then each pair finds its
place among those of its observation (`put_in_order`).

What counts is decided in float64, by the squared chord. What a warp leaves out is farther than
D + |c - o| from c for each of its observations o, as `kernels.boxes_cuda` proves; in a fine tree
walks are in float64 throughout (`kernels.precise_cuda`).

A box that lies wholly within D of all is counted, and not gone into
---------------------------------------------------------------------
That is so where |c - p| <= D - |c - o| for each point p of the box and each o. With u, S, C, D~ and
r as there, and d the root of the computed square of how far the farthest corner is from c,

    |c - p| + |c - o| <= d (1 + 4 u) + u S + r (1 + 6 u) + 2 u C
    D >= D~ (1 - 3 u)

so the box is within where d is at most D~ - r - 16 u (D~ + r) - 4 u (S + C) - 1e-18: that leaves
8 u (D~ + r) for the rounding of this and of its square, and 1e-18 for underflow. u is 2^6 times
what a squared chord in float64 is off relatively, and more. In float64, where nothing is rounded
before but c less the first point of the box, 2^-48 (D~ + r) covers all.

Such a box has to be full: the tree's last points may not be valid. An observation's own row is not
left out there; it is taken off in the end where it counts.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32, uint64
from numba.cuda import libdevice

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.boxes_cuda import (
    INFINITY,
    LEVELS,
    NEVER,
    WARPS,
    ZERO,
    check_rows,
    first_of,
    offset,
    origin,
    reach_of,
    root,
    square,
)
from georesolve.kernels.coordinates_cuda import answer_of, metres, unit_vectors
from georesolve.kernels.descent_cuda import (
    FromOrigin,
    apart_in,
    gap_to,
    look_from_origin,
    next_leaf,
)
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.launch_cuda import blocks_for, launch, resident_blocks, stride
from georesolve.kernels.order_cuda import extent, order
from georesolve.kernels.precise_cuda import InDouble, look_in_double
from georesolve.kernels.query import Degrees, Found, Pairs, Within
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.tree_cuda import SAMPLE
from georesolve.kernels.warp_cuda import (
    ALL_LANES,
    ballot,
    by_type,
    first_lane,
    implements,
    of_lane,
    warp_max,
    warp_min,
    without_first,
)
from georesolve.kernels.ways import Search

if TYPE_CHECKING:
    import cupy as cp

    from georesolve.kernels.index import ReferenceIndex

_TWO = np.float32(2.0)
_ROUNDING = np.float32(2.0**-20)
_ROUNDING_IN_DOUBLE = 2.0**-48
_UNDERFLOW_IN_DOUBLE = 1e-150
_NONE = -2.0
"""Row that no reference has, and that all are greater than."""
_BRUTE_WARPS = 8
_BRUTE_BLOCKS = 8
"""Blocks of `compare_all` a multiprocessor, and warps in each."""
_SHARE = 16
"""Where one in so many references is in a pair, brute force writes pairs sooner than walks do."""
_LONG = 1 << 13
"""Pairs of one observation from which sorting takes less time than counting what is before each."""


class Counted(NamedTuple):
    """A view from which a full box that lies wholly within `inner2` is counted in `tally`."""

    view: Any
    inner2: float
    never: float
    tally: Any


@by_type(FromOrigin)
def farthest2_of(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    """The square of how far the farthest corner of box i is away."""
    return square(
        max(view.x - boxes[0, i], boxes[3, i] - view.x),
        max(view.y - boxes[1, i], boxes[4, i] - view.y),
        max(view.z - boxes[2, i], boxes[5, i] - view.z),
    )


@cuda.jit(device=True, forceinline=True)
def _farthest(low, high, x):  # type: ignore[no-untyped-def]
    return max(total(x, -float64(low)), total(float64(high), -x))


@implements(farthest2_of, InDouble)
def _(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    far2 = math.inf
    if boxes[0, i] <= boxes[3, i]:
        first = first_of(box, level)
        far2 = squared_chord(
            _farthest(boxes[0, i], boxes[3, i], total(view.x, -points[first, 0])),
            _farthest(boxes[1, i], boxes[4, i], total(view.y, -points[first, 1])),
            _farthest(boxes[2, i], boxes[5, i], total(view.z, -points[first, 2])),
            0.0, 0.0, 0.0,
        )  # fmt: skip
    return far2


@implements(gap_to, Counted)
def _(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    gap = gap_to(view.view, points, boxes, i, box, level)
    if farthest2_of(view.view, points, boxes, i, box, level) <= view.inner2:
        last = uint64(first_of(box + uint32(1), level) - uint64(1))
        if last < points.shape[0] and points[last, 0] == points[last, 0]:
            lane = uint32(cuda.threadIdx.x)
            view.tally[lane] += int32(1) << int32(5 + 5 * level)
            gap = view.never
    return gap


@by_type(FromOrigin)
def margins(view, chord2, away2):  # type: ignore[no-untyped-def]
    """How far from the view references may count for what is so far away, and within what all do.

    In float32; the second is negative where there is no such distance.
    """
    distance, away = root(float32(chord2)), root(away2)
    both = distance + away
    return reach_of(both, view.slack), distance - away - _ROUNDING * both - view.slack


@implements(margins, InDouble)
def _(view, chord2, away2):  # type: ignore[no-untyped-def]
    distance, away = math.sqrt(chord2), math.sqrt(away2)
    both = total(distance, away)
    spare = total(product(_ROUNDING_IN_DOUBLE, both), _UNDERFLOW_IN_DOUBLE)
    return (
        libdevice.double2float_ru(total(both, spare)),
        libdevice.double2float_rd(total(total(distance, -away), -spare)),
    )


@by_type(FromOrigin)
def squared(view, distance):  # type: ignore[no-untyped-def]
    """The square of a distance in float32, as what is computed from a view is compared with it."""
    return distance * distance


@implements(squared, InDouble)
def _(view, distance):  # type: ignore[no-untyped-def]
    return product(float64(distance), float64(distance))


@by_type(FromOrigin)
def bound_of(view, reach2):  # type: ignore[no-untyped-def]
    """The bound of a walk, in the order of its gaps."""
    return libdevice.float_as_int(reach2)


@implements(bound_of, InDouble)
def _(view, reach2):  # type: ignore[no-untyped-def]
    return reach2


@cuda.jit(device=True, forceinline=True)
def _counts(once, row, own):  # type: ignore[no-untyped-def]
    # Whether a row is not left out.
    return row > own or (row < own and not once)


@cuda.jit(device=True, forceinline=True)
def _before(bits):  # type: ignore[no-untyped-def]
    # How many lower lanes have their bit set.
    below = uint32(uint32(uint32(1) << uint32(cuda.threadIdx.x)) - uint32(1))
    return cuda.popc(uint32(bits & below))


@cache
def walk(fine: bool, fills: bool) -> Any:
    """The kernel that counts what is within a distance, or `fills` pairs; for trees so `fine`."""

    @cuda.jit(cache=True)
    def walk_within(  # type: ignore[no-untyped-def]
        points, corners, boxes, starts, box, vectors,
        observations, row_step, axis_step, n, rows, width,
        bounds, exclude_self, once, first_row, at, reference, chord2,
    ):  # fmt: skip
        """Count the references within a distance of `width` observations a warp, or write them.

        Grid ``(blocks,)``, block ``(32, warps)``. Arrays and numbers are those of `Tree`, `Within`
        and of `kernels.walk_cuda.walk`; `vectors` are those of the index, `bounds` squared chords.
        `at` becomes the counts, or says where the pairs of each observation begin.
        """
        stage = cuda.shared.array((WARPS, 4, WARP), float64)
        tally = cuda.shared.array((WARPS, WARP), int32)
        lane = uint32(cuda.threadIdx.x)
        warp = cuda.threadIdx.y
        position = (int64(cuda.blockIdx.x) * WARPS + warp) * width + int64(lane & uint32(width - 1))
        if position - int64(lane & uint32(width - 1)) >= n:
            return
        top = int32(starts.size - 1)
        writes = lane < uint32(width) and position < n
        row = uint64(min(position, n - 1))
        if rows.size > 0:
            row = uint64(rows[row])
        from_here = row * uint64(row_step)
        x = observations[from_here]
        y = observations[from_here + uint64(axis_step)]
        z = observations[from_here + uint64(2 * axis_step)]
        bound = bounds[row if bounds.size > 1 else uint64(0)]
        own = float64(_NONE)
        if once or (exclude_self and fills):
            own = float64(first_row + int64(row))
        near_x, near_y, near_z = x, y, z
        if fine:
            pending = cuda.shared.array((WARPS, LEVELS, WARP), float64)
            never = math.inf
        else:
            pending = cuda.shared.array((WARPS, LEVELS, WARP), int32)
            never = int32(NEVER)
            origin_x, origin_y, origin_z, radius = origin(box)
            near_x, near_y, near_z = offset(x, y, z, origin_x, origin_y, origin_z)
        begin = int64(0)
        if fills:
            begin = at[row]
        kept = int32(0)

        # The origin is NaN when no reference is valid, and every box would seem to be near.
        waiting = ballot(writes and near_x == near_x)
        half = uint32(uint32(width) >> uint32(1))
        while waiting != uint32(0):
            # With as many waiting on either side of the centre as the last group had, groups tile.
            highest = uint32(31) - uint32(cuda.clz(waiting))
            middle = min(uint32(first_lane(waiting) + half), highest)
            centre = uint32(middle + first_lane(uint32(waiting >> middle)))
            if fine:
                view, away2 = look_in_double(centre, x, y, z)
            else:
                view, away2 = look_from_origin(centre, near_x, near_y, near_z, radius)
            outer, inner = margins(view, bound, away2)
            waits = (waiting >> lane) & uint32(1) != uint32(0)
            # Those who need not look much farther than the centre does walk with it.
            limit = _TWO * cuda.shfl_sync(ALL_LANES, outer, centre)
            group = waiting
            member = waits
            reach2 = inner2 = squared(view, ZERO)
            probes = True
            looked = int32(0)
            level = top
            node = uint32(0)
            tally[warp, lane] = int32(0)
            while True:
                if looked == 0:
                    group = ballot(waits and outer <= limit)
                    member = (group >> lane) & uint32(1) != uint32(0)
                    probes = probes and group != waiting
                    reach2 = squared(view, INFINITY)
                    inner2 = -squared(view, INFINITY)
                    if not probes:
                        reach2 = squared(view, warp_max(outer if member else ZERO))
                        shared = warp_min(inner if member else INFINITY)
                        if shared > ZERO and not once and not fills:
                            inner2 = squared(view, shared)
                level, node, leaf = next_leaf(
                    Counted(view, inner2, never, tally[warp]), points, boxes, starts,
                    pending[warp], level, node, bound_of(view, reach2), looked, never, False,
                )  # fmt: skip
                if level > top:
                    break
                apart2, _, _ = apart_in(view, points, corners, leaf)
                if probes:
                    # What lies no farther apart than a leaf is wide meets few leaves besides, and
                    # what is nearer to the centre than any reference meets none.
                    probes = False
                    apart = root(float32(apart2))
                    wide2 = square(
                        boxes[3, leaf] - boxes[0, leaf],
                        boxes[4, leaf] - boxes[1, leaf],
                        boxes[5, leaf] - boxes[2, leaf],
                    )
                    nearest = warp_min(apart if apart == apart else INFINITY)
                    limit = max(limit, max(root(wide2), nearest))
                    level = top
                    node = uint32(0)
                    continue
                looked = int32(1)
                candidates = ballot(apart2 <= reach2)
                if candidates == uint32(0):
                    continue
                point_x = point_y = point_z = math.nan
                point_row = float64(_NONE)
                if apart2 <= reach2:
                    i = uint32(leaf * uint32(WARP) + lane)
                    point_x, point_y, point_z = points[i, 0], points[i, 1], points[i, 2]
                    point_row = points[i, 3]
                if 2 * cuda.popc(group) < cuda.popc(candidates):
                    # Few observations: the lanes compare, each a candidate, one after the other.
                    others = group
                    while others != uint32(0):
                        j = first_lane(others)
                        others = without_first(others)
                        at_x, at_y, at_z = of_lane(j, x, y, z)
                        own_there = cuda.shfl_sync(ALL_LANES, own, j)
                        bound_there = cuda.shfl_sync(ALL_LANES, bound, j)
                        found = squared_chord(at_x, at_y, at_z, point_x, point_y, point_z)
                        counts = found <= bound_there and _counts(once, point_row, own_there)
                        bits = ballot(counts)
                        if fills:
                            place = cuda.shfl_sync(ALL_LANES, begin + int64(kept), j)
                            if counts:
                                place += int64(_before(bits))
                                reference[place] = int32(point_row)
                                chord2[place] = found
                        if lane == j:
                            kept = int32(kept + int32(cuda.popc(bits)))
                    continue
                cuda.syncwarp()
                stage[warp, 0, lane] = point_x
                stage[warp, 1, lane] = point_y
                stage[warp, 2, lane] = point_z
                stage[warp, 3, lane] = point_row
                cuda.syncwarp()
                while candidates != uint32(0):
                    j = first_lane(candidates)
                    candidates = without_first(candidates)
                    found_row = stage[warp, 3, j]
                    found = squared_chord(
                        x, y, z, stage[warp, 0, j], stage[warp, 1, j], stage[warp, 2, j]
                    )
                    if member and found <= bound and _counts(once, found_row, own):
                        if fills:
                            reference[begin + int64(kept)] = int32(found_row)
                            chord2[begin + int64(kept)] = found
                        kept = int32(kept + int32(1))
            if not fills:
                inside = tally[warp, lane]
                for step in (16, 8, 4, 2, 1):
                    inside = int32(inside + cuda.shfl_xor_sync(ALL_LANES, inside, step))
                if member:
                    kept = int32(kept + inside)
            waiting = uint32(waiting & uint32(~group))
            half = uint32(uint32(cuda.popc(group)) >> uint32(1))

        if writes and not fills:
            if exclude_self and not once:
                self = first_row + int64(row)
                if 0 <= self < vectors.shape[1] and (
                    squared_chord(x, y, z, vectors[0, self], vectors[1, self], vectors[2, self])
                    <= bound
                ):
                    kept = int32(kept - int32(1))
            at[row] = int64(kept)

    return walk_within


@cuda.jit(cache=True)
def compare_all(  # type: ignore[no-untyped-def]
    references, observations, row_step, axis_step, n, pieces,
    bounds, exclude_self, once, first_row, at, reference, chord2,
):  # fmt: skip
    """Compare every observation with every reference: count pairs, or write them if there is room.

    Grid ``(blocks,)``, block ``(32, warps)``; a warp takes a piece of the references for an
    observation. To `at`, which says where pairs begin or is 0, their number is added.
    """
    fills = chord2.size > 0
    lane = cuda.threadIdx.x
    warp = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    length = (references.shape[1] + pieces - 1) // pieces
    for task in range(warp, n * pieces, cuda.gridDim.x * cuda.blockDim.y):
        i = task // pieces
        start = task % pieces * length
        stop = min(start + length, references.shape[1])
        x = observations[i * row_step]
        y = observations[i * row_step + axis_step]
        z = observations[i * row_step + 2 * axis_step]
        bound = bounds[i if bounds.size > 1 else 0]
        own = first_row + i if once or exclude_self else int64(_NONE)
        count = int64(0)
        for first in range(start, stop, WARP):
            row = int64(first + lane)
            found = math.nan
            if row < stop:
                found = squared_chord(
                    x, y, z, references[0, row], references[1, row], references[2, row]
                )
            counts = found <= bound and _counts(once, row, own)
            bits = ballot(counts)
            count += int64(cuda.popc(bits))
            if fills and bits != uint32(0):
                place = int64(0)
                if lane == 0:
                    place = cuda.atomic.add(at, i, int64(cuda.popc(bits)))
                place = cuda.shfl_sync(ALL_LANES, place, 0)
                if counts:
                    place += int64(_before(bits))
                    reference[place] = int32(row)
                    chord2[place] = found
        if not fills and lane == 0:
            cuda.atomic.add(at, i, count)


@cuda.jit(cache=True)
def put_in_order(starts, rows, chords2, reference, distance_m):  # type: ignore[no-untyped-def]
    """Put the pairs of each observation in order, and measure them, a thread a pair.

    Those of an observation with more than `_LONG` are left out.
    """
    for i in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
        low = int64(0)
        high = int64(starts.size - 1)
        while high - low > 1:
            middle = (low + high) >> 1
            if starts[middle] <= i:
                low = middle
            else:
                high = middle
        begin, stop = starts[low], starts[low + 1]
        if stop - begin <= _LONG:
            chord2, row = chords2[i], rows[i]
            place = begin
            for other in range(begin, stop):
                place += int64(closer(chords2[other], rows[other], chord2, row))
            reference[place] = int64(row)
            distance_m[place] = metres(chord2)


class _Looking(NamedTuple):
    # Observations as kernels take them: in order and so many a warp, or, with 0, by brute force.
    vectors: cp.ndarray
    row_step: int
    axis_step: int
    n: int
    rows: cp.ndarray
    width: int


def _looking(index: ReferenceIndex, observations: Degrees, by: Search) -> _Looking:
    import cupy as cp

    n = observations.lat_deg.size
    if by == "packets":
        box = extent(observations, SAMPLE)
        rows, vectors, _ = order(observations, box, finely=index.tree.fine)
        return _Looking(vectors.ravel(), 4, 1, n, rows, WARP)
    vectors = unit_vectors(*observations).ravel()
    return _Looking(vectors, 1, n, n, cp.empty(0, cp.int64), 0 if by == "brute" else 1)


def _pass(index: ReferenceIndex, looking: _Looking, *asked: Any) -> None:
    """Launch a pass over all observations; the last parameters are those of both its kernels."""
    *observations, n, rows, width = looking
    fills = asked[-1].size > 0
    if width:
        *tree, fine, _ = index.tree
        launch(
            walk(fine, fills), blocks_for(n, width * WARPS), (WARP, WARPS),
            *tree, index.vectors, *observations, n, rows, width, *asked,
        )  # fmt: skip
    else:
        most = resident_blocks(_BRUTE_BLOCKS)
        n_references = index.vectors.shape[1]
        pieces = max(1, min(most * _BRUTE_WARPS // n, n_references // WARP**2))
        launch(
            compare_all, blocks_for(n * pieces, _BRUTE_WARPS, most), (WARP, _BRUTE_WARPS),
            index.vectors, *observations, n, pieces, *asked,
        )  # fmt: skip


def _count(index: ReferenceIndex, looking: _Looking, asked: tuple[Any, ...]) -> cp.ndarray:
    import cupy as cp

    counts = cp.zeros(looking.n, cp.int64)
    if looking.n and index.n_references:
        _pass(index, looking, *asked, counts, cp.empty(0, cp.int32), cp.empty(0))
    return counts


def _asked(observations: Degrees, asked: Within) -> tuple[Any, ...]:
    import cupy as cp

    check_rows("observations", observations.lat_deg.size)
    return cp.asarray(asked.chord2), *asked[1:]


def count(index: ReferenceIndex, observations: Degrees, asked: Within, by: Search) -> cp.ndarray:
    """How many references lie within the distance of every observation."""
    on_device = _asked(observations, asked)
    return _count(index, _looking(index, observations, by), on_device)


def pairs(index: ReferenceIndex, observations: Degrees, asked: Within, by: Search) -> Pairs:
    """All references within the distance of every observation, nearest first, equals by row."""
    import cupy as cp

    on_device = _asked(observations, asked)
    looking = _looking(index, observations, by)
    counts = _count(index, looking, on_device)
    n = looking.n
    starts = cp.zeros(n + 1, cp.int64)
    cp.cumsum(counts, out=starts[1:])
    n_pairs, longest = cp.stack([starts[-1], counts.max() if n else starts[-1]]).tolist()
    found = Pairs(starts, cp.empty(n_pairs, cp.int64), cp.empty(n_pairs))
    if n_pairs:
        rows, chords2 = cp.empty(n_pairs, cp.int32), cp.empty(n_pairs)
        at = starts[:-1]
        if n_pairs * _SHARE >= n * index.n_references:
            looking = looking._replace(width=0)
        if not looking.width:
            at = at.copy()
        _pass(index, looking, *on_device, at, rows, chords2)
        stride(put_in_order, n_pairs, starts, rows, chords2, *found[1:])
        if longest > _LONG:
            _sort_long(starts, rows, chords2, found)
    return found


def _sort_long(starts: cp.ndarray, rows: cp.ndarray, chords2: cp.ndarray, found: Pairs) -> None:
    """Put in order what `put_in_order` leaves out."""
    import cupy as cp

    for i in cp.flatnonzero(cp.diff(starts) > _LONG).tolist():
        part = slice(*starts[i : i + 2].tolist())
        by_row = rows[part].argsort()
        # Sorts are stable: equals stay by row.
        places = by_row[chords2[part][by_row].argsort()]
        found.reference[part] = rows[part][places]
        found.distance_m[part] = chords2[part][places]
        answer_of(Found(found.reference[part], found.distance_m[part]))
