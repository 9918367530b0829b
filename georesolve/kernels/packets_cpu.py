"""Packets of sixteen neighbouring observations that walk a tree of boxes together: k = 1.

A packet first looks into the leaf at its own key, which gives a good bound, and where that is far,
into the leaf that was best for its neighbours. Eight packets then walk the tree from the root for
one list of leaves, leaving out every box that is farther from the group's box than the worst best
of all; each packet goes through that list with its own box.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, FAR, NODE_STEPS, STACK, WIDTH
from georesolve.kernels.lanes_cpu import (
    children_within,
    compare_in_time,
    compare_leaf,
    compare_two,
    lanes_within,
    load_lanes,
    lowest_bit,
    prefetch_for_write,
    prefetch_leaf,
    prefetch_node,
    prefetch_one,
)
from georesolve.kernels.order_cpu import ROW, keys_of
from georesolve.kernels.times import window_of
from georesolve.kernels.walk_cpu import by_type, leaf_of, look, mark, walk

LANES = 16
"""Observations of a packet."""
_PACKETS = 8
"""Packets of a group, which walks the tree once and leaves a list of leaves to each."""
LEAF_STEPS = LANES * WIDTH
_CANDIDATES = 256
"""Leaves that a group may find; more mean that its packets lie far apart."""


@njit(inline="always")
def aligned_rows(n, m):  # type: ignore[no-untyped-def]
    """Memory whose rows of a multiple of eight numbers each begin with a cache line."""
    memory = np.empty(n * m + WIDTH)
    first = (-memory.ctypes.data % 64) // 8
    return memory[first : first + n * m].reshape(n, m)


class Leaves(NamedTuple):
    """Collects the leaves of a group, and their boxes eight at a time; -1 of them are too many."""

    leaves: np.ndarray
    boxes: np.ndarray
    found: np.ndarray


@look.of(Leaves)
def _list(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    found = collector.found[0]
    if found + 2 * WIDTH > collector.leaves.size:
        collector.found[0] = -1
        return -1.0, 0
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        collector.leaves[found] = node * WIDTH + j
        prefetch_leaf(tree.points, tree.rows, node * WIDTH + j)
        for side in range(6):
            collector.boxes[found // WIDTH, side, found % WIDTH] = tree.boxes[node, side, j]
        found += 1
    collector.found[0] = found
    return worst, 0


class OnSphere(NamedTuple):
    """The nearest is that of the least squared chord."""


class OnEllipsoid(NamedTuple):
    """It is one of those whose squared chord c is at most b (one + more b), b the least."""

    one: float
    more: float


class InTime(NamedTuple):
    """As on the sphere, of what is at most so far and lies in the window of each observation."""

    farthest: float
    times: np.ndarray
    before: int
    after: int


@by_type
def compare(kind, tree, leaf, lanes):  # type: ignore[no-untyped-def]
    """Compare a leaf with a packet; returns the greatest bound of its lanes."""
    return compare_leaf(tree.points, tree.rows, leaf, lanes)


@compare.of(OnEllipsoid)
def _compare_two(kind, tree, leaf, lanes):  # type: ignore[no-untyped-def]
    return compare_two(tree.points, tree.rows, leaf, lanes, kind.one, kind.more)


@compare.of(InTime)
def _compare_in_time(kind, tree, leaf, lanes):  # type: ignore[no-untyped-def]
    return compare_in_time(tree.points, tree.rows, tree.times, leaf, lanes)


@by_type
def prefetch_bound(kind, i):  # type: ignore[no-untyped-def]
    """Ask for what `bound` is soon to read of an observation."""


@prefetch_bound.of(InTime)
def _prefetch_window(kind, i):  # type: ignore[no-untyped-def]
    prefetch_one(kind.times, i)


@by_type
def bound(kind, places, lanes):  # type: ignore[no-untyped-def]
    """Write what bounds the search of a packet's observations, if it is not where they are."""


