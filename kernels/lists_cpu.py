"""Packets of sixteen neighbouring observations that each keep a list of their nearest: any k.

A packet first looks into the leaves around its own key, enough of them to fill the lists, which
gives a bound, then into the other leaves of the same node, and then walks the tree from the root,
leaving out every box that is farther from its own box than the worst entry of all its lists.

A leaf's references are sorted for eight observations at a time and merged into their lists, both by
networks of comparisons that are the same for all: no branch depends on what is found.
"""

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, STACK, WIDTH, leaf_of, level_of, push_children
from georesolve.kernels.lanes_cpu import (
    children_within,
    greatest_of_16,
    lanes_within,
    load_lanes,
    lowest_bit,
    merge_eight,
    prefetch_for_write,
    sort_leaf,
)
from georesolve.kernels.order_cpu import ROW, keys_of
from georesolve.kernels.packets_cpu import LANES, aligned_rows

_BLOCK = 64
"""Packets whose keys are found together."""


@njit
def _scan_leaf(points, rows, leaf, lane_bits, lanes, own, k, new, chords, numbers):  # type: ignore[no-untyped-def]
    """Put a leaf's references into the lists of the lanes; returns the worst entry of all lists.

    Eight lanes at a time, and only where one of the eight is among the bits.
    """
    for half in range(0, LANES, WIDTH):
        if (lane_bits >> half) & 255 and sort_leaf(points, rows, leaf, lanes, half, own, new):
            for first in range(0, chords.shape[0], WIDTH):
                merge_eight(chords, numbers, first, half, new)
            for lane in range(half, half + WIDTH):
                lanes[3, lane] = min(chords[k - 1, lane], ALL)
    return greatest_of_16(lanes, 3)


@njit(cache=True, nogil=True, error_model="numpy")
def search_lists(  # type: ignore[no-untyped-def]
    thread, threads, tree, points, order, n, exclude_self, first_row, reference, chord2
):
    """Write the k nearest references of the observations of an order."""
    leaf_points, rows, leaf_keys, boxes, levels = tree
    k = reference.shape[1]
    n_near = (k + exclude_self + WIDTH - 1) // WIDTH + (k > 1)
    n_packets = (n + LANES - 1) // LANES
    start = n_packets * thread // threads
    stop = n_packets * (thread + 1) // threads
    entries = (k + WIDTH - 1) // WIDTH * WIDTH
    chords = aligned_rows(entries, LANES)
    numbers = aligned_rows(entries, LANES)
    new = aligned_rows(2 * WIDTH, WIDTH)
    # Of the packet, in rows: x, y, z, worst squared chord of the list.
    lanes = aligned_rows(4, LANES)
    own = np.empty(LANES)
    boxes_of = aligned_rows(1, WIDTH)
    box = boxes_of[0]
    places = np.empty(LANES, np.int64)
    stack = np.empty(STACK, np.int64)
    x_of, y_of, z_of = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    keys = np.empty(_BLOCK, np.int64)
    for packet in range(start, stop):
        at = (packet - start) % _BLOCK
        if at == 0:
            block = min(_BLOCK, stop - packet)
            for j in range(block):
                i = order[min((packet + j) * LANES + LANES // 2, n - 1)] & ROW
                x_of[j], y_of[j], z_of[j] = points[i, 0], points[i, 1], points[i, 2]
            keys_of(x_of, y_of, z_of, keys[:block])
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
        for j in range(entries):
            for lane in range(LANES):
                chords[j, lane] = np.inf
                numbers[j, lane] = np.inf
        load_lanes(points, places, lanes, boxes_of, 0)
        # So many leaves along the curve that k are found: a bound from the start.
        leaf = leaf_of(leaf_keys, keys[at], 0)
        near_stop = min(leaf + n_near // 2 + 1, leaf_keys.size)
        near = max(near_stop - n_near, 0)
        worst = ALL
        for child in range(near, near_stop):
            worst = _scan_leaf(
                leaf_points, rows, child, (1 << LANES) - 1, lanes, own, k, new, chords, numbers
            )  # fmt: skip
        # The node of that leaf comes first, so that the bound is good for the rest, and only once.
        own_node = leaf // WIDTH
        visited = False
        stack[0] = boxes.shape[0] - 1
        stack[1] = own_node
        top = 2
        level = 0
        while top:
            top -= 1
            node = stack[top]
            if node == own_node:
                if visited:
                    continue
                visited = True
            bits = children_within(boxes, node, box, worst)
            level = level_of(levels, node, level)
            if level:
                top = push_children(boxes, levels, level, node, bits, stack, top)
                continue
            while bits:
                j = lowest_bit(bits)
                child = node * WIDTH + j
                bits &= bits - 1
                if near <= child < near_stop:
                    continue
                # The packet's box has come near enough; some of its points may not.
                lane_bits = lanes_within(lanes, boxes, node, j)
                if lane_bits:
                    worst = _scan_leaf(
                        leaf_points, rows, child, lane_bits, lanes, own, k, new, chords, numbers
                    )  # fmt: skip
                    bits &= children_within(boxes, node, box, worst)
        for lane in range(used):
            i = order[first + lane] & ROW
            for j in range(k):
                found = chords[j, lane]
                chord2[i, j] = found
                reference[i, j] = np.int64(numbers[j, lane]) if found < np.inf else -1
