"""Observations that match references of their group and time alone, on a GPU: `search` and `pairs`.

References are sorted by group and time before they are by the curve, in one tree of boxes. Beside
each box stand the least and the greatest group and time in it. A warp walks for one observation: it
leaves out boxes that are too far away, as in `kernels.walk_cuda`, or that hold nothing of its group
and window. Of a leaf each lane compares one reference. Warps that follow each other have
observations of one group that are neighbours, so they read the same boxes.

No walk gives up: where all references are about equally far, it compares an observation with each
of its group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from numba import cuda, float32, float64, int32, int64, uint32, uint64
from numba.cuda import libdevice

from georesolve.kernels.boxes_cuda import (
    LEVELS,
    MAX_ROWS,
    NEVER,
    WARPS,
    check_rows,
    grow,
    offset,
    origin,
    reach_of,
    root,
    slack_around,
)
from georesolve.kernels.descent_cuda import FromOrigin, gap_to, next_leaf
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.filters import FilteredIndex, Filters
from georesolve.kernels.launch_cuda import blocks_for, launch
from georesolve.kernels.order_cuda import extent, order, sort
from georesolve.kernels.query import MAX_K, Degrees, Found, Pairs, Query, Within
from georesolve.kernels.sizes_cuda import WARP, level_sizes
from georesolve.kernels.tree_cuda import SAMPLE
from georesolve.kernels.warp_cuda import ballot, first_lane, implements, without_first
from georesolve.kernels.within_cuda import in_order, lanes_before

if TYPE_CHECKING:
    import cupy as cp

__all__ = ["MAX_ROWS", "build", "count", "pairs", "search"]

_LATEST = (1 << 63) - 1
_EARLIEST = -(1 << 63)
_PARTS = 128
"""Parts of all time by which references and observations are sorted, unless a search says more."""


class Forest(NamedTuple):
    """A tree of boxes as `boxes_cuda.Tree`, and the groups and times of what stands in it.

    `codes` and `times` are those of each of its points, `groups` and `spans` (2, n_boxes) the least
    and the greatest of each box; times and spans are of no points where they do not matter.
    """

    points: cp.ndarray
    corners: cp.ndarray
    boxes: cp.ndarray
    starts: cp.ndarray
    box: cp.ndarray
    codes: cp.ndarray
    times: cp.ndarray
    groups: cp.ndarray
    spans: cp.ndarray
    edges: cp.ndarray
    """Times at which the parts begin by which observations are sorted."""


class Sieved(NamedTuple):
    """A view to which boxes without anything of a group and window are beyond all."""

    view: Any
    groups: Any
    spans: Any
    group: int
    least: int
    greatest: int


@implements(gap_to, Sieved)
def _(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    gap = gap_to(view.view, points, boxes, i, box, level)
    if view.groups[0, i] > view.group or view.groups[1, i] < view.group:
        gap = int32(NEVER)
    if view.spans.shape[1] > 0 and (
        view.spans[0, i] > view.greatest or view.spans[1, i] < view.least
    ):
        gap = int32(NEVER)
    return gap


@cuda.jit(device=True, forceinline=True)
def _comes_before(apart, chord2, row, other_apart, other_chord2, other_row):  # type: ignore[no-untyped-def]
    return apart < other_apart or (
        apart == other_apart and closer(chord2, row, other_chord2, other_row)
    )


@cuda.jit(device=True, forceinline=True)
def _insert(aparts, chords, rows, apart, chord2, row):  # type: ignore[no-untyped-def]
    """Put one candidate, which all lanes name, into a sorted list of 64 in shared memory."""
    lane = cuda.threadIdx.x
    high = lane + WARP
    low_apart, low_chord2, low_row = aparts[lane], chords[lane], rows[lane]
    high_apart, high_chord2, high_row = aparts[high], chords[high], rows[high]
    low_moves = _comes_before(apart, chord2, row, low_apart, low_chord2, low_row)
    high_moves = _comes_before(apart, chord2, row, high_apart, high_chord2, high_row)
    place = MAX_K - cuda.popc(ballot(low_moves)) - cuda.popc(ballot(high_moves))
    cuda.syncwarp()
    if low_moves:
        aparts[lane + 1], chords[lane + 1], rows[lane + 1] = low_apart, low_chord2, low_row
    if high_moves and high + 1 < MAX_K:
        aparts[high + 1], chords[high + 1], rows[high + 1] = high_apart, high_chord2, high_row
    if lane == 0 and place < MAX_K:
        aparts[place], chords[place], rows[place] = apart, chord2, row
    cuda.syncwarp()


@cuda.jit(device=True, forceinline=True)
def _apart(time, other):  # type: ignore[no-untyped-def]
    """How far two times are apart; beyond 64 bits the greatest that there is."""
    # Without a sign: of numbers with one, compilers take it that they never overflow.
    apart = uint64(max(time, other)) - uint64(min(time, other))
    return int64(min(apart, uint64(_LATEST)))


@cuda.jit(cache=True)
def search_ranked(  # type: ignore[no-untyped-def]
    points, corners, boxes, starts, box, codes, times, groups, spans, observations, order, group,
    windows, by_time, farthest2, brute, k, exclude_self, first_row, reference, key_of,
):  # fmt: skip
    """Find the first k references of each observation, a warp an observation.

    Grid ``(blocks,)``, block ``(32, warps)``. Arrays are those of `Forest`; unit vectors (n, 4);
    `windows` (4, n), or (4, 0), are of each observation the least and the greatest time, one that
    does not count, and its own.
    """
    pending = cuda.shared.array((WARPS, LEVELS, WARP), int32)
    all_aparts = cuda.shared.array((WARPS, MAX_K), int64)
    all_chords = cuda.shared.array((WARPS, MAX_K), float64)
    all_rows = cuda.shared.array((WARPS, MAX_K), float64)
    lane = uint32(cuda.threadIdx.x)
    warp = cuda.threadIdx.y
    position = int64(cuda.blockIdx.x) * WARPS + warp
    if position >= order.size:
        return
    own = order[position]
    own_group = group[own]
    if own_group < 0:
        return
    aparts, chords, rows = all_aparts[warp], all_chords[warp], all_rows[warp]
    for half in range(2):
        aparts[lane + half * WARP] = _LATEST
        chords[lane + half * WARP] = math.inf
        rows[lane + half * WARP] = -1.0
    cuda.syncwarp()
    x, y, z = observations[own, 0], observations[own, 1], observations[own, 2]
    origin_x, origin_y, origin_z, radius = origin(box)
    near_x, near_y, near_z = offset(x, y, z, origin_x, origin_y, origin_z)
    if near_x != near_x:
        return
    view = FromOrigin(near_x, near_y, near_z, slack_around(near_x, near_y, near_z, radius))
    timed = windows.shape[1] > 0
    least, greatest, left_out, now = int64(_EARLIEST), int64(_LATEST), int64(0), int64(0)
    if timed:
        least, greatest = windows[0, own], windows[1, own]
        left_out, now = windows[2, own], windows[3, own]
    left_out_row = float64(-2.0)
    if exclude_self:
        left_out_row = float64(first_row + own)
    most2 = farthest2[0]
    reach = reach_of(root(float32(most2)), view.slack)
    worst_apart, worst2, worst_row = int64(_LATEST), math.inf, -1.0
    top = int32(starts.size - 1)
    level = top
    node = uint32(0)
    leaf = uint32(0)
    opened = int32(0)
    while True:
        if brute:
            leaf = uint32(opened)
            if int64(leaf) * WARP >= points.shape[0]:
                break
        else:
            level, node, leaf = next_leaf(
                Sieved(view, groups, spans, own_group, least, greatest), points, boxes, starts,
                pending[warp], level, node, libdevice.float_as_int(reach * reach), opened,
                int32(NEVER), True,
            )  # fmt: skip
            if level > top:
                break
        opened = int32(opened + 1)
        i = uint64(uint32(leaf * uint32(WARP) + lane))
        row = points[i, 3]
        chord2 = squared_chord(x, y, z, points[i, 0], points[i, 1], points[i, 2])
        apart = int64(0)
        able = codes[i] == own_group and chord2 <= most2 and row != left_out_row
        if timed:
            time = times[i]
            able = able and least <= time and time <= greatest and time != left_out
            if by_time:
                apart = _apart(time, now)
        candidates = ballot(
            able and _comes_before(apart, chord2, row, worst_apart, worst2, worst_row)
        )
        if candidates == uint32(0):
            continue
        while candidates != uint32(0):
            j = first_lane(candidates)
            _insert(
                aparts, chords, rows, cuda.shfl_sync(0xFFFFFFFF, apart, j),
                cuda.shfl_sync(0xFFFFFFFF, chord2, j), cuda.shfl_sync(0xFFFFFFFF, row, j),
            )  # fmt: skip
            worst_apart, worst2, worst_row = aparts[k - 1], chords[k - 1], rows[k - 1]
            comes = ballot(_comes_before(apart, chord2, row, worst_apart, worst2, worst_row))
            candidates = uint32(without_first(candidates) & comes)
        if by_time:
            # Saturated: time apart may be all that 64 bits hold, and is then not narrowed.
            is_told = worst_apart < int64(_LATEST)
            if is_told and now >= int64(_EARLIEST) + worst_apart:
                least = max(least, int64(now - worst_apart))
            if is_told and now <= int64(_LATEST) - worst_apart:
                greatest = min(greatest, int64(now + worst_apart))
        elif worst2 < math.inf:
            reach = min(reach, reach_of(root(float32(worst2)), view.slack))
    for half in range(2):
        place = lane + half * WARP
        if place < k and chords[place] < math.inf:
            reference[own, place] = int64(rows[place])
            key_of[own, place] = chords[place]


@cuda.jit(cache=True)
def search_matching(  # type: ignore[no-untyped-def]
    points, corners, boxes, starts, box, codes, times, groups, spans, observations, order, group,
    windows, brute, bounds, exclude_self, once, first_row, at, reference, chord2_of,
):  # fmt: skip
    """Count what is within a distance of each observation, or write it; see `search_ranked`.

    `at` becomes the counts, or says where the pairs of each observation begin.
    """
    pending = cuda.shared.array((WARPS, LEVELS, WARP), int32)
    lane = uint32(cuda.threadIdx.x)
    warp = cuda.threadIdx.y
    position = int64(cuda.blockIdx.x) * WARPS + warp
    if position >= order.size:
        return
    own = order[position]
    own_group = group[own]
    if own_group < 0:
        return
    x, y, z = observations[own, 0], observations[own, 1], observations[own, 2]
    origin_x, origin_y, origin_z, radius = origin(box)
    near_x, near_y, near_z = offset(x, y, z, origin_x, origin_y, origin_z)
    if near_x != near_x:
        return
    view = FromOrigin(near_x, near_y, near_z, slack_around(near_x, near_y, near_z, radius))
    timed = windows.shape[1] > 0
    least, greatest, left_out = int64(_EARLIEST), int64(_LATEST), int64(0)
    if timed:
        least, greatest, left_out = windows[0, own], windows[1, own], windows[2, own]
    fills = chord2_of.size > 0
    own_row = float64(first_row + own)
    most2 = bounds[own if bounds.size > 1 else 0]
    reach = reach_of(root(float32(most2)), view.slack)
    begin = at[own] if fills else int64(0)
    kept = int64(0)
    top = int32(starts.size - 1)
    level = top
    node = uint32(0)
    leaf = uint32(0)
    opened = int32(0)
    while True:
        if brute:
            leaf = uint32(opened)
            if int64(leaf) * WARP >= points.shape[0]:
                break
        else:
            level, node, leaf = next_leaf(
                Sieved(view, groups, spans, own_group, least, greatest), points, boxes, starts,
                pending[warp], level, node, libdevice.float_as_int(reach * reach), opened,
                int32(NEVER), False,
            )  # fmt: skip
            if level > top:
                break
        opened = int32(opened + 1)
        i = uint64(uint32(leaf * uint32(WARP) + lane))
        row = points[i, 3]
        chord2 = squared_chord(x, y, z, points[i, 0], points[i, 1], points[i, 2])
        able = codes[i] == own_group and chord2 <= most2
        if exclude_self:
            able = able and row != own_row
        if once:
            able = able and row > own_row
        if timed:
            time = times[i]
            able = able and least <= time and time <= greatest and time != left_out
        bits = ballot(able)
        if fills and able:
            place = begin + kept + int64(lanes_before(bits))
            reference[place] = int32(row)
            chord2_of[place] = chord2
        kept += int64(cuda.popc(bits))
    if not fills and lane == 0:
        at[own] = kept


def _bounds(values: Any, sizes: list[int], xp: Any) -> Any:
    """The least and the greatest value of each box, level by level; what is empty meets nothing."""
    limits = xp.iinfo(values.dtype)
    levels = []
    for extreme, nothing in ((xp.min, limits.max), (xp.max, limits.min)):
        below, made = values, []
        for size in sizes:
            padded = xp.full(size * WARP, nothing, values.dtype)
            padded[: below.size] = below
            below = extreme(padded.reshape(size, WARP), axis=1)
            made.append(below)
        levels.append(xp.concatenate(made))
    return xp.stack(levels)


def build(
    lat_deg: cp.ndarray,
    lon_deg: cp.ndarray,
    group: cp.ndarray,
    time: cp.ndarray,
    n_groups: int,
    share: float,
) -> tuple[cp.ndarray, Forest]:
    """Unit vectors of references, and their tree; it leaves out those of a group below 0.

    `time` is empty where it does not matter; else they are sorted by such a `share` of all time.
    """
    import cupy as cp

    check_rows("references", lat_deg.size)
    references = Degrees(lat_deg, lon_deg)
    vectors = cp.empty((3, lat_deg.size))
    box = extent(references)
    rows, by_row, _ = order(references, box, by_axis=vectors)
    rows = rows[(group[rows] >= 0) & ~cp.isnan(by_row[rows, 0])]
    part, edges = group[rows].astype(cp.int64), cp.empty(0, cp.int64)
    if time.size:
        n_parts = max(1, min(round(1 / max(share, 2.0**-20)), rows.size // WARP**2))
        edges = cp.sort(time[rows])[:: max(1, rows.size // n_parts)]
        part = part * (edges.size + 1) + cp.searchsorted(edges, time[rows], side="right")
    rows = rows[sort(part)]
    tree = grow(rows, by_row, cp.zeros(rows.size, cp.uint32), box)
    sizes = level_sizes(rows.size)
    n_points = len(tree.points)
    codes, times = cp.full(n_points, -1, cp.int32), cp.zeros(n_points * (time.size > 0), cp.int64)
    codes[: rows.size] = group[rows]
    groups, spans = _bounds(group[rows], sizes, cp), cp.empty((2, 0), cp.int64)
    if time.size:
        times[: rows.size] = time[rows]
        spans = _bounds(time[rows], sizes, cp)
    return vectors, Forest(*tree[:5], codes, times, groups, spans, edges)


def _observed(
    index: FilteredIndex, observations: Degrees, filters: Filters
) -> tuple[tuple[Any, ...], int]:
    """What both kernels take of the index and of the observations, and how many these are."""
    import cupy as cp

    *forest, edges = index.tree
    n = observations.lat_deg.size
    check_rows("observations", n)
    rows, vectors, _ = order(observations, extent(observations, SAMPLE))
    part, windows = filters.group[rows].astype(cp.int64), cp.empty((4, 0), cp.int64)
    if index.time.size:
        own = filters.time
        # No reference has the time before all others.
        left_out = own if filters.skips_own_time else cp.full_like(own, _EARLIEST)
        windows = cp.stack([filters.least, filters.greatest, left_out, own])
        middle = windows[3] if filters.by_time else (windows[0] >> 1) + (windows[1] >> 1)
        part = part * (edges.size + 1) + cp.searchsorted(edges, middle[rows], side="right")
    rows = rows[sort(part)]
    group = cp.ascontiguousarray(filters.group)
    return (*forest, vectors, rows, group, cp.ascontiguousarray(windows)), n


def search(
    index: FilteredIndex,
    observations: Degrees,
    query: Query,
    filters: Filters,
    chord2: float,
    *,
    brute: bool = False,
) -> Found:
    """The first k references of every observation among those within a squared chord of it."""
    import cupy as cp

    n = observations.lat_deg.size
    found = Found(cp.full((n, query.k), -1, cp.int64), cp.full((n, query.k), math.inf))
    if n and len(index.tree.points):
        taken, _ = _observed(index, observations, filters)
        launch(
            search_ranked, blocks_for(n, WARPS), (WARP, WARPS), *taken, filters.by_time,
            cp.array([min(chord2, 5.0)]), brute, query.k, query.exclude_self, query.first_row,
            *found,
        )  # fmt: skip
    return found


def _search(
    index: FilteredIndex, observations: Degrees, asked: Within, filters: Filters, brute: bool,
    *into: Any,
) -> None:  # fmt: skip
    import cupy as cp

    if observations.lat_deg.size and len(index.tree.points):
        taken, n = _observed(index, observations, filters)
        launch(
            search_matching, blocks_for(n, WARPS), (WARP, WARPS), *taken, brute,
            cp.asarray(asked.chord2), *asked[1:], *into,
        )  # fmt: skip


def count(
    index: FilteredIndex, observations: Degrees, asked: Within, filters: Filters, brute: bool
) -> cp.ndarray:
    """How many references within the distance every observation matches."""
    import cupy as cp

    counts = cp.zeros(observations.lat_deg.size, cp.int64)
    none = cp.empty(0, cp.int32), cp.empty(0)
    _search(index, observations, asked, filters, brute, counts, *none)
    return counts


def pairs(
    index: FilteredIndex, observations: Degrees, asked: Within, filters: Filters, brute: bool
) -> Pairs:
    """All these references of every observation, nearest first, equals by row."""

    def fill(starts: cp.ndarray, rows: cp.ndarray, chords2: cp.ndarray) -> None:
        _search(index, observations, asked, filters, brute, starts, rows, chords2)

    return in_order(count(index, observations, asked, filters, brute), fill)
