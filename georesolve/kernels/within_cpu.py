"""All references within a distance of every observation on a CPU: how many, and which.

Observations walk a tree (`kernels.tree_cpu`, which says why nothing is left out) in packets of
neighbours, or each by itself, with a bound that does not change. One walk counts; for pairs the
counts say where each observation's begin, and a second walk writes them there. By group and in
time packets walk the trees of a forest, and lanes have windows. On the ellipsoid a chord is at most
the greatest that such a geodesic may have, and metres decide.

Boxes whose points are all within the distance of a whole packet are counted without being opened
(`kernels.lanes_cpu.children_inside`). What an observation leaves out, its own row, is taken off
where it was counted.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import NO_LIMIT, STACK, WIDTH, held
from georesolve.kernels.coordinates_cpu import measure_part, readable
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.ellipsoid import MORE, ONE, innermost, outermost
from georesolve.kernels.forest_cpu import TREES_DEEP, Forest, forest_of, tree_of
from georesolve.kernels.geodesic import geodesic_m
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import (
    borrowed,
    children_inside,
    lanes_within,
    load_lanes,
    lowest_bit,
    members_matching,
    members_within,
    pack_members,
    prefetch_for_write,
    rank_32,
    times_within,
)
from georesolve.kernels.order_cpu import ROW, in_windows
from georesolve.kernels.packets_cpu import LANES, OnEllipsoid, OnSphere, aligned_rows
from georesolve.kernels.passes import check_passes
from georesolve.kernels.query import Degrees, Pairs, Within
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.times import window_of
from georesolve.kernels.walk_cpu import by_type, look, take_whole, walk
from georesolve.kernels.ways import Search

_GRAIN = 256
"""Observations that are worth a thread."""
_TURN = 64
"""Packets that a thread takes in its turn: what has many pairs lies together in the order."""
RUN = 64
"""Pairs of which each is compared with all, which takes no branches; longer runs are merged."""
NO_PAIRS = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
NO_TIMES = np.empty(0, np.int64)


class Packets(NamedTuple):
    """Observations in packets of neighbours, each of which begins with one tree.

    Rows of the `points` from `firsts` to `stops` of the `order` are a packet; `times` are empty, or
    those of the points, which match what is of times so long `before` and `after`, but not of the
    same time where they `skip` that.
    """

    forest: Forest
    points: np.ndarray
    order: np.ndarray
    firsts: np.ndarray
    stops: np.ndarray
    trees: np.ndarray
    times: np.ndarray
    before: int
    after: int
    skip: bool


class Matching(NamedTuple):
    """Counts what is within the bound of each lane, or writes it to where its pairs end.

    Rows of `lanes` are x, y, z, the bound, a row that is left out, the least that is not, metres on
    the ellipsoid, and the greatest squared chord that is within these for sure. What is within
    `inside` of all is counted once, in `whole`. The `kind` says what decides. The pairs of
    a lane end at `max_ends` if both passes agree.
    """

    lanes: np.ndarray
    windows: np.ndarray
    eight: np.ndarray
    kind: OnSphere | OnEllipsoid
    inside: float
    whole: np.ndarray
    ends: np.ndarray
    max_ends: np.ndarray
    fills: bool
    key: np.ndarray
    row: np.ndarray


@take_whole.of(Matching)
def _count_whole(collector, tree, node, level, bits, box):  # type: ignore[no-untyped-def]
    """Count boxes that are wholly within a distance, and open the others."""
    inside = bits & children_inside(tree.boxes, node, box, collector.inside)
    bits &= ~inside
    size = WIDTH << 3 * level
    while inside:
        first = ((node - tree.levels[level]) * WIDTH + lowest_bit(inside)) * size
        inside &= inside - 1
        # All leaves are full but the last.
        is_last = first + size >= tree.rows.size
        collector.whole[0] += held(tree) - first if is_last else size
    return bits


@look.of(Matching)
def _take(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    lanes, windows, _, kind, _, _, ends, max_ends, fills, _, _ = collector
    timed = tree.times.shape[0] > 0
    counts = not (timed or len(kind) or fills)
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        leaf = node * WIDTH + j
        near = lanes_within(lanes, tree.boxes, node, j)
        while counts and near:
            lane = lowest_bit(near)
            near &= near - 1
            ends[lane] += members_within(tree.points, tree.rows, leaf, lanes, lane, 255)
        while near:
            lane = lowest_bit(near)
            near &= near - 1
            able = times_within(tree.times, leaf, windows, lane) if timed else (1 << WIDTH) - 1
            end = _take_able(kind, collector, tree, leaf, lane, able)
            # There is memory for another leaf behind the pairs of each lane.
            ends[lane] = min(end, max_ends[lane] + 1) if fills else end
    return worst, 0


@by_type
def _take_able(kind, collector, tree, leaf, lane, able):  # type: ignore[no-untyped-def]
    """Take what of a leaf is in the bound of a lane; the lane's new end.

    A search on the sphere compiles no geodesic.
    """
    lanes, _, _, _, _, _, ends, _, fills, key, row = collector
    here = tree.points, tree.rows, leaf, lanes, lane, able
    if fills:
        return pack_members(*here, key, row, ends[lane])
    return ends[lane] + members_within(*here)


@_take_able.of(OnEllipsoid)
def _take_by_metres(kind, collector, tree, leaf, lane, able):  # type: ignore[no-untyped-def]
    lanes, _, eight, _, _, _, ends, _, fills, key, rows = collector
    end = ends[lane]
    near = able & members_matching(tree.points, tree.rows, leaf, lanes, lane, eight)
    while near:
        j = lowest_bit(near)
        near &= near - 1
        if fills or eight[j] > lanes[7, lane]:
            metres = geodesic_m(
                lanes[0, lane], lanes[1, lane], lanes[2, lane],
                tree.points[leaf, 0, j], tree.points[leaf, 1, j], tree.points[leaf, 2, j],
            )  # fmt: skip
            if not metres <= lanes[6, lane]:
                continue
            if fills:
                key[end], rows[end] = metres, tree.rows[leaf, j]
        end += 1
    return end


@njit(inline="always")
def load_window(windows, lane, time, before, after, skip):  # type: ignore[no-untyped-def]
    """Write the window of an observation; -1 in its third row makes its own time match, too."""
    windows[0, lane], windows[1, lane] = window_of(time, before, after)
    windows[2, lane] = 0 if skip else -1
    windows[3, lane] = time


@njit(cache=True, nogil=True, error_model="numpy")
def search_within(  # type: ignore[no-untyped-def]
    thread, threads, packets, brute, kind, vectors, first_of_all, bounds, exclude_self, once,
    first_row, counts, starts, reference, distance_m, totals,
):  # fmt: skip
    """Count what is within the distance of the observations of packets, or write their pairs.

    Pairs are counted unless there is memory for them. `counts` becomes the number of pairs of each
    observation. The pass that writes only changes `counts` where they are wrong, as threads would
    share cache lines, and sets `totals` to the number of pairs of each thread. `vectors` are given
    if all references are in one tree.
    """
    forest, points, order, firsts, stops, trees, times, before, after, skip = borrowed(packets)
    vectors, bounds, counts, starts = borrowed((vectors, bounds, counts, starts))
    reference, distance_m = borrowed((reference, distance_m))
    flat, fills = len(kind) > 0, starts.size > 0
    # Where it is counted, it is taken off below.
    takes_off = exclude_self and not once and not fills and vectors.shape[0] > 0
    leaves_out = exclude_self and not takes_off
    made = (
        aligned_rows(8, LANES), aligned_rows(2, WIDTH), aligned_rows(4, LANES).view(np.int64),
        np.empty(LANES, np.int64), np.empty((2, LANES), np.int64), np.empty(1, np.int64),
        np.empty(STACK, np.int64), np.empty(TREES_DEEP, np.int64), np.empty(RUN, np.int64),
    )  # fmt: skip
    memory = _memory(0), _memory(0)
    total = 0
    for packet in range(firsts.size):
        if packet // _TURN % threads != thread:
            continue
        # They go with the last use of their owner, which is here in each turn of the loop.
        lanes, boxes_of, windows, places, limits, bulk, stack, levels, ranks = borrowed(made)
        box, ends, max_ends = boxes_of[0], limits[0], limits[1]
        first, stop = firsts[packet], stops[packet]
        used = stop - first
        farthest, nearest = 0.0, np.inf
        end = 0
        for lane in range(LANES):
            # Lanes that are not used repeat the last observation, to which nothing is near.
            i = order[min(first + lane, stop - 1)] & ROW
            prefetch_for_write(points, order[min(stop + lane, order.size - 1)] & ROW, 0)
            places[lane] = i
            bound = bounds[first_of_all + i if bounds.size > 1 else 0]
            within = bound
            if flat:
                lanes[6, lane] = bound
                within, bound = innermost(bound), outermost(bound)
                lanes[7, lane] = within
            lanes[3, lane] = bound if lane < used else -1.0
            lanes[4, lane] = first_row + i if leaves_out else -1
            lanes[5, lane] = first_row + i + 1 if once else 0
            if times.size:
                load_window(windows, lane, times[i], before, after, skip)
            farthest = max(farthest, bound)
            nearest = min(nearest, within)
            ends[lane] = max_ends[lane] = end
            if fills and lane < used:
                max_ends[lane] += starts[i + 1] - starts[i]
                end = max_ends[lane] + WIDTH
        if fills and end == used * WIDTH:
            continue
        load_lanes(points, places, lanes, boxes_of, 0)
        if memory[0][0].size < end + RUN:
            memory = _memory(end + RUN), _memory(end + RUN)
        found, ordered = borrowed(memory)
        bulk[0] = 0
        tree = tree_of(forest, trees[packet], levels)
        # Of whole boxes it is not known which rows they hold.
        if fills or once or leaves_out or brute or times.size:
            nearest = -1.0
        if brute:
            box[:3], box[3:] = -2.0, 2.0
        near = Matching(
            lanes, windows, boxes_of[1], kind, nearest, bulk, ends, max_ends, fills, *found
        )
        walk(tree, near, box, farthest, 0, 0, NO_LIMIT, stack)
        if not fills:
            for lane in range(used):
                row = first_row + places[lane]
                counts[places[lane]] = ends[lane] + bulk[0]
                if takes_off and 0 <= row < vectors.shape[0]:
                    chord2 = squared_chord(
                        lanes[0, lane], lanes[1, lane], lanes[2, lane],
                        vectors[row, 0], vectors[row, 1], vectors[row, 2],
                    )  # fmt: skip
                    counts[places[lane]] -= chord2 <= lanes[3, lane]
            continue
        begin = 0
        stop = 0
        for lane in range(used):
            size = max_ends[lane] - begin
            if ends[lane] != max_ends[lane]:
                counts[places[lane]] = ends[lane] - begin
            put_in_order(found, begin, size, ordered, stop, ranks)
            begin += size + WIDTH
            stop += size
        if not flat:
            measure_part(ordered[0][:stop])
        stop = 0
        for lane in range(used):
            for place in range(starts[places[lane]], starts[places[lane] + 1]):
                distance_m[place] = ordered[0][stop]
                reference[place] = np.int64(ordered[1][stop])
                stop += 1
        total += stop
    totals[thread] = total


@njit(inline="always")
def _memory(n):  # type: ignore[no-untyped-def]
    """Memory of n pairs: squared chords, and rows as float64."""
    return np.empty(n), np.empty(n)


@njit(inline="always")
def put_in_order(found, begin, n, into, at, ranks):  # type: ignore[no-untyped-def]
    """Write n pairs of some memory into another, by squared chord and row; both are changed."""
    for first in range(0, n, RUN):
        size = min(RUN, n - first)
        for place in range(0, size, 32):
            rank_32(found[0], found[1], begin + first, size, place, ranks)
        for j in range(size):
            to = at + first + ranks[j]
            into[0][to], into[1][to] = found[0][begin + first + j], found[1][begin + first + j]
    chords, rows = into[0][at : at + n], into[1][at : at + n]
    to_chords, to_rows = found[0][begin : begin + n], found[1][begin : begin + n]
    width = RUN
    passes = 0
    while width < n:
        for first in range(0, n, 2 * width):
            left, middle, stop = first, min(first + width, n), min(first + 2 * width, n)
            right = middle
            for place in range(first, stop):
                from_right = right < stop and (
                    left == middle or closer(chords[right], rows[right], chords[left], rows[left])
                )
                to_chords[place] = chords[right] if from_right else chords[left]
                to_rows[place] = rows[right] if from_right else rows[left]
                right += from_right
                left += not from_right
        chords, rows, to_chords, to_rows = to_chords, to_rows, chords, rows
        width *= 2
        passes += 1
    if passes % 2:
        # One by one: to refuse arrays of other lengths is much to compile.
        for place in range(n):
            to_chords[place], to_rows[place] = chords[place], rows[place]


def count_then_fill(
    search: Callable[..., int],
) -> tuple[Callable[..., np.ndarray], Callable[..., Pairs]]:
    """Functions `count` and `pairs` by a search that only counts if there is no memory for pairs.

    A search that writes pairs corrects the counts, and returns the number of pairs.
    """

    def count(index: Any, observations: Degrees, *asked: Any) -> np.ndarray:
        counts = np.zeros(observations.lat_deg.size, np.int64)
        search(index, observations, *asked, counts, NO_PAIRS)
        return counts

    def pairs(index: Any, observations: Degrees, *asked: Any) -> Pairs:
        counts = count(index, observations, *asked)
        starts = np.append(0, counts.cumsum())
        found = Pairs(starts, np.empty(starts[-1], np.int64), np.empty(starts[-1]))
        written = counts.copy()
        total = search(index, observations, *asked, written, found)
        check_passes(counts, written)
        check_passes(starts[-1:], np.array([total]), "set of observations")
        return found

    return count, pairs


def search_part(
    part: slice, packets: Packets, asked: Within, brute: bool, kind: OnSphere | OnEllipsoid,
    vectors: np.ndarray, counts: np.ndarray, found: Pairs,
) -> int:  # fmt: skip
    """Search for a part of the observations, in threads; returns the number of pairs written."""
    here = asked._replace(first_row=asked.first_row + part.start)
    totals = np.zeros(threads_for(packets.order.size, _GRAIN), np.int64)
    in_threads(
        search_within, totals.size, packets, brute, kind, vectors, part.start, *here, counts[part],
        found.starts[part.start : part.stop + 1], *found[1:], totals,
    )  # fmt: skip
    return int(totals.sum())


def _search(
    index: ReferenceIndex,
    observations: Degrees,
    asked: Within,
    by: Search,
    counts: np.ndarray,
    found: Pairs,
) -> int:
    if not index.tree.rows.size:
        return 0
    forest, width = forest_of(index.tree), 1 if by == "singles" else LANES
    flat = index.earth == "wgs84"
    kind = OnEllipsoid(ONE, MORE) if flat else OnSphere()
    vectors = index.vectors[:0] if flat else index.vectors
    total = 0
    for part, points, order in in_windows(
        readable(observations), LANES, index.tree.rows.size, earth=index.earth
    ):
        firsts = np.arange(0, order.size, width)
        stops = np.minimum(firsts + width, order.size)
        packets = Packets(forest, points, order, firsts, stops, firsts * 0, NO_TIMES, 0, 0, False)
        total += search_part(part, packets, asked, by == "brute", kind, vectors, counts, found)
    return total


count, pairs = count_then_fill(_search)
