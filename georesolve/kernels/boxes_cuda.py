"""The tree of boxes over references on a GPU: how it is built, and distances from its boxes.

References lie along a Hilbert curve (`kernels.order_cuda`), 32 to a leaf; boxes over the leaves,
then over groups of 32 boxes, up to a root of at most 32. `kernels.walk_cuda` and
`kernels.cells_cuda` go down it, a warp a walk, and leave out what lies beyond a *reach* B of its
centre c.

float32 may only discard
------------------------
For an observation o whose k-th best is at chord D, a reference p matters only if |p - o| <= D, and
by the triangle inequality only if |p - c| <= D + |c - o|. So with

    B >= max over the warp's observations of D + |c - o|

any p with |p - c| > B is nobody's neighbour, not even in a tie. c is exactly a float32 triple
relative to `origin`, the centre of the references' box; so c itself has no error. Let u = 2^-24, S
the largest |p - origin| and C = |c|_1, which bounds |c|. Rounding a coordinate relative to the
origin costs a factor 1 + u, so a rounded p is off by at most u S, a rounded o by u (C + |c - o|).
The square of a distance from rounded coordinates has a relative error below 6 u (difference,
squares, two sums), fused or not, so the distance one below 3 u; its root (`root`) adds 2 u. D, from
a float64 chord of relative error 5 * 2^-53, has one below 3 u in float32. With d, r and D~ the
computed values, d the exact root of the computed square,

    |p - c| >= d (1 - 3 u) - u S
    D + |c - o| <= (D~ + r) (1 + 7 u) + u C

so d > B implies |p - c| > D + |c - o| where B is computed as (D~ + r) (1 + 16 u) + 4 u (S + C):
that leaves 6 u relative and 2 u (S + C) for the rounding of B and of its square, with which squares
are compared, and for the first bound of a leaf, (min d + 2 r) (1 + 16 u) + 4 u (S + C): the point
at min d is within min d + r of every observation. 1e-18 is added for float32's underflow: squares
of what is shorter than 1e-19 are not exact (one is 6e-12 m on the ground), and the square of 1e-18
is. A box is the exact minimum and maximum of rounded p, so the computed distance of c to it
satisfies the first line for every p inside.

Where references crowd
----------------------
Of a global set, 4 u (S + C) is three metres: boxes of references that stand within a metre would
tell nothing. And such references share a cell of the curve, where their order is that of rows. A
build notices both (`fill_leaves`), and then sorts finely, leaves out what no answer can hold
(`mark_kept`), and, where it still pays, makes a *fine* tree: each box, and the points of a leaf,
are relative to the first point f in it, and c is a float64 triple, made relative to f and rounded
where the walk comes to the box. With C = |c - f|_1, |p - f| <= |p - c| + C, so rounding costs p at
most u (|p - c| + C) and c at most u C, and

    |p - c| >= d (1 - 4 u) - 2 u C
    D + |c - o| <= (D~ + r) (1 + 7 u)

so B = (D~ + r) (1 + 16 u) + 4 u C does, and it gets smaller with the box. Boxes above the leaves
are made of those below, with every step rounded outwards: they hold p itself.

From some kilometres away a metre's references are all but equally near in float32. So a walk of a
fine tree that gets long gives up, and `kernels.precise_cuda` goes down the same boxes in float64.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import cuda, float32, float64, int64, types, uint64
from numba.cuda import libdevice
from numba.extending import intrinsic

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.launch_cuda import blocks_for, launch
from georesolve.kernels.order_cuda import box_corners, extent, order
from georesolve.kernels.query import Degrees
from georesolve.kernels.sizes_cuda import WARP, level_sizes
from georesolve.kernels.warp_cuda import ALL_LANES, ballot, warp_max, warp_min
from georesolve.query import MAX_K, Earth

if TYPE_CHECKING:
    import cupy as cp

_letting_go = Lock()
_on_their_way: deque[tuple[np.ndarray, cp.cuda.Event]] = deque()
"""What is being copied to the host, held until it is there: memory that an index without a search
lets go of sooner, CuPy gives to the next array that is made of numbers of the host, and what is
still on its way overwrites these."""

WARPS = 4
"""Warps a block. Each works alone; a block of few gives its place back sooner."""
LEVELS = 7
"""Levels of boxes at most: 32^7 leaves are more than 2^31 points fill."""

MAX_ROWS = 2**31 - 1
"""Rows of references, and of observations, that one search takes: they are sorted as 32 bits."""

INFINITY: Any = np.float32(math.inf)
NAN: Any = np.float32(math.nan)
ZERO: Any = np.float32(0.0)
HALF = np.float32(0.5)
NEVER = 0x7F800000
"""Turn of a box that encloses nothing, is too far or was opened: infinity as an integer."""
_GROWTH = np.float32(1.0 + 2.0**-20)
_SLACK = np.float32(2.0**-22)
UNDERFLOW = np.float32(1e-18)
_BOX_ROUNDING = np.float32(2.0**-23)

_CROWDED = np.uint32(1)
_NARROW = np.uint32(2)
"""What `fill_leaves` notices."""
_SMALL = np.float32(2.0**-20)
"""Of the radius, somewhat more than the slack around a point."""
_MANY = 3 * WARP
_ALIKE = 4
_TOO_MANY = 256 * WARP
_LOOKS = 8
"""References crowd where more than so many share a cell of the curve, and so many neighbours in a
leaf of it are a small way apart; or where still more share a cell. One leaf of so many is looked
at: where references crowd, many tell so."""


class Tree(NamedTuple):
    """References sorted into leaves, and the boxes over them, on a GPU.

    - `points`, float64 (32 * n_leaves, 4): x, y, z and row of every reference in the order of the
      leaves, side by side, so that one memory transaction fetches them; rows are exact up to 2^53.
      Unused ones hold NaN.
    - `corners`, float32 (3, 32 * n_leaves): the same points less the origin, or, of a fine tree,
      less the first of their leaf; rounded.
    - `boxes`, float32 (6, n_boxes): least and largest x, y, z of each box, level by level from the
      leaves up, relative to the origin, or, of a fine tree, to the first point in the box. A level
      is padded to whole groups of 32 with boxes that enclose nothing.
    - `starts`, int32 (n_levels,): where each level starts in `boxes`.
    - `box`, uint32 (7,): the box of all references, from `kernels.order_cuda.bound`, its centre the
      origin; then bits that say whether leaves are `_CROWDED` or `_NARROW`.
    - `fine`: whether boxes and corners are relative to points near by, and not to the origin.
    - `whole`: whether all references are there, copies of a point that no list can hold, too.
    """

    points: cp.ndarray
    corners: cp.ndarray
    boxes: cp.ndarray
    starts: cp.ndarray
    box: cp.ndarray
    fine: bool
    whole: bool = True


@intrinsic
def root(typing_context, value):  # type: ignore[no-untyped-def]
    """The square root of a float32, at most 2^-23 of it off, in a fifth of the instructions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
        code = ir.InlineAsm(kind, "sqrt.approx.f32 $0, $1;", "=f,f")
        return builder.call(code, arguments)

    return types.float32(types.float32), generate


