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

Where references are all but equally near, no bound leaves any out: a walk that has opened a share
of the tree gives up, and its observations are compared with every reference
(`kernels.reduce_cuda.search_hard`). Walks of a fine tree give up much sooner, and walks in float64
come first (`kernels.precise_cuda`).
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32, uint64
from numba.cuda import libdevice

from georesolve.kernels.arithmetic import total
from georesolve.kernels.boxes_cuda import (
    HALF,
    INFINITY,
    LEVELS,
    NEVER,
    UNDERFLOW,
    WARPS,
    ZERO,
    beyond,
    first_of,
    from_point,
    origin,
    reach_of,
    root,
    slack_around,
    square,
)
from georesolve.kernels.coordinates_cuda import answer_of
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.keys_cuda import (
    COLUMNS,
    FREE,
    NO_KEY,
    clear,
    drives_out,
    insert,
    key_of,
    largest_but,
    largest_of_key,
    line_up,
    no_heads,
    settle,
    store,
)
from georesolve.kernels.launch_cuda import blocks_for, launch
from georesolve.kernels.precise_cuda import search_precisely
from georesolve.kernels.query import MAX_K, Found, Query
from georesolve.kernels.reduce_cuda import search_hard
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import (
    ALL_LANES,
    ballot,
    first_lane,
    largest_of_warp,
    least_of_warp,
    warp_max,
    without_first,
)

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
_LESS = np.float32(0.25**2)
"""What is left of that once a group has proved too wide."""
_REGISTERS = {1: 48, 2: 80, 4: 80, 8: 80, 16: 80, 32: 128, 64: 128}
"""Registers a thread that lists of so many places get: the compiler would choose worse."""
_MORE_REGISTERS = 16
"""What a walk of a fine tree gets besides."""

_BUNDLES = {16: 4, 32: 8, 64: 8}
"""Slots a bundle, of lists of so many places; shorter lists are all heads."""

_HOLDS = -0x80000000

_TWO = np.float32(2.0)


@cuda.jit(device=True, forceinline=True)
def _turn(low_x, low_y, low_z, high_x, high_y, high_z, x, y, z, fine, slack):  # type: ignore[no-untyped-def]
    # Which boxes come first, as an integer, which a warp compares sooner: the bits of the square of
    # how far (x, y, z) lies outside the box; among boxes that hold it, a negative number, the least
    # where the box's middle is nearest. Where references crowd, many boxes hold a point, and most
    # have none of its neighbours.
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
        turn = libdevice.float_as_int(middle2) | int32(_HOLDS)
    return turn


def _warps(places: int) -> int:
    # What a block has of shared memory holds two of the longest lists.
    return WARPS // 2 if places == MAX_K else WARPS


