"""Walks of a fine tree in float64, for what walks in float32 gave up (`kernels.walk_cuda`).

A warp takes one observation: its lanes test the 32 boxes of a node, or the 32 points of a leaf, and
hold its list (`kernels.warp_cuda`), with chords and rows in full width. So a metre's references are
told apart from kilometres away, and nothing is settled later.

No rounding leaves out what matters. Let c be the observation, f the first point in a box, and c - f
off by at most 2^-53 |c - f| an axis. f lies in the box, so how far c lies outside of it along an
axis is at most |c - f|, and off by at most 2^-52 |c - f| as computed: `_ROUNDING` times |c - f| is
taken off. The rest is at most |c - p| for each point p in the box, along each axis, and it is
squared and summed in the order of `squared_chord`. Rounding keeps order: the box is never farther
than any of its points.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from numba import cuda, float32, float64, int32, int64, types, uint32
from numba.cuda import libdevice

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.boxes_cuda import LEVELS, NEVER, WARPS, first_of
from georesolve.kernels.descent_cuda import apart_in, gap_to, next_leaf, turn_of
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.launch_cuda import launch, resident_blocks
from georesolve.kernels.reduce_cuda import NOT_A_ROW
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import (
    implements,
    list_merge,
    list_place,
    list_store,
    no_list,
    of_lane,
)

if TYPE_CHECKING:
    from georesolve.kernels.index import ReferenceIndex

_ROUNDING = 2.0**-50
_BLOCKS_PER_MULTIPROCESSOR = 8


class InDouble(NamedTuple):
    """An observation, from which boxes are looked at in float64."""

    x: float
    y: float
    z: float


@cuda.jit(device=True, forceinline=True)
def _beyond(low, high, x):  # type: ignore[no-untyped-def]
    gap = max(total(float64(low), -x), total(x, -float64(high)))
    return max(total(gap, -product(_ROUNDING, abs(x))), 0.0)


@implements(gap_to, InDouble)
def _(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    gap2 = math.inf
    if boxes[0, i] <= boxes[3, i]:
        first = first_of(box, level)
        away_x = _beyond(boxes[0, i], boxes[3, i], total(view.x, -points[first, 0]))
        away_y = _beyond(boxes[1, i], boxes[4, i], total(view.y, -points[first, 1]))
        away_z = _beyond(boxes[2, i], boxes[5, i], total(view.z, -points[first, 2]))
        gap2 = squared_chord(away_x, away_y, away_z, 0.0, 0.0, 0.0)
    return gap2


@implements(apart_in, InDouble)
def _(view, points, corners, leaf):  # type: ignore[no-untyped-def]
    i = uint32(leaf * uint32(WARP) + uint32(cuda.threadIdx.x))
    apart2 = squared_chord(view.x, view.y, view.z, points[i, 0], points[i, 1], points[i, 2])
    return apart2, 0.0, 0.0


@cuda.jit(device=True, forceinline=True)
def look_in_double(lane, x, y, z):  # type: ignore[no-untyped-def]
    """The view of a lane's point in float64, and how far each is away, squared, in float32."""
    view = InDouble(*of_lane(lane, x, y, z))
    return view, float32(squared_chord(x, y, z, view.x, view.y, view.z))


@implements(turn_of, types.float64)
def _(gap, bound):  # type: ignore[no-untyped-def]
    if gap <= bound:
        return libdevice.float_as_int(libdevice.double2float_rd(gap))
    return int32(NEVER)


@cuda.jit(cache=True)
def walk_precisely(  # type: ignore[no-untyped-def]
    points, boxes, starts, observations, row_step, axis_step, given_up, n_given_up,
    k, exclude_self, first_row, measure, reference, chord2, share, hard, n_hard,
):  # fmt: skip
    """Find the k nearest references of some observations: how many is known on the device alone.

    Grid ``(blocks,)``, block ``(32, warps)``; warps take the observations of rows `given_up` in
    turn. Other parameters are as `kernels.walk_cuda.walk` has them.
    """
    pending = cuda.shared.array((WARPS, LEVELS, WARP), float64)
    lane = uint32(cuda.threadIdx.x)
    warp = cuda.threadIdx.y
    top = int32(starts.size - 1)
    for turn in range(cuda.blockIdx.x * WARPS + warp, n_given_up[0], cuda.gridDim.x * WARPS):
        i = int64(given_up[turn])
        x = observations[i * row_step]
        y = observations[i * row_step + axis_step]
        z = observations[i * row_step + 2 * axis_step]
        view = InDouble(x, y, z)
        own = first_row + i if exclude_self else int64(NOT_A_ROW)
        held = no_list()
        opened = int32(0)
        level = top
        node = uint32(0)
        while opened < share:
            worst = list_place(k - 1, held.low_chord2, held.high_chord2)
            level, node, leaf = next_leaf(
                view, points, boxes, starts, pending[warp], level, node,
                worst, opened, math.inf, False,
            )  # fmt: skip
            if level > top:
                break
            opened = int32(opened + 1)
            at = uint32(leaf * uint32(WARP) + lane)
            row = int64(points[at, 3])
            found = squared_chord(x, y, z, points[at, 0], points[at, 1], points[at, 2])
            held = list_merge(k, held, found if row != own else math.inf, row)
        if opened >= share:
            if lane == 0:
                hard[cuda.atomic.add(n_hard, 0, 1)] = int32(i)
        else:
            list_store(k, held, reference[i], chord2[i], measure and k > 1)


def search_precisely(index: ReferenceIndex, *asked: Any) -> None:
    """Answer what walks in float32 gave up; parameters as `walk_precisely` has them."""
    tree = index.tree
    launch(
        walk_precisely, resident_blocks(_BLOCKS_PER_MULTIPROCESSOR), (WARP, WARPS),
        tree.points, tree.boxes, tree.starts, *asked,
    )  # fmt: skip
