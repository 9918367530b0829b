"""Trees of the references of each group and time on a CPU, one after the other in memory.

The references of a group stand in order of time in one tree or several, each of so many of them.
Each tree begins with a leaf and a node of its own, so an observation walks those trees alone that
may hold what it matches. Beside the boxes stand the spans of time of what they hold.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import WIDTH, fill_leaves, fill_nodes
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import MAX_ROWS, ROW, scratch, sort
from georesolve.kernels.threads_cpu import in_threads, threads_for

__all__ = ["MAX_ROWS", "Forest", "build", "parted"]

_LEAST_OF_A_TREE = 1 << 9
"""References that a tree has at least, if its group has as many."""
EARLIEST, LATEST = -(1 << 63), (1 << 63) - 1
_GRAIN = 1 << 13
"""References that are worth a thread."""


class Forest(NamedTuple):
    """References of groups, along the curve in trees of their own.

    `points`, `rows`, `keys` and `boxes` are as those of `boxes_cpu.Tree`, tree after tree.

    Attributes
    ----------
    times : int64 array, shape (n_leaves, 8), or (0, 8) where they do not matter
    spans : int64 array, shape (n_nodes, 2, 8), or (0, 2, 8)
        Least and greatest time of each of a node's eight children.
    held, leaves, nodes : int64 array, shape (n_trees + 1,)
        Where the references, the leaves and the nodes of each tree begin, and those after the last.
    earliest, latest : int64 array, shape (n_trees,)
        Neither falls within a group.
    trees : int64 array, shape (n_groups + 1,)
        Where the trees of each group begin.
    """

    points: np.ndarray
    rows: np.ndarray
    keys: np.ndarray
    boxes: np.ndarray
    times: np.ndarray
    spans: np.ndarray
    held: np.ndarray
    leaves: np.ndarray
    nodes: np.ndarray
    earliest: np.ndarray
    latest: np.ndarray
    trees: np.ndarray


class Grown(NamedTuple):
    """One tree of a forest: what `walk_cpu.walk` takes, and the times in it."""

    points: np.ndarray
    rows: np.ndarray
    keys: np.ndarray
    boxes: np.ndarray
    levels: np.ndarray
    times: np.ndarray
    spans: np.ndarray
    held: int


@njit(inline="always")
def tree_of(forest, tree, levels):  # type: ignore[no-untyped-def]
    """One of the trees; `levels` is memory for where its levels begin."""
    leaf, last_leaf = forest.leaves[tree], forest.leaves[tree + 1]
    node, last_node = forest.nodes[tree], forest.nodes[tree + 1]
    width = last_leaf - leaf
    levels[0] = 0
    n = 1
    while n == 1 or width > 1:
        width = (width + WIDTH - 1) // WIDTH
        levels[n] = levels[n - 1] + width
        n += 1
    timed = forest.times.shape[0] > 0
    return Grown(
        forest.points[leaf:last_leaf],
        forest.rows[leaf:last_leaf],
        forest.keys[leaf:last_leaf],
        forest.boxes[node:last_node],
        levels[:n],
        forest.times[leaf : last_leaf if timed else leaf],
        forest.spans[node : last_node if timed else node],
        forest.held[tree + 1] - forest.held[tree],
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(thread, threads, vectors, order, time, forest):  # type: ignore[no-untyped-def]
    """Fill the trees that begin in a thread's share of the references."""
    n = order.size
    memory = np.empty(16, np.int64)
    for tree in range(forest.earliest.size):
        first, stop = forest.held[tree], forest.held[tree + 1]
        if not n * thread // threads <= first < n * (thread + 1) // threads:
            continue
        own = tree_of(forest, tree, memory)
        fill_leaves(
            0, 1, vectors, order[first:stop], stop - first, own.points, own.rows, own.keys,
            own.boxes[: own.levels[1]],
        )  # fmt: skip
        fill_nodes(own.boxes, own.levels)
        if not own.times.shape[0]:
            continue
        for leaf in range(own.times.shape[0]):
            for j in range(WIDTH):
                own.times[leaf, j] = time[np.int64(own.rows[leaf, j])]
        for level in range(own.levels.size - 1):
            below = own.levels[level - 1] if level else 0
            n_below = own.levels[level] - below if level else own.times.shape[0]
            for node in range(own.levels[level], own.levels[level + 1]):
                for child in range(WIDTH):
                    at = (node - own.levels[level]) * WIDTH + child
                    least, greatest = LATEST, EARLIEST
                    if at < n_below:
                        for j in range(WIDTH):
                            if level:
                                least = min(least, own.spans[below + at, 0, j])
                                greatest = max(greatest, own.spans[below + at, 1, j])
                            else:
                                least = min(least, own.times[at, j])
                                greatest = max(greatest, own.times[at, j])
                    own.spans[node, 0, child] = least
                    own.spans[node, 1, child] = greatest
        root = own.spans.shape[0] - 1
        forest.earliest[tree] = own.spans[root, 0].min()
        forest.latest[tree] = own.spans[root, 1].max()


