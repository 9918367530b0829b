"""Observations that walk a tree of boxes each by itself: any k, and few among many references."""

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import (
    ALL,
    NODE_STEPS,
    STACK,
    WIDTH,
    leaf_of,
    level_of,
    mark,
    push_children,
)
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.lanes_cpu import children_within, lowest_bit
from georesolve.kernels.order_cpu import ROW, keys_of

_LEAF_STEPS = 8 * WIDTH
"""One observation alone compares a leaf more slowly than sixteen do, above all where much ties."""
_BLOCK = 64
"""Observations whose keys are found together."""


@njit(inline="always")
def _insert(reference, chord2, i, c, row):  # type: ignore[no-untyped-def]
    """Put a candidate that comes before the last of observation i's k where it belongs."""
    j = chord2.shape[1] - 1
    while j > 0 and closer(c, row, chord2[i, j - 1], reference[i, j - 1]):
        chord2[i, j] = chord2[i, j - 1]
        reference[i, j] = reference[i, j - 1]
        j -= 1
    chord2[i, j] = c
    reference[i, j] = row


@njit(inline="always")
def _scan_leaf_one(points, rows, leaf, x, y, z, own, i, reference, chord2, chords):  # type: ignore[no-untyped-def]
    """Compare a leaf's references with observation i; returns the worst of its k."""
    last = chord2.shape[1] - 1
    # As many as the array has, not `WIDTH`: a short constant loop is unrolled, not vectorised.
    for j in range(chords.size):
        chords[j] = squared_chord(
            x, y, z, points[leaf, 0, j], points[leaf, 1, j], points[leaf, 2, j]
        )
    for j in range(WIDTH):
        if chords[j] <= chord2[i, last]:
            row = np.int64(rows[leaf, j])
            if row != own and closer(chords[j], row, chord2[i, last], reference[i, last]):
                _insert(reference, chord2, i, chords[j], row)
    return min(chord2[i, last], ALL)


@njit(cache=True, nogil=True, error_model="numpy")
def search_singles(  # type: ignore[no-untyped-def]
    thread, threads, tree, points, order, n, most, tally, reference, chord2, exclude_self, first_row
):
    """Write the k nearest references of the observations of an order.

    What takes too many steps is marked, and what is written of it is of no use.
    """
    leaf_points, rows, leaf_keys, boxes, levels = tree
    k = reference.shape[1]
    n_near = (k + exclude_self + WIDTH - 1) // WIDTH + (k > 1)
    box = np.empty(6)
    chords = np.empty(WIDTH)
    stack = np.empty(STACK, np.int64)
    x_of, y_of, z_of = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    keys = np.empty(_BLOCK, np.int64)
    start = n * thread // threads
    stop = n * (thread + 1) // threads
    steps = 0
    hard = 0
    for place in range(start, stop):
        if steps > most[1]:
            break
        at = (place - start) % _BLOCK
        if at == 0:
            block = min(_BLOCK, stop - place)
            for j in range(block):
                i = order[place + j] & ROW
                x_of[j], y_of[j], z_of[j] = points[i, 0], points[i, 1], points[i, 2]
            keys_of(x_of, y_of, z_of, keys[:block])
        i = order[place] & ROW
        x, y, z = x_of[at], y_of[at], z_of[at]
        own = first_row + i if exclude_self else -1
        for j in range(k):
            reference[i, j] = ROW
            chord2[i, j] = np.inf
        box[0], box[1], box[2] = x, y, z
        box[3], box[4], box[5] = x, y, z
        # So many leaves along the curve that k are found: a bound from the start.
        leaf = leaf_of(leaf_keys, keys[at], 0)
        near_stop = min(leaf + n_near // 2 + 1, leaf_keys.size)
        near = max(near_stop - n_near, 0)
        worst = ALL
        for child in range(near, near_stop):
            worst = _scan_leaf_one(
                leaf_points, rows, child, x, y, z, own, i, reference, chord2, chords
            )
        stack[0] = boxes.shape[0] - 1
        top = 1
        level = levels.size - 2
        begun = steps
        steps += (near_stop - near) * _LEAF_STEPS
        most_here = min(most[0], most[1] - begun)
        while top and steps - begun <= most_here:
            top -= 1
            node = stack[top]
            steps += NODE_STEPS
            bits = children_within(boxes, node, box, worst)
            level = level_of(levels, node, level)
            if level:
                top = push_children(boxes, levels, level, node, bits, stack, top)
                continue
            while bits:
                child = node * WIDTH + lowest_bit(bits)
                bits &= bits - 1
                if child < near or child >= near_stop:
                    steps += _LEAF_STEPS
                    worst = _scan_leaf_one(
                        leaf_points, rows, child, x, y, z, own, i, reference, chord2, chords
                    )
                    bits &= children_within(boxes, node, box, worst)
        if top:
            hard += mark(order, place, place + 1)
        for j in range(k):
            if chord2[i, j] == np.inf:
                reference[i, j] = -1
    tally[thread, 0] = steps
    tally[thread, 1] = hard