@cuda.jit(device=True, forceinline=True)
def square(x, y, z):  # type: ignore[no-untyped-def]
    """The square of a vector's length."""
    return x * x + y * y + z * z


@cuda.jit(device=True, forceinline=True)
def length(x, y, z):  # type: ignore[no-untyped-def]
    """The length of a vector in float32."""
    return root(square(x, y, z))


@cuda.jit(device=True, forceinline=True)
def origin(box):  # type: ignore[no-untyped-def]
    """The centre of the references' box and a bound of their distance from it."""
    low_x, low_y, low_z, high_x, high_y, high_z = box_corners(box)
    half_x = (high_x - low_x) * HALF
    half_y = (high_y - low_y) * HALF
    half_z = (high_z - low_z) * HALF
    radius = length(half_x, half_y, half_z)
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
    return square(high_x - low_x, high_y - low_y, high_z - low_z)


@cuda.jit(device=True, forceinline=True)
def offset(x, y, z, from_x, from_y, from_z):  # type: ignore[no-untyped-def]
    """(x, y, z) relative to a point, in float32."""
    return float32(total(x, -from_x)), float32(total(y, -from_y)), float32(total(z, -from_z))


@cuda.jit(device=True, forceinline=True)
def first_of(box, level):  # type: ignore[no-untyped-def]
    """Where the first point of a box stands; of one that only fills a level, beyond the last."""
    return uint64(box) << uint64(5 + 5 * level)


