"""The pruned search on a CPU: packets of neighbouring observations walk a tree of boxes together.

References stand along a Hilbert curve of the globe, eight to a leaf; a node is the boxes of eight
leaves, or of eight nodes. Sixteen observations that are neighbours on the same curve make a packet.
A packet first looks into the leaf at its own key, which gives a good bound, and then walks the tree
from the root, leaving out every box that is farther from the packet's own box than its worst
observation's best. Few observations walk alone instead, see `_SPREAD`.

Nothing that could win or tie is left out, rounding included. Let an observation's coordinate a lie
in the packet's [p, q] and a reference's b in the box's [l, h]. Then |a - b| >= g with
g = max(l - q, p - h, 0). Rounding is monotonic: a difference, product or sum of larger operands is,
rounded, not smaller. So fl(|a - b|) >= fl(g), the same holds of their squares, and of the sum of
three squares taken in the same order. The bound of a box is computed by the very steps of
`kernels.distance.squared_chord`, hence at most every squared chord it covers *as computed*, and no
tolerance is needed. A box is dropped only if its bound is strictly greater than the worst best, so
equals with a lower row are still met, and `kernels.distance.closer` orders what is met.

NaN compares false: a NaN in a leaf (padding) is never closer, and points that are NaN have no key,
hence no place in the tree and in no packet.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from kernels.distance import closer, squared_chord
from kernels.hilbert import NO_KEY
from kernels.index import ReferenceIndex
from kernels.lanes_cpu import (
    children_within,
    greatest_of_16,
    lanes_within,
    least_of_16,
    lowest_bit,
    prefetch,
    prefetch_for_write,
    prefetch_one,
)
from kernels.order_cpu import ROW, scratch, sort
from kernels.query import Found, Query
from kernels.threads_cpu import threads_for

_WIDTH = 8
"""References of a leaf and boxes of a node: the float64 of one cache line."""
_LANES = 16
"""Observations of a packet."""
_AHEAD = 3
"""Packets between the one that is searched and the one whose memory is asked for."""
_PACKETS = 8
"""Packets of a group, which walks the tree once and leaves a list of leaves to each."""
_CANDIDATES = 256
"""Leaves that a group may find; more mean that its packets lie far apart."""
_BLOCK = 32
"""Observations that a thread takes at a time when they walk alone."""
_GRAIN = 256
"""Observations that are worth a thread."""
_BUILD_GRAIN = 1 << 13
"""References that are worth a thread."""
_WINDOW = 1 << 20
"""Observations sorted at a time: what is written in their order then stays in the cache."""
_FAR = 1e3
"""Where the boxes of padding are: farther than any point, and its square is finite."""
_ALL = 5.0
"""Bound while nothing is found: above every squared chord, below the distance of padding."""
_STACK = 8 * 12
"""Nodes that wait: at most 8 at each level, and 8 ** 12 leaves are beyond any memory."""
_PACKETS_FROM = 64
_SPREAD = 16
"""Observations, and references for each, from and up to which packets pay: measured. Sixteen
observations that are far apart have little of their walks in common."""


class Tree(NamedTuple):
    """The references of a set along the curve, and the boxes around them.

    Attributes
    ----------
    points : float64 array, shape (n_leaves, 3, 8)
        Unit vectors; NaN pads the last leaf.
    rows : float64 array, shape (n_leaves, 8)
        Their rows, ascending within a leaf. Exact below 2**53, and of one width with what they are
        selected by.
    keys : int64 array, shape (n_leaves,)
        Key of each leaf's first reference, ascending.
    boxes : float64 array, shape (n_nodes, 6, 8)
        Least x, y, z and greatest x, y, z of each of a node's eight children. Nodes of the lowest
        level, whose children are leaves, come first; the root is the last.
    levels : int64 array, shape (n_levels + 1,)
        First node of each level, lowest first, and the number of nodes.
    """

    points: np.ndarray
    rows: np.ndarray
    keys: np.ndarray
    boxes: np.ndarray
    levels: np.ndarray


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _fill_leaves(vectors, keys, order, n, points, rows, leaf_keys, boxes):  # type: ignore[no-untyped-def]
    n_leaves = points.shape[0]
    for node in prange((n_leaves + _WIDTH - 1) // _WIDTH):
        for child in range(_WIDTH):
            leaf = node * _WIDTH + child
            for axis in range(3):
                boxes[node, axis, child] = _FAR
                boxes[node, 3 + axis, child] = -_FAR
            if leaf >= n_leaves:
                continue
            leaf_keys[leaf] = keys[order[leaf * _WIDTH] & ROW]
            # Rows ascend within a leaf; the few missing ones of the last leaf come at its end.
            used = min(_WIDTH, n - leaf * _WIDTH)
            for j in range(used):
                row = order[leaf * _WIDTH + j] & ROW
                place = j
                while place > 0 and rows[leaf, place - 1] > row:
                    rows[leaf, place] = rows[leaf, place - 1]
                    place -= 1
                rows[leaf, place] = row
            for j in range(_WIDTH):
                if j >= used:
                    rows[leaf, j] = rows[leaf, 0]
                row = np.int64(rows[leaf, j])
                for axis in range(3):
                    value = vectors[axis, row]
                    boxes[node, axis, child] = min(boxes[node, axis, child], value)
                    boxes[node, 3 + axis, child] = max(boxes[node, 3 + axis, child], value)
                    points[leaf, axis, j] = value if j < used else math.nan


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_nodes(boxes, levels):  # type: ignore[no-untyped-def]
    for level in range(1, levels.size - 1):
        for node in range(levels[level], levels[level + 1]):
            for child in range(_WIDTH):
                below = levels[level - 1] + (node - levels[level]) * _WIDTH + child
                for axis in range(3):
                    least = _FAR
                    greatest = -_FAR
                    if below < levels[level]:
                        for j in range(_WIDTH):
                            least = min(least, boxes[below, axis, j])
                            greatest = max(greatest, boxes[below, 3 + axis, j])
                    boxes[node, axis, child] = least
                    boxes[node, 3 + axis, child] = greatest


def build(vectors: np.ndarray) -> Tree:
    """Make the tree of unit vectors, shape (3, n); columns with NaN are left out."""
    memory = scratch(vectors.shape[1])
    n = sort(vectors, 0, vectors.shape[1], _WIDTH, memory)
    n_leaves = -(-n // _WIDTH)
    levels = [0]
    width = n_leaves
    while width > 1 or len(levels) == 1:
        width = -(-width // _WIDTH)
        levels.append(levels[-1] + width)
        if width == 0:
            break
    tree = Tree(
        np.empty((n_leaves, 3, _WIDTH)),
        np.empty((n_leaves, _WIDTH)),
        np.empty(n_leaves, np.int64),
        np.empty((levels[-1], 6, _WIDTH)),
        np.array(levels, np.int64),
    )
    if n:
        at = (vectors, memory.keys, memory.order, n)
        with threads_for(n, _BUILD_GRAIN):
            _fill_leaves(*at, tree.points, tree.rows, tree.keys, tree.boxes)
        _fill_nodes(tree.boxes, tree.levels)
    return tree


@njit(inline="always")
def _leaf_of(leaf_keys, key, first):  # type: ignore[no-untyped-def]
    """Last leaf whose first key is not above `key`, looked for from leaf `first` upwards."""
    low = first
    jump = 1
    while low + jump < leaf_keys.size and leaf_keys[low + jump] <= key:
        low += jump
        jump *= 2
    high = min(low + jump, leaf_keys.size)
    while high - low > 1:
        middle = (low + high) // 2
        if leaf_keys[middle] <= key:
            low = middle
        else:
            high = middle
    return low


@njit(inline="always")
def _eight(a):  # type: ignore[no-untyped-def]
    # Values, not memory that a store in the loop might change: that loop is vectorised.
    return a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]


@njit(forceinline=True)
def _scan_leaf(points, rows, leaf, lanes):  # type: ignore[no-untyped-def]
    """Compare a leaf's references with a packet; the worst of its bests, at most `_ALL`."""
    point = points[leaf]
    x, y, z, row = _eight(point[0]), _eight(point[1]), _eight(point[2]), _eight(rows[leaf])
    for lane in range(_LANES):
        ox = lanes[0, lane]
        oy = lanes[1, lane]
        oz = lanes[2, lane]
        best = lanes[3, lane]
        best_row = lanes[4, lane]
        near = squared_chord(ox, oy, oz, x[0], y[0], z[0])
        near_row = row[0]
        for j in range(1, _WIDTH):
            chord2 = squared_chord(ox, oy, oz, x[j], y[j], z[j])
            # A leaf's rows ascend, so "less" leaves its ties with the lowest one.
            nearer = chord2 < near
            near = chord2 if nearer else near
            near_row = row[j] if nearer else near_row
        better = closer(near, near_row, best, best_row)
        lanes[3, lane] = near if better else best
        lanes[4, lane] = near_row if better else best_row
    return min(greatest_of_16(lanes, 3), _ALL)


