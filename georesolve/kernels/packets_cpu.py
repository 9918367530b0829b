"""Packets of sixteen neighbouring observations that walk a tree of boxes together: k = 1.

A packet first looks into the leaf at its own key, which gives a good bound, and where that is far,
into the leaf that was best for its neighbours. Eight packets then walk the tree from the root for
one list of leaves, leaving out every box that is farther from the group's box than the worst best
of all; each packet goes through that list with its own box.
"""

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import (
    ALL,
    FAR,
    NODE_STEPS,
    STACK,
    WIDTH,
    leaf_of,
    level_of,
    mark,
    push_children,
)
from georesolve.kernels.lanes_cpu import (
    children_within,
    compare_leaf,
    lanes_within,
    load_lanes,
    lowest_bit,
    prefetch_for_write,
    prefetch_leaf,
    prefetch_node,
)
from georesolve.kernels.order_cpu import ROW, keys_of

LANES = 16
"""Observations of a packet."""
_PACKETS = 8
"""Packets of a group, which walks the tree once and leaves a list of leaves to each."""
_LEAF_STEPS = LANES * WIDTH
_CANDIDATES = 256
"""Leaves that a group may find; more mean that its packets lie far apart."""


@njit(inline="always")
def aligned_rows(n, m):  # type: ignore[no-untyped-def]
    """Memory whose rows of a multiple of eight numbers each begin with a cache line."""
    memory = np.empty(n * m + WIDTH)
    first = (-memory.ctypes.data % 64) // 8
    return memory[first : first + n * m].reshape(n, m)


@njit
def _walk(tree, box, worst, most_steps, stack, leaves, leaf_boxes):  # type: ignore[no-untyped-def]
    """Collect the leaves that may hold something at most `worst` from a box.

    Writes the leaves and, padded to a multiple of eight, their boxes; returns how many there are,
    or -1 when there is no room for more, and the steps that were taken, about `most_steps` at most.
    """
    points, rows, _, boxes, levels = tree
    stack[0] = boxes.shape[0] - 1
    top = 1
    level = levels.size - 2
    found = 0
    steps = 0
    while top:
        top -= 1
        node = stack[top]
        steps += NODE_STEPS
        bits = children_within(boxes, node, box, worst)
        level = level_of(levels, node, level)
        if level:
            top = push_children(boxes, levels, level, node, bits, stack, top)
            continue
        if found + 2 * WIDTH > leaves.size or steps > most_steps:
            return -1, steps
        while bits:
            j = lowest_bit(bits)
            bits &= bits - 1
            leaves[found] = node * WIDTH + j
            prefetch_leaf(points, rows, node * WIDTH + j)
            for side in range(6):
                leaf_boxes[found // WIDTH, side, found % WIDTH] = boxes[node, side, j]
            found += 1
    for place in range(found, (found + WIDTH - 1) // WIDTH * WIDTH):
        for axis in range(3):
            leaf_boxes[place // WIDTH, axis, place % WIDTH] = FAR
            leaf_boxes[place // WIDTH, 3 + axis, place % WIDTH] = -FAR
    return found, steps


@njit
def _scan_leaves(points, rows, boxes, node, bits, box, worst, lanes):  # type: ignore[no-untyped-def]
    """Compare a packet with the leaves of a node that bits name; its worst best, and steps."""
    steps = 0
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        # The packet's box has come near enough; mostly none of its points has.
        steps += NODE_STEPS
        if lanes_within(lanes, boxes, node, j):
            steps += _LEAF_STEPS
            worst = min(compare_leaf(points, rows, node * WIDTH + j, lanes), ALL)
            bits &= children_within(boxes, node, box, worst)
    return worst, steps


@njit
def _walk_packet(tree, box, worst, own, most_steps, stack, lanes):  # type: ignore[no-untyped-def]
    """Search the tree for one packet, which has already seen the leaves of the node `own`.

    Returns the steps that were taken; if more than `most_steps`, it is not searched to the end.
    """
    points, rows, _, boxes, levels = tree
    stack[0] = boxes.shape[0] - 1
    top = 1
    level = levels.size - 2
    steps = 0
    while top and steps <= most_steps:
        top -= 1
        node = stack[top]
        if node == own:
            continue
        steps += NODE_STEPS
        bits = children_within(boxes, node, box, worst)
        level = level_of(levels, node, level)
        if level:
            top = push_children(boxes, levels, level, node, bits, stack, top)
        else:
            worst, more = _scan_leaves(points, rows, boxes, node, bits, box, worst, lanes)
            steps += more
    return steps


@njit(cache=True, nogil=True, error_model="numpy")
def search_packets(thread, threads, tree, points, order, n, most, tally):  # type: ignore[no-untyped-def]
    """Write the row of the nearest reference and its squared chord over the x and y of points.

    What takes too many steps is left out and marked.
    """
    leaf_points, rows, leaf_keys, boxes, _ = tree
    n_packets = (n + LANES - 1) // LANES
    # Of each packet, in rows: x, y, z, best squared chord, its row.
    lanes = aligned_rows(_PACKETS * 5, LANES).reshape(_PACKETS, 5, LANES)
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
            load_lanes(points, places, lanes[packet], packet_boxes, packet)
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
            leaf = own[packet]
            node = leaf // WIDTH
            own[packet] = node
            worst_own = min(compare_leaf(leaf_points, rows, leaf, lanes[packet]), ALL)
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
                worst_own = min(compare_leaf(leaf_points, rows, last, lanes[packet]), ALL)
                seen[packet] = last
            bits = children_within(boxes, node, packet_boxes[packet], worst_own)
            worsts[packet], more = _scan_leaves(
                leaf_points, rows, boxes, node,
                bits & ~(1 << leaf % WIDTH), packet_boxes[packet], worst_own, lanes[packet],
            )  # fmt: skip
            worst = max(worst, worsts[packet])
            steps += 2 * _LEAF_STEPS + more
        found, more = _walk(
            tree, box, worst, min(most[0], most[1] - steps), stack, leaves, leaf_boxes
        )
        steps += more
        for packet in range(used):
            lane = lanes[packet]
            packet_box = packet_boxes[packet]
            worst = worsts[packet]
            first = (group + packet) * LANES
            if found < 0:
                # A group whose packets lie far apart: each walks alone.
                most_here = min(most[0], most[1] - steps)
                more = _walk_packet(tree, packet_box, worst, own[packet], most_here, stack, lane)
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
                        steps += _LEAF_STEPS
                        before = worst
                        worst = min(compare_leaf(leaf_points, rows, leaf, lane), ALL)
                        if worst < before:
                            last = leaf
                        bits &= children_within(leaf_boxes, eight, packet_box, worst)
            for place in range(min(LANES, n - first)):
                i = order[first + place] & ROW
                points[i, 0] = lane[4, place]
                points[i, 1] = lane[3, place]
    tally[thread, 0] = steps
    tally[thread, 1] = hard


@njit(cache=True, nogil=True, error_model="numpy")
def take(thread, threads, points, reference, chord2):  # type: ignore[no-untyped-def]
    """Fetch what `search_packets` has written; nothing is found for points that are NaN."""
    start = chord2.size * thread // threads
    stop = chord2.size * (thread + 1) // threads
    points, reference, chord2 = points[start:stop], reference[start:stop], chord2[start:stop]
    for i in range(chord2.size):
        row = points[i, 0]
        reference[i] = np.int64(row) if row >= 0.0 else -1
        chord2[i] = points[i, 1] if row >= 0.0 else np.inf
