"""The tree of a reference set on a CPU: leaves of eight references, boxes of eight around them.

References stand along a Hilbert curve of the globe, eight to a leaf; a node is the boxes of eight
leaves, or of eight nodes.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.lanes_cpu import prefetch_for_write
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import ROW, keys_of, scratch, sort
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.query import MAX_K, Earth

WIDTH = 8
"""References of a leaf and boxes of a node: the float64 of one cache line."""
FAR = 1e3
"""Where the boxes of padding are: farther than any point, and its square is finite."""
ALL = 5.0
"""Bound while nothing is found: above every squared chord, below the distance of padding."""
STACK = 8 * 12
"""Nodes that wait: at most 8 at each level, and 8 ** 12 leaves are beyond any memory."""
NODE_STEPS = 2 * WIDTH
"""Steps that a comparison with the boxes of a node counts as. A step is about half a nanosecond."""
NO_LIMIT = 1 << 62
"""Of the steps that something may take."""
_AHEAD = 4
"""Leaves between the one that is filled and the one whose references are asked for."""
_GRAIN = 1 << 13
"""References that are worth a thread."""
COPIES = MAX_K + 1
"""Points of one place that a tree holds, those of the lowest rows. No answer has another: it names
`MAX_K` at most, and leaves out the observation's own row."""
_MIXED = (0x1E3779B97F4A7C15, 0x42B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Odd factors that carry every bit of a coordinate upwards."""
_SLOTS = 1 << 12
"""Points at different places that are counted at a time."""


_NO_TIMES = np.empty((0, WIDTH), np.int64)


class Tree(NamedTuple):
    """The references of a set along the curve, and the boxes around them.

    Of equal points it holds `COPIES`, or all; the vectors of the index are all.

    - `points`, float64 (n_leaves, 3, 8): unit vectors; NaN pads the last leaf.
    - `rows`, float64 (n_leaves, 8): their rows, ascending within a leaf. Exact below 2**53, and of
      one width with what they are selected by.
    - `keys`, int64 (n_leaves,): key of each leaf's first reference, ascending.
    - `boxes`, float64 (n_nodes, 6, 8): least and greatest x, y, z of each of a node's children.
      Nodes whose children are leaves come first; the root is the last.
    - `levels`, int64 (n_levels + 1,): first node of each level, lowest first, and their number.
    - `times`, int64 (n_leaves, 8), or (0, 8) where they do not matter.
    """

    points: np.ndarray
    rows: np.ndarray
    keys: np.ndarray
    boxes: np.ndarray
    levels: np.ndarray
    times: np.ndarray = _NO_TIMES


@njit(cache=True, nogil=True, error_model="numpy")
def fill_leaves(thread, threads, vectors, order, n, points, rows, leaf_keys, boxes):  # type: ignore[no-untyped-def]
    """Write the leaves of so many references of an order, and the nodes of the lowest level."""
    n_leaves = points.shape[0]
    n_nodes = (n_leaves + WIDTH - 1) // WIDTH
    x = np.empty(WIDTH)
    y = np.empty(WIDTH)
    z = np.empty(WIDTH)
    members = np.empty(WIDTH, np.int64)
    for node in range(n_nodes * thread // threads, n_nodes * (thread + 1) // threads):
        for child in range(WIDTH):
            leaf = node * WIDTH + child
            for axis in range(3):
                boxes[node, axis, child] = FAR
                boxes[node, 3 + axis, child] = -FAR
            if leaf >= n_leaves:
                continue
            first = leaf * WIDTH
            used = min(WIDTH, n - first)
            for j in range(WIDTH):
                ahead = min(first + _AHEAD * WIDTH + j, n - 1)
                prefetch_for_write(vectors, order[ahead] & ROW, 0)
                # The few missing ones of the last leaf come at its end.
                members[j] = order[first + j] & ROW if j < used else ROW
            row = order[first] & ROW
            x[child], y[child], z[child] = vectors[row, 0], vectors[row, 1], vectors[row, 2]
            for j in range(used):
                # Rows ascend within a leaf. Counted, because a processor cannot guess a sort's
                # branches.
                place = 0
                for other in range(WIDTH):
                    place += members[other] < members[j]
                rows[leaf, place] = members[j]
            for j in range(WIDTH):
                if j >= used:
                    rows[leaf, j] = rows[leaf, 0]
                row = np.int64(rows[leaf, j])
                for axis in range(3):
                    value = vectors[row, axis]
                    boxes[node, axis, child] = min(boxes[node, axis, child], value)
                    boxes[node, 3 + axis, child] = max(boxes[node, 3 + axis, child], value)
                    points[leaf, axis, j] = value if j < used else math.nan
        keys_of(x, y, z, leaf_keys[node * WIDTH : min((node + 1) * WIDTH, n_leaves)])


@njit(cache=True, nogil=True, error_model="numpy")
def fill_nodes(boxes, levels):  # type: ignore[no-untyped-def]
    """Write the boxes of nodes above the lowest level, around those of their children."""
    for level in range(1, levels.size - 1):
        for node in range(levels[level], levels[level + 1]):
            for child in range(WIDTH):
                below = levels[level - 1] + (node - levels[level]) * WIDTH + child
                for axis in range(3):
                    least = FAR
                    greatest = -FAR
                    if below < levels[level]:
                        for j in range(WIDTH):
                            least = min(least, boxes[below, axis, j])
                            greatest = max(greatest, boxes[below, 3 + axis, j])
                    boxes[node, axis, child] = least
                    boxes[node, 3 + axis, child] = greatest


def build(
    lat_deg: np.ndarray, lon_deg: np.ndarray, *, copies: bool = False, earth: Earth = "sphere"
) -> tuple[np.ndarray, Tree]:
    """Make unit vectors of references, shape (n, 4), and their tree, which leaves NaN ones out."""
    vectors = unit_vectors(lat_deg, lon_deg, earth=earth)
    return vectors, _tree(vectors, copies)


@register_jitable
def held(tree: Tree) -> int:
    """How many references a tree holds: all leaves are full but the last."""
    n = tree.rows.size
    for j in range(WIDTH if n else 0):
        n -= int(math.isnan(tree.points[-1, 0, j]))
    return n


def whole(vectors: np.ndarray, tree: Tree) -> bool:
    """Whether a tree holds every valid reference."""
    n = held(tree)
    return bool(n == len(vectors) or n == (~np.isnan(vectors[:, 0])).sum())


def _tree(vectors: np.ndarray, copies: bool) -> Tree:
    memory = scratch(len(vectors))._replace(points=vectors)
    order = memory.order[: sort(memory, WIDTH) if vectors.size else 0]
    tree = _tree_of(vectors, order)
    if copies:
        return tree
    fewer = _without_copies(vectors, order, tree.keys)
    return tree if fewer.size == order.size else _tree_of(vectors, fewer)


def _without_copies(vectors: np.ndarray, order: np.ndarray, leaf_keys: np.ndarray) -> np.ndarray:
    """Leave points out of an order that have `COPIES` equal ones of lower rows."""
    # Equal points lie together and have one key: one more than that many begin eight leaves.
    leaves = COPIES // WIDTH
    first = np.flatnonzero(leaf_keys[leaves - 1 :] == leaf_keys[: 1 - leaves])
    if not first.size:
        return order
    crowded = np.zeros(leaf_keys.size, bool)
    for leaf in range(-1, leaves):
        crowded[np.maximum(first + leaf, 0)] = True
    return order[: _leave_out(vectors, order, crowded)]


@njit(cache=True, nogil=True, error_model="numpy")
def _leave_out(vectors, order, crowded):  # type: ignore[no-untyped-def]
    """Close the gaps of points left out of crowded leaves; returns how many points stay."""
    # Sorting is stable, so equal points stand by ascending row, with few others between them. Each
    # is counted in a slot. Others that share it by chance begin its count anew: then more points
    # than need be stay.
    rows = np.full(_SLOTS, -1, np.int64)
    counts = np.zeros(_SLOTS, np.int64)
    stay = 0
    for place in range(order.size):
        row = order[place] & ROW
        if crowded[place // WIDTH]:
            mixed = np.int64(0)
            for axis in range(3):
                mixed += np.int64(vectors[row, axis] * 2.0**62) * _MIXED[axis]
            slot = (mixed >> 32) & (_SLOTS - 1)
            other = rows[slot]
            equal = other >= 0
            for axis in range(3):
                equal &= vectors[row, axis] == vectors[other, axis]
            if not equal:
                rows[slot] = row
                counts[slot] = 0
            counts[slot] += 1
            if counts[slot] > COPIES:
                continue
        order[stay] = order[place]
        stay += 1
    return stay


def levels_over(n: int) -> np.ndarray:
    """The first node of each level over so many leaves, lowest first, and their number."""
    levels = [0]
    while True:
        n = -(-n // WIDTH)
        levels.append(levels[-1] + n)
        if n <= 1:
            return np.array(levels)


def _tree_of(vectors: np.ndarray, order: np.ndarray) -> Tree:
    n = order.size
    n_leaves = -(-n // WIDTH)
    levels = levels_over(n_leaves)
    tree = Tree(
        kept(n_leaves, 3, WIDTH),
        kept(n_leaves, WIDTH),
        kept(n_leaves, dtype=np.int64),
        kept(levels[-1], 6, WIDTH),
        levels,
    )
    if n:
        at = (vectors, order, n, tree.points, tree.rows, tree.keys, tree.boxes)
        in_threads(fill_leaves, threads_for(n, _GRAIN), *at)
        fill_nodes(tree.boxes, tree.levels)
    return tree