@njit(forceinline=True)
def _load(observations, start, order, first, n, lanes, box):  # type: ignore[no-untyped-def]
    """Fill a packet with the observations of 16 places of an order, and write its box."""
    for lane in range(_LANES):
        # The last packet repeats its last observation.
        i = start + (order[min(first + lane, n - 1)] & ROW)
        lanes[0, lane] = observations[0, i]
        lanes[1, lane] = observations[1, i]
        lanes[2, lane] = observations[2, i]
        lanes[3, lane] = np.inf
        lanes[4, lane] = np.inf
    for axis in range(3):
        box[axis] = least_of_16(lanes, axis)
        box[3 + axis] = greatest_of_16(lanes, axis)


@njit(inline="always")
def _ask_for(observations, start, keys, order, first, n, reference, chord2):  # type: ignore[no-untyped-def]
    """Have the memory of a coming packet fetched."""
    prefetch_one(keys, order[min(first + _LANES // 2, n - 1)] & ROW)
    for lane in range(_LANES):
        i = start + (order[min(first + lane, n - 1)] & ROW)
        prefetch(observations, 0, i)
        prefetch(observations, 1, i)
        prefetch(observations, 2, i)
        prefetch_for_write(reference, i, 0)
        prefetch_for_write(chord2, i, 0)


@njit(forceinline=True)
def _push_children(levels, level, node, bits, stack, top):  # type: ignore[no-untyped-def]
    """Put a node's children of some bits on the stack; returns its new top."""
    below = levels[level - 1] + (node - levels[level]) * _WIDTH
    while bits:
        stack[top] = below + lowest_bit(bits)
        bits &= bits - 1
        top += 1
    return top


@njit(forceinline=True)
def _level_of(levels, node, level):  # type: ignore[no-untyped-def]
    """Level of a node, looked for from another one."""
    while node >= levels[level + 1]:
        level += 1
    while node < levels[level]:
        level -= 1
    return level


@njit
def _walk(boxes, levels, n_leaves, box, worst, stack, leaves, leaf_boxes):  # type: ignore[no-untyped-def]
    """Collect the leaves that may hold something at most `worst` from a box.

    Writes the leaves and, padded to a multiple of eight, their boxes; returns how many there are,
    or -1 when there is no room for more.
    """
    stack[0] = boxes.shape[0] - 1
    top = 1
    level = levels.size - 2
    found = 0
    while top:
        top -= 1
        node = stack[top]
        bits = children_within(boxes, node, box, worst)
        level = _level_of(levels, node, level)
        if level:
            top = _push_children(levels, level, node, bits, stack, top)
            continue
        if found + 2 * _WIDTH > leaves.size:
            return -1
        while bits:
            j = lowest_bit(bits)
            bits &= bits - 1
            leaves[found] = node * _WIDTH + j
            for side in range(6):
                leaf_boxes[found // _WIDTH, side, found % _WIDTH] = boxes[node, side, j]
            found += 1
    for place in range(found, (found + _WIDTH - 1) // _WIDTH * _WIDTH):
        for axis in range(3):
            leaf_boxes[place // _WIDTH, axis, place % _WIDTH] = _FAR
            leaf_boxes[place // _WIDTH, 3 + axis, place % _WIDTH] = -_FAR
    return found


@njit
def _scan_leaves(points, rows, leaves, first, boxes, node, bits, box, worst, lanes):  # type: ignore[no-untyped-def]
    """Compare a packet with those of eight leaves that some bits name; its worst best.

    The eight have their boxes in ``boxes[node]`` and their numbers in ``leaves[first:]``, or, where
    that is empty, from `first` on.
    """
    while bits:
        j = lowest_bit(bits)
        bits &= bits - 1
        # The packet's box has come near enough; mostly none of its points has.
        if lanes_within(lanes, boxes, node, j):
            leaf = leaves[first + j] if leaves.size else first + j
            worst = _scan_leaf(points, rows, leaf, lanes)
            bits &= children_within(boxes, node, box, worst)
    return worst


@njit(forceinline=True)
def _others(leaves, eight, node):  # type: ignore[no-untyped-def]
    """Bits of those of eight leaves that do not belong to a node."""
    bits = 0
    for j in range(_WIDTH):
        bits |= (leaves[eight * _WIDTH + j] // _WIDTH != node) << j
    return bits


@njit
def _walk_packet(tree, box, worst, own, stack, no_leaves, lanes):  # type: ignore[no-untyped-def]
    """Search the tree for one packet, which has already seen the leaves of the node `own`."""
    points, rows, _, boxes, levels = tree
    stack[0] = boxes.shape[0] - 1
    top = 1
    level = levels.size - 2
    while top:
        top -= 1
        node = stack[top]
        if node == own:
            continue
        bits = children_within(boxes, node, box, worst)
        level = _level_of(levels, node, level)
        if level:
            top = _push_children(levels, level, node, bits, stack, top)
        else:
            worst = _scan_leaves(
                points, rows, no_leaves, node * _WIDTH, boxes, node, bits, box, worst, lanes
            )


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _search_packets(tree, observations, start, keys, order, n, threads, reference, chord2):  # type: ignore[no-untyped-def]
    """The nearest reference of the observations of an order, k = 1."""
    points, rows, leaf_keys, boxes, levels = tree
    n_packets = (n + _LANES - 1) // _LANES
    for thread in prange(threads):
        # Of each packet, in rows: x, y, z, best squared chord, its row.
        lanes = np.empty((_PACKETS, 5, _LANES))
        worsts = np.empty(_PACKETS)
        own = np.empty(_PACKETS, np.int64)
        packet_boxes = np.empty((_PACKETS, 6))
        box = np.empty(6)
        stack = np.empty(_STACK, np.int64)
        leaves = np.empty(_CANDIDATES, np.int64)
        no_leaves = leaves[:0]
        leaf_boxes = np.empty((_CANDIDATES // _WIDTH, 6, _WIDTH))
        leaf = 0
        for group in range(thread * _PACKETS, n_packets, threads * _PACKETS):
            used = min(_PACKETS, n_packets - group)
            worst = 0.0
            for axis in range(3):
                box[axis] = _FAR
                box[3 + axis] = -_FAR
            for packet in range(used):
                first = (group + packet) * _LANES
                ahead = first + _AHEAD * _LANES
                _ask_for(observations, start, keys, order, ahead, n, reference, chord2)
                _load(observations, start, order, first, n, lanes[packet], packet_boxes[packet])
                key = keys[order[min(first + _LANES // 2, n - 1)] & ROW]
                leaf = _leaf_of(leaf_keys, key, leaf if leaf_keys[leaf] <= key else 0)
                node = leaf // _WIDTH
                own[packet] = node
                worst_own = _scan_leaf(points, rows, leaf, lanes[packet])
                bits = children_within(boxes, node, packet_boxes[packet], worst_own)
                worsts[packet] = _scan_leaves(
                    points, rows, no_leaves, node * _WIDTH, boxes, node,
                    bits & ~(1 << leaf % _WIDTH), packet_boxes[packet], worst_own, lanes[packet],
                )  # fmt: skip
                worst = max(worst, worsts[packet])
                for axis in range(3):
                    box[axis] = min(box[axis], packet_boxes[packet, axis])
                    box[3 + axis] = max(box[3 + axis], packet_boxes[packet, 3 + axis])
            found = _walk(boxes, levels, leaf_keys.size, box, worst, stack, leaves, leaf_boxes)
            for packet in range(used):
                lane = lanes[packet]
                packet_box = packet_boxes[packet]
                worst = worsts[packet]
                if found < 0:
                    # A group whose packets lie far apart: each walks alone.
                    _walk_packet(tree, packet_box, worst, own[packet], stack, no_leaves, lane)
                for eight in range((found + _WIDTH - 1) // _WIDTH):
                    bits = children_within(leaf_boxes, eight, packet_box, worst)
                    bits &= _others(leaves, eight, own[packet])
                    worst = _scan_leaves(
                        points, rows, leaves, eight * _WIDTH, leaf_boxes, eight,
                        bits, packet_box, worst, lane,
                    )  # fmt: skip
                first = (group + packet) * _LANES
                for lane_used in range(min(_LANES, n - first)):
                    i = start + (order[first + lane_used] & ROW)
                    reference[i, 0] = np.int64(lane[4, lane_used])
                    chord2[i, 0] = lane[3, lane_used]


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
    # As many as the array has, not `_WIDTH`: a short constant loop is unrolled, not vectorised.
    for j in range(chords.size):
        chords[j] = squared_chord(
            x, y, z, points[leaf, 0, j], points[leaf, 1, j], points[leaf, 2, j]
        )
    for j in range(_WIDTH):
        if chords[j] <= chord2[i, last]:
            row = np.int64(rows[leaf, j])
            if row != own and closer(chords[j], row, chord2[i, last], reference[i, last]):
                _insert(reference, chord2, i, chords[j], row)
    return min(chord2[i, last], _ALL)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _search_alone(  # type: ignore[no-untyped-def]
    tree, observations, start, keys, order, n, exclude_self, first_row, threads, reference, chord2
):
    """The k nearest references of the observations of an order, each by itself."""
    points, rows, leaf_keys, boxes, levels = tree
    k = reference.shape[1]
    n_near = (k + exclude_self + _WIDTH - 1) // _WIDTH + (k > 1)
    for thread in prange(threads):
        box = np.empty(6)
        chords = np.empty(_WIDTH)
        stack = np.empty(_STACK, np.int64)
        for block in range(thread * _BLOCK, n, threads * _BLOCK):
            for place in range(block, min(block + _BLOCK, n)):
                row = order[place] & ROW
                i = start + row
                x, y, z = observations[0, i], observations[1, i], observations[2, i]
                own = first_row + i if exclude_self else -1
                for j in range(k):
                    reference[i, j] = ROW
                    chord2[i, j] = np.inf
                box[0], box[1], box[2] = x, y, z
                box[3], box[4], box[5] = x, y, z
                # So many leaves along the curve that k are found: a bound from the start.
                leaf = _leaf_of(leaf_keys, keys[row], 0)
                near_stop = min(leaf + n_near // 2 + 1, leaf_keys.size)
                near = max(near_stop - n_near, 0)
                worst = _ALL
                for child in range(near, near_stop):
                    worst = _scan_leaf_one(
                        points, rows, child, x, y, z, own, i, reference, chord2, chords
                    )
                stack[0] = boxes.shape[0] - 1
                top = 1
                level = levels.size - 2
                while top:
                    top -= 1
                    node = stack[top]
                    bits = children_within(boxes, node, box, worst)
                    level = _level_of(levels, node, level)
                    if level:
                        top = _push_children(levels, level, node, bits, stack, top)
                        continue
                    while bits:
                        child = node * _WIDTH + lowest_bit(bits)
                        bits &= bits - 1
                        if child < near or child >= near_stop:
                            worst = _scan_leaf_one(
                                points, rows, child, x, y, z, own, i, reference, chord2, chords
                            )
                            bits &= children_within(boxes, node, box, worst)
                for j in range(k):
                    if chord2[i, j] == np.inf:
                        reference[i, j] = -1


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_missing(keys, start, n, reference, chord2):  # type: ignore[no-untyped-def]
    """Nothing is found for points without a key."""
    for row in range(n):
        if keys[row] == NO_KEY:
            for j in range(reference.shape[1]):
                reference[start + row, j] = -1
                chord2[start + row, j] = np.inf


def prefers_brute(index: ReferenceIndex, n_observations: int, query: Query) -> bool:
    """Whether `auto` should take brute force: measured, and without effect on the answer.

    A pair takes brute force 0.43 ns (k = 1), an observation takes the tree 30 ns and a call 25 us
    more: that is where the lines cross. Brute force works on packets, however few fill the last.
    """
    pairs = index.n_valid * _LANES * -(-n_observations // _LANES)
    if query.k > 1:
        return pairs <= 10_000 or index.n_valid <= max(_LANES, query.k)
    return 0.43 * pairs <= 25_000 + 30 * n_observations


def search(
    index: ReferenceIndex,
    observations: np.ndarray,
    query: Query,
    *,
    packets: bool | None = None,
    window: int | None = None,
) -> Found:
    """The k nearest references of every observation; as `kernels.brute_cpu.search`.

    Parameters
    ----------
    index, observations, query
        As `kernels.brute_cpu.search` has them.
    packets : bool, optional
        Whether observations are searched in packets; left out, what is measured to be faster.
    window : int, optional
        Observations sorted at a time; left out, it depends on the number of references. Neither
        has an effect on the answer.
    """
    n = observations.shape[1]
    tree: Tree = index.tree
    if not tree.keys.size or not n:
        return Found(np.full((n, query.k), -1, np.int64), np.full((n, query.k), np.inf))
    found = Found(np.empty((n, query.k), np.int64), np.empty((n, query.k)))
    if packets is None:
        packets = n >= _PACKETS_FROM and n * _SPREAD >= tree.rows.size
    window = min(n, window or max(_WINDOW, 4 * tree.rows.size))
    memory = scratch(window)
    for start in range(0, n, window):
        stop = min(start + window, n)
        n_valid = sort(observations, start, stop, _LANES, memory)
        if n_valid < stop - start:
            _fill_missing(memory.keys, start, stop - start, *found)
        if n_valid == 0:
            continue
        at = (tree, observations, start, memory.keys, memory.order, n_valid)
        with threads_for(n_valid, _GRAIN) as threads:
            if query.k == 1 and not query.exclude_self and packets:
                _search_packets(*at, threads, *found)
            else:
                _search_alone(*at, query.exclude_self, query.first_row, threads, *found)
    return found
