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

from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, NODE_STEPS, STACK, WIDTH
from georesolve.kernels.distance import closer
from georesolve.kernels.lanes_cpu import (
    NOTHING,
    NUMBER,
    borrowed,
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
from georesolve.kernels.order_cpu import BLOCK, ROW, keys_along
from georesolve.kernels.packets_cpu import LANES, aligned_rows
from georesolve.kernels.walk_cpu import leaf_of, leaves_near, leaves_to_fill, look, mark, put, walk
from georesolve.query import MAX_K

_CARRIED = WIDTH
"""Number of the first entry of a list that was made before numbers began anew."""
_MOST = MAX_K + 1
"""Entries of a list: the ellipsoid asks for one more than are answered."""
_FIRST = _CARRIED + -(-_MOST // WIDTH) * WIDTH
"""Number of the first reference that is seen."""


class Lists(NamedTuple):
    """Collects the keys of the k nearest of each lane: x, y, z, worst squared chord of the list.

    A lane does not find its row `own`. `counts` are the next number of either half and the first
    one that a list is made anew from. The lists of before numbers began anew are `carried`; what is
    answered is in `chords` and `rows`, a list in each row.
    """

    lanes: np.ndarray
    own: np.ndarray
    keys: np.ndarray
    new: np.ndarray
    seen: np.ndarray
    numbers: np.ndarray
    counts: np.ndarray
    carried: np.ndarray
    chords: np.ndarray
    rows: np.ndarray


@look.of(Lists)
def _merge(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    lanes, own, keys, new, seen, numbers, counts, _, chords, _ = collector
    entries = keys.shape[0] - 1
    steps = 0
    if max(counts[0], counts[1]) > NUMBER - WIDTH * WIDTH:
        _begin_anew(collector)
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        # The packet's box has come near enough; some of its points may not.
        lane_bits = lanes_within(lanes, tree.boxes, node, j)
        steps += LANES * WIDTH if lane_bits else NODE_STEPS
        changed = False
        for half in range(2):
            if (lane_bits >> half * WIDTH) & 255 and sort_leaf(
                tree.points, tree.rows, node * WIDTH + j, lanes, half, own, seen, numbers,
                counts[half], new,
            ):  # fmt: skip
                counts[half] += WIDTH
                steps += entries * WIDTH
                for entry in range(0, entries, WIDTH):
                    merge_eight(keys, entry, half, new)
                changed = True
        if changed:
            worst = bound_by_keys(keys, chords.shape[1] - 1, lanes)
            bits &= children_within(tree.boxes, node, box, worst)
    return worst, steps


@njit(inline="always")
def _empty(keys):  # type: ignore[no-untyped-def]
    for j in range(keys.shape[0]):
        for lane in range(LANES):
            keys[j, lane] = NOTHING


@njit(nogil=True, error_model="numpy")
def _make(collector):  # type: ignore[no-untyped-def]
    """Make the lists of what was seen."""
    lanes, own, keys, _, seen, numbers, counts, carried, chords, rows = collector
    k, first_number = chords.shape[1], counts[2]
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
                    if row != own[lane] and closer(c, row, chords[lane, k - 1], rows[lane, k - 1]):
                        put(chords[lane], rows[lane], k - 1, c, row)
            continue
        for j in range(k):
            number = keys[j, lane] & NUMBER
            chords[lane, j] = seen[half, number, at]
            rows[lane, j] = numbers[half, number]
        if (tied >> lane) & 1:
            for j in range(1, k):
                put(chords[lane], rows[lane], j, chords[lane, j], rows[lane, j])


@njit(nogil=True, error_model="numpy")
def _begin_anew(collector):  # type: ignore[no-untyped-def]
    """Make the lists; what they hold gets the first numbers, and others are given anew."""
    _, _, keys, _, seen, _, counts, carried, chords, rows = collector
    _make(collector)
    counts[0] = counts[1] = _FIRST
    counts[2] = _CARRIED
    _empty(keys)
    bits_of = chords.view(np.int64)
    for lane in range(LANES):
        for j in range(chords.shape[1]):
            seen[lane // WIDTH, _CARRIED + j, lane % WIDTH] = chords[lane, j]
            carried[lane, j] = rows[lane, j]
            if chords[lane, j] < np.inf:
                keys[j, lane] = bits_of[lane, j] & ~NUMBER | (_CARRIED + j)


@njit(cache=True, nogil=True, error_model="numpy")
def search_lists(  # type: ignore[no-untyped-def]
    thread, threads, tree, points, order, n, most, tally, reference, chord2, exclude_self, first_row
):
    """Write the k nearest references of the observations of an order.

    What takes too many steps is left out and marked.
    """
    tree, reference, chord2 = borrowed((tree, reference, chord2))
    k = reference.shape[1]
    n_near = leaves_to_fill(k, exclude_self)
    n_packets = (n + LANES - 1) // LANES
    start = n_packets * thread // threads
    stop = n_packets * (thread + 1) // threads
    entries = (k + WIDTH - 1) // WIDTH * WIDTH
    seen = aligned_rows(2 * (NUMBER + 1), WIDTH).reshape(2, NUMBER + 1, WIDTH)
    numbers = aligned_rows(2, NUMBER + 1)
    # Of what has no number of its own: nothing, and entries of before numbers began anew.
    for half in range(2):
        for at in range(WIDTH):
            seen[half, 0, at] = np.inf
        numbers[half, 0] = -1.0
    made = Lists(
        aligned_rows(4, LANES), np.empty(LANES), aligned_rows(entries + 1, LANES).view(np.int64),
        aligned_rows(WIDTH, WIDTH).view(np.int64), seen, numbers, np.empty(3, np.int64),
        np.empty((LANES, _MOST)), np.empty((LANES, k)), np.empty((LANES, k)),
    )  # fmt: skip
    boxes_of = aligned_rows(1, WIDTH)
    places = np.empty(LANES, np.int64)
    stack = np.empty(STACK, np.int64)
    curve_keys = np.empty(BLOCK, np.int64)
    steps = 0
    hard = 0
    for packet in range(start, stop):
        if steps > most[1]:
            break
        in_block = (packet - start) % BLOCK
        if in_block == 0:
            block = curve_keys[: min(BLOCK, stop - packet)]
            keys_along(points, order, packet * LANES + LANES // 2, LANES, n, block)
        # They go with the last use of their owner, which is here in each turn of the loop.
        lists = borrowed(made)
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
            lists.lanes[3, lane] = ALL
            lists.own[lane] = first_row + i if exclude_self else -1
        _empty(lists.keys)
        lists.counts[:] = _FIRST
        load_lanes(points, places, lists.lanes, boxes_of, 0)
        # So many leaves along the curve that k are found: a bound from the start.
        leaf = leaf_of(tree.keys, curve_keys[in_block], 0)
        near, near_stop = leaves_near(tree.keys, leaf, n_near)
        most_here = min(most[0], most[1] - steps)
        more = walk(tree, lists, boxes_of[0], ALL, near, near_stop, most_here, stack)
        steps += more
        if more > most_here:
            hard += mark(order, first, first + used)
            continue
        _make(lists)
        for lane in range(used):
            i = places[lane]
            for j in range(k):
                chord2[i, j] = lists.chords[lane, j]
                reference[i, j] = np.int64(lists.rows[lane, j])
    tally[thread, 0] = steps
    tally[thread, 1] = hard
