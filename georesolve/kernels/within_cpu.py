"""All references within a distance of every observation on a CPU: how many, and which.

Observations walk the tree (`kernels.tree_cpu`, which says why nothing is left out) in packets of
neighbours, or each by itself, with a bound that does not change. One walk counts; for pairs the
counts say where each observation's begin, and a second walk writes them there.

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
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import (
    borrowed,
    children_inside,
    lanes_within,
    load_lanes,
    lowest_bit,
    members_within,
    pack_members,
    prefetch_for_write,
    rank_32,
)
from georesolve.kernels.order_cpu import ROW, in_windows
from georesolve.kernels.packets_cpu import LANES, aligned_rows
from georesolve.kernels.query import Degrees, Pairs, Within
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.walk_cpu import looks, walk
from georesolve.kernels.ways import Search

_GRAIN = 256
"""Observations that are worth a thread."""
_TURN = 64
"""Packets that a thread takes in its turn: what has many pairs lies together in the order."""
RUN = 64
"""Pairs of which each is compared with all, which takes no branches; longer runs are merged."""
NO_PAIRS = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


class Neighbours(NamedTuple):
    """Counts what is within the bound of each lane, or writes it to where its pairs end.

    Boxes of which all is within the bound `inside` of the packet are counted once for all lanes,
    in `whole`. The tree holds `n` references.
    """

    lanes: np.ndarray
    used: int
    inside: float
    n: int
    whole: np.ndarray
    ends: np.ndarray
    fills: bool
    chord2: np.ndarray
    row: np.ndarray


def count_whole(collector, tree, node, level, bits, box):  # type: ignore[no-untyped-def]
    """Count boxes that are wholly within a distance, and open the others."""
    inside = bits & children_inside(tree.boxes, node, box, collector.inside)
    bits &= ~inside
    size = WIDTH << 3 * level
    while inside:
        child = (node - tree.levels[level]) * WIDTH + lowest_bit(inside)
        inside &= inside - 1
        # All leaves are full but the last.
        collector.whole[0] += min(size, collector.n - child * size)
    return bits


@looks(Neighbours, count_whole)
def _take(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    lanes, used, _, _, _, ends, fills, chord2, row = collector
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        leaf = node * WIDTH + j
        near = lanes_within(lanes, tree.boxes, node, j) & used
        while near:
            lane = lowest_bit(near)
            near &= near - 1
            if fills:
                end = pack_members(
                    tree.points, tree.rows, leaf, lanes, lane, chord2, row, ends[lane]
                )
            else:
                end = ends[lane] + members_within(tree.points, tree.rows, leaf, lanes, lane)
            ends[lane] = end
    return worst, 0


@njit(cache=True, nogil=True, error_model="numpy")
def search_within(  # type: ignore[no-untyped-def]
    thread, threads, tree, n_held, vectors, points, order, brute, width, first_of_all,
    chord2, exclude_self, once, first_row, counts, starts, reference, distance_m,
):  # fmt: skip
    """Count what is within the distance of the observations of an order, or write their pairs.

    They walk in packets of `width`, or are compared with all references by brute force. Without
    memory for pairs they are counted.
    """
    tree, vectors, points, order = borrowed((tree, vectors, points, order))
    chord2, counts, starts = borrowed((chord2, counts, starts))
    reference, distance_m = borrowed((reference, distance_m))
    fills = starts.size > 0
    n = order.size
    n_packets = (n + width - 1) // width
    made = (
        aligned_rows(6, LANES), aligned_rows(1, WIDTH), np.empty(LANES, np.int64),
        np.empty(LANES, np.int64), np.empty(1, np.int64), np.empty(STACK, np.int64),
        np.empty(RUN, np.int64),
    )  # fmt: skip
    memory = _memory(0), _memory(0)
    for packet in range(n_packets):
        if packet // _TURN % threads != thread:
            continue
        # They go with the last use of their owner, which is here in each turn of the loop.
        lanes, boxes_of, places, ends, whole, stack, ranks = borrowed(made)
        box = boxes_of[0]
        first = packet * width
        used = min(width, n - first)
        farthest = 0.0
        nearest = np.inf
        end = 0
        for lane in range(LANES):
            # Lanes that are not used repeat the last observation.
            i = order[first + min(lane, used - 1)] & ROW
            prefetch_for_write(points, order[min(first + width + lane, n - 1)] & ROW, 0)
            places[lane] = i
            row = first_row + i
            bound = chord2[first_of_all + i if chord2.size > 1 else 0]
            lanes[3, lane] = bound
            # Where it is counted, it is taken off below.
            lanes[4, lane] = row if exclude_self and fills else -1
            lanes[5, lane] = row + 1 if once else 0
            farthest = max(farthest, bound)
            nearest = min(nearest, bound)
            ends[lane] = end
            if fills and lane < used:
                end += starts[i + 1] - starts[i] + WIDTH
        load_lanes(points, places, lanes, boxes_of, 0)
        if memory[0][0].size < end + RUN:
            memory = _memory(end + RUN), _memory(end + RUN)
        found, ordered = borrowed(memory)
        whole[0] = 0
        if brute:
            _compare_all(vectors, lanes, used, ends, found, fills)
        else:
            # Of whole boxes it is not known which rows they hold.
            inside = -1.0 if once or fills else nearest
            near = Neighbours(
                lanes, (1 << used) - 1, inside, n_held, whole, ends, fills, found[0], found[1]
            )
            walk(tree, near, box, farthest, 0, 0, NO_LIMIT, stack)
        if not fills:
            for lane in range(used):
                row = first_row + places[lane]
                counts[places[lane]] = ends[lane] + whole[0]
                if exclude_self and not once and 0 <= row < vectors.shape[0]:
                    counts[places[lane]] -= _chord2(vectors, row, lanes, lane) <= lanes[3, lane]
            continue
        begin = 0
        stop = 0
        for lane in range(used):
            size = starts[places[lane] + 1] - starts[places[lane]]
            put_in_order(found, begin, size, ordered, stop, ranks)
            begin += size + WIDTH
            stop += size
        measure_part(ordered[0][:stop])
        stop = 0
        for lane in range(used):
            for place in range(starts[places[lane]], starts[places[lane] + 1]):
                distance_m[place] = ordered[0][stop]
                reference[place] = np.int64(ordered[1][stop])
                stop += 1


@njit(inline="always")
def _chord2(vectors, row, lanes, lane):  # type: ignore[no-untyped-def]
    return squared_chord(
        lanes[0, lane], lanes[1, lane], lanes[2, lane],
        vectors[row, 0], vectors[row, 1], vectors[row, 2],
    )  # fmt: skip


@njit(inline="always")
def _compare_all(vectors, lanes, used, ends, found, fills):  # type: ignore[no-untyped-def]
    """Count, or write as `_take` does, what of all references is within the bound of each lane."""
    for row in range(vectors.shape[0]):
        for lane in range(used):
            c = _chord2(vectors, row, lanes, lane)
            if c <= lanes[3, lane] and row != lanes[4, lane] and row >= lanes[5, lane]:
                if fills:
                    found[0][ends[lane]], found[1][ends[lane]] = c, row
                ends[lane] += 1


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
        to_chords[:] = chords
        to_rows[:] = rows


def asked_twice(
    search: Callable[..., None],
) -> tuple[Callable[..., np.ndarray], Callable[..., Pairs]]:
    """`count` and `pairs` by a search that only counts where it gets no memory for pairs."""

    def count(index: Any, observations: Degrees, *asked: Any) -> np.ndarray:
        counts = np.zeros(observations.lat_deg.size, np.int64)
        search(index, observations, *asked, counts, NO_PAIRS)
        return counts

    def pairs(index: Any, observations: Degrees, *asked: Any) -> Pairs:
        counts = count(index, observations, *asked)
        starts = np.append(0, counts.cumsum())
        found = Pairs(starts, np.empty(starts[-1], np.int64), np.empty(starts[-1]))
        search(index, observations, *asked, counts, found)
        return found

    return count, pairs


def _search(
    index: ReferenceIndex,
    observations: Degrees,
    asked: Within,
    by: Search,
    counts: np.ndarray,
    found: Pairs,
) -> None:
    n_held = held(index.tree)
    if not n_held:
        return
    for part, points, order in in_windows(readable(observations), LANES, index.tree.rows.size):
        here = asked._replace(first_row=asked.first_row + part.start)
        starts = found.starts[part.start : part.stop + 1]
        in_threads(
            search_within, threads_for(order.size, _GRAIN), index.tree, n_held,
            index.vectors, points, order, by == "brute", 1 if by == "singles" else LANES,
            part.start, *here, counts[part], starts, *found[1:],
        )  # fmt: skip


count, pairs = asked_twice(_search)
