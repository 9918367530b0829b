"""All references within a distance of every observation, on a GPU: how many, and which.

Warps of neighbouring observations walk the tree as in `kernels.walk_cuda`, around a centre c, but
each observation o has a bound D from the start. A walk counts; a sum over the counts tells where
pairs begin; the same walk writes them, in any order; then they are sorted (`put_in_order`). With
filters (`kernels.filters_cuda`) observations of one group walk together.

What counts is decided in float64, by the squared chord. What a warp leaves out is farther than
D + |c - o| from c for each o, as `kernels.boxes_cuda` proves. In a fine tree, boxes and points are
looked at in float64 (`kernels.precise_cuda`), which is as if S and C were 0.

A full box that lies wholly within D of all is counted, and not gone into
-------------------------------------------------------------------------
That is so where |c - p| <= D - |c - o| for each point p of the box. With u, S, C, D~ and r as
there, and d the root of the computed square of how far the farthest corner is from c,

    |c - p| + |c - o| <= d (1 + 4 u) + u S + r (1 + 6 u) + 2 u C
    D >= D~ (1 - 3 u)

so it is where d is at most D~ - r - 16 u (D~ + r) - 4 u (S + C) - 1e-18, with 8 u (D~ + r) left for
the rounding of this, of its square and of squared chords. An observation's own row is not left out
there; it is taken off in the end where it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32, uint64
from numba.cuda import libdevice

from georesolve.kernels.arithmetic import total
from georesolve.kernels.boxes_cuda import (
    INFINITY,
    LEVELS,
    NAN,
    NEVER,
    UNDERFLOW,
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
from georesolve.kernels.coordinates_cuda import metres, unit_vectors
from georesolve.kernels.descent_cuda import (
    FromOrigin,
    apart_in,
    gap_to,
    look_from_origin,
    next_leaf,
)
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.filters_cuda import (
    EVERYTHING,
    Everything,
    Filtering,
    alike,
    asked_by,
    asked_there,
    group_of,
    is_of,
    matches,
    sieved,
)
from georesolve.kernels.launch_cuda import blocks_for, launch, resident_blocks, stride
from georesolve.kernels.order_cuda import extent, order
from georesolve.kernels.passes import check_passes
from georesolve.kernels.precise_cuda import InDouble, look_in_double
from georesolve.kernels.query import Degrees, Pairs, Within
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
_LESS = np.float32(0.125)
_PATIENCE = 24
"""Leaves, most of them without anything that counts, after which a group proves too wide; and what
is left of its width then."""
_ROUNDING = np.float32(2.0**-20)
_NONE = -2.0
"""Row that no reference has, and that all are greater than."""
_BRUTE_WARPS = 8
_BRUTE_BLOCKS = 8
"""Blocks of `compare_all` a multiprocessor, and warps in each."""
_SHARE = 16
"""Where one in so many references is in a pair, brute force writes pairs sooner than walks do."""
_RUN = 128
"""Pairs of an observation that are sorted by counting what comes before each."""


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


@cuda.jit(device=True, forceinline=True)
def _counts(once, row, own):  # type: ignore[no-untyped-def]
    # Whether a row is not left out.
    return row > own or (row < own and not once)


@cuda.jit(device=True, forceinline=True)
def lanes_before(bits):  # type: ignore[no-untyped-def]
    """How many lower lanes have their bit set."""
    below = uint32(uint32(uint32(1) << uint32(cuda.threadIdx.x)) - uint32(1))
    return cuda.popc(uint32(bits & below))


@cache
def walk(fine: bool, fills: bool, filtering: Any = Everything) -> Any:
    """The kernel that counts what is within a distance, or `fills` pairs.

    For trees so `fine`, and for kinds of filters.
    """
    # Whether all of a box may count, and an observation's own row is taken off in the end.
    in_bulk = filtering is Everything and not fills

    @cuda.jit(cache=True)
    def walk_within(  # type: ignore[no-untyped-def]
        points, corners, boxes, starts, box, vectors,
        observations, row_step, axis_step, n, rows, width,
        bounds, exclude_self, once, first_row, at, ends, reference, chord2, filters,
    ):  # fmt: skip
        """Count the references within a distance of `width` observations a warp, or write them.

        Grid ``(blocks,)``, block ``(32, warps)``. Arrays and numbers are those of `Tree`, `Within`,
        the filters and of `kernels.walk_cuda.walk`; `vectors` are those of the index, `bounds`
        squared chords. `at` becomes the counts. Or else it says where the pairs of each observation
        begin, and becomes where they end; nothing is written from `ends` on.
        """
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
        distance = root(float32(bound))
        own = float64(_NONE)
        if once or (exclude_self and not in_bulk):
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
        capacity = int32(0)
        if fills:
            begin = at[row]
            capacity = int32(ends[row] - begin)
        kept = int32(0)

        # The origin is NaN when no reference is valid, and every box would seem to be near.
        asked = asked_by(filters, row)
        own_group = group_of(filters, asked)
        waiting = ballot(writes and near_x == near_x and own_group >= 0)
        half = uint32(uint32(width) >> uint32(1))
        widest = INFINITY
        while waiting != uint32(0):
            # With as many waiting on either side of the centre as the last group had, groups tile.
            highest = uint32(31) - uint32(cuda.clz(waiting))
            middle = min(uint32(first_lane(waiting) + half), highest)
            centre = uint32(middle + first_lane(uint32(waiting >> middle)))
            if fine:
                view, away2 = look_in_double(centre, x, y, z)
                slack = UNDERFLOW
            else:
                view, away2 = look_from_origin(centre, near_x, near_y, near_z, radius)
                slack = view.slack
            # How far from the centre references may count for an observation, and up to where all.
            away = root(away2)
            outer = reach_of(distance + away, slack)
            inner = distance - away - _ROUNDING * (distance + away) - slack
            wanted = cuda.shfl_sync(ALL_LANES, own_group, centre)
            fellows = uint32(waiting & alike(filters, own_group, centre))
            waits = (fellows >> lane) & uint32(1) != uint32(0)
            alone = uint32(uint32(1) << centre)
            # Those who need not look much farther than the centre does walk with it.
            limit = min(widest, _TWO * cuda.shfl_sync(ALL_LANES, outer, centre))
            group = fellows
            member = waits
            reach2 = inner2 = ZERO
            probes = True
            before = kept
            looked = idle = int32(0)
            level = top
            node = uint32(0)
            while True:
                if looked == 0:
                    group = uint32(ballot(waits and outer <= limit) | alone)
                    member = (group >> lane) & uint32(1) != uint32(0)
                    probes = probes and group != fellows
                    kept = before
                    tally[warp, lane] = int32(0)
                    reach = warp_max(outer if member else ZERO)
                    least = warp_min(inner if member else INFINITY)
                    reach2 = INFINITY if probes else reach * reach
                    inner2 = -INFINITY
                    if least > ZERO and in_bulk and not (probes or once):
                        inner2 = least * least
                if fine:
                    within: Any = float64(reach2)
                else:
                    within = libdevice.float_as_int(reach2)
                level, node, leaf = next_leaf(
                    sieved(filters, Counted(view, inner2, never, tally[warp]), wanted),
                    points, boxes, starts, pending[warp], level, node, within, looked, never,
                    False,
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
                    limit = max(max(limit, nearest), min(widest, root(wide2)))
                    level = top
                    node = uint32(0)
                    continue
                if idle > _PATIENCE and 2 * idle > looked and group != alone:
                    # References crowd where the centre looks for others alone, or nobody does.
                    widest = limit = limit * _LESS
                    looked = idle = int32(0)
                    level = top
                    node = uint32(0)
                    continue
                looked = int32(looked + 1)
                already = kept
                i = uint32(leaf * uint32(WARP) + lane)
                if not is_of(filters, wanted, i):
                    apart2 = NAN
                candidates = ballot(apart2 <= reach2)
                point_x = point_y = point_z = math.nan
                point_row = float64(_NONE)
                if apart2 <= reach2:
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
                        theirs = asked_there(filters, asked, j)
                        found = squared_chord(at_x, at_y, at_z, point_x, point_y, point_z)
                        counts = (
                            found <= bound_there
                            and _counts(once, point_row, own_there)
                            and matches(filters, theirs, i)
                        )
                        bits = ballot(counts)
                        if fills:
                            place = cuda.shfl_sync(ALL_LANES, begin + int64(kept), j)
                            capacity_there = cuda.shfl_sync(ALL_LANES, int32(capacity - kept), j)
                            if counts and lanes_before(bits) < capacity_there:
                                place += int64(lanes_before(bits))
                                reference[place] = int32(point_row)
                                chord2[place] = found
                        if lane == j:
                            kept = int32(kept + int32(cuda.popc(bits)))
                    candidates = uint32(0)
                while candidates != uint32(0):
                    j = first_lane(candidates)
                    candidates = without_first(candidates)
                    found_row = cuda.shfl_sync(ALL_LANES, point_row, j)
                    at_x, at_y, at_z = of_lane(j, point_x, point_y, point_z)
                    found = squared_chord(x, y, z, at_x, at_y, at_z)
                    if (
                        member
                        and found <= bound
                        and _counts(once, found_row, own)
                        and matches(filters, asked, uint32(leaf * uint32(WARP) + j))
                    ):
                        if fills and kept < capacity:
                            reference[begin + int64(kept)] = int32(found_row)
                            chord2[begin + int64(kept)] = found
                        kept = int32(kept + int32(1))
                if ballot(kept != already) == uint32(0):
                    idle = int32(idle + 1)
            if in_bulk:
                inside = tally[warp, lane]
                for step in (16, 8, 4, 2, 1):
                    inside = int32(inside + cuda.shfl_xor_sync(ALL_LANES, inside, step))
                if member:
                    kept = int32(kept + inside)
            waiting = uint32(waiting & uint32(~group))
            half = uint32(uint32(cuda.popc(group)) >> uint32(1))

        if writes:
            if in_bulk and exclude_self and not once:
                self = first_row + int64(row)
                if 0 <= self < vectors.shape[1] and (
                    squared_chord(x, y, z, vectors[0, self], vectors[1, self], vectors[2, self])
                    <= bound
                ):
                    kept = int32(kept - int32(1))
            at[row] = begin + int64(kept)

    return walk_within


@cuda.jit(cache=True)
def compare_all(  # type: ignore[no-untyped-def]
    references, observations, row_step, axis_step, n, pieces,
    bounds, exclude_self, once, first_row, at, ends, reference, chord2, filters,
):  # fmt: skip
    """Compare every observation with every reference: count pairs, or write them if there is room.

    Grid ``(blocks,)``, block ``(32, warps)``; a warp takes a piece of the references for an
    observation. To `at`, which says where pairs begin or is 0, their number is added; nothing is
    written from `ends` on. Filters have groups and times by row here.
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
        asked = asked_by(filters, i)
        own_group = group_of(filters, asked)
        count = int64(0)
        for first in range(start, stop, WARP):
            row = int64(first + lane)
            found = math.nan
            if row < stop:
                found = squared_chord(
                    x, y, z, references[0, row], references[1, row], references[2, row]
                )
            counts = (
                found <= bound
                and _counts(once, row, own)
                and own_group >= 0
                and is_of(filters, own_group, row)
                and matches(filters, asked, row)
            )
            bits = ballot(counts)
            count += int64(cuda.popc(bits))
            if fills and bits != uint32(0):
                place = int64(0)
                if lane == 0:
                    place = cuda.atomic.add(at, i, int64(cuda.popc(bits)))
                place = cuda.shfl_sync(ALL_LANES, place, 0)
                place += int64(lanes_before(bits))
                if counts and place < ends[i]:
                    reference[place] = int32(row)
                    chord2[place] = found
        if not fills and lane == 0:
            cuda.atomic.add(at, i, count)