@cuda.jit(device=True, forceinline=True)
def from_point(points, first, x, y, z):  # type: ignore[no-untyped-def]
    """(x, y, z) relative to a point, in float32, and the slack of a reach around it.

    All are NaN where that point is not valid: then the box encloses nothing.
    """
    first = min(first, uint64(points.shape[0] - 1))
    x, y, z = offset(x, y, z, points[first, 0], points[first, 1], points[first, 2])
    return x, y, z, slack_around(x, y, z, ZERO)


@cuda.jit(device=True, forceinline=True)
def _down(x, y):  # type: ignore[no-untyped-def]
    return libdevice.double2float_rd(libdevice.dadd_rd(x, y))


@cuda.jit(device=True, forceinline=True)
def _up(x, y):  # type: ignore[no-untyped-def]
    return libdevice.double2float_ru(libdevice.dadd_ru(x, y))


@cuda.jit(cache=True)
def mark_kept(vectors, rows, kept):  # type: ignore[no-untyped-def]
    """Mark references that an answer may hold, a thread a reference.

    No answer holds a reference that has 65 equals of lower rows: 64 of them, without the
    observation itself, come before it.
    """
    i = cuda.grid(1)
    if i < rows.size:
        row = rows[i]
        before = min(i, MAX_K + 1)
        equal = 0
        while equal < before:
            other = rows[i - 1 - equal]
            if not (
                other < row
                and vectors[other, 0] == vectors[row, 0]
                and vectors[other, 1] == vectors[row, 1]
                and vectors[other, 2] == vectors[row, 2]
            ):
                break
            equal += 1
        kept[i] = equal <= MAX_K


@cuda.jit(cache=True)
def fill_leaves(  # type: ignore[no-untyped-def]
    vectors, rows, places, box, fine, points, corners, boxes, n_boxes
):
    """Copy the references into leaves and enclose each leaf, a warp a leaf.

    Unit vectors (n, 4), rows and places come from `kernels.order_cuda.order`, rows and places in
    the order of the leaves. Writes what a `Tree` has, of its boxes the `n_boxes` of the lowest
    level, padding included.
    """
    lane = cuda.threadIdx.x
    leaf = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if leaf >= n_boxes:
        return
    origin_x, origin_y, origin_z, radius = origin(box)
    i = leaf * WARP + lane
    x = y = z = math.nan
    row = int64(-1)
    if i < rows.size:
        row = rows[i]
        x, y, z = vectors[row, 0], vectors[row, 1], vectors[row, 2]
    if fine:
        first = rows[min(int64(first_of(leaf, 0)), rows.size - 1)]
        origin_x, origin_y, origin_z = vectors[first, 0], vectors[first, 1], vectors[first, 2]
    corner_x, corner_y, corner_z = offset(x, y, z, origin_x, origin_y, origin_z)
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
    if fine:
        low_x, high_x = _down(x, -origin_x), _up(x, -origin_x)
        low_y, high_y = _down(y, -origin_y), _up(y, -origin_y)
        low_z, high_z = _down(z, -origin_z), _up(z, -origin_z)
    if corner_x != corner_x:
        low_x = low_y = low_z = INFINITY
        high_x = high_y = high_z = -INFINITY
    wide2 = _store_box(boxes, leaf, low_x, low_y, low_z, high_x, high_y, high_z)
    # A warp's branch: all of its lanes must take part in its shuffles.
    if leaf % _LOOKS != 0:
        return
    apart2 = square(
        corner_x - cuda.shfl_down_sync(ALL_LANES, corner_x, 1),
        corner_y - cuda.shfl_down_sync(ALL_LANES, corner_y, 1),
        corner_z - cuda.shfl_down_sync(ALL_LANES, corner_z, 1),
    )
    small = radius * _SMALL
    alike = cuda.popc(ballot(lane < WARP - 1 and apart2 <= small * small)) >= _ALIKE
    if lane == 0 and corner_x == corner_x and i + _MANY < rows.size:
        # Copies of one point are no reason: few of them stay in the tree.
        if ZERO < wide2 <= small * small:
            cuda.atomic.or_(box, 6, _NARROW)
        many = _MANY if alike else _TOO_MANY
        if i + many < rows.size and places[i + many] == places[i]:
            cuda.atomic.or_(box, 6, _CROWDED)


