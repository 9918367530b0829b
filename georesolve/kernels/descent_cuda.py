"""How a warp goes down a tree of boxes on a GPU, whatever it looks for: `next_leaf`.

Depth first, the nearest box before the others; what lies beyond a bound is left out. From where the
boxes are looked at is a *view*, a type by which the compiler chooses: `FromOrigin` or, in a fine
tree, `FromPoints` (`kernels.boxes_cuda` says why float32 is enough), or one in float64
(`kernels.precise_cuda`).
"""

from typing import NamedTuple

import numpy as np
from numba import cuda, int32, types, uint32
from numba.cuda import libdevice

from georesolve.kernels.boxes_cuda import (
    HALF,
    NEVER,
    UNDERFLOW,
    ZERO,
    beyond,
    first_of,
    from_point,
    offset,
    root,
    slack_around,
    square,
)
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import (
    ballot,
    by_type,
    first_lane,
    implements,
    least_of_warp,
    of_lane,
)

_HOLDS = -0x80000000


class FromOrigin(NamedTuple):
    """A warp's centre relative to the origin, in float32, and the slack of a reach around it."""

    x: np.float32
    y: np.float32
    z: np.float32
    slack: np.float32


class FromPoints(NamedTuple):
    """A warp's centre in float64, made relative to a point of each box that is looked at."""

    x: float
    y: float
    z: float
    slack: np.float32


@cuda.jit(device=True, forceinline=True)
def look_from_origin(lane, x, y, z, radius):  # type: ignore[no-untyped-def]
    """The view of a lane's point, relative to the origin, and how far each is away, squared."""
    at_x, at_y, at_z = of_lane(lane, x, y, z)
    view = FromOrigin(at_x, at_y, at_z, slack_around(at_x, at_y, at_z, radius))
    return view, square(x - at_x, y - at_y, z - at_z)


@cuda.jit(device=True, forceinline=True)
def look_from_points(lane, x, y, z):  # type: ignore[no-untyped-def]
    """The view of a lane's point in a fine tree, and how far each is away, squared."""
    at_x, at_y, at_z = of_lane(lane, x, y, z)
    return FromPoints(at_x, at_y, at_z, UNDERFLOW), square(*offset(x, y, z, at_x, at_y, at_z))


@cuda.jit(device=True, forceinline=True)
def _turn(boxes, i, x, y, z, fine, slack):  # type: ignore[no-untyped-def]
    # Which boxes come first, as an integer, which a warp compares sooner: the bits of the square of
    # how far (x, y, z) lies outside the box; among boxes that hold it, a negative number, the least
    # where the box's middle is nearest. Where references crowd, many boxes hold a point, and most
    # have none of its neighbours.
    low_x, low_y, low_z = boxes[0, i], boxes[1, i], boxes[2, i]
    high_x, high_y, high_z = boxes[3, i], boxes[4, i], boxes[5, i]
    gap2 = square(beyond(low_x, high_x, x), beyond(low_y, high_y, y), beyond(low_z, high_z, z))
    if fine:
        # NaN, of a box that encloses nothing, comes after all others.
        gap = root(gap2) - slack
        gap2 = ZERO if gap <= ZERO else gap * gap
    turn = libdevice.float_as_int(gap2)
    if turn == 0:
        middle2 = square(
            (low_x + high_x) * HALF - x, (low_y + high_y) * HALF - y, (low_z + high_z) * HALF - z
        )
        turn = int32(libdevice.float_as_int(middle2) | int32(_HOLDS))
    return turn


@by_type(FromOrigin)
def gap_to(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    """How far box i is away, which is a `box` of a level, in the order of `turn_of`."""
    return _turn(boxes, i, view.x, view.y, view.z, False, ZERO)


@implements(gap_to, FromPoints)
def _(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    x, y, z, slack = from_point(points, first_of(box, level), view.x, view.y, view.z)
    return _turn(boxes, i, x, y, z, True, slack)


@by_type(types.int32)
def turn_of(gap, bound):  # type: ignore[no-untyped-def]
    """The turn of a box that is so far away, an integer: `NEVER` beyond the bound."""
    return int32(NEVER) if gap > bound else gap


@by_type(FromOrigin)
def apart_in(view, points, corners, leaf):  # type: ignore[no-untyped-def]
    """Squares of how far a leaf's points are away, a lane each.

    And the slack that a reach has there, and how much of it a reach has not had before.
    """
    i = uint32(leaf * uint32(WARP) + uint32(cuda.threadIdx.x))
    apart2 = square(corners[0, i] - view.x, corners[1, i] - view.y, corners[2, i] - view.z)
    return apart2, view.slack, ZERO


@implements(apart_in, FromPoints)
def _(view, points, corners, leaf):  # type: ignore[no-untyped-def]
    i = uint32(leaf * uint32(WARP) + uint32(cuda.threadIdx.x))
    x, y, z, slack = from_point(points, first_of(leaf, 0), view.x, view.y, view.z)
    return square(corners[0, i] - x, corners[1, i] - y, corners[2, i] - z), slack, slack


@cuda.jit(device=True, forceinline=True)
def next_leaf(  # type: ignore[no-untyped-def]
    view, points, boxes, starts, pending, level, node, bound, opened, never, nearest_first
):
    """Go on to the leaf that comes next; `level` is above the top where none is left.

    The walk stands at boxes of `node`, of a level, from (top, 0); gives both, and the leaf.
    `pending` holds a level's gaps, or `never`, of the warp. With `nearest_first` the leaf that is
    nearest of all is the first to be `opened`.
    """
    lane = uint32(cuda.threadIdx.x)
    top = int32(starts.size - 1)
    fresh = opened == 0
    leaf = uint32(0)
    while level <= top:
        if fresh:
            box = uint32(node * uint32(WARP) + lane)
            i = uint32(uint32(starts[level]) + box)
            gap = gap_to(view, points, boxes, i, box, level)
            pending[level, lane] = gap
            fresh = False
        else:
            gap = pending[level, lane]
        turn = turn_of(gap, bound)
        least = least_of_warp(turn)
        if least == int32(NEVER):
            level = int32(level + 1)
            node = uint32(node >> uint32(5))
            continue
        if nearest_first and opened == 0 and least > 0 and level < top:
            # What is opened first bounds all the rest: so it is the leaf that is nearest of all,
            # and where another box may hold that one, this node waits its turn.
            rival = int32(NEVER)
            for upper in range(level + 1, top + 1):
                rival = min(rival, turn_of(pending[upper, lane], bound))
            if least_of_warp(rival) < least:
                level = int32(level + 1)
                if lane == node & uint32(WARP - 1):
                    pending[level, lane] = least
                node = uint32(node >> uint32(5))
                continue
        nearest = first_lane(ballot(turn == least))
        if lane == nearest:
            pending[level, lane] = never
        child = uint32(node * uint32(WARP) + nearest)
        if level == 0:
            leaf = child
            break
        level = int32(level - 1)
        node = child
        fresh = True
    return level, node, leaf