@cuda.jit(device=True, forceinline=True)
def _comes_before(chords2, rows, i, chord2, row):  # type: ignore[no-untyped-def]
    # As `closer`, but rows are looked at where chords are equal alone.
    other = chords2[i]
    return other < chord2 or (other == chord2 and rows[i] < row)


@cuda.jit(cache=True)
def put_in_order(  # type: ignore[no-untyped-def]
    starts, run, rows, chords2, to_rows, to_chords2, reference, distance_m
):
    """Merge sorted runs of each observation's pairs two by two, a thread a pair.

    Where `run` is 0 there are none yet, and runs of `_RUN` are made. Pairs whose order is complete
    are measured, and go to their places in the answer; later passes leave them out.
    """
    for i in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
        low = uint64(0)
        high = uint64(starts.size - 1)
        while high - low > uint64(1):
            middle = (low + high) >> uint64(1)
            if starts[middle] <= i:
                low = middle
            else:
                high = middle
        begin, stop = uint64(starts[low]), uint64(starts[low + uint64(1)])
        if stop - begin <= uint64(run):
            continue
        here = uint64(i)
        chord2, row = chords2[here], rows[here]
        if run == 0:
            own = here - (here - begin) % uint64(_RUN)
            place = own
            for other in range(own, min(own + uint64(_RUN), stop)):
                place += uint64(_comes_before(chords2, rows, other, chord2, row))
        else:
            own = here - (here - begin) % uint64(run)
            is_later = ((own - begin) // uint64(run)) & uint64(1) != uint64(0)
            first = own - uint64(run) if is_later else min(own + uint64(run), stop)
            low, high = first, min(first + uint64(run), stop)
            while low < high:
                middle = (low + high) >> uint64(1)
                if _comes_before(chords2, rows, middle, chord2, row):
                    low = middle + uint64(1)
                else:
                    high = middle
            place = min(own, first) + (here - own) + (low - first)
        if stop - begin <= uint64(max(2 * run, _RUN)):
            reference[place] = int64(row)
            distance_m[place] = metres(chord2)
        else:
            to_rows[place] = row
            to_chords2[place] = chord2


def _pass(index: ReferenceIndex, seen: tuple[Any, ...], *into: Any) -> None:
    """Launch a pass over all observations, which counts where there is no room for pairs."""
    *vectors, n, rows, width = seen
    *_, chord2, filters = into
    kind: Any = type(filters)
    if width:
        *tree, fine, _ = index.tree
        launch(
            walk(fine, chord2.size > 0, kind), blocks_for(n, width * WARPS), (WARP, WARPS),
            *tree, index.vectors, *vectors, n, rows, width, *into,
        )  # fmt: skip
    else:
        most = resident_blocks(_BRUTE_BLOCKS)
        pieces = max(1, min(most * _BRUTE_WARPS // n, index.n_references // WARP**2))
        launch(
            compare_all, blocks_for(n * pieces, _BRUTE_WARPS, most), (WARP, _BRUTE_WARPS),
            index.vectors, *vectors, n, pieces, *into,
        )  # fmt: skip


def _seen(index: ReferenceIndex, observations: Degrees, by: Search) -> tuple[Any, ...]:
    """Observations as a pass takes them: vectors and steps, number, rows, and width of a warp."""
    import cupy as cp

    n = observations.lat_deg.size
    check_rows("observations", n)
    if by == "packets":
        box = extent(observations, SAMPLE, index.earth)
        rows, vectors, _ = order(observations, box, finely=index.tree.fine, earth=index.earth)
        return vectors.ravel(), 4, 1, n, rows, WARP
    # No width stands for brute force.
    vectors = unit_vectors(*observations, earth=index.earth).ravel()
    return vectors, 1, n, n, cp.empty(0, cp.int64), int(by != "brute")


def count(index: ReferenceIndex, observations: Degrees, asked: Within, by: Search) -> cp.ndarray:
    """How many references lie within the distance of every observation."""
    return count_seen(index, _seen(index, observations, by), asked)


def pairs(
    index: ReferenceIndex,
    observations: Degrees,
    request: Within,
    by: Search,
    counts: cp.ndarray | None = None,
) -> Pairs:
    """All references within the distance of every observation, nearest first, equals by row.

    The pairs are counted first, unless the `counts` of the same search are passed.
    """
    return pairs_seen(index, _seen(index, observations, by), request, counts=counts)


def count_seen(
    index: ReferenceIndex,
    seen: tuple[Any, ...],
    asked: Within,
    filters: Filtering = EVERYTHING,
) -> cp.ndarray:
    """The same of observations as a pass takes them, which match what filters let them."""
    import cupy as cp

    n = seen[3]
    counts = cp.zeros(n, cp.int64)
    if n and index.n_references:
        bounds = (cp.asarray(asked.chord2), *asked[1:])
        no_pairs = cp.empty(0, cp.int64), cp.empty(0, cp.int32), cp.empty(0)
        _pass(index, seen, *bounds, counts, *no_pairs, filters)
    return counts


def pairs_seen(
    index: ReferenceIndex,
    seen: tuple[Any, ...],
    asked: Within,
    filters: Filtering = EVERYTHING,
    counts: cp.ndarray | None = None,
) -> Pairs:
    """The pairs of observations as a pass takes them, which match what filters let them."""
    import cupy as cp

    if counts is None:
        counts = count_seen(index, seen, asked, filters)

    def fill(starts: cp.ndarray, rows: cp.ndarray, chords2: cp.ndarray) -> cp.ndarray:
        # Brute force would find the references, too, that an index has left out.
        is_dense = index.whole and rows.size * _SHARE >= counts.size * index.n_references
        how = (*seen[:-1], 0) if is_dense and filters is EVERYTHING else seen
        bounds = (cp.asarray(asked.chord2), *asked[1:])
        ends = starts[:-1].copy()
        _pass(index, how, *bounds, ends, starts[1:], rows, chords2, filters)
        return ends

    return in_order(counts, fill)


def in_order(
    counts: cp.ndarray, fill: Callable[[cp.ndarray, cp.ndarray, cp.ndarray], cp.ndarray]
) -> Pairs:
    """So many pairs of each observation, sorted and measured.

    Function `fill` gets where those of each begin, writes rows and squared chords, and returns
    where the pairs of each observation end.
    """
    import cupy as cp

    starts = cp.zeros(counts.size + 1, cp.int64)
    cp.cumsum(counts, out=starts[1:])
    longest = counts.max() if counts.size else starts[0]
    n_pairs, longest = cp.stack([starts[-1], longest]).tolist()
    found = Pairs(starts, cp.empty(n_pairs, cp.int64), cp.empty(n_pairs))
    if n_pairs:
        rows, chords2 = cp.empty(n_pairs, cp.int32), cp.empty(n_pairs)
        ends = fill(starts, rows, chords2)
        spare = (cp.empty_like(rows), cp.empty_like(chords2)) if longest > _RUN else (rows, chords2)
        run, unsorted = 0, (rows, chords2)
        while run < longest:
            stride(put_in_order, n_pairs, starts, run, *unsorted, *spare, *found[1:])
            unsorted, spare = spare, unsorted
            run = max(2 * run, _RUN)
        # Last, as it waits for the device.
        check_passes(counts, ends - starts[:-1])
    return found