@cuda.jit(cache=True)
def fill_boxes(  # type: ignore[no-untyped-def]
    points, fine, boxes, starts, level, start, n_boxes, child_start, n_children
):
    """Enclose each group of 32 boxes of a level by one of the next, a warp a group.

    `level` is the next one; `start` says where it starts, `n_boxes` how many boxes it has, padding
    included. `starts` is written here, as a copy of it from the host takes longer than all these
    kernels.
    """
    parent = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if parent >= n_boxes:
        return
    if parent == 0 and cuda.threadIdx.x == 0:
        starts[level] = start
    child = parent * WARP + cuda.threadIdx.x
    low_x = low_y = low_z = INFINITY
    high_x = high_y = high_z = -INFINITY
    if child < n_children:
        i = child_start + child
        low_x, low_y, low_z = boxes[0, i], boxes[1, i], boxes[2, i]
        high_x, high_y, high_z = boxes[3, i], boxes[4, i], boxes[5, i]
        if fine and low_x <= high_x:
            # From their own first point to their parent's.
            old = first_of(child, level - 1)
            new = first_of(parent, level)
            x, y, z = points[old, 0], points[old, 1], points[old, 2]
            new_x, new_y, new_z = points[new, 0], points[new, 1], points[new, 2]
            low_x = _down(libdevice.dadd_rd(x, -new_x), float64(low_x))
            low_y = _down(libdevice.dadd_rd(y, -new_y), float64(low_y))
            low_z = _down(libdevice.dadd_rd(z, -new_z), float64(low_z))
            high_x = _up(libdevice.dadd_ru(x, -new_x), float64(high_x))
            high_y = _up(libdevice.dadd_ru(y, -new_y), float64(high_y))
            high_z = _up(libdevice.dadd_ru(z, -new_z), float64(high_z))
    _store_box(boxes, start + parent, low_x, low_y, low_z, high_x, high_y, high_z)


@cuda.jit(device=True, forceinline=True)
def slack_around(x, y, z, radius):  # type: ignore[no-untyped-def]
    """What rounding of coordinates adds to a reach around a centre: 4 u (S + C), above."""
    return _SLACK * (radius + abs(x) + abs(y) + abs(z)) + UNDERFLOW


@cuda.jit(device=True, forceinline=True)
def reach_of(distance, slack):  # type: ignore[no-untyped-def]
    """What lies farther than this from a centre by float32 is farther than `distance`."""
    return distance * _GROWTH + slack


@cuda.jit(device=True, forceinline=True)
def beyond(low, high, x):  # type: ignore[no-untyped-def]
    """How far x lies outside [low, high]."""
    gap = low - x
    other = x - high
    if other > gap:
        gap = other
    if not gap > ZERO:
        gap = ZERO
    return gap


