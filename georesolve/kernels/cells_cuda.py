"""The nearest reference by a table of cells on a GPU, where observations outnumber references.

The part of the octahedral square that the references cover (`kernels.hilbert`) is cut into cells,
and a cell knows every reference that can be the nearest of a point in it: two or three where there
are sixteen cells a reference. So an observation needs no sort and no walk: it finds its cell,
compares itself with the cell's few candidates in float64, and is done. What falls into a cell of
more candidates than it has places for, or outside of the cells, is left to a walk
(`kernels.walk_cuda`); the answer is the same. References that crowd leave too much to walks, so
cells are made only of those that are spread over at least a quarter of as many larger cells.

Which references a cell keeps
-----------------------------
Every point o of a cell lies within h of its middle c. Let q be the reference nearest to c, and p
another one. Because |o - p|^2 - |o - q|^2 is linear in o,

    |o - p|^2 - |o - q|^2 = |c - p|^2 - |c - q|^2 + 2 (o - c) (q - p)
                         >= |c - p|^2 - |c - q|^2 - 2 h |q - p|

so where the right side is positive q is nearer than p for the whole cell, and p is left out. It
must be larger than what rounding does to squared chords, which have a relative error of 5 * 2^-53:
those of o are at most (|c - p| + h)^2, and 4e-15 times that covers all four of them.

p is kept only if |c - p| <= |c - q| + 2 h, nearly: so a walk with that reach finds all of them.

How far a cell reaches
----------------------
Over the square, the octahedron's surface is linear in pieces, and moves by at most sqrt(3) times as
much as (u, v): half a diagonal of a cell with sides a and b is t = sqrt(3 (a^2 + b^2)) / 2 there.
Putting points on the sphere divides by their length, which is at least |c'| - t where c' is the
cell's middle on the octahedron; so h = t / (|c'| - t). 1e-14 is added for what rounding does to u,
v, c and o.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from numba import cuda, float32, int32, int64, uint32
from numba.cuda import libdevice

from georesolve.kernels.boxes_cuda import (
    INFINITY,
    LEVELS,
    NEVER,
    WARPS,
    ZERO,
    offset,
    origin,
    reach_of,
    root,
)
from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.coordinates_cuda import metres
from georesolve.kernels.descent_cuda import (
    apart_in,
    look_from_origin,
    look_from_points,
    next_leaf,
)
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.hilbert import octahedral
from georesolve.kernels.launch_cuda import blocks_for, launch, stride
from georesolve.kernels.order_cuda import frame, largest, spread, turned, widen
from georesolve.kernels.query import Answer, Degrees, Found, Query
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.walk_cuda import launch_walk
from georesolve.kernels.warp_cuda import (
    ALL_LANES,
    ballot,
    first_lane,
    warp_max,
    without_first,
)

if TYPE_CHECKING:
    import cupy as cp

    from georesolve.kernels.index import ReferenceIndex

PLACES = 8
"""Candidates that a cell has places for: 32 bytes, which memory moves at once."""
_NONE = -1
_CROWDED = -2
"""What stands in a place instead of a candidate: no further one; in the first, too many."""
_LEAST_BITS = 4
_PATIENCE = 1024
"""Points that a warp looks at before it calls its cells crowded; where references are spread evenly
it looks at some twenty."""
_SPREAD = 1 / 4
"""Larger cells, of one a reference, that hold one, from which references are spread evenly: where
they are at random, 0.63 of them do."""
_MOST_LEFT = 1 / 8
"""Share of the observations that may be left over: of more, all are walked for."""
_HALF_DIAGONAL = math.sqrt(0.75) * (1.0 + 1e-9)
_LEAST_EXTENT = 1e-6
"""Extent on the square below which cells are not made smaller: float32 bounds it."""
_ROUNDING = 1e-14
_CHORD_ROUNDING = 4e-15


@cuda.jit(device=True, forceinline=True)
def _gathered(bits):  # type: ignore[no-untyped-def]
    # Every second bit of 32, from the lowest: the inverse of `spread`.
    bits = bits & 0x55555555
    bits = (bits | (bits >> 1)) & 0x33333333
    bits = (bits | (bits >> 2)) & 0x0F0F0F0F
    bits = (bits | (bits >> 4)) & 0x00FF00FF
    return (bits | (bits >> 8)) & 0x0000FFFF


@cuda.jit(device=True, forceinline=True)
def _on_square(main, side, x, y, z):  # type: ignore[no-untyped-def]
    a, b, c = turned(main, x, y, z)
    return octahedral(a, b, c * side)


@cuda.jit(cache=True)
def bound_square(vectors, box, square):  # type: ignore[no-untyped-def]
    """Enclose references on the octahedral square, a thread a reference.

    The tree's box says where the square has its middle. `square`, which holds 0, becomes the
    largest u, v, -u, -v, encoded.
    """
    main, side, _, _, _ = frame(box)
    high_u = high_v = low_u = low_v = float32(-2.0)
    for i in range(cuda.grid(1), vectors.shape[1], cuda.gridsize(1)):
        x, y, z = vectors[0, i], vectors[1, i], vectors[2, i]
        if x == x:
            u, v = _on_square(main, side, x, y, z)
            high_u, high_v = max(high_u, float32(u)), max(high_v, float32(v))
            low_u, low_v = max(low_u, float32(-u)), max(low_v, float32(-v))
    widen(square, 0, high_u)
    widen(square, 1, high_v)
    widen(square, 2, low_u)
    widen(square, 3, low_v)


@cuda.jit(device=True, forceinline=True)
def _grid(square, bits):  # type: ignore[no-untyped-def]
    # Where cells begin on the square, and their sides. A side is longer than float32's rounding.
    first_u, first_v = -float(largest(square, 2)), -float(largest(square, 3))
    cells = float(int64(1) << bits)
    step_u = max(float(largest(square, 0)) - first_u, _LEAST_EXTENT) / cells
    step_v = max(float(largest(square, 1)) - first_v, _LEAST_EXTENT) / cells
    return first_u, first_v, step_u, step_v


@cuda.jit(device=True, forceinline=True)
def _cell_at(u, v, first_u, first_v, step_u, step_v, bits):  # type: ignore[no-untyped-def]
    # The cell of a point, along a Morton curve; -1 outside of them.
    column = (u - first_u) / step_u
    row = (v - first_v) / step_v
    cells = float(int64(1) << bits)
    if not (0.0 <= column <= cells and 0.0 <= row <= cells):
        return int64(-1)
    # The far edges belong to the last cells: there, too, a point is half a side from the middle.
    last = int64(cells) - 1
    return int64((spread(min(int64(column), last)) << 1) | spread(min(int64(row), last)))


@cuda.jit(cache=True)
def count_occupied(vectors, box, square, bits, occupied, count):  # type: ignore[no-untyped-def]
    """Count the cells that hold a reference, a thread a reference.

    Either side of the square is halved `bits` times. `occupied`, which holds 0, becomes 1 where one
    of the 4^bits cells holds a reference.
    """
    main, side, _, _, _ = frame(box)
    first_u, first_v, step_u, step_v = _grid(square, bits)
    for i in range(cuda.grid(1), vectors.shape[1], cuda.gridsize(1)):
        x, y, z = vectors[0, i], vectors[1, i], vectors[2, i]
        if x == x:
            u, v = _on_square(main, side, x, y, z)
            at = _cell_at(u, v, first_u, first_v, step_u, step_v, bits)
            if at >= 0 and cuda.atomic.exch(occupied, at, 1) == 0:
                cuda.atomic.add(count, 0, 1)


@cuda.jit(cache=True)
def fill_middles(box, square, bits, middles, reaches):  # type: ignore[no-untyped-def]
    """Find the middle of each cell, a unit vector, and how far the cell reaches from it, a chord.

    A thread a cell, of 4^bits.
    """
    main, side, _, _, _ = frame(box)
    first_u, first_v, step_u, step_v = _grid(square, bits)
    half = _HALF_DIAGONAL * math.sqrt(step_u * step_u + step_v * step_v) + _ROUNDING
    for i in range(cuda.grid(1), reaches.size, cuda.gridsize(1)):
        # A cell that reaches over the square's edge has no points there: its middle may move in.
        u = min(max(first_u + (float(_gathered(i >> 1)) + 0.5) * step_u, -1.0), 1.0)
        v = min(max(first_v + (float(_gathered(i)) + 0.5) * step_v, -1.0), 1.0)
        a, b = u, v
        c = 1.0 - abs(u) - abs(v)
        if c < 0.0:
            a = math.copysign(1.0 - abs(v), u)
            b = math.copysign(1.0 - abs(u), v)
        size = math.sqrt(a * a + b * b + c * c)
        # `turned` takes x, y, z to a, b, c; turning twice more is the way back.
        x, y, z = turned(main, *turned(main, a, b, c * side))
        middles[0, i] = x / size
        middles[1, i] = y / size
        middles[2, i] = z / size
        reaches[i] = half / (size - half) + _ROUNDING


@cache
def collect(fine: bool) -> Any:
    """The kernel that finds the candidates of 32 neighbouring cells a warp, in a tree so `fine`."""

    @cuda.jit(cache=True)
    def collect_candidates(  # type: ignore[no-untyped-def]
        points, corners, boxes, starts, box,
        vectors, middles, reaches, nearest, nearest_chord2, table,
    ):  # fmt: skip
        """Find the candidates of cells.

        Grid ``(blocks,)``, block ``(32, warps)``. `nearest` is the reference nearest to each
        middle. A row of `table` becomes where a cell's candidates stand among the tree's points,
        and -1 behind the last; -2 in the first place where there are too many.
        """
        pending = cuda.shared.array((WARPS, LEVELS, WARP), int32)
        slots = cuda.shared.array((WARPS, PLACES, WARP), int32)
        lane = uint32(cuda.threadIdx.x)
        warp = cuda.threadIdx.y
        i = (int64(cuda.blockIdx.x) * WARPS + warp) * WARP + int64(lane)
        if i >= reaches.size:
            return
        x, y, z, h = middles[0, i], middles[1, i], middles[2, i], reaches[i]
        row, chord2 = nearest[i, 0], nearest_chord2[i, 0]
        near_x = near_y = near_z = math.nan
        if row >= 0:
            near_x, near_y, near_z = vectors[0, row], vectors[1, row], vectors[2, row]
        # Cells lie along a Morton curve, eight by four: so the thirteenth is in the middle.
        if fine:
            view, away2 = look_from_points(12, x, y, z)
        else:
            origin_x, origin_y, origin_z, radius = origin(box)
            near_origin = offset(x, y, z, origin_x, origin_y, origin_z)
            view, away2 = look_from_origin(12, *near_origin, radius)
        needed = float32(math.sqrt(chord2) + 2.0 * h) + root(away2)
        reach = reach_of(warp_max(needed), view.slack)
        count = int32(0)
        looked = int32(0)
        top = int32(starts.size - 1)
        level = top
        node = uint32(0)
        while True:
            level, node, leaf = next_leaf(
                view, points, boxes, starts, pending[warp], level, node,
                libdevice.float_as_int(reach * reach), looked, int32(NEVER), False,
            )  # fmt: skip
            if level > top:
                break
            apart2, _, more = apart_in(view, points, corners, leaf)
            candidates = ballot(apart2 <= (reach + more) * (reach + more))
            looked = int32(looked + 1 + cuda.popc(candidates))
            if looked > _PATIENCE:
                count = int32(PLACES + 1)
                break
            while candidates != uint32(0):
                at = uint32(leaf * uint32(WARP) + first_lane(candidates))
                candidates = without_first(candidates)
                point_x, point_y, point_z = points[at, 0], points[at, 1], points[at, 2]
                apart2 = squared_chord(x, y, z, point_x, point_y, point_z)
                between2 = squared_chord(near_x, near_y, near_z, point_x, point_y, point_z)
                span = math.sqrt(apart2) + h
                least = 2.0 * h * math.sqrt(between2) + _CHORD_ROUNDING * span * span
                # Only the lowest row of references at one point matches. Compare coordinates: the
                # square of a distance may underflow.
                is_apart = near_x != point_x or near_y != point_y or near_z != point_z
                if apart2 - chord2 <= least and (is_apart or int64(points[at, 3]) <= row):
                    if count < PLACES:
                        slots[warp, count, lane] = int32(at)
                    count = int32(count + 1)
            # What is crowded already needs no more candidates.
            farthest = warp_max(needed if count <= PLACES else -INFINITY)
            if farthest < ZERO:
                break
            reach = reach_of(farthest, view.slack)
        for place in range(PLACES):
            candidate = int32(_NONE)
            if place < count:
                candidate = slots[warp, place, lane]
            if place == 0 and count > PLACES:
                candidate = int32(_CROWDED)
            table[i, place] = candidate

    return collect_candidates


@cuda.jit(cache=True)
def look_up(  # type: ignore[no-untyped-def]
    lat_deg, lon_deg, box, square, bits, table, points, measure, reference, chord2,
    rest, rest_lat_deg, rest_lon_deg, count,
):  # fmt: skip
    """Find the nearest reference among the candidates of its cell, a thread an observation.

    With `measure`, metres stand in for squared chords. Rows and degrees of the observations that
    are left over go to `rest`, in no order, and their number to `count`.
    """
    n = lat_deg.size
    lane = uint32(cuda.threadIdx.x % WARP)
    main, side, _, _, _ = frame(box)
    first_u, first_v, step_u, step_v = _grid(square, bits)
    for i in range(cuda.grid(1), -(-n // WARP) * WARP, cuda.gridsize(1)):
        x = y = z = math.nan
        if i < n:
            x, y, z = unit_vector(lat_deg[i], lon_deg[i])
        best_chord2 = math.inf
        best_row = -1.0
        left_over = False
        if x == x:
            u, v = _on_square(main, side, x, y, z)
            at = _cell_at(u, v, first_u, first_v, step_u, step_v, bits)
            code = int32(_CROWDED)
            if at >= 0:
                code = table[at, 0]
            left_over = code == _CROWDED
            place = 0
            while code >= 0:
                found = squared_chord(x, y, z, points[code, 0], points[code, 1], points[code, 2])
                row = points[code, 3]
                if closer(found, row, best_chord2, best_row):
                    best_chord2 = found
                    best_row = row
                place += 1
                code = int32(_NONE)
                if place < PLACES:
                    code = table[at, place]
        if i < n:
            if measure:
                best_chord2 = metres(best_chord2)
            reference[i, 0] = int64(best_row)
            chord2[i, 0] = best_chord2
        left = ballot(left_over)
        if left != uint32(0):
            start = int32(0)
            if lane == 0:
                start = cuda.atomic.add(count, 0, int32(cuda.popc(left)))
            start = cuda.shfl_sync(ALL_LANES, start, 0)
            if left_over:
                before = uint32(left & uint32(uint32(uint32(1) << lane) - uint32(1)))
                at = start + cuda.popc(before)
                rest[at] = i
                rest_lat_deg[at] = lat_deg[i]
                rest_lon_deg[at] = lon_deg[i]


@cuda.jit(cache=True)
def put(rows, found_reference, found_chord2, measure, reference, chord2):  # type: ignore[no-untyped-def]
    """Put answers for some observations into the rows of these, a thread an answer."""
    for i in range(cuda.grid(1), rows.size, cuda.gridsize(1)):
        distance = found_chord2[i, 0]
        if measure:
            distance = metres(distance)
        reference[rows[i], 0] = found_reference[i, 0]
        chord2[rows[i], 0] = distance


def search(
    index: ReferenceIndex, observations: Degrees, found: Found, measure: bool
) -> tuple[cp.ndarray, Degrees] | None:
    """Answer from cells, for k = 1 and one reference at least.

    Gives rows and degrees of the observations that are left over; None where those are too many, or
    references are not spread evenly enough for cells.
    """
    import cupy as cp

    bits = max(_LEAST_BITS, ((index.vectors.shape[1] - 1).bit_length() + 4) // 2)
    box = index.tree.box
    square = cp.zeros(4, cp.uint32)
    stride(bound_square, index.vectors.shape[1], index.vectors, box, square)
    if not _spread_evenly(index, square, bits - 2):
        return None
    n_cells = 1 << 2 * bits
    middles, reaches = cp.empty((3, n_cells)), cp.empty(n_cells)
    stride(fill_middles, n_cells, box, square, bits, middles, reaches)
    nearest = Found(cp.empty((n_cells, 1), cp.int64), cp.empty((n_cells, 1)))
    launch_walk(index, middles, Query(), nearest, by_axis=True, width=WARP)
    table = cp.empty((n_cells, PLACES), cp.int32)
    *tree, fine, _ = index.tree
    launch(
        collect(fine), blocks_for(n_cells, WARP * WARPS), (WARP, WARPS),
        *tree, index.vectors, middles, reaches, *nearest, table,
    )  # fmt: skip
    n = observations.lat_deg.size
    rest, degrees = cp.empty(n, cp.int64), Degrees(cp.empty(n), cp.empty(n))
    count = cp.zeros(1, cp.int32)
    stride(
        look_up, n, *observations, box, square, bits, table, index.tree.points, measure, *found,
        rest, *degrees, count,
    )  # fmt: skip
    left = int(count.get()[0])
    if left > n * _MOST_LEFT:
        return None
    return rest[:left], Degrees(*(array[:left] for array in degrees))


def _spread_evenly(index: ReferenceIndex, square: cp.ndarray, bits: int) -> bool:
    import cupy as cp

    n = index.vectors.shape[1]
    occupied, count = cp.zeros(1 << 2 * bits, cp.int32), cp.zeros(1, cp.int32)
    stride(count_occupied, n, index.vectors, index.tree.box, square, bits, occupied, count)
    return int(count.get()[0]) >= _SPREAD * min(n, occupied.size)


def fill_in(rows: cp.ndarray, some: Found | Answer, found: Found, measure: bool) -> None:
    """Put answers for the observations that were left over into their rows; as `put` has them."""
    stride(put, rows.size, rows, *some, measure, *found)