@njit(cache=True, nogil=True, error_model="numpy")
def _count(thread, threads, order, part, counts):  # type: ignore[no-untyped-def]
    for i in range(order.size * thread // threads, order.size * (thread + 1) // threads):
        number = part[order[i] & ROW]
        if number >= 0:
            counts[thread, number] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _put(thread, threads, order, part, places, into):  # type: ignore[no-untyped-def]
    for i in range(order.size * thread // threads, order.size * (thread + 1) // threads):
        number = part[order[i] & ROW]
        if number >= 0:
            into[places[thread, number]] = order[i] & ROW
            places[thread, number] += 1


def parted(order: np.ndarray, part: np.ndarray, n_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of an order by the number of their part, and else as they are; and where parts begin.

    Those of a part below 0 are left out.
    """
    threads = threads_for(order.size, max(_GRAIN, n_parts))
    counts = np.zeros((threads, n_parts), np.int64)
    in_threads(_count, threads, order, part, counts)
    stops = counts.T.cumsum().reshape(-1, threads)
    starts = np.append(0, stops[:, -1])
    into = np.empty(starts[-1], np.int64)
    in_threads(_put, threads, order, part, np.ascontiguousarray(stops.T) - counts, into)
    return into, starts


def _nodes_over(n_leaves: np.ndarray) -> np.ndarray:
    """How many nodes stand over so many leaves, for each of some trees."""
    width = -(-n_leaves // WIDTH)
    nodes = width
    while (width > 1).any():
        width = np.where(width > 1, -(-width // WIDTH), 0)
        nodes = nodes + width
    return nodes


def build(
    lat_deg: np.ndarray,
    lon_deg: np.ndarray,
    group: np.ndarray,
    time: np.ndarray,
    n_groups: int,
    share: float,
) -> tuple[np.ndarray, Forest]:
    """Unit vectors of references, and their forest; it leaves out those of a group below 0.

    `time` is empty where it does not matter; else a tree holds such a `share` of all time.
    """
    vectors = unit_vectors(lat_deg, lon_deg)
    with scratch(len(vectors)) as memory:
        order = memory.order[: sort(memory._replace(points=vectors), WIDTH) if len(vectors) else 0]
        rows, held = parted(order, group, n_groups)
        each = np.diff(held)
        n_trees = np.minimum(each, 1)
        if time.size:
            most = np.maximum(each // _LEAST_OF_A_TREE, n_trees)
            n_trees = np.minimum(most, max(1, round(1 / max(share, 2.0**-20))))
            in_time, _ = parted(np.argsort(time, kind="stable"), group, n_groups)
            # What has no place has none in the order of the curve, either.
            in_time = in_time[~np.isnan(vectors[in_time, 0])]
            rank = np.arange(in_time.size) - np.repeat(held[:-1], each)
            part = np.full(group.size, -1)
            part[in_time] = rank * np.repeat(n_trees, each) // np.repeat(each, each)
            part[in_time] += np.repeat(n_trees.cumsum() - n_trees, each)
            rows, held = parted(order, part, int(n_trees.sum()))
    trees = np.append(0, n_trees.cumsum())
    held = np.append(held[:-1][np.diff(held) > 0], held[-1])
    leaves, nodes = (
        np.append(0, of_each.cumsum())
        for of_each in (-(-np.diff(held) // WIDTH), _nodes_over(-(-np.diff(held) // WIDTH)))
    )
    n_timed = int(time.size > 0)
    forest = Forest(
        kept(leaves[-1], 3, WIDTH),
        kept(leaves[-1], WIDTH),
        kept(leaves[-1], dtype=np.int64),
        kept(nodes[-1], 6, WIDTH),
        kept(n_timed * leaves[-1], WIDTH, dtype=np.int64),
        kept(n_timed * nodes[-1], 2, WIDTH, dtype=np.int64),
        held,
        leaves,
        nodes,
        np.full(held.size - 1, EARLIEST),
        np.full(held.size - 1, LATEST),
        trees,
    )
    in_threads(_fill, threads_for(rows.size, _GRAIN), vectors, rows, time, forest)
    return vectors, forest
