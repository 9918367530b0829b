"""Packets of sixteen neighbouring observations that each keep a list of their nearest: any k.

A packet first looks into the leaves around its own key, enough of them to fill the lists, which
gives a bound, then into the other leaves of the same node, and then walks the tree from the root,
leaving out every box that is farther from its own box than the worst entry of all its lists.

A leaf's references are sorted for eight observations at a time and merged into their lists, both by
networks of comparisons that are the same for all: no branch depends on what is found.

Why a list of keys is enough
----------------------------
An entry of a list is one integer: a squared chord whose last bits are cut off, and in their place
the number of the reference among all that the eight observations have seen, whose squared chords
and rows are kept. Squared chords that differ above those bits are ordered by their keys. Entries
that do not are put in order by `kernels.distance.closer`; where the last one is such a one beside
what fell out of the list, the list is made anew from all that was seen and is at most as far as its
key can be. What was never seen, or seen and not kept, is strictly farther: a bound is a key whose
cut bits are set, and it only becomes less. When numbers run out the lists are made, what they hold
gets the first numbers, and they are made from all that was seen when the walk is over.
"""

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, NODE_STEPS, STACK, WIDTH
from georesolve.kernels.coordinates_cpu import measure_part
from georesolve.kernels.distance import closer
from georesolve.kernels.lanes_cpu import (
    NOTHING,
    NUMBER,
    bound_by_keys,
    children_within,
    keys_tied,
    lanes_within,
    load_lanes,
    lowest_bit,
    merge_eight,
    prefetch_for_write,
    sort_leaf,
)
from georesolve.kernels.order_cpu import ROW, keys_of
from georesolve.kernels.packets_cpu import LANES, aligned_rows
from georesolve.kernels.query import MAX_K
from georesolve.kernels.walk_cpu import (
    leaf_of,
    leaves_near,
    leaves_to_fill,
    level_of,
    mark,
    push_children,
    put,
)

_BLOCK = 64
"""Packets whose keys are found together."""
_CARRIED = WIDTH
"""Number of the first entry of a list that was made before numbers began anew."""
_FIRST = _CARRIED + MAX_K
"""Number of the first reference that is seen."""


