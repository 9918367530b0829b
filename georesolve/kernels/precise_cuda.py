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
from typing import TYPE_CHECKING, Any

from numba import cuda, float64, int32, int64, uint32
from numba.cuda import libdevice

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.boxes_cuda import LEVELS, NEVER, WARPS, first_of
from georesolve.kernels.coordinates_cuda import metres
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.launch_cuda import launch, resident_blocks
from georesolve.kernels.reduce_cuda import NOT_A_ROW
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import (
    ballot,
    first_lane,
    least_of_warp,
    list_merge,
    list_place,
    list_store,
)

if TYPE_CHECKING:
    from georesolve.kernels.index import ReferenceIndex

_ROUNDING = 2.0**-50
_LAST_ROW = 0x7FFFFFFFFFFFFFFF
_BLOCKS_PER_MULTIPROCESSOR = 8


@cuda.jit(device=True, forceinline=True)
def _beyond(low, high, x):  # type: ignore[no-untyped-def]
    gap = max(total(float64(low), -x), total(x, -float64(high)))
    return max(total(gap, -product(_ROUNDING, abs(x))), 0.0)


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
        own = first_row + i if exclude_self else int64(NOT_A_ROW)
        low_chord2 = high_chord2 = worst = math.inf
        low_row = high_row = int64(-1)
        opened = int32(0)
        level = top
        node = uint32(0)
        descended = True
        while level <= top and opened < share:
            if descended:
                at = uint32(uint32(starts[level]) + uint32(node * uint32(WARP)) + lane)
                gap2 = math.inf
                if boxes[0, at] <= boxes[3, at]:
                    first = first_of(node * uint32(WARP) + lane, level)
                    away_x = _beyond(boxes[0, at], boxes[3, at], total(x, -points[first, 0]))
                    away_y = _beyond(boxes[1, at], boxes[4, at], total(y, -points[first, 1]))
                    away_z = _beyond(boxes[2, at], boxes[5, at], total(z, -points[first, 2]))
                    gap2 = squared_chord(away_x, away_y, away_z, 0.0, 0.0, 0.0)
                pending[warp, level, lane] = gap2
                descended = False
            gap2 = pending[warp, level, lane]
            turn_of_box = int32(NEVER)
            if gap2 <= worst:
                turn_of_box = libdevice.float_as_int(libdevice.double2float_rd(gap2))
            least = least_of_warp(turn_of_box)
            if least == int32(NEVER):
                level = int32(level + 1)
                node = uint32(node >> uint32(5))
                continue
            nearest = first_lane(ballot(turn_of_box == least))
            if lane == nearest:
                pending[warp, level, lane] = math.inf
            child = uint32(node * uint32(WARP) + nearest)
            if level > 0:
                level = int32(level - 1)
                node = child
                descended = True
                continue
            opened = int32(opened + 1)
            at = uint32(child * uint32(WARP) + lane)
            row = int64(points[at, 3])
            found = squared_chord(x, y, z, points[at, 0], points[at, 1], points[at, 2])
            if row == own or not found < math.inf:
                found = math.inf
                row = int64(_LAST_ROW)
            low_chord2, low_row, high_chord2, high_row = list_merge(
                k, found, row, low_chord2, low_row, high_chord2, high_row
            )
            worst = list_place(k - 1, low_chord2, high_chord2)
        if opened >= share:
            if lane == 0:
                hard[cuda.atomic.add(n_hard, 0, 1)] = int32(i)
        else:
            if measure and k > 1:
                low_chord2, high_chord2 = metres(low_chord2), metres(high_chord2)
            list_store(k, low_chord2, low_row, high_chord2, high_row, reference[i], chord2[i])


def search_precisely(index: ReferenceIndex, *asked: Any) -> None:
    """Answer what walks in float32 gave up; parameters as `walk_precisely` has them."""
    tree = index.tree
    launch(
        walk_precisely, resident_blocks(_BLOCKS_PER_MULTIPROCESSOR), (WARP, WARPS),
        tree.points, tree.boxes, tree.starts, *asked,
    )  # fmt: skip