@bound.of(InTime)
def _bound_in_time(kind, places, lanes):  # type: ignore[no-untyped-def]
    windows = lanes.view(np.int64)
    for lane in range(LANES):
        lanes[3, lane] = kind.farthest
        least, greatest = window_of(kind.times[places[lane]], kind.before, kind.after)
        windows[5, lane] = least
        windows[6, lane] = greatest - least


class Nearest(NamedTuple):
    """Collects the nearest one of each lane: x, y, z, bound, its row; see `compare_two`."""

    kind: Any
    lanes: np.ndarray


@look.of(Nearest)
def _compare(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    steps = 0
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        # The packet's box has come near enough; mostly none of its points has.
        steps += NODE_STEPS
        if lanes_within(collector.lanes, tree.boxes, node, j):
            steps += LEAF_STEPS
            leaf = node * WIDTH + j
            worst = min(compare(collector.kind, tree, leaf, collector.lanes), ALL)
            bits &= children_within(tree.boxes, node, box, worst)
    return worst, steps


@njit(cache=True, nogil=True, error_model="numpy")
def search_packets(thread, threads, tree, points, order, n, most, tally, kind):  # type: ignore[no-untyped-def]
    """Write the row of the nearest reference and its squared chord over the x and y of points.

    On the ellipsoid the bound of it and the second squared chord over the y and z.

    What takes too many steps is left out and marked.
    """
    leaf_points, rows, leaf_keys, boxes = tree.points, tree.rows, tree.keys, tree.boxes
    n_packets = (n + LANES - 1) // LANES
    # Of each packet, in rows: x, y, z, best squared chord, its row, and what `compare_two` has.
    lanes = aligned_rows(_PACKETS * 7, LANES).reshape(_PACKETS, 7, LANES)
    worsts = np.empty(_PACKETS)
    own = np.empty(_PACKETS, np.int64)
    keys = np.empty(_PACKETS, np.int64)
    middles = np.empty((3, _PACKETS))
    packet_boxes = aligned_rows(_PACKETS, WIDTH)
    places = np.empty(LANES, np.int64)
    box = np.empty(6)
    stack = np.empty(STACK, np.int64)
    leaves = np.empty(_CANDIDATES, np.int64)
    leaf_boxes = aligned_rows(_CANDIDATES // WIDTH * 6, WIDTH).reshape(-1, 6, WIDTH)
    listed = Leaves(leaves, leaf_boxes, np.empty(1, np.int64))
    leaf = 0
    last = np.int64(0)
    seen = np.empty(_PACKETS, np.int64)
    steps = 0
    hard = 0
    for group in range(
        n_packets * thread // threads, n_packets * (thread + 1) // threads, _PACKETS
    ):
        used = min(_PACKETS, n_packets * (thread + 1) // threads - group)
        if steps > most[1]:
            break
        worst = 0.0
        for axis in range(3):
            box[axis] = FAR
            box[3 + axis] = -FAR
        for packet in range(used):
            first = (group + packet) * LANES
            for lane in range(LANES):
                # The last packet repeats its last observation.
                places[lane] = order[min(first + lane, n - 1)] & ROW
                lanes[packet, 3, lane] = np.inf
                lanes[packet, 4, lane] = np.inf
                lanes[packet, 5, lane] = np.inf
                lanes[packet, 6, lane] = np.inf
            load_lanes(points, places, lanes[packet], packet_boxes, packet)
            bound(kind, places, lanes[packet])
            for axis in range(3):
                middles[axis, packet] = lanes[packet, axis, LANES // 2]
                box[axis] = min(box[axis], packet_boxes[packet, axis])
                box[3 + axis] = max(box[3 + axis], packet_boxes[packet, 3 + axis])
        keys_of(middles[0], middles[1], middles[2], keys[:used])
        for packet in range(used):
            key = keys[packet]
            leaf = leaf_of(leaf_keys, key, leaf if leaf_keys[leaf] <= key else 0)
            own[packet] = leaf
            prefetch_leaf(leaf_points, rows, leaf)
            prefetch_node(boxes, leaf // WIDTH)
        for packet in range(used):
            # Of the next group's observations, which lie anywhere, as many as are searched here.
            ahead = (group + _PACKETS + packet) * LANES
            if ahead + LANES <= n:
                for place in range(LANES):
                    prefetch_for_write(points, order[ahead + place] & ROW, 0)
                    prefetch_bound(kind, order[ahead + place] & ROW)
            leaf = own[packet]
            node = leaf // WIDTH
            own[packet] = node
            worst_own = min(compare(kind, tree, leaf, lanes[packet]), ALL)
            width = packet_boxes[packet, 3] - packet_boxes[packet, 0]
            depth = packet_boxes[packet, 4] - packet_boxes[packet, 1]
            height = packet_boxes[packet, 5] - packet_boxes[packet, 2]
            seen[packet] = -1
            # Farther from what its key names than the packet is wide: then the leaf that bettered
            # the packets before it is a good one here, too.
            if (
                worst_own > width * width + depth * depth + height * height
                and last // WIDTH != node
                and lanes_within(lanes[packet], boxes, last // WIDTH, last % WIDTH)
            ):
                worst_own = min(compare(kind, tree, last, lanes[packet]), ALL)
                seen[packet] = last
            bits = children_within(boxes, node, packet_boxes[packet], worst_own)
            bits &= ~(1 << leaf % WIDTH)
            worsts[packet], more = look(
                Nearest(kind, lanes[packet]), tree, node, bits, packet_boxes[packet], worst_own
            )
            worst = max(worst, worsts[packet])
            steps += 2 * LEAF_STEPS + more
        listed.found[0] = 0
        most_here = min(most[0], most[1] - steps)
        more = walk(tree, listed, box, worst, 0, 0, most_here, stack)
        steps += more
        found = listed.found[0] if more <= most_here else -1
        for place in range(max(found, 0), (found + WIDTH - 1) // WIDTH * WIDTH):
            for axis in range(3):
                leaf_boxes[place // WIDTH, axis, place % WIDTH] = FAR
                leaf_boxes[place // WIDTH, 3 + axis, place % WIDTH] = -FAR
        for packet in range(used):
            lane = lanes[packet]
            packet_box = packet_boxes[packet]
            worst = worsts[packet]
            first = (group + packet) * LANES
            if found < 0:
                # A group whose packets lie far apart: each walks alone.
                most_here = min(most[0], most[1] - steps)
                alone = Nearest(kind, lane)
                more = walk(tree, alone, packet_box, worst, 0, 0, most_here, stack)
                steps += more
                if more > most_here:
                    hard += mark(order, first, min(first + LANES, n))
                    continue
            for eight in range((found + WIDTH - 1) // WIDTH):
                bits = children_within(leaf_boxes, eight, packet_box, worst)
                while bits:
                    j = lowest_bit(bits)
                    bits &= bits - 1
                    leaf = leaves[eight * WIDTH + j]
                    if leaf // WIDTH == own[packet] or leaf == seen[packet]:
                        continue
                    if lanes_within(lane, leaf_boxes, eight, j):
                        steps += LEAF_STEPS
                        before = worst
                        worst = min(compare(kind, tree, leaf, lane), ALL)
                        if worst < before:
                            last = leaf
                        bits &= children_within(leaf_boxes, eight, packet_box, worst)
            for place in range(min(LANES, n - first)):
                i = order[first + place] & ROW
                points[i, 0] = lane[4, place]
                points[i, 1] = lane[3, place]
                points[i, 2] = lane[5, place]
    tally[thread, 0] = steps
    tally[thread, 1] = hard


@njit(cache=True, nogil=True, error_model="numpy")
def take(thread, threads, points, column, reference, chord2):  # type: ignore[no-untyped-def]
    """Fetch the rows that `search_packets` has written, and squared chords; none of a NaN."""
    start = chord2.size * thread // threads
    stop = chord2.size * (thread + 1) // threads
    points, reference, chord2 = points[start:stop], reference[start:stop], chord2[start:stop]
    for i in range(chord2.size):
        row = points[i, 0]
        found = row < np.inf
        reference[i] = np.int64(row) if found else -1
        chord2[i] = points[i, column] if found else np.inf
