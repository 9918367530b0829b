"""All references within a distance of every observation on a CPU: how many, and which.

Observations walk the tree (`kernels.tree_cpu`, which says why nothing is left out) in packets of
neighbours, or each by itself, with a bound that does not change. One walk counts; for pairs the
counts say where each observation's begin, and a second walk writes them there.

Boxes whose points are all within the distance of a whole packet are counted without being opened
(`kernels.lanes_cpu.children_inside`). What an observation leaves out, its own row, is taken off
where it was counted.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import NO_LIMIT, STACK, WIDTH, held
from georesolve.kernels.coordinates_cpu import measure_part, readable, unit_vectors
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import (
    children_inside,
    count_members,
    lanes_within,
    load_lanes,
    lowest_bit,
    members_within,
    ones,
    pack_members,
    prefetch_for_write,
    rank_32,
)
from georesolve.kernels.order_cpu import MAX_ROWS, ROW, Scratch, scratch, sort
from georesolve.kernels.packets_cpu import LANES, aligned_rows
from georesolve.kernels.query import Degrees, Pairs, Within
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.walk_cpu import looks, takes, walk
from georesolve.kernels.ways import Search

_BRUTE_GRAIN = 1 << 16
"""Pairs that are worth a thread."""
_GRAIN = 256
"""Observations that are worth a thread."""
_TURN = 64
"""Packets that a thread takes in its turn: what has many pairs lies together in the order."""
_WINDOW = 1 << 20
"""Observations sorted at a time: their memory is used again for the next."""
_FEW = 6
"""Observations of a packet near a leaf up to which each is compared by itself."""
_RUN = 64
"""Pairs of which each is compared with all, which takes no branches; longer runs are merged."""


class Count(NamedTuple):
    """Counts what is within the bound of each lane, and apart from that whole boxes for all."""

    lanes: np.ndarray
    used: int
    inside: float
    n: int
    counts: np.ndarray
    whole: np.ndarray


@takes(Count)
def _count_whole(collector, tree, node, level, bits, box):  # type: ignore[no-untyped-def]
    inside = bits & children_inside(tree.boxes, node, box, collector.inside)
    bits &= ~inside
    size = WIDTH << 3 * level
    while inside:
        child = (node - tree.levels[level]) * WIDTH + lowest_bit(inside)
        inside &= inside - 1
        # All leaves are full but the last.
        collector.whole[0] += min(size, collector.n - child * size)
    return bits


@looks(Count)
def _count(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    lanes = collector.lanes
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        leaf = node * WIDTH + j
        near = lanes_within(lanes, tree.boxes, node, j) & collector.used
        if ones(near) > _FEW:
            count_members(tree.points, tree.rows, leaf, lanes, collector.counts)
            near = 0
        while near:
            lane = lowest_bit(near)
            near &= near - 1
            collector.counts[lane] += members_within(tree.points, tree.rows, leaf, lanes, lane)
    return worst, 0


class Fill(NamedTuple):
    """Writes what is within the bound of each lane to where its pairs end, which moves on."""

    lanes: np.ndarray
    used: int
    ends: np.ndarray
    chord2: np.ndarray
    row: np.ndarray


@looks(Fill)
def _fill(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    lanes, used, ends, chord2, row = collector
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        near = lanes_within(lanes, tree.boxes, node, j) & used
        while near:
            lane = lowest_bit(near)
            near &= near - 1
            ends[lane] = pack_members(
                tree.points, tree.rows, node * WIDTH + j, lanes, lane, chord2, row, ends[lane]
            )
    return worst, 0


@njit(cache=True, nogil=True, error_model="numpy")
def search_within(  # type: ignore[no-untyped-def]
    thread, threads, tree, n_held, vectors, points, order, width, first_of_all,
    chord2, exclude_self, once, first_row, counts, starts, reference, distance_m,
):  # fmt: skip
    """Count what is within the distance of the observations of an order, or write their pairs.

    They walk in packets of `width`. Without memory for pairs they are counted.
    """
    n = order.size
    n_packets = (n + width - 1) // width
    lanes = aligned_rows(6, LANES)
    boxes_of = aligned_rows(1, WIDTH)
    box = boxes_of[0]
    places = np.empty(LANES, np.int64)
    counted = np.empty(LANES, np.int64)
    whole = np.empty(1, np.int64)
    stack = np.empty(STACK, np.int64)
    found, sorted_pairs = _memory(0), _memory(0)
    ranks = np.empty(_RUN, np.int64)
    for packet in range(n_packets):
        if packet // _TURN % threads != thread:
            continue
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
            lanes[4, lane] = row if exclude_self and starts.size else -1
            lanes[5, lane] = row + 1 if once else 0
            farthest = max(farthest, bound)
            nearest = min(nearest, bound)
            counted[lane] = 0
            if starts.size and lane < used:
                counted[lane] = end
                end += starts[i + 1] - starts[i] + WIDTH
        load_lanes(points, places, lanes, boxes_of, 0)
        bits = (1 << used) - 1
        if starts.size:
            if found[0].size < end + _RUN:
                found, sorted_pairs = _memory(2 * end + _RUN), _memory(2 * end + _RUN)
            fill = Fill(lanes, bits, counted, found[0], found[1])
            walk(tree, fill, box, farthest, 0, 0, NO_LIMIT, stack)
            stop = 0
            begin = 0
            for lane in range(used):
                i = places[lane]
                size = starts[i + 1] - starts[i]
                _put_in_order(found, begin, size, sorted_pairs, stop, ranks)
                begin += size + WIDTH
                stop += size
            measure_part(sorted_pairs[0][:stop])
            stop = 0
            for lane in range(used):
                i = places[lane]
                for place in range(starts[i], starts[i + 1]):
                    distance_m[place] = sorted_pairs[0][stop]
                    reference[place] = np.int64(sorted_pairs[1][stop])
                    stop += 1
            continue
        whole[0] = 0
        # Of whole boxes it is not known which rows they hold.
        count = Count(lanes, bits, -1.0 if once else nearest, n_held, counted, whole)
        walk(tree, count, box, farthest, 0, 0, NO_LIMIT, stack)
        for lane in range(used):
            i = places[lane]
            counts[i] = counted[lane] + whole[0]
            row = first_row + i
            if exclude_self and not once and 0 <= row < vectors.shape[0]:
                c = squared_chord(
                    lanes[0, lane], lanes[1, lane], lanes[2, lane],
                    vectors[row, 0], vectors[row, 1], vectors[row, 2],
                )  # fmt: skip
                counts[i] -= c <= lanes[3, lane]


@njit(inline="always")
def _memory(n):  # type: ignore[no-untyped-def]
    """Memory of n pairs: squared chords, and rows as float64."""
    return np.empty(n), np.empty(n)


@njit(inline="always")
def _put_in_order(found, begin, n, into, at, ranks):  # type: ignore[no-untyped-def]
    """Write n pairs of some memory into another, by squared chord and row; both are changed."""
    for first in range(0, n, _RUN):
        size = min(_RUN, n - first)
        for tied in range(2):
            total = 0
            for place in range(0, size, 32):
                rank_32(found[0], found[1], begin + first, size, place, ranks, tied)
            for j in range(size):
                total += ranks[j]
            # Less than the sum of all ranks where squared chords are equal.
            if 2 * total == size * (size - 1):
                break
        for j in range(size):
            to = at + first + ranks[j]
            into[0][to], into[1][to] = found[0][begin + first + j], found[1][begin + first + j]
    chords, rows = into[0][at : at + n], into[1][at : at + n]
    to_chords, to_rows = found[0][begin : begin + n], found[1][begin : begin + n]
    width = _RUN
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


@njit(cache=True, nogil=True, error_model="numpy")
def _compare_all(  # type: ignore[no-untyped-def]
    thread, threads, vectors, points, chord2, exclude_self, once, first_row, counts, starts,
    reference, distance_m,
):  # fmt: skip
    """Count by brute force or, where there is memory for pairs, write them."""
    n = counts.size
    found, sorted_pairs = _memory(0), _memory(0)
    ranks = np.empty(_RUN, np.int64)
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        bound = chord2[i if chord2.size > 1 else 0]
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        own = first_row + i
        count = 0
        if starts.size and found[0].size < counts[i] + _RUN:
            found, sorted_pairs = _memory(2 * counts[i] + _RUN), _memory(2 * counts[i] + _RUN)
        for row in range(max(own + 1, 0) if once else 0, vectors.shape[0]):
            c = squared_chord(x, y, z, vectors[row, 0], vectors[row, 1], vectors[row, 2])
            if c <= bound and not (exclude_self and row == own):
                if starts.size:
                    found[0][count], found[1][count] = c, row
                count += 1
        counts[i] = count
        if starts.size:
            _put_in_order(found, 0, count, sorted_pairs, 0, ranks)
            measure_part(sorted_pairs[0][:count])
            distance_m[starts[i] : starts[i + 1]] = sorted_pairs[0][:count]
            for j in range(count):
                reference[starts[i] + j] = np.int64(sorted_pairs[1][j])


def _search(
    index: ReferenceIndex,
    observations: Degrees,
    asked: Within,
    by: Search,
    counts: np.ndarray,
    found: Pairs,
) -> None:
    if by == "brute":
        points = unit_vectors(*observations)
        threads = threads_for(counts.size * len(index.vectors), _BRUTE_GRAIN)
        in_threads(_compare_all, threads, index.vectors, points, *asked, counts, *found)
        return
    n_held = held(index.tree)
    if not n_held:
        counts.fill(0)
        return
    width = LANES if by == "packets" else 1
    for part, points, order in _windows(observations, index.tree.rows.size):
        if order.size < len(points):
            counts[part] = 0
        here = asked._replace(first_row=asked.first_row + part.start)
        starts = found.starts[part.start : part.stop + 1]
        in_threads(
            search_within, threads_for(order.size, _GRAIN), index.tree, n_held, index.vectors,
            points, order, width, part.start, *here, counts[part], starts, *found[1:],
        )  # fmt: skip


def _windows(
    observations: Degrees, n_references: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Parts of the observations, their unit vectors, and neighbours put next to each other."""
    lat_deg, lon_deg = readable(observations)
    n = lat_deg.size
    window = min(n, max(_WINDOW, 2 * n_references), MAX_ROWS)
    with scratch(window) as memory:
        for start in range(0, n, max(window, 1)):
            part = slice(start, min(start + window, n))
            here = Scratch(*(array[: part.stop - start] for array in memory))
            unit_vectors(lat_deg[part], lon_deg[part], here.points)
            yield part, here.points, here.order[: sort(here, LANES)]


def count(index: ReferenceIndex, observations: Degrees, asked: Within, by: Search) -> np.ndarray:
    """How many references lie within the distance of every observation."""
    counts = np.empty(observations.lat_deg.size, np.int64)
    none = np.empty(0, np.int64)
    _search(index, observations, asked, by, counts, Pairs(none, none, np.empty(0)))
    return counts


def pairs(index: ReferenceIndex, observations: Degrees, asked: Within, by: Search) -> Pairs:
    """All references within the distance of every observation, nearest first, equals by row."""
    counts = count(index, observations, asked, by)
    starts = np.append(0, counts.cumsum())
    found = Pairs(starts, np.empty(starts[-1], np.int64), np.empty(starts[-1]))
    _search(index, observations, asked, by, counts, found)
    return found