def build(
    lat_deg: cp.ndarray, lon_deg: cp.ndarray, *, copies: bool = False, earth: Earth = "sphere"
) -> tuple[cp.ndarray, Callable[[], Tree]]:
    """Sort references into leaves and enclose them in boxes.

    Gives unit vectors in row order, shape (3, n), NaN where a reference is not valid, and what
    gives the tree: only then the host waits for the device to tell whether references crowd.
    """
    import cupy as cp

    check_rows("references", lat_deg.size)
    references = Degrees(lat_deg, lon_deg)
    vectors = cp.empty((3, lat_deg.size))
    box = extent(references, earth=earth)
    rows, by_row, places = order(references, box, by_axis=vectors, earth=earth)
    tree = grow(rows, by_row, places, box)
    seen, told = _sent_home(box)
    return vectors, partial(
        _settled, references, tree, rows, by_row, places, seen, told, copies, earth
    )


def _sent_home(array: cp.ndarray) -> tuple[np.ndarray, cp.cuda.Event]:
    """Memory of the host that an array is copied to, and the event that tells when it is there."""
    import cupy as cp
    import cupyx

    with _letting_go:
        while _on_their_way and _on_their_way[0][1].done:
            _on_their_way.popleft()
    memory = cupyx.empty_pinned(array.shape, array.dtype)
    arrived = cp.cuda.Event(disable_timing=True)
    try:
        array.get(out=memory, blocking=False)
    finally:
        arrived.record()
        _on_their_way.append((memory, arrived))
    return memory, arrived


def _settled(
    references: Degrees, tree: Tree, rows: cp.ndarray, by_row: cp.ndarray, places: cp.ndarray,
    seen: np.ndarray, told: cp.cuda.Event, copies: bool, earth: Earth,
) -> Tree:  # fmt: skip
    """The tree, or a better one where references crowd."""
    import cupy as cp

    told.synchronize()
    box = tree.box
    if seen[-1] & _CROWDED:
        rows, by_row, places = order(references, box, finely=True, earth=earth)
        if not copies:
            kept = cp.empty(rows.size, cp.bool_)
            blocks = blocks_for(rows.size, WARP * WARPS)
            launch(mark_kept, blocks, WARP * WARPS, by_row, rows, kept)
            rows, places = rows[kept], places[kept]
        tree = grow(rows, by_row, places, box)
        if box.get()[-1] & _NARROW:
            tree = grow(rows, by_row, places, box, fine=True)
    return tree._replace(whole=rows.size == references.lat_deg.size)


def whole(vectors: cp.ndarray, tree: Tree) -> bool:
    """Whether a tree holds every valid reference: the device is not asked."""
    return tree.whole


def grow(
    rows: cp.ndarray, by_row: cp.ndarray, places: cp.ndarray, box: cp.ndarray, *, fine: bool = False
) -> Tree:
    """The tree of references, whose rows are in the order of the leaves."""
    import cupy as cp

    n_leaves = -(-rows.size // WARP)
    sizes = level_sizes(rows.size)
    starts = [0, *accumulate(sizes)]
    tree = Tree(
        points=cp.empty((WARP * n_leaves, 4)),
        corners=cp.empty((3, WARP * n_leaves), cp.float32),
        boxes=cp.empty((6, starts[-1]), cp.float32),
        starts=cp.zeros(len(sizes), cp.int32),
        box=box,
        fine=fine,
    )
    if not rows.size:
        return tree
    threads = (WARP, WARPS)
    launch(
        fill_leaves, blocks_for(sizes[0], WARPS), threads,
        by_row, rows, places, box, fine, tree.points, tree.corners, tree.boxes, sizes[0],
    )  # fmt: skip
    for level in range(1, len(sizes)):
        launch(
            fill_boxes, blocks_for(sizes[level], WARPS), threads,
            tree.points, fine, tree.boxes, tree.starts, level,
            starts[level], sizes[level], starts[level - 1], sizes[level - 1],
        )  # fmt: skip
    return tree


def check_rows(name: str, n: int) -> None:
    """Refuse sets that 32 bits cannot number."""
    if n > MAX_ROWS:
        raise ValueError(f"{name} must be {MAX_ROWS} rows at most, got {n}: split them")
