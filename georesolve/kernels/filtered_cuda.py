"""References of a group and of a time, on a GPU: their trees, and what is searched in them.

References are sorted by group before they are by the curve, in one tree of boxes. Beside each box
stand the least and the greatest group in it, by which walks of `kernels.walk_cuda` and
`kernels.within_cuda` leave boxes out (`kernels.filters_cuda`). For windows of time, parts of the
time of a group take the place of groups. A part is as long as two windows, and has copies of what
is half a window before and after its time: then all that a window meets is in the part of its
middle, and half as much again as there are references is kept. Observations are sorted
likewise, so that those of a warp are of one part.

By time apart the tree is one by time, and a warp walks for one observation; of a leaf each lane
compares one reference. So it does by brute force, with all of them.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from numba import cuda, float32, float64, int32, int64, uint32, uint64
from numba.cuda import libdevice

from georesolve.kernels.boxes_cuda import (
    LEVELS,
    MAX_ROWS,
    NEVER,
    WARPS,
    Tree,
    check_rows,
    grow,
    offset,
    origin,
    reach_of,
    root,
    slack_around,
)
from georesolve.kernels.coordinates_cuda import unit_vectors
from georesolve.kernels.descent_cuda import FromOrigin, gap_to, next_leaf
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.filters import GREATEST, LEAST, FilteredIndex, Filters, by_reach
from georesolve.kernels.filters_cuda import (
    EVERYTHING,
    Asked,
    Filtering,
    InPart,
    OfGroup,
    asked_by,
    group_of,
    is_of,
    matches,
    sieved,
)
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.launch_cuda import blocks_for, launch, stride
from georesolve.kernels.order_cuda import extent, order, sort
from georesolve.kernels.query import Degrees, Found, Pairs, Query, Within
from georesolve.kernels.sizes_cuda import WARP, level_sizes
from georesolve.kernels.times import window_of
from georesolve.kernels.tree_cuda import SAMPLE
from georesolve.kernels.walk_cuda import launch_walk
from georesolve.kernels.warp_cuda import ballot, first_lane, implements, without_first
from georesolve.kernels.ways import walk
from georesolve.kernels.within_cuda import count_seen, pairs_seen
from georesolve.query import MAX_K

if TYPE_CHECKING:
    import cupy as cp

__all__ = ["MAX_ROWS", "build", "count", "pairs", "placed", "search"]

_MOST_CODES = (1 << 31) - 1
_PARTS = 128
"""Parts of all time by which observations are sorted that are ranked by time apart."""


class Forest(NamedTuple):
    """A tree of boxes as `boxes_cuda.Tree`, and the groups and times of what stands in it.

    `codes` and `times` are of each of its points, `groups` and `spans` (2, n_boxes) the least and
    the greatest of each box; times and spans are of no points where they do not matter. In parts of
    time codes are those of parts: `n_parts` a group, each of a `length` in units of 2^`shift`. The
    points of a code are in `max_leaves` at most.
    """

    points: cp.ndarray
    corners: cp.ndarray
    boxes: cp.ndarray
    starts: cp.ndarray
    box: cp.ndarray
    codes: cp.ndarray
    groups: cp.ndarray
    times: cp.ndarray
    spans: cp.ndarray
    n_parts: int = 1
    length: int = 1
    shift: int = 0
    max_leaves: int = 0


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
    return int64(min(apart, uint64(GREATEST)))


class InSpan(NamedTuple):
    """A view to which boxes without a time from the least to the greatest are beyond all."""

    view: Any
    spans: Any
    least: int
    greatest: int


@implements(gap_to, InSpan)
def _(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    gap = gap_to(view.view, points, boxes, i, box, level)
    if view.greatest < view.spans[0, i] or view.spans[1, i] < view.least:
        gap = int32(NEVER)
    return gap


@cuda.jit(device=True, forceinline=True)
def _narrowed(asked, time, apart):  # type: ignore[no-untyped-def]
    """What is asked for, if it is no farther apart from a time than another time."""
    least, greatest = asked.least, asked.greatest
    # Saturated: time apart may be all that 64 bits hold, and is then not narrowed.
    is_told = apart < int64(GREATEST)
    if is_told and time >= int64(LEAST) + apart:
        least = max(least, int64(time - apart))
    if is_told and time <= int64(GREATEST) - apart:
        greatest = min(greatest, int64(time + apart))
    return Asked(asked.group, least, greatest, asked.time, asked.skips)


@cache
def rank(by_time: bool) -> Any:
    """The kernel that finds what is first by distance, or by time apart and then by distance."""

    @cuda.jit(cache=True)
    def rank_references(  # type: ignore[no-untyped-def]
        points, boxes, starts, box, spans, observations, rows, time, brute,
        k, exclude_self, first_row, reference, chord2_of, filters,
    ):  # fmt: skip
        """Find the first k references of each observation, a warp an observation.

        Grid ``(blocks,)``, block ``(32, warps)``. Arrays are those of `Forest` and of the filters;
        unit vectors (n, 4); `time` is that of each observation, by which time apart counts.
        """
        pending = cuda.shared.array((WARPS, LEVELS, WARP), int32)
        all_aparts = cuda.shared.array((WARPS, MAX_K), int64)
        all_chords = cuda.shared.array((WARPS, MAX_K), float64)
        all_rows = cuda.shared.array((WARPS, MAX_K), float64)
        lane = uint32(cuda.threadIdx.x)
        warp = cuda.threadIdx.y
        position = int64(cuda.blockIdx.x) * WARPS + warp
        if position >= rows.size:
            return
        own = rows[position]
        asked = asked_by(filters, own)
        group = group_of(filters, asked)
        if group < 0:
            return
        aparts, chords, found = all_aparts[warp], all_chords[warp], all_rows[warp]
        for half in range(2):
            aparts[lane + half * WARP] = GREATEST
            chords[lane + half * WARP] = math.inf
            found[lane + half * WARP] = -1.0
        cuda.syncwarp()
        x, y, z = observations[own, 0], observations[own, 1], observations[own, 2]
        origin_x, origin_y, origin_z, radius = origin(box)
        near_x, near_y, near_z = offset(x, y, z, origin_x, origin_y, origin_z)
        if near_x != near_x:
            return
        view = FromOrigin(near_x, near_y, near_z, slack_around(near_x, near_y, near_z, radius))
        left_out_row = float64(-2.0)
        if exclude_self:
            left_out_row = float64(first_row + own)
        most2 = filters.most2[0]
        reach = reach_of(root(float32(most2)), view.slack)
        worst_apart, worst2, worst_row = int64(GREATEST), math.inf, -1.0
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
                looking: Any = sieved(filters, view, group)
                if by_time:
                    looking = InSpan(looking, spans, asked.least, asked.greatest)
                level, node, leaf = next_leaf(
                    looking, points, boxes, starts, pending[warp], level,
                    node, libdevice.float_as_int(reach * reach), opened, int32(NEVER), True,
                )  # fmt: skip
                if level > top:
                    break
            opened = int32(opened + 1)
            i = uint64(uint32(leaf * uint32(WARP) + lane))
            row = points[i, 3]
            chord2 = squared_chord(x, y, z, points[i, 0], points[i, 1], points[i, 2])
            able = (
                chord2 <= most2
                and row != left_out_row
                and is_of(filters, group, i)
                and matches(filters, asked, i)
            )
            apart = int64(0)
            if by_time:
                apart = _apart(filters.times[i], time[own])
            candidates = ballot(
                able and _comes_before(apart, chord2, row, worst_apart, worst2, worst_row)
            )
            if candidates == uint32(0):
                continue
            while candidates != uint32(0):
                j = first_lane(candidates)
                _insert(
                    aparts, chords, found, cuda.shfl_sync(0xFFFFFFFF, apart, j),
                    cuda.shfl_sync(0xFFFFFFFF, chord2, j), cuda.shfl_sync(0xFFFFFFFF, row, j),
                )  # fmt: skip
                worst_apart, worst2, worst_row = aparts[k - 1], chords[k - 1], found[k - 1]
                comes = ballot(_comes_before(apart, chord2, row, worst_apart, worst2, worst_row))
                candidates = uint32(without_first(candidates) & comes)
            if by_time:
                asked = _narrowed(asked, time[own], worst_apart)
            elif worst2 < math.inf:
                reach = min(reach, reach_of(root(float32(worst2)), view.slack))
        for half in range(2):
            place = lane + half * WARP
            if place < k and chords[place] < math.inf:
                reference[own, place] = int64(found[place])
                chord2_of[own, place] = chords[place]

    return rank_references


def _bounds(values: cp.ndarray, sizes: list[int]) -> cp.ndarray:
    """The least and the greatest value of each box, level by level; what is empty meets nothing."""
    import cupy as cp

    limits = cp.iinfo(values.dtype)
    levels = []
    for extreme, nothing in ((cp.min, limits.max), (cp.max, limits.min)):
        below, made = values, []
        for size in sizes:
            padded = cp.full(size * WARP, nothing, values.dtype)
            padded[: below.size] = below
            below = extreme(padded.reshape(size, WARP), axis=1)
            made.append(below)
        levels.append(cp.concatenate(made))
    return cp.stack(levels)


@cuda.jit(cache=True)
def find_parts(  # type: ignore[no-untyped-def]
    group, time, before, after, earliest, latest, n_groups, n_parts, length, shift, parts
):
    """Write the part of the time of its group that each window's middle is in; -1 for none.

    Only groups below `n_groups` have parts: a larger number might wrap around to one of them.
    """
    for i in range(cuda.grid(1), parts.size, cuda.gridsize(1)):
        least, greatest = window_of(time[i], before, after)
        first, last = max(least, earliest), min(greatest, latest)
        part = int64(-1)
        if group[i] >= 0 and group[i] < n_groups and first <= last:
            begin = earliest >> shift
            first, last = (first >> shift) - begin, (last >> shift) - begin
            part = group[i] * n_parts + (first + ((last - first) >> 1)) // length
        parts[i] = int32(part)


@cuda.jit(cache=True)
def leave_out(lat_deg, group, placed):  # type: ignore[no-untyped-def]
    """Write latitudes of observations of group 0, and NaN for all others."""
    for i in range(cuda.grid(1), placed.size, cuda.gridsize(1)):
        placed[i] = lat_deg[i] if group[i] == 0 else math.nan


def placed(lat_deg: cp.ndarray, group: cp.ndarray) -> cp.ndarray:
    """Latitudes of observations of the only group of an index, NaN for all others."""
    import cupy as cp

    # Two kernels of CuPy would take a twentieth of the time of small searches.
    there = cp.empty(lat_deg.size)
    stride(leave_out, there.size, lat_deg, cp.ascontiguousarray(group), there)
    return there


def build(
    lat_deg: cp.ndarray,
    lon_deg: cp.ndarray,
    group: cp.ndarray,
    time: cp.ndarray,
    n_groups: int,
    share: float,
) -> tuple[cp.ndarray, Any]:
    """Unit vectors of references, and their tree; it leaves out those of a group below 0.

    `time` is empty where it does not matter; else they are sorted by such a `share` of all time,
    when the tree is first asked for.
    """
    import cupy as cp

    check_rows("references", lat_deg.size)
    references = Degrees(lat_deg, lon_deg)
    vectors = unit_vectors(*references)
    rows = ((group >= 0) & ~cp.isnan(vectors[0])).nonzero()[0]
    if not time.size:
        return vectors, _grown(references, rows, group[rows], group[rows], time)

    def by_time() -> Forest:
        n_parts = max(1, min(round(1 / max(share, 2.0**-20)), rows.size // WARP**2))
        edges = cp.sort(time[rows])[:: max(1, rows.size // n_parts)]
        part = cp.searchsorted(edges, time[rows], side="right")
        part = group[rows].astype(cp.int64) * (edges.size + 1) + part
        return _grown(references, rows, part, group[rows], time)

    return vectors, by_time


def _grown(
    references: Degrees, rows: cp.ndarray, part: cp.ndarray, codes: cp.ndarray, time: cp.ndarray
) -> Forest:
    """The trees of references, of which rows may be there twice, sorted by parts first."""
    import cupy as cp

    box = extent(references)
    by_curve, by_row, _ = order(references, box)
    place = cp.empty(by_curve.size, cp.int64)
    place[by_curve] = cp.arange(by_curve.size)
    # Sorts are stable.
    there = sort(place[rows])
    there = there[sort(part[there])]
    rows, codes = rows[there], codes[there].astype(cp.int32)
    tree = grow(rows, by_row, cp.zeros(rows.size, cp.uint32), box)
    sizes, n_points = level_sizes(rows.size), len(tree.points)
    standing = cp.full(n_points, -1, cp.int32)
    standing[: rows.size] = codes
    times, spans = cp.zeros(n_points * (time.size > 0), cp.int64), cp.empty((2, 0), cp.int64)
    if time.size:
        times[: rows.size] = time[rows]
        spans = _bounds(time[rows], sizes)
    max_leaves = 0
    if rows.size:
        edges = cp.flatnonzero(cp.diff(codes, prepend=-1, append=-1))
        # The first and the last leaf may have points of other codes, too.
        max_leaves = int(cp.diff(edges).max()) // WARP + 2
    return Forest(*tree[:5], standing, _bounds(codes, sizes), times, spans, max_leaves=max_leaves)


def _reaching(index: FilteredIndex, width: int) -> Forest:
    """The forest in parts that have all that windows up to so wide meet, by their middles."""
    import cupy as cp

    assert index.span is not None, "there are references"
    earliest, latest = index.span
    rows = ((index.group >= 0) & ~cp.isnan(index.vectors[0])).nonzero()[0]
    # Numbers of 64 bits with a sign hold all that follows.
    shift = max(0, (latest - earliest).bit_length() - 61)
    begin = earliest >> shift
    span = (latest >> shift) - begin
    margin = ((width >> shift) + 1) // 2 + 2 * (shift > 0)
    most = min(_MOST_CODES // index.n_groups, max(1, rows.size))
    length = max(1, 4 * margin, span // most + 1)
    n_parts = span // length + 1
    offset = (index.time[rows] >> shift) - begin
    first = cp.maximum(offset - margin, 0) // length
    last = cp.minimum(offset + margin, span) // length
    twice = (last > first).nonzero()[0]
    group = index.group[rows].astype(cp.int64) * n_parts
    codes = cp.concatenate([group + first, (group + last)[twice]])
    rows = cp.concatenate([rows, rows[twice]])
    forest = _grown(index.degrees, rows, codes, codes, index.time)
    return forest._replace(
        spans=cp.empty((2, 0), cp.int64), n_parts=n_parts, length=length, shift=shift
    )


def _codes(index: FilteredIndex, filters: Filters, *parts: int) -> cp.ndarray:
    """The parts of windows, of which there are so many a group, so long in units of 2^shift."""
    import cupy as cp

    codes = cp.empty(filters.group.size, cp.int32)
    span = index.span or (0, 0)
    stride(find_parts, codes.size, *filters[:4], *span, index.n_groups, *parts, codes)
    return codes


def _filtering(
    index: FilteredIndex, filters: Filters, chord2: float,
    codes: cp.ndarray, groups: cp.ndarray, times: cp.ndarray,
) -> OfGroup | InPart:  # fmt: skip
    """What kernels filter by, with codes and times of what stands in a tree, or by row."""
    import cupy as cp

    asked = codes, groups, filters.group, cp.array([min(chord2, 5.0)])
    if not index.time.size:
        return OfGroup(*asked)
    return InPart(*asked, times, *filters[1:4], filters.skips_own_time)


def _contiguous(filters: Filters) -> Filters:
    """The same, of arrays as kernels take them."""
    import cupy as cp

    return Filters._make(
        cp.ascontiguousarray(one) if isinstance(one, cp.ndarray) else one for one in filters
    )


def _taken(
    index: FilteredIndex, observations: Degrees, filters: Filters, chord2: float
) -> tuple[cp.ndarray, cp.ndarray, ReferenceIndex, OfGroup | InPart, int] | None:
    """What walks take, if anything is there; references are no farther than a squared chord.

    Rows of observations, sorted over their box, their unit vectors by row, the index, the filters,
    and the maximum number of leaves of a group.
    """
    group = filters.group
    if not index.time.size:
        forest = index.tree
    elif index.span is None:
        return None
    else:
        forest = index.trees_for(filters, partial(_reaching, index))
        group = _codes(index, filters, forest.n_parts, forest.length, forest.shift)
    if not len(forest.points):
        return None
    by = group, index.n_groups * forest.n_parts
    rows, vectors, _ = order(observations, extent(observations, SAMPLE), parts=by)
    filtering = _filtering(index, filters._replace(group=group), chord2, *forest[5:8])
    tree = Tree(forest.points, forest.corners, forest.boxes, forest.starts, forest.box, fine=False)
    plain = ReferenceIndex(index.vectors, tree)
    return rows, vectors, plain, filtering, forest.max_leaves


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
    filters = _contiguous(filters)
    if brute or filters.by_time or not n:
        return _rank(index, observations, query, filters, chord2, brute)
    packets = walk("cuda", n, index.n_references, query).search == "packets"

    def find(asked: Filters) -> Found:
        taken = _taken(index, observations, asked, chord2)
        if taken is None:
            return _nothing(n, query)
        rows, vectors, plain, filtering, max_leaves = taken
        into = Found(cp.empty((n, query.k), cp.int64), cp.empty((n, query.k)))
        launch_walk(
            plain, vectors, query, into, rows=rows, width=WARP if packets else 1,
            filters=filtering, max_leaves=max_leaves,
        )  # fmt: skip
        return into

    return by_reach(index, filters, find)


def _nothing(n: int, query: Query) -> Found:
    import cupy as cp

    return Found(cp.full((n, query.k), -1, cp.int64), cp.full((n, query.k), math.inf))


def _rank(
    index: FilteredIndex, observations: Degrees, query: Query, filters: Filters, chord2: float,
    brute: bool,
) -> Found:  # fmt: skip
    """Look for each observation by itself, by time apart or by brute force."""
    import cupy as cp

    forest, n = index.tree, observations.lat_deg.size
    found = _nothing(n, query)
    if not n or not len(forest.points):
        return found
    codes, time = filters.group, cp.empty(0, cp.int64)
    filtering = _filtering(index, filters, chord2, *forest[5:8])
    if filters.by_time:
        time = filters.time
        span = index.span or (0, 0)
        shift = max(0, (span[1] - span[0]).bit_length() - 61)
        length = ((span[1] - span[0]) >> shift) // _PARTS + 1
        now = filters._replace(before=0, after=0)
        codes = _codes(index, now, _PARTS + 1, length, shift)
    parts = codes, index.n_groups * (_PARTS + 1)
    rows, vectors, _ = order(observations, extent(observations, SAMPLE), parts=parts)
    launch(
        rank(filters.by_time), blocks_for(rows.size, WARPS), (WARP, WARPS),
        forest.points, forest.boxes, forest.starts, forest.box, forest.spans, vectors, rows, time,
        brute, query.k, query.exclude_self, query.first_row, *found, filtering,
    )  # fmt: skip
    return found


def _seen(
    index: FilteredIndex, observations: Degrees, filters: Filters, brute: bool
) -> tuple[ReferenceIndex, tuple[Any, ...], Filtering]:
    """What `within_cuda` takes: an index, observations, and what it filters by."""
    import cupy as cp

    n = observations.lat_deg.size
    rows = cp.empty(0, cp.int64)
    filters = _contiguous(filters)
    if brute:
        by_row = index.group, cp.empty((2, 0), cp.int32), index.time
        seen = unit_vectors(*observations).ravel(), 1, n, n, rows, 0
        return index, seen, _filtering(index, filters, math.inf, *by_row)
    taken = _taken(index, observations, filters, math.inf) if n else None
    if taken is not None:
        rows, vectors, plain, filtering, _ = taken
        return plain, (vectors.ravel(), 4, 1, n, rows, WARP), filtering
    return ReferenceIndex(index.vectors[:, :0], None), (rows, 0, 0, n, rows, 0), EVERYTHING


def count(
    index: FilteredIndex, observations: Degrees, asked: Within, filters: Filters, brute: bool
) -> cp.ndarray:
    """How many references within the distance every observation matches."""
    plain, seen, filtering = _seen(index, observations, filters, brute)
    return count_seen(plain, seen, asked, filtering)


def pairs(
    index: FilteredIndex, observations: Degrees, asked: Within, filters: Filters, brute: bool
) -> Pairs:
    """All these references of every observation, nearest first, equals by row."""
    plain, seen, filtering = _seen(index, observations, filters, brute)
    return pairs_seen(plain, seen, asked, filtering)
