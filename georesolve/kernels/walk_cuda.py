"""The pruned search on a GPU: a tree of boxes over references, walked by warps of observations.

Observations lie along a Hilbert curve, as references do (`kernels.boxes_cuda`), and a warp takes 32
neighbouring ones through one walk (`kernels.descent_cuda`). The walk is that of a single point, the
warp's *centre* c: each lane tests one of 32 boxes, or one of a leaf's 32 points, against c and the
warp's *reach* B. What lies beyond B cannot matter to any of the 32 observations; of a leaf's points
few are left, and those every lane compares with its own observation, in float64, and offers to its
collector (`kernels.collectors_cuda`).

The leaf that is nearest of all is opened first, because it bounds B for the rest. A warp whose
observations lie far apart for the density of references takes them in groups, in the limit one by
one; so a walk never opens much more than its observations need.

Where references are all but equally near, no bound leaves any out: a walk that has opened a share
of the tree gives up, and its observations are compared with every reference
(`kernels.reduce_cuda.search_hard`). Walks of a fine tree give up much sooner, and walks in float64
come first (`kernels.precise_cuda`). Observations of one group walk together where there are filters
(`kernels.filters_cuda`); a walk that gives up is replaced by a comparison with all of the group.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32, uint64
from numba.cuda import libdevice

from georesolve.kernels.boxes_cuda import (
    INFINITY,
    LEVELS,
    NAN,
    NEVER,
    WARPS,
    ZERO,
    offset,
    origin,
    reach_of,
    root,
    square,
)
from georesolve.kernels.collectors_cuda import (
    One,
    effort,
    farthest,
    may_enter,
    nothing,
    offer,
    write,
)
from georesolve.kernels.coordinates_cuda import answer_of
from georesolve.kernels.descent_cuda import (
    apart_in,
    look_from_origin,
    look_from_points,
    next_leaf,
)
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.filters_cuda import (
    EVERYTHING,
    Everything,
    Filtering,
    InPart,
    alike,
    asked_by,
    bounded,
    group_of,
    in_window,
    is_of,
    matches,
    sieved,
)
from georesolve.kernels.keys_cuda import COLUMNS, Several
from georesolve.kernels.launch_cuda import blocks_for, launch
from georesolve.kernels.precise_cuda import search_precisely
from georesolve.kernels.query import Found, Query
from georesolve.kernels.reduce_cuda import search_groups, search_hard
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import (
    ALL_LANES,
    ballot,
    first_lane,
    least_of_warp,
    of_lane,
    warp_max,
    without_first,
)
from georesolve.query import MAX_K

if TYPE_CHECKING:
    import cupy as cp

    from georesolve.kernels.index import ReferenceIndex

_PATIENCE = 24
"""Leaves, beyond one for each of its places, that a walk opens before its group gets smaller."""
_PART = 32
_FILL = 1 << 13
"""A walk gives up after such a part of the leaves, or of fewer observations one as much smaller: a
leaf costs a single observation about 14 times what brute force takes for as many references."""
_TIES_A_LEAF = 2
"""Ties that a list settles in float64 in the time of a leaf without any."""
_LEAVES_A_TIE = 4
"""Leaves that a tie counts as in a fine tree, where walks in float64 have none."""
_FEW = 3
"""Candidates up to which a single observation compares itself with one after the other."""
_SHARE2 = {
    places: np.float32(share**2)
    for places, share in {1: 0.35, 2: 0.6, 4: 0.6, 8: 0.6, 16: 0.6, 32: 1.0, 64: 1.0}.items()
}
"""Square of the distance from the centre, in widths of its leaf, up to which a walk is shared."""
_TIMED_SHARE2 = np.float32(1.0)
"""The same of walks in parts of time, where neighbours that match lie farther apart."""
_LESS = np.float32(0.25**2)
"""What is left of that once a group has proved too wide."""
_REGISTERS = {1: 48, 2: 80, 4: 80, 8: 80, 16: 80, 32: 96, 64: 128}
"""Registers a thread that lists of so many places get: the compiler would choose worse."""
_MORE_REGISTERS = 16
"""What a walk of a fine tree gets besides."""

_BUNDLES = {16: 4, 32: 8, 64: 8}
"""Slots a bundle, of lists of so many places; shorter lists are all heads."""

_TWO = np.float32(2.0)


def _warps(places: int) -> int:
    # What a block has of shared memory holds two of the longest lists.
    return WARPS // 2 if places == MAX_K else WARPS


@cache
def walk(places: int, fine: bool, filtering: Any = Everything) -> Any:
    """The kernel that finds up to `places` references an observation, a power of two.

    One source, compiled for each number of places that is asked for: only so does a list of that
    length lie in registers. And for trees that are `fine`, and for kinds of filters.
    """
    many = places > 1
    timed = filtering is InPart
    # What a window holds of a leaf its lane takes by itself; lists settle ties together.
    by_itself = timed and not many
    slots = places - 1
    bundle = _BUNDLES.get(places, 1)
    warps = _warps(places)
    patience = _PATIENCE + places
    most_share2 = _TIMED_SHARE2 if timed else _SHARE2[places]

    @cuda.jit(cache=True, max_registers=_REGISTERS[places] + _MORE_REGISTERS * fine)
    def walk_tree(  # type: ignore[no-untyped-def]
        points, corners, boxes, starts, box, observations, row_step, axis_step, rows, width,
        k, exclude_self, first_row, measure, reference, chord2, share, hard, n_hard, filters,
    ):  # fmt: skip
        """Find the k nearest references of `width` observations a warp.

        Grid ``(blocks,)``, block ``(32, warps)``. Every branch that holds a shuffle or a vote is
        taken by the whole warp: it depends on values that all lanes share.

        Arrays and numbers are those of `Tree`, `Query`, `Found` and the filters, and:

        - `observations`: unit vectors; coordinate c of observation i is value
          ``i * row_step + c * axis_step``.
        - `rows`: of neighbouring observations; none to take them as they come.
        - `width`: observations a warp, a power of two up to 32.
        - `measure`: metres instead of squared chords; only lists heed it.
        - `share`: leaves, or ties in their place, that a walk opens before it gives up, where a
          smaller group would not help.
        - `hard`, `n_hard`: written and added to, rows of observations that have no answer, in no
          order, and their number.
        """
        pending = cuda.shared.array((warps, LEVELS, WARP), int32)
        stage = cuda.shared.array((warps, 4, WARP), float64)
        lane = uint32(cuda.threadIdx.x)
        warp = cuda.threadIdx.y
        if by_itself:
            times = cuda.shared.array((warps, WARP), int64)[warp]
        n = reference.shape[0]
        position = (int64(cuda.blockIdx.x) * warps + warp) * width + int64(lane & uint32(width - 1))
        if position - int64(lane & uint32(width - 1)) >= n:
            return
        top = int32(starts.size - 1)
        origin_x, origin_y, origin_z, radius = origin(box)

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
        offset_x, offset_y, offset_z = offset(x, y, z, origin_x, origin_y, origin_z)
        if many:
            found = cuda.shared.array((warps, places, COLUMNS), int32)[warp]
            table = cuda.shared.array((warps, places, WARP), int32)[warp]
            collector: Any = Several(x, y, z, k, slots, bundle, points, found, table)
        else:
            collector = One(x, y, z)
        kept = nothing(collector, places, bundle)

        # The origin is NaN when no reference is valid, and every box would seem to be near.
        asked = asked_by(filters, row)
        own_group = group_of(filters, asked)
        waiting = ballot(writes and offset_x == offset_x and own_group >= 0)
        half = uint32(uint32(width) >> uint32(1))
        nearest_needed = int32(k)
        if exclude_self:
            nearest_needed = int32(k + 1)
        share2 = most_share2
        given_up = uint32(0)
        while waiting != uint32(0):
            # With as many waiting on either side of the centre as the last group had, groups tile.
            highest = uint32(31) - uint32(cuda.clz(waiting))
            middle = min(uint32(first_lane(waiting) + half), highest)
            centre = uint32(middle + first_lane(uint32(waiting >> middle)))
            if fine:
                view, away2 = look_from_points(centre, x, y, z)
            else:
                view, away2 = look_from_origin(centre, offset_x, offset_y, offset_z, radius)
            away = root(away2)
            alone = uint32(uint32(1) << centre)
            wanted = cuda.shfl_sync(ALL_LANES, own_group, centre)
            group = uint32(waiting & alike(filters, own_group, centre))
            member = (group >> lane) & uint32(1) != uint32(0)
            widest = wide2 = ZERO
            reach = INFINITY
            opened = int32(0)
            due = int32(patience)
            level = top
            node = uint32(0)
            while True:
                level, node, leaf = next_leaf(
                    sieved(filters, view, wanted), points, boxes, starts, pending[warp], level,
                    node, libdevice.float_as_int(reach * reach), opened, int32(NEVER), True,
                )  # fmt: skip
                if level > top:
                    break
                i = uint32(leaf * uint32(WARP) + lane)
                apart2, slack, more = apart_in(view, points, corners, leaf)
                if not is_of(filters, wanted, i):
                    apart2 = NAN
                if opened == 0:
                    # Observations as far away as this leaf is wide have other neighbours.
                    wide_x = boxes[3, leaf] - boxes[0, leaf]
                    wide_y = boxes[4, leaf] - boxes[1, leaf]
                    wide_z = boxes[5, leaf] - boxes[2, leaf]
                    wide2 = square(wide_x, wide_y, wide_z)
                    if top > 0:
                        group = uint32(group & ballot(away2 <= share2 * wide2))
                    group = uint32(group | alone)
                    member = (group >> lane) & uint32(1) != uint32(0)
                    widest = warp_max(away if member else ZERO)
                opened = int32(opened + 1)
                # The leaf's points bound every member's k-th best before any is compared: each is
                # at most `widest` farther from the member than from the centre. Of their times few
                # are in the windows of all members.
                if not timed and (nearest_needed == 1 or (opened == 1 and nearest_needed <= WARP)):
                    near = int32(NEVER)
                    if apart2 == apart2:
                        near = libdevice.float_as_int(apart2)
                    if nearest_needed == 1:
                        near = least_of_warp(near)
                    else:
                        rank = 1
                        for other in range(WARP):
                            value = cuda.shfl_sync(ALL_LANES, near, other)
                            if value < near or (value == near and other < lane):
                                rank += 1
                        ranked = ballot(rank == nearest_needed)
                        near = cuda.shfl_sync(ALL_LANES, near, first_lane(ranked))
                    first = reach_of(root(libdevice.int_as_float(near)) + _TWO * widest, slack)
                    if first < reach:
                        reach = first
                limit2 = (reach + more) * (reach + more)
                candidates = ballot(apart2 <= limit2)
                if candidates == uint32(0):
                    continue
                # All lanes fetch at once: in turn, each candidate would wait for memory.
                cuda.syncwarp()
                if apart2 <= limit2:
                    stage[warp, 0, lane] = points[i, 0]
                    stage[warp, 1, lane] = points[i, 1]
                    stage[warp, 2, lane] = points[i, 2]
                    stage[warp, 3, lane] = points[i, 3]
                    if by_itself:
                        times[lane] = filters.times[i]
                cuda.syncwarp()
                if group == alone and cuda.popc(candidates) > _FEW:
                    # One observation: its lanes compare, each a candidate, and few are left.
                    at_x, at_y, at_z = of_lane(centre, x, y, z)
                    near2 = squared_chord(
                        at_x, at_y, at_z, stage[warp, 0, lane], stage[warp, 1, lane],
                        stage[warp, 2, lane],
                    )  # fmt: skip
                    candidates = uint32(
                        candidates & ballot(may_enter(collector, kept, centre, near2))
                    )
                left = candidates
                if by_itself:
                    left = in_window(asked, candidates, times) if member else uint32(0)
                while left != uint32(0):
                    j = first_lane(left)
                    left = without_first(left)
                    row_found = stage[warp, 3, j]
                    chord2_found = squared_chord(
                        x, y, z, stage[warp, 0, j], stage[warp, 1, j], stage[warp, 2, j]
                    )
                    place = int32(leaf * uint32(WARP) + j)
                    able = member and row_found != own
                    if timed and many and float32(chord2_found) <= farthest(collector, kept):
                        # Few come so near, and a time is fetched from far.
                        able = able and matches(filters, asked, place)
                    kept = offer(collector, kept, able, chord2_found, row_found, place)
                # Where references are all but equally near, ties are what a walk costs.
                ties, kept = effort(collector, kept)
                if ties > 0:
                    opened = int32(
                        opened + (ties * _LEAVES_A_TIE if fine else ties // _TIES_A_LEAF)
                    )
                if opened >= int32(share) or (opened >= due and group != alone):
                    due = int32(opened + patience)
                    share2 *= _LESS
                    nearer = uint32((group & ballot(away2 <= share2 * wide2)) | alone)
                    if nearer != group:
                        # The members' neighbourhoods have too little in common: go on for the
                        # nearer ones, and expect less of the groups to come.
                        opened = int32(1)
                        due = int32(patience)
                        group = nearer
                        leaves = member
                        member = (group >> lane) & uint32(1) != uint32(0)
                        widest = warp_max(away if member else ZERO)
                        if many and leaves and not member:
                            kept = nothing(collector, places, bundle)
                    elif opened >= int32(share):
                        if fine:
                            # Those beside it are likely to be as hard, and take turns here: each
                            # has a warp of its own in `kernels.precise_cuda`.
                            group = waiting
                        given_up = uint32(given_up | group)
                        # Not a break: with one, `One` takes more registers than it may have.
                        level = int32(top + 1)
                limit = bounded(filters, farthest(collector, kept))
                needed = root(limit) + away if member else ZERO
                needed = reach_of(warp_max(needed), view.slack)
                if needed < reach:
                    reach = needed
            waiting = uint32(waiting & uint32(~group))
            half = uint32(uint32(cuda.popc(group)) >> uint32(1))

        if (given_up >> lane) & uint32(1) != uint32(0):
            hard[cuda.atomic.add(n_hard, 0, 1)] = int32(row)
        write(
            collector, places, kept, row, writes, width, stage[warp], k, measure, reference, chord2
        )

    return walk_tree


def launch_walk(
    index: ReferenceIndex, vectors: cp.ndarray, query: Query, found: Found, *,
    rows: cp.ndarray | None = None, by_axis: bool = False, width: int = 1, measure: bool = False,
    filters: Filtering = EVERYTHING, max_leaves: int | None = None,
) -> None:  # fmt: skip
    """Walk for observations, and write what is found for each into its row.

    Unit vectors have the shape (n, 4) or, by axis, (3, n). No rows stand for all, as they come.
    The points of a group are in `max_leaves` at most if there are filters.
    """
    import cupy as cp

    if rows is None:
        rows = cp.empty(0, cp.int64)
    row_step, axis_step = (1, vectors.shape[1]) if by_axis else (4, 1)
    n = found.reference.shape[0]
    places = 1 << (query.k - 1).bit_length()
    warps = _warps(places)
    *tree, fine, _ = index.tree
    asked = (query.k, query.exclude_self, query.first_row, measure, *found)
    observations = (vectors.ravel(), row_step, axis_step)
    hard = (cp.empty(n, cp.int32), cp.zeros(1, cp.int32))
    # Few observations leave most of the device to brute force, which then takes no longer.
    leaves = max_leaves or index.tree.points.shape[0] // WARP
    least = _PATIENCE + places
    share = max(least, leaves * min(n, _FILL) // (_PART * _FILL))
    kind: Any = type(filters)
    launch(
        walk(places, fine, kind), blocks_for(n, width * warps), (WARP, warps),
        *tree, *observations, rows, width, *asked, least if fine else share, *hard, filters,
    )  # fmt: skip
    # No walk opens more leaves than there are, or meets more ties than they have points.
    most_ties = leaves * WARP // _TIES_A_LEAF if query.k > 1 else 0
    if fine and leaves + most_ties >= least:
        given_up, hard = hard, (cp.empty(n, cp.int32), cp.zeros(1, cp.int32))
        search_precisely(index, *observations, *given_up, *asked, share, *hard)
        most_ties = 0
    if leaves + most_ties >= share and filters is EVERYTHING:
        search_hard(index.vectors, *observations, *hard, *asked)
    elif leaves + most_ties >= share:
        search_groups(index.tree.points, *observations, *hard, *asked, filters)
    if measure and query.k == 1:
        # Not by the walk: metres would take registers that its warps need.
        answer_of(found)
