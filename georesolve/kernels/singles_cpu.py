"""Observations that walk a tree of boxes each by itself: any k, and few among many references."""

from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, STACK, WIDTH
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.lanes_cpu import children_within, lowest_bit
from georesolve.kernels.order_cpu import BLOCK, ROW, keys_along
from georesolve.kernels.walk_cpu import leaf_of, leaves_near, leaves_to_fill, look, mark, put, walk

_LEAF_STEPS = 8 * WIDTH
"""One observation alone compares a leaf more slowly than sixteen do, above all where much ties."""


class Single(NamedTuple):
    """Collects the k nearest of one observation into its lines of the answer, nearest first.

    It does not find the row `own`; `chords` is memory for a leaf.
    """

    x: float
    y: float
    z: float
    own: int
    reference: np.ndarray
    key: np.ndarray
    chords: np.ndarray


@look.of(Single)
def _compare(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    x, y, z, own, reference, key, chords = collector
    points = tree.points
    last = key.size - 1
    steps = 0
    while bits:
        leaf = node * WIDTH + lowest_bit(bits)
        bits &= bits - 1
        steps += _LEAF_STEPS
        # As many as the array has, not `WIDTH`: a short constant loop is unrolled, not vectorised.
        for j in range(chords.size):
            chords[j] = squared_chord(
                x, y, z, points[leaf, 0, j], points[leaf, 1, j], points[leaf, 2, j]
            )
        for j in range(WIDTH):
            if chords[j] <= key[last]:
                row = np.int64(tree.rows[leaf, j])
                if row != own and closer(chords[j], row, key[last], reference[last]):
                    put(key, reference, last, chords[j], row)
        worst = min(key[last], ALL)
        bits &= children_within(tree.boxes, node, box, worst)
    return worst, steps


@njit(cache=True, nogil=True, error_model="numpy")
def search_singles(  # type: ignore[no-untyped-def]
    thread, threads, tree, points, order, n, most, tally, reference, key, exclude_self, first_row
):
    """Write the k nearest references of the observations of an order.

    What takes too many steps is marked, and what is written of it is of no use.
    """
    k = reference.shape[1]
    n_near = leaves_to_fill(k, exclude_self)
    box = np.empty(6)
    chords = np.empty(WIDTH)
    stack = np.empty(STACK, np.int64)
    keys = np.empty(BLOCK, np.int64)
    start = n * thread // threads
    stop = n * (thread + 1) // threads
    steps = 0
    hard = 0
    for place in range(start, stop):
        if steps > most[1]:
            break
        at = (place - start) % BLOCK
        if at == 0:
            keys_along(points, order, place, 1, n, keys[: min(BLOCK, stop - place)])
        i = order[place] & ROW
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        box[0], box[1], box[2], box[3], box[4], box[5] = x, y, z, x, y, z
        rows, chords2 = reference[i], key[i]
        for j in range(k):
            rows[j] = ROW
            chords2[j] = np.inf
        # So many leaves along the curve that k are found: a bound from the start.
        near, near_stop = leaves_near(tree.keys, leaf_of(tree.keys, keys[at], 0), n_near)
        own = first_row + i if exclude_self else -1
        single = Single(x, y, z, own, rows, chords2, chords)
        most_here = min(most[0], most[1] - steps)
        more = walk(tree, single, box, ALL, near, near_stop, most_here, stack)
        steps += more
        if more > most_here:
            hard += mark(order, place, place + 1)
        for j in range(k):
            if chords2[j] == np.inf:
                rows[j] = -1
    tally[thread, 0] = steps
    tally[thread, 1] = hard