@njit(cache=True, nogil=True, error_model="numpy")
def search_lists(  # type: ignore[no-untyped-def]
    thread, threads, tree, points, order, n, most, tally,
    reference, chord2, exclude_self, first_row, measure,
):  # fmt: skip
    """Write the k nearest references of the observations of an order; with `measure`, metres.

    What takes too many steps is left out and marked.
    """
    leaf_points, tree_rows, leaf_keys, boxes, levels, _ = tree
    k = reference.shape[1]
    n_near = leaves_to_fill(k, exclude_self)
    n_packets = (n + LANES - 1) // LANES
    start = n_packets * thread // threads
    stop = n_packets * (thread + 1) // threads
    entries = (k + WIDTH - 1) // WIDTH * WIDTH
    keys = aligned_rows(entries + 1, LANES).view(np.int64)
    new = aligned_rows(WIDTH, WIDTH).view(np.int64)
    seen = aligned_rows(2 * (NUMBER + 1), WIDTH).reshape(2, NUMBER + 1, WIDTH)
    numbers = aligned_rows(2, NUMBER + 1)
    counts = np.empty(2, np.int64)
    # Of what has no number of its own: nothing, and entries of before numbers began anew.
    for half in range(2):
        for at in range(WIDTH):
            seen[half, 0, at] = np.inf
        numbers[half, 0] = -1.0
    carried = np.empty((LANES, MAX_K))
    # What is answered, a list in each row.
    chords = np.empty((LANES, k))
    bits_of = chords.view(np.int64)
    rows = np.empty((LANES, k))
    # Of the packet, in rows: x, y, z, worst squared chord of the list.
    lanes = aligned_rows(4, LANES)
    own = np.empty(LANES)
    boxes_of = aligned_rows(1, WIDTH)
    box = boxes_of[0]
    places = np.empty(LANES, np.int64)
    stack = np.empty(STACK, np.int64)
    x_of, y_of, z_of = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    curve_keys = np.empty(_BLOCK, np.int64)
    steps = 0
    hard = 0
    for packet in range(start, stop):
        if steps > most[1]:
            break
        in_block = (packet - start) % _BLOCK
        if in_block == 0:
            block = min(_BLOCK, stop - packet)
            for j in range(block):
                i = order[min((packet + j) * LANES + LANES // 2, n - 1)] & ROW
                x_of[j], y_of[j], z_of[j] = points[i, 0], points[i, 1], points[i, 2]
            keys_of(x_of, y_of, z_of, curve_keys[:block])
        first = packet * LANES
        used = min(LANES, n - first)
        for lane in range(LANES):
            # Lanes that are not used repeat the last observation.
            i = order[first + min(lane, used - 1)] & ROW
            places[lane] = i
            prefetch_for_write(points, order[min(first + LANES + lane, n - 1)] & ROW, 0)
            # Its line of the answer lies anywhere, and is soon written.
            for j in range(0, k, WIDTH):
                prefetch_for_write(chord2, i, j)
                prefetch_for_write(reference, i, j)
            lanes[3, lane] = ALL
            own[lane] = first_row + i if exclude_self else -1
        for j in range(entries + 1):
            for lane in range(LANES):
                keys[j, lane] = NOTHING
        counts[0] = counts[1] = _FIRST
        first_number = _FIRST
        load_lanes(points, places, lanes, boxes_of, 0)
        # So many leaves along the curve that k are found: a bound from the start.
        leaf = leaf_of(leaf_keys, curve_keys[in_block], 0)
        near, near_stop = leaves_near(leaf_keys, leaf, n_near)
        # The node of that leaf comes first, so that the bound is good for the rest, and only once.
        own_node = leaf // WIDTH
        visited = False
        stack[0] = boxes.shape[0] - 1
        stack[1] = own_node
        top = 2
        level = 0
        worst = ALL
        next_near = near
        full = True
        begun = steps
        most_here = min(most[0], most[1] - begun)
        while full:
            full = False
            while top:
                if steps - begun > most_here:
                    break
                full = max(counts[0], counts[1]) > NUMBER - WIDTH * WIDTH
                if full:
                    break
                if next_near < near_stop:
                    # Leaves along the curve, taken like a node of which one child is left.
                    node, bits = next_near // WIDTH, np.int64(1) << next_near % WIDTH
                    next_near += 1
                    looked = False
                else:
                    top -= 1
                    node = stack[top]
                    steps += NODE_STEPS
                    if node == own_node:
                        if visited:
                            continue
                        visited = True
                    bits = children_within(boxes, node, box, worst)
                    level = level_of(levels, node, level)
                    if level:
                        top = push_children(boxes, levels, level, node, bits, stack, top)
                        continue
                    looked = True
                while bits:
                    j = lowest_bit(bits)
                    child = node * WIDTH + j
                    bits &= bits - 1
                    if looked and near <= child < near_stop:
                        continue
                    # The packet's box has come near enough; some of its points may not.
                    lane_bits = lanes_within(lanes, boxes, node, j)
                    steps += LANES * WIDTH if lane_bits else NODE_STEPS
                    changed = False
                    for half in range(2):
                        if (lane_bits >> half * WIDTH) & 255 and sort_leaf(
                            leaf_points, tree_rows, child, lanes, half, own, seen, numbers,
                            counts[half], new,
                        ):  # fmt: skip
                            counts[half] += WIDTH
                            steps += entries * WIDTH
                            for entry in range(0, entries, WIDTH):
                                merge_eight(keys, entry, half, new)
                            changed = True
                    if changed:
                        worst = bound_by_keys(keys, k - 1, lanes)
                        bits &= children_within(boxes, node, box, worst)
            if top and not full:
                break
            tied = np.int64(0)
            for j in range(k - 1):
                tied |= keys_tied(keys, j)
            cut = keys_tied(keys, k - 1) if first_number == _FIRST else ~np.int64(0)
            for lane in range(LANES):
                half, at = lane // WIDTH, lane % WIDTH
                if (cut >> lane) & 1:
                    for j in range(k):
                        chords[lane, j] = np.inf
                        rows[lane, j] = -1.0
                    for number in range(first_number, counts[half]):
                        c = seen[half, number, at]
                        if c <= lanes[3, lane]:
                            if number >= _FIRST:
                                row = numbers[half, number]
                            elif number < _CARRIED + k:
                                row = carried[lane, number - _CARRIED]
                            else:
                                continue
                            if row != own[lane] and closer(
                                c, row, chords[lane, k - 1], rows[lane, k - 1]
                            ):
                                put(chords[lane], rows[lane], k - 1, c, row)
                    continue
                for j in range(k):
                    number = keys[j, lane] & NUMBER
                    chords[lane, j] = seen[half, number, at]
                    rows[lane, j] = numbers[half, number]
                if (tied >> lane) & 1:
                    for j in range(1, k):
                        put(chords[lane], rows[lane], j, chords[lane, j], rows[lane, j])
            if full:
                # What the lists hold gets the first numbers, and others are given anew.
                first_number = _CARRIED
                counts[0] = counts[1] = _FIRST
                for j in range(entries + 1):
                    for lane in range(LANES):
                        keys[j, lane] = NOTHING
                for lane in range(LANES):
                    for j in range(k):
                        seen[lane // WIDTH, _CARRIED + j, lane % WIDTH] = chords[lane, j]
                        carried[lane, j] = rows[lane, j]
                        if chords[lane, j] < np.inf:
                            keys[j, lane] = bits_of[lane, j] & ~NUMBER | (_CARRIED + j)
        if top:
            hard += mark(order, first, first + used)
            continue
        if measure:
            measure_part(chords)
        for lane in range(used):
            i = places[lane]
            for j in range(k):
                chord2[i, j] = chords[lane, j]
                reference[i, j] = np.int64(rows[lane, j])
    tally[thread, 0] = steps
    tally[thread, 1] = hard