@cache
def walk(places: int, fine: bool) -> Any:
    """The kernel that finds up to `places` references an observation, a power of two.

    One source, compiled for each number of places that is asked for: only so does a list of that
    length lie in registers. And for trees that are `fine`.
    """
    many = places > 1
    slots = places - 1
    bundle = _BUNDLES.get(places, 1)
    last_head = places // bundle - 1
    warps = _warps(places)
    patience = _PATIENCE + places
    most_share2 = _SHARE2[places]

    @cuda.jit(cache=True, max_registers=_REGISTERS[places] + _MORE_REGISTERS * fine)
    def walk_tree(  # type: ignore[no-untyped-def]
        points, corners, boxes, starts, box, observations, row_step, axis_step, rows, width,
        k, exclude_self, first_row, measure, reference, chord2, share, hard, n_hard,
    ):  # fmt: skip
        """Find the k nearest references of `width` observations a warp.

        Grid ``(blocks,)``, block ``(32, warps)``. Every branch that holds a shuffle or a vote is
        taken by the whole warp: it depends on values that all lanes share.

        Arrays and numbers are those of `Tree`, `Query` and `Found`, and:

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
        offset_x = float32(total(x, -origin_x))
        offset_y = float32(total(y, -origin_y))
        offset_z = float32(total(z, -origin_z))
        if many:
            found = cuda.shared.array((warps, places, COLUMNS), int32)[warp]
            table = cuda.shared.array((warps, places, WARP), int32)[warp]
            heads = no_heads(places, bundle, k)
            clear(found, table, lane, k)
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
        given_up = uint32(0)
        ties = int32(0)
        while waiting != uint32(0):
            # With as many waiting on either side of the centre as the last group had, groups tile.
            highest = uint32(31) - uint32(cuda.clz(waiting))
            middle = min(uint32(first_lane(waiting) + half), highest)
            centre = uint32(middle + first_lane(uint32(waiting >> middle)))
            if fine:
                at_x = cuda.shfl_sync(ALL_LANES, x, centre)
                at_y = cuda.shfl_sync(ALL_LANES, y, centre)
                at_z = cuda.shfl_sync(ALL_LANES, z, centre)
                centre_x = centre_y = centre_z = slack = ZERO
                away2 = square(
                    float32(total(x, -at_x)), float32(total(y, -at_y)), float32(total(z, -at_z))
                )
            else:
                centre_x = cuda.shfl_sync(ALL_LANES, offset_x, centre)
                centre_y = cuda.shfl_sync(ALL_LANES, offset_y, centre)
                centre_z = cuda.shfl_sync(ALL_LANES, offset_z, centre)
                away2 = square(offset_x - centre_x, offset_y - centre_y, offset_z - centre_z)
                slack = slack_around(centre_x, centre_y, centre_z, radius)
            away = root(away2)
            alone = uint32(uint32(1) << centre)
            group = waiting
            member = False
            widest = wide2 = ZERO
            reach = reach2 = INFINITY
            opened = int32(0)
            level = top
            node = uint32(0)
            descended = True
            while level <= top:
                if descended:
                    i = uint32(uint32(starts[level]) + uint32(node * uint32(WARP)) + lane)
                    if fine:
                        centre_x, centre_y, centre_z, slack = from_point(
                            points, first_of(node * uint32(WARP) + lane, level), at_x, at_y, at_z
                        )
                    turn = _turn(
                        boxes[0, i], boxes[1, i], boxes[2, i],
                        boxes[3, i], boxes[4, i], boxes[5, i],
                        centre_x, centre_y, centre_z, fine, slack,
                    )  # fmt: skip
                    descended = False
                    pending[warp, level, lane] = turn
                else:
                    turn = pending[warp, level, lane]
                if turn > libdevice.float_as_int(reach2):
                    turn = int32(NEVER)
                least = least_of_warp(turn)
                if least == int32(NEVER):
                    level = int32(level + 1)
                    node = uint32(node >> uint32(5))
                    continue
                if opened == 0 and least > 0 and level < top:
                    # What is opened first bounds all the rest: so it is the leaf that is nearest
                    # of all, and where another box may hold that one, this node waits its turn.
                    rival = int32(NEVER)
                    for upper in range(level + 1, top + 1):
                        rival = min(rival, pending[warp, upper, lane])
                    if least_of_warp(rival) < least:
                        level = int32(level + 1)
                        if lane == node & uint32(WARP - 1):
                            pending[warp, level, lane] = least
                        node = uint32(node >> uint32(5))
                        continue
                nearest = first_lane(ballot(turn == least))
                if lane == nearest:
                    pending[warp, level, lane] = int32(NEVER)
                child = uint32(node * uint32(WARP) + nearest)
                if level > 0:
                    level = int32(level - 1)
                    node = child
                    descended = True
                    continue

                i = uint32(child * uint32(WARP) + lane)
                if fine:
                    centre_x, centre_y, centre_z, slack = from_point(
                        points, first_of(child, 0), at_x, at_y, at_z
                    )
                apart2 = square(
                    corners[0, i] - centre_x, corners[1, i] - centre_y, corners[2, i] - centre_z
                )
                if opened == 0:
                    # Observations as far away as this leaf is wide have other neighbours.
                    wide_x = boxes[3, child] - boxes[0, child]
                    wide_y = boxes[4, child] - boxes[1, child]
                    wide_z = boxes[5, child] - boxes[2, child]
                    wide2 = square(wide_x, wide_y, wide_z)
                    if top > 0:
                        group = uint32(group & ballot(away2 <= share2 * wide2))
                    group = uint32(group | alone)
                    member = (group >> lane) & uint32(1) != uint32(0)
                    widest = warp_max(away if member else ZERO)
                opened = int32(opened + 1)
                # The leaf's points bound every member's k-th best before any is compared: each is
                # at most `widest` farther from the member than from the centre.
                if nearest_needed == 1 or (opened == 1 and nearest_needed <= WARP):
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
                        reach2 = reach * reach
                limit2 = reach2
                if fine:
                    limit2 = (reach + slack) * (reach + slack)
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
                cuda.syncwarp()
                if group == alone and cuda.popc(candidates) > _FEW:
                    # One observation: its lanes compare, each a candidate, and few are left.
                    near2 = squared_chord(
                        cuda.shfl_sync(ALL_LANES, x, centre),
                        cuda.shfl_sync(ALL_LANES, y, centre),
                        cuda.shfl_sync(ALL_LANES, z, centre),
                        stage[warp, 0, lane], stage[warp, 1, lane], stage[warp, 2, lane],
                    )  # fmt: skip
                    if many:
                        last = cuda.shfl_sync(ALL_LANES, heads[last_head], centre)
                        candidates &= ballot(key_of(near2, slots) <= last & int32(~slots))
                    else:
                        candidates &= ballot(
                            near2 <= cuda.shfl_sync(ALL_LANES, best_chord2, centre)
                        )
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
                        farthest = heads[last_head]
                        last = farthest & int32(~slots)
                        enters = able and code <= last
                        if cuda.any_sync(ALL_LANES, enters):
                            head = int32(NO_KEY)
                            if enters:
                                slot = farthest & int32(slots)
                                rest = largest_but(table, slot, lane, bundle)
                                # Keys of equal upper bits do not say which is the farthest.
                                before = max(rest, heads[last_head - 1]) & int32(~slots)
                                if (code == last or before == last) and last < int32(FREE):
                                    ties = int32(ties + 1)
                                    enters = drives_out(
                                        points, x, y, z, chord2_found, row_found,
                                        found, table, lane, slot, last, slots,
                                    )  # fmt: skip
                                key = farthest
                                if enters:
                                    found[slot, lane] = int32(child * uint32(WARP) + j)
                                    key = code | slot
                                    head = max(key, rest)
                                table[slot, lane] = key
                            heads = insert(heads, head)
                    elif closer(chord2_found, row_found, best_chord2, best_row) and able:
                        best_chord2 = chord2_found
                        best_row = row_found
                if many:
                    # Where references are all but equally near, ties are what a walk costs.
                    most_ties = largest_of_warp(ties)
                    if most_ties >= int32(_TIES_A_LEAF):
                        if fine:
                            opened = int32(opened + most_ties * int32(_LEAVES_A_TIE))
                        else:
                            opened = int32(opened + most_ties // int32(_TIES_A_LEAF))
                        ties = int32(0)
                if opened >= patience and (group != alone or opened >= int32(share)):
                    nearer = uint32((group & ballot(away2 <= _LESS * share2 * wide2)) | alone)
                    if nearer != group:
                        # The members' neighbourhoods have too little in common: go on for the
                        # nearer ones, and expect less of the groups to come.
                        opened = int32(1)
                        share2 *= _LESS
                        group = nearer
                        leaves = member
                        member = (group >> lane) & uint32(1) != uint32(0)
                        widest = warp_max(away if member else ZERO)
                        if many and leaves and not member:
                            heads = no_heads(places, bundle, k)
                            clear(found, table, lane, k)
                    elif opened >= int32(share):
                        if fine:
                            # Those beside it are likely to be as hard, and take turns here: each
                            # has a warp of its own in `kernels.precise_cuda`.
                            group = waiting
                        given_up = uint32(given_up | group)
                        level = int32(top + 1)
                needed = ZERO
                if member:
                    if many:
                        needed = root(largest_of_key(heads[last_head], slots)) + away
                    else:
                        needed = root(float32(best_chord2)) + away
                needed = reach_of(warp_max(needed), UNDERFLOW if fine else slack)
                if needed < reach:
                    reach = needed
                    reach2 = reach * reach
            waiting = uint32(waiting & uint32(~group))
            half = uint32(uint32(cuda.popc(group)) >> uint32(1))

        if (given_up >> lane) & uint32(1) != uint32(0):
            hard[cuda.atomic.add(n_hard, 0, 1)] = int32(row)
        if many:
            line_up(table, found, lane, places)
            settle(points, x, y, z, found, table, lane, slots)
            cuda.syncwarp()
            store(
                points, x, y, z, row, writes, width, found, stage[warp], k, measure,
                reference, chord2,
            )  # fmt: skip
        elif writes:
            reference[row, 0] = int64(best_row)
            chord2[row, 0] = best_chord2

    return walk_tree


def launch_walk(
    index: ReferenceIndex, vectors: cp.ndarray, query: Query, found: Found, *,
    rows: cp.ndarray | None = None, by_axis: bool = False, width: int = 1, measure: bool = False,
) -> None:  # fmt: skip
    """Walk for observations, and write what is found for each into its row.

    Unit vectors have the shape (n, 4) or, by axis, (3, n). No rows stand for all, as they come.
    """
    import cupy as cp

    if rows is None:
        rows = cp.empty(0, cp.int64)
    row_step, axis_step = (1, vectors.shape[1]) if by_axis else (4, 1)
    n = found.reference.shape[0]
    places = 1 << (query.k - 1).bit_length()
    warps = _warps(places)
    *tree, fine = index.tree
    asked = (query.k, query.exclude_self, query.first_row, measure, *found)
    observations = (vectors.ravel(), row_step, axis_step)
    hard = (cp.empty(n, cp.int32), cp.zeros(1, cp.int32))
    # Few observations leave most of the device to brute force, which then takes no longer.
    leaves = index.tree.points.shape[0] // WARP
    least = _PATIENCE + places
    share = max(least, leaves * min(n, _FILL) // (_PART * _FILL))
    launch(
        walk(places, fine), blocks_for(n, width * warps), (WARP, warps),
        *tree, *observations, rows, width, *asked, least if fine else share, *hard,
    )  # fmt: skip
    # No walk opens more leaves than there are, or meets more ties than they have points.
    most_ties = leaves * WARP // _TIES_A_LEAF if query.k > 1 else 0
    if fine and leaves + most_ties >= least:
        given_up, hard = hard, (cp.empty(n, cp.int32), cp.zeros(1, cp.int32))
        search_precisely(index, *observations, *given_up, *asked, share, *hard)
        most_ties = 0
    if leaves + most_ties >= share:
        search_hard(index.vectors, *observations, *hard, *asked)
    if measure and query.k == 1:
        # Not by the walk: metres would take registers that its warps need.
        answer_of(found)
