"""The pruned search on a GPU: a tree of boxes over references, walked by warps of observations.

References lie along a Hilbert curve (`kernels.order_cuda`), 32 to a leaf; boxes over the leaves,
then over groups of 32 boxes, up to a root of at most 32. Observations lie along such a curve too,
and a warp takes 32 neighbouring ones through one walk. The walk is that of a single point, the
warp's *centre* c: each lane tests one of 32 boxes, or one of a leaf's 32 points, against c and the
warp's *reach* B. What lies beyond B cannot matter to any of the 32 observations; of a leaf's points
few are left, and those every lane compares with its own observation, in float64. A lane holds its
best one in registers, or for k > 1 a sorted list (`kernels.keys_cuda`).

The leaf that is nearest of all is opened first, because it bounds B for the rest; from there the
walk goes depth first, the nearest box before the others. A warp whose observations lie far apart
for the density of references takes them in groups, in the limit one by one; so a walk never opens
much more than its observations need.

float32 may only discard
------------------------
For an observation o whose k-th best is at chord D, a reference p matters only if |p - o| <= D, and
by the triangle inequality only if |p - c| <= D + |c - o|. So with

    B >= max over the warp's observations of D + |c - o|

any p with |p - c| > B is nobody's neighbour, not even in a tie. c is exactly a float32 triple
relative to `origin`, the centre of the references' box; so c itself has no error. Let u = 2^-24,
S the largest |p - origin| and C = |c|_1, which bounds |c|. Rounding a coordinate relative to the
origin costs a factor 1 + u, so a rounded p is off by at most u S, a rounded o by u (C + |c - o|). A
distance from rounded coordinates has a relative error below 4 u (difference, squares, two sums,
root), fused or not; D, from a float64 chord of relative error 5 * 2^-53, one below 2 u in float32.
With d, r and D~ the computed values,

    |p - c| >= d (1 - 4 u) - u S
    D + |c - o| <= (D~ + r) (1 + 6 u) + u C

so d > B implies |p - c| > D + |c - o| where B is computed as (D~ + r) (1 + 16 u) + 4 u (S + C):
that leaves 6 u relative and 2 u (S + C) for the rounding of B itself, and for the first bound of
a leaf, (min d + 2 r) (1 + 16 u) + 4 u (S + C): the point at min d is within min d + r of every
observation. 1e-18 is added for float32's underflow below 1e-19 (one is 6e-12 m on the ground). A
box is the exact minimum and maximum of rounded p, so the computed distance of c to it satisfies the
first line for every p inside.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32, uint64

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.keys_cuda import (
    COLUMNS,
    FREE,
    NO_KEY,
    clear,
    drives_out,
    insert,
    key_of,
    largest_of_key,
    line_up,
    no_keys,
    store,
)
from georesolve.kernels.launch_cuda import blocks_for, launch
from georesolve.kernels.order_cuda import box_corners, extent, order
from georesolve.kernels.query import Found, Query
from georesolve.kernels.warp_cuda import (
    ALL_LANES,
    WARP,
    ballot,
    first_lane,
    warp_max,
    warp_min,
    without_first,
)

if TYPE_CHECKING:
    import cupy as cp

    from georesolve.kernels.index import ReferenceIndex

MAX_ROWS = 2**31 - 1
"""Rows of references, and of observations, that one search takes: they are sorted as 32 bits."""

_WARPS = 4
"""Warps a block. Each works alone; a block of few gives its place back sooner."""
_LEVELS = 7
"""Levels of boxes at most: 32^7 leaves are more than `MAX_ROWS` points fill."""
_PATIENCE = 24
"""Leaves, beyond one for each of its places, that a walk opens before its group gets smaller."""
_SORT_FROM = 1 << 17
_SORT_FROM_PLACES = 1 << 20
"""Observations, or places in their lists, from which sorting observations pays."""
_BRUTE_PAIRS = 1 << 26
_BRUTE_REFERENCES = 1024
"""Brute force is faster up to so many references and pairs: it neither sorts nor walks."""

_SHARE2 = {
    places: np.float32(share**2)
    for places, share in {1: 0.35, 2: 0.6, 4: 0.6, 8: 0.6, 16: 0.6, 32: 1.0, 64: 1.0}.items()
}
"""Square of the distance from the centre, in widths of its leaf, up to which a walk is shared."""
_LESS = np.float32(0.25**2)
"""What is left of that once a group has proved too wide."""
_REGISTERS = {1: 64, 2: 80, 4: 80, 8: 80, 16: 96, 32: 128, 64: 128}
"""Registers a thread that lists of so many places get; the compiler would take up to 230."""

_INFINITY: Any = np.float32(math.inf)
_ZERO: Any = np.float32(0.0)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_HALF = np.float32(0.5)
_GROWTH = np.float32(1.0 + 2.0**-20)
_SLACK = np.float32(2.0**-22)
_UNDERFLOW = np.float32(1e-18)
_BOX_ROUNDING = np.float32(2.0**-23)


class Tree(NamedTuple):
    """References sorted into leaves, and the boxes over them, on a GPU.

    Attributes
    ----------
    points : float64 array, shape (32 * n_leaves, 4)
        x, y, z and row of every reference in the order of the leaves, together so that one memory
        transaction fetches them; the row as float64, exact up to 2^53. Unused ones hold NaN.
    corners : float32 array, shape (3, 32 * n_leaves)
        The same points less the origin, rounded.
    boxes : float32 array, shape (6, n_boxes)
        Least and largest x, y, z of each box, level by level from the leaves up; a level is padded
        to whole groups of 32 with boxes that enclose nothing.
    starts : int32 array, shape (n_levels,)
        Where each level starts in `boxes`.
    box : int32 array, shape (6,)
        The box of all references, from `kernels.order_cuda.bound`; its centre is the origin.
    """

    points: cp.ndarray
    corners: cp.ndarray
    boxes: cp.ndarray
    starts: cp.ndarray
    box: cp.ndarray


def _level_sizes(n_references: int) -> list[int]:
    # Boxes of each level, padded to groups of 32, from the leaves to a root of one group.
    count = -(-n_references // WARP)
    sizes = [-(-count // WARP) * WARP]
    while sizes[-1] > WARP:
        count = sizes[-1] // WARP
        sizes.append(-(-count // WARP) * WARP)
    return sizes


@cuda.jit(device=True, forceinline=True)
def _length(x, y, z):  # type: ignore[no-untyped-def]
    return math.sqrt(x * x + y * y + z * z)


@cuda.jit(device=True, forceinline=True)
def _origin(box):  # type: ignore[no-untyped-def]
    # The centre of the references' box and a bound of their distance from it.
    low_x, low_y, low_z, high_x, high_y, high_z = box_corners(box)
    half_x = (high_x - low_x) * _HALF
    half_y = (high_y - low_y) * _HALF
    half_z = (high_z - low_z) * _HALF
    radius = _length(half_x, half_y, half_z)
    return (
        product(0.5, total(float64(low_x), float64(high_x))),
        product(0.5, total(float64(low_y), float64(high_y))),
        product(0.5, total(float64(low_z), float64(high_z))),
        radius * _GROWTH + _BOX_ROUNDING,
    )


@cuda.jit(device=True, forceinline=True)
def _store_box(boxes, i, low_x, low_y, low_z, high_x, high_y, high_z):  # type: ignore[no-untyped-def]
    low_x, low_y, low_z = warp_min(low_x), warp_min(low_y), warp_min(low_z)
    high_x, high_y, high_z = warp_max(high_x), warp_max(high_y), warp_max(high_z)
    if cuda.threadIdx.x == 0:
        boxes[0, i] = low_x
        boxes[1, i] = low_y
        boxes[2, i] = low_z
        boxes[3, i] = high_x
        boxes[4, i] = high_y
        boxes[5, i] = high_z


@cuda.jit(cache=True)
def fill_leaves(copies, rows, box, points, corners, boxes, n_boxes):  # type: ignore[no-untyped-def]
    """Copy the references into leaves and enclose each leaf, a warp a leaf.

    Parameters
    ----------
    copies : float64 array, shape (n, 4)
        Unit vectors, as `kernels.order_cuda.order` copies them.
    rows : int64 array, shape (n,)
        Rows in the order of the leaves.
    box : int32 array, shape (6,)
        The box of all vectors.
    points, corners, boxes
        Written: as `Tree` has them, boxes of the lowest level only.
    n_boxes : int
        Boxes of the lowest level, padding included.
    """
    lane = cuda.threadIdx.x
    leaf = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if leaf >= n_boxes:
        return
    origin_x, origin_y, origin_z, _ = _origin(box)
    i = leaf * WARP + lane
    x = y = z = math.nan
    row = int64(-1)
    if i < rows.size:
        row = rows[i]
        x, y, z = copies[row, 0], copies[row, 1], copies[row, 2]
    corner_x = float32(total(x, -origin_x))
    corner_y = float32(total(y, -origin_y))
    corner_z = float32(total(z, -origin_z))
    if i < points.shape[0]:
        points[i, 0] = x
        points[i, 1] = y
        points[i, 2] = z
        points[i, 3] = float64(row)
        corners[0, i] = corner_x
        corners[1, i] = corner_y
        corners[2, i] = corner_z
    low_x, low_y, low_z = corner_x, corner_y, corner_z
    high_x, high_y, high_z = corner_x, corner_y, corner_z
    if corner_x != corner_x:
        low_x = low_y = low_z = _INFINITY
        high_x = high_y = high_z = -_INFINITY
    # Outside of any branch: all lanes of a warp must take part in its shuffles.
    _store_box(boxes, leaf, low_x, low_y, low_z, high_x, high_y, high_z)


@cuda.jit(cache=True)
def fill_boxes(boxes, start, n_boxes, child_start, n_children):  # type: ignore[no-untyped-def]
    """Enclose each group of 32 boxes of a level by one of the next, a warp a group.

    Parameters
    ----------
    boxes : float32 array, shape (6, n)
        As `Tree` has them. Written: those of the next level.
    start, n_boxes : int
        Where the next level starts, and its boxes, padding included.
    child_start, n_children : int
        The same of the level below.
    """
    parent = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if parent >= n_boxes:
        return
    child = parent * WARP + cuda.threadIdx.x
    low_x = low_y = low_z = _INFINITY
    high_x = high_y = high_z = -_INFINITY
    if child < n_children:
        i = child_start + child
        low_x, low_y, low_z = boxes[0, i], boxes[1, i], boxes[2, i]
        high_x, high_y, high_z = boxes[3, i], boxes[4, i], boxes[5, i]
    _store_box(boxes, start + parent, low_x, low_y, low_z, high_x, high_y, high_z)


@cuda.jit(device=True, forceinline=True)
def _beyond(low, high, x):  # type: ignore[no-untyped-def]
    # How far x lies outside [low, high].
    gap = low - x
    other = x - high
    if other > gap:
        gap = other
    if not gap > _ZERO:
        gap = _ZERO
    return gap


@cuda.jit(device=True, forceinline=True)
def _turn(low_x, low_y, low_z, high_x, high_y, high_z, x, y, z):  # type: ignore[no-untyped-def]
    # Which boxes come first: how far (x, y, z) lies outside the box; among boxes that hold it, a
    # negative number, the least where the box's middle is nearest. Where references crowd, many
    # boxes hold a point, and most have none of its neighbours.
    gap = _length(_beyond(low_x, high_x, x), _beyond(low_y, high_y, y), _beyond(low_z, high_z, z))
    if gap == _ZERO:
        middle_x = (low_x + high_x) * _HALF - x
        middle_y = (low_y + high_y) * _HALF - y
        middle_z = (low_z + high_z) * _HALF - z
        middle2 = middle_x * middle_x + middle_y * middle_y + middle_z * middle_z
        gap = -_ONE / (middle2 + _UNDERFLOW)
    return gap


@cache
def walk(places: int) -> Any:
    """The kernel that finds up to `places` references an observation, a power of two.

    One source, compiled for each number of places that is asked for: only so does a list of that
    length lie in registers.
    """
    many = places > 1
    slots = places - 1
    patience = _PATIENCE + places
    most_share2 = _SHARE2[places]

    @cuda.jit(cache=True, max_registers=_REGISTERS.get(places))
    def walk_tree(  # type: ignore[no-untyped-def]
        points, corners, boxes, starts, box, observations, row_step, axis_step, rows, width, k,
        exclude_self, first_row, reference, chord2,
    ):  # fmt: skip
        """Find the k nearest references of `width` observations a warp.

        Grid ``(blocks,)``, block ``(32, warps)``. Every branch that holds a shuffle or a vote is
        taken by the whole warp: it depends on values that all lanes share.

        Parameters
        ----------
        points, corners, boxes, starts, box
            A `Tree`.
        observations : float64 array, shape (n_values,)
            Unit vectors; coordinate c of observation i is value ``i * row_step + c * axis_step``.
        row_step, axis_step : int
            How the unit vectors lie.
        rows : int64 array, shape (n,) or (0,)
            Rows of neighbouring observations; none to take them as they come.
        width : int
            Observations a warp, a power of two up to 32.
        k, exclude_self, first_row
            As `Query` has them.
        reference, chord2 : int64 and float64 array, shape (n, k)
            Written: as `Found` has them.
        """
        pending = cuda.shared.array((_WARPS, _LEVELS, WARP), float32)
        stage = cuda.shared.array((_WARPS, 4, WARP), float64)
        lane = uint32(cuda.threadIdx.x)
        warp = cuda.threadIdx.y
        n = reference.shape[0]
        position = (int64(cuda.blockIdx.x) * _WARPS + warp) * width + int64(
            lane & uint32(width - 1)
        )
        if position - int64(lane & uint32(width - 1)) >= n:
            return
        top = int32(starts.size - 1)
        origin_x, origin_y, origin_z, radius = _origin(box)

        writes = lane < uint32(width) and position < n
        row = uint64(min(position, n - 1))
        if rows.size > 0:
            row = uint64(rows[row])
        at = row * uint64(row_step)
        x = observations[at]
        y = observations[at + uint64(axis_step)]
        z = observations[at + uint64(2 * axis_step)]
        own = float64(-2.0)
        if exclude_self:
            own = float64(first_row + int64(row))
        offset_x = float32(total(x, -origin_x))
        offset_y = float32(total(y, -origin_y))
        offset_z = float32(total(z, -origin_z))
        if many:
            found = cuda.shared.array((_WARPS, places, COLUMNS), int32)[warp]
            keys = no_keys(places, k)
            clear(found, lane)
        else:
            best_chord2 = math.inf
            best_row = -1.0

        # The origin is NaN when no reference is valid, and every box would seem to be near.
        waiting = ballot(writes and offset_x == offset_x)
        half = uint32(uint32(width) >> uint32(1))
        nearest_needed = int32(k)
        if exclude_self:
            nearest_needed = int32(k + 1)
        share2 = most_share2
        while waiting != uint32(0):
            # With as many waiting on either side of the centre as the last group had, groups tile.
            highest = uint32(31) - uint32(cuda.clz(waiting))
            middle = min(uint32(first_lane(waiting) + half), highest)
            centre = uint32(middle + first_lane(uint32(waiting >> middle)))
            centre_x = cuda.shfl_sync(ALL_LANES, offset_x, centre)
            centre_y = cuda.shfl_sync(ALL_LANES, offset_y, centre)
            centre_z = cuda.shfl_sync(ALL_LANES, offset_z, centre)
            away = _length(offset_x - centre_x, offset_y - centre_y, offset_z - centre_z)
            slack = _SLACK * (radius + abs(centre_x) + abs(centre_y) + abs(centre_z)) + _UNDERFLOW
            alone = uint32(uint32(1) << centre)
            group = waiting
            member = False
            widest = wide2 = _ZERO
            reach = _INFINITY
            opened = int32(0)
            level = top
            node = uint32(0)
            descended = True
            while level <= top:
                if descended:
                    i = uint32(uint32(starts[level]) + uint32(node * uint32(WARP)) + lane)
                    turn = _turn(
                        boxes[0, i], boxes[1, i], boxes[2, i],
                        boxes[3, i], boxes[4, i], boxes[5, i],
                        centre_x, centre_y, centre_z,
                    )  # fmt: skip
                    descended = False
                    pending[warp, level, lane] = turn
                else:
                    turn = pending[warp, level, lane]
                if not turn <= reach:
                    turn = _INFINITY
                least = warp_min(turn)
                if least == _INFINITY:
                    level = int32(level + 1)
                    node = uint32(node >> uint32(5))
                    continue
                if opened == 0 and least > _ZERO and level < top:
                    # What is opened first bounds all the rest: so it is the leaf that is nearest
                    # of all, and where another box may hold that one, this node waits its turn.
                    rival = _INFINITY
                    for upper in range(level + 1, top + 1):
                        rival = min(rival, pending[warp, upper, lane])
                    if warp_min(rival) < least:
                        level = int32(level + 1)
                        if lane == node & uint32(WARP - 1):
                            pending[warp, level, lane] = least
                        node = uint32(node >> uint32(5))
                        continue
                nearest = first_lane(ballot(turn == least))
                if lane == nearest:
                    pending[warp, level, lane] = _INFINITY
                child = uint32(node * uint32(WARP) + nearest)
                if level > 0:
                    level = int32(level - 1)
                    node = child
                    descended = True
                    continue

                i = uint32(child * uint32(WARP) + lane)
                apart = _length(
                    corners[0, i] - centre_x, corners[1, i] - centre_y, corners[2, i] - centre_z
                )
                if opened == 0:
                    # Observations as far away as this leaf is wide have other neighbours.
                    wide_x = boxes[3, child] - boxes[0, child]
                    wide_y = boxes[4, child] - boxes[1, child]
                    wide_z = boxes[5, child] - boxes[2, child]
                    wide2 = wide_x * wide_x + wide_y * wide_y + wide_z * wide_z
                    if top > 0:
                        group = uint32(group & ballot(away * away <= share2 * wide2))
                    group = uint32(group | alone)
                    member = (group >> lane) & uint32(1) != uint32(0)
                    widest = warp_max(away if member else _ZERO)
                opened = int32(opened + 1)
                # The leaf's points bound every member's k-th best before any is compared: each is
                # at most `widest` farther from the member than from the centre.
                if nearest_needed == 1 or (opened == 1 and nearest_needed <= WARP):
                    least = apart
                    if least != least:
                        least = _INFINITY
                    if nearest_needed == 1:
                        least = warp_min(least)
                    else:
                        rank = 1
                        for other in range(WARP):
                            value = cuda.shfl_sync(ALL_LANES, least, other)
                            if value < least or (value == least and other < lane):
                                rank += 1
                        if rank != nearest_needed:
                            least = _ZERO
                        least = warp_max(least)
                    first = (least + _TWO * widest) * _GROWTH + slack
                    if first < reach:
                        reach = first
                candidates = ballot(apart <= reach)
                if candidates == uint32(0):
                    continue
                # All lanes fetch at once: in turn, each candidate would wait for memory.
                cuda.syncwarp()
                if apart <= reach:
                    stage[warp, 0, lane] = points[i, 0]
                    stage[warp, 1, lane] = points[i, 1]
                    stage[warp, 2, lane] = points[i, 2]
                    stage[warp, 3, lane] = points[i, 3]
                cuda.syncwarp()
                while candidates != uint32(0):
                    j = first_lane(candidates)
                    candidates = without_first(candidates)
                    row_found = stage[warp, 3, j]
                    chord2_found = squared_chord(
                        x, y, z, stage[warp, 0, j], stage[warp, 1, j], stage[warp, 2, j]
                    )
                    able = member and row_found != own
                    if many:
                        code = key_of(chord2_found, slots)
                        last = keys[slots] & int32(~slots)
                        enters = able and code <= last
                        if cuda.any_sync(ALL_LANES, enters):
                            slot = keys[slots] & int32(slots)
                            key = int32(NO_KEY)
                            # Keys of equal upper bits do not say which of them is the farthest.
                            equal = code == last or keys[slots - 1] & int32(~slots) == last
                            if enters and equal and last < int32(FREE):
                                enters = drives_out(
                                    points, x, y, z, chord2_found, row_found, found, lane, k, slot
                                )
                            if enters:
                                found[slot, lane] = int32(child * uint32(WARP) + j)
                                key = code | slot
                            keys = insert(keys, key)
                    elif closer(chord2_found, row_found, best_chord2, best_row) and able:
                        best_chord2 = chord2_found
                        best_row = row_found
                if opened >= patience and group != alone:
                    # The members' neighbourhoods have too little in common: go on for the nearer
                    # ones, and expect less of the groups to come.
                    opened = int32(1)
                    share2 *= _LESS
                    group = uint32((group & ballot(away * away <= share2 * wide2)) | alone)
                    leaves = member
                    member = (group >> lane) & uint32(1) != uint32(0)
                    widest = warp_max(away if member else _ZERO)
                    if many and leaves and not member:
                        keys = no_keys(places, k)
                        clear(found, lane)
                needed = _ZERO
                if member:
                    if many:
                        needed = math.sqrt(largest_of_key(keys[slots], slots)) + away
                    else:
                        needed = math.sqrt(float32(best_chord2)) + away
                needed = warp_max(needed) * _GROWTH + slack
                if needed < reach:
                    reach = needed
            waiting = uint32(waiting & uint32(~group))
            half = uint32(uint32(cuda.popc(group)) >> uint32(1))

        if many:
            line_up(keys, found, lane)
            store(points, x, y, z, row, writes, width, found, k, reference, chord2)
        elif writes:
            reference[row, 0] = int64(best_row)
            chord2[row, 0] = best_chord2

    return walk_tree


def build(vectors: cp.ndarray) -> Tree:
    """Sort references into leaves and enclose them in boxes.

    Parameters
    ----------
    vectors : float64 array of CuPy, shape (3, n)
        Unit vectors; NaN ones are never matched.

    Raises
    ------
    ValueError
        When there are more than `MAX_ROWS` references.
    """
    import cupy as cp

    n = vectors.shape[1]
    _check_rows("references", n)
    n_leaves = -(-n // WARP)
    sizes = _level_sizes(n)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    tree = Tree(
        points=cp.empty((WARP * n_leaves, 4)),
        corners=cp.empty((3, WARP * n_leaves), cp.float32),
        boxes=cp.empty((6, int(starts[-1])), cp.float32),
        starts=cp.asarray(starts[:-1].astype(np.int32)),
        box=extent(vectors),
    )
    if not n:
        return tree
    rows, copies = order(vectors, tree.box)
    threads = (WARP, _WARPS)
    launch(
        fill_leaves, blocks_for(sizes[0], _WARPS), threads,
        copies, rows, tree.box, tree.points, tree.corners, tree.boxes, sizes[0],
    )  # fmt: skip
    for level in range(1, len(sizes)):
        launch(
            fill_boxes, blocks_for(sizes[level], _WARPS), threads,
            tree.boxes, int(starts[level]), sizes[level], int(starts[level - 1]), sizes[level - 1],
        )  # fmt: skip
    return tree


def prefers_brute(index: ReferenceIndex, n_observations: int, query: Query) -> bool:
    """Whether `auto` should take brute force: measured, and without effect on the answer."""
    n_references = int(index.vectors.shape[1])
    return n_references <= _BRUTE_REFERENCES and n_references * n_observations <= _BRUTE_PAIRS


def search(
    index: ReferenceIndex, observations: cp.ndarray, query: Query, *, width: int | None = None
) -> Found:
    """The k nearest references of every observation.

    Parameters
    ----------
    index : ReferenceIndex
        References on the GPU.
    observations : float64 array of CuPy, shape (3, n)
        Unit vectors; NaN ones match nothing.
    query : Query
        What is asked.
    width : int, optional
        Observations a warp: a power of two up to 32, after sorting them, or 1 as they come. Chosen
        by their number where it is not given; the answer is the same.

    Raises
    ------
    ValueError
        When there are more than `MAX_ROWS` observations.
    """
    import cupy as cp

    n = observations.shape[1]
    _check_rows("observations", n)
    found = Found(cp.empty((n, query.k), cp.int64), cp.empty((n, query.k)))
    if not n:
        return found
    n_references = index.vectors.shape[1]
    if not n_references:
        found.reference.fill(-1)
        found.chord2.fill(math.inf)
        return found
    places = 1 << (query.k - 1).bit_length()
    if width is None:
        width = WARP if n >= _SORT_FROM or n * places >= _SORT_FROM_PLACES else 1
    if width > 1:
        rows, copies = order(observations, extent(observations))
        seen, row_step, axis_step = copies.ravel(), 4, 1
    else:
        rows = cp.empty(0, cp.int64)
        seen, row_step, axis_step = observations.ravel(), 1, n
    launch(
        walk(places), blocks_for(n, width * _WARPS), (WARP, _WARPS),
        *index.tree, seen, row_step, axis_step, rows, width,
        query.k, query.exclude_self, query.first_row, *found,
    )  # fmt: skip
    return found


def search_bytes(n_references: int, n_observations: int, k: int = 1) -> int:
    """Device memory that an index and one search in it take at most, in bytes.

    Beyond the degrees of both sets, which the caller holds: unit vectors, tree, answers, distances,
    and what sorting needs besides.
    """
    boxes = sum(_level_sizes(n_references)) * 6 * 4
    leaves = -(-n_references // WARP) * WARP * (4 * 8 + 3 * 4)
    index = n_references * 3 * 8 + leaves + boxes
    # Places (4), rows (8) and the sort's second copies of both, copied vectors (32), and counters.
    sort = 2 * (4 + 8) + 32 + 1
    answers = n_observations * (3 * 8 + k * (8 + 8 + 8))
    return index + max(n_references * sort, answers + n_observations * sort) + (1 << 24)


def _check_rows(name: str, n: int) -> None:
    if n > MAX_ROWS:
        raise ValueError(f"{name} must be {MAX_ROWS} rows at most, got {n}: split them")
