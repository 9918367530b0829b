"""Trees of the references of each group and time on a CPU, one after the other in memory.

The references of a group stand in order of time in one tree or several, each of so many of them or
of the time of two windows. For windows each tree also has copies of what is half a window before
and after its time: then all that a window meets is in the tree of its middle. A tree begins with a
leaf and a node of its own, so an observation walks no other.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import WIDTH, Tree, fill_leaves, fill_nodes, held
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.filters import GREATEST, LEAST
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import Scratch, sort_parts
from georesolve.kernels.threads_cpu import in_threads, threads_for

_LEAST_OF_A_TREE = 1 << 9
"""References that a tree has at least, if its group has as many."""
TREES_DEEP = 16
"""Levels of a tree at most, and one."""
FINER = 8
"""Buckets of time that a tree has: one finds the tree of most times at once."""
_GRAIN = 1 << 13
"""References that are worth a thread."""


class Forest(NamedTuple):
    """References of groups, along the curve in trees of their own.

    - `points`, `rows`, `keys`, `boxes` and `times` are as those of `boxes_cpu.Tree`, tree after
      tree.
    - `held`, `leaves`, `nodes`, int64 (n_trees + 1,): where the references, the leaves and the
      nodes of each tree begin, and those after the last.
    - `earliest`, `latest`, int64 (n_trees,): of the references whose own tree it is; neither falls
      within a group.
    - `buckets`, int64 (8 n_trees,): the tree from which on that of a time is looked for; see
      `bucket_of`.
    - `trees`, int64 (n_groups + 1,): where the trees of each group begin.
    - `reaches`: a tree has copies of references of other trees, so an observation walks one alone.
    """

    points: np.ndarray
    rows: np.ndarray
    keys: np.ndarray
    boxes: np.ndarray
    times: np.ndarray
    held: np.ndarray
    leaves: np.ndarray
    nodes: np.ndarray
    earliest: np.ndarray
    latest: np.ndarray
    buckets: np.ndarray
    trees: np.ndarray
    reaches: bool


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
    return Tree(
        forest.points[leaf:last_leaf],
        forest.rows[leaf:last_leaf],
        forest.keys[leaf:last_leaf],
        forest.boxes[node:last_node],
        levels[:n],
        forest.times[leaf : last_leaf if timed else leaf],
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(thread, threads, vectors, order, time, forest):  # type: ignore[no-untyped-def]
    """Fill the trees that begin in a thread's share of the references."""
    n = forest.held[-1]
    memory = np.empty(TREES_DEEP, np.int64)
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


@njit(cache=True, nogil=True, error_model="numpy")
def _cut(rows, group, time, least, length, gap, margin, part):  # type: ignore[no-untyped-def]
    """Write the trees of references that stand by group and time; where those of each begin.

    The first is the one of their own time, the second its neighbour that they are near to.
    """
    firsts = [0 for _ in range(0)]
    # Differences are of 64 bits without a sign, which hold them all.
    begin, first, before = 0, np.uint64(0), np.uint64(0)
    for place in range(rows.size):
        row = rows[place]
        own = np.uint64(time[row])
        if (
            place == 0
            or group[row] != group[rows[begin]]
            or (
                place - begin >= least[group[row]]
                and own != before
                # Windows that lie in a gap meet nothing, and walk no tree.
                and (own - first >= length or own - before > gap)
            )
        ):
            firsts.append(place)
            begin, first = place, own
        part[row, 0] = len(firsts) - 1
        before = own
    for tree in range(1, len(firsts) if part.shape[1] > 1 else 0):
        edge = rows[firsts[tree]]
        if group[rows[firsts[tree] - 1]] != group[edge]:
            continue
        for step in (-1, 1):
            place = firsts[tree] - (step < 0)
            while 0 <= place < rows.size and group[rows[place]] == group[edge]:
                row = rows[place]
                apart = np.uint64(time[row]) - np.uint64(time[edge])
                if (apart if step > 0 else np.uint64(0) - apart) > margin:
                    break
                part[row, 1] = tree - (step > 0)
                place += step
    return np.array(firsts)


@njit(inline="always")
def bucket_of(forest, low, stop, time):  # type: ignore[no-untyped-def]
    """In which part of the time of some trees a time is: there are `FINER` a tree."""
    begin = float(forest.earliest[low])
    # In float64: it may be more than 64 bits hold.
    part = (float(time) - begin) / (float(forest.latest[stop - 1]) - begin + 1.0)
    n = (stop - low) * FINER
    return low * FINER + min(int(max(0.0, min(part, 1.0)) * n), n - 1)


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_buckets(forest):  # type: ignore[no-untyped-def]
    """Write the last tree that begins before each bucket, or the first of its group."""
    for group in range(forest.trees.size - 1):
        low, stop = forest.trees[group], forest.trees[group + 1]
        tree = low
        for bucket in range(low * FINER, stop * FINER):
            while (
                tree + 1 < stop and bucket_of(forest, low, stop, forest.earliest[tree + 1]) < bucket
            ):
                tree += 1
            forest.buckets[bucket] = tree


def forest_of(tree: Tree) -> Forest:
    """A tree that stands alone."""
    return Forest(
        tree.points, tree.rows, tree.keys, tree.boxes, tree.times,
        np.array([0, held(tree)]), np.array([0, len(tree.keys)]), np.array([0, len(tree.boxes)]),
        np.array([LEAST]), np.array([GREATEST]), np.empty(0, np.int64), np.arange(2), True,
    )  # fmt: skip


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
) -> tuple[np.ndarray, Any]:
    """Unit vectors of references, and their forest; it leaves out those of a group below 0.

    `time` is empty where it does not matter; else a tree holds such a `share` of a group, and the
    forest is made when it is first asked for.
    """
    vectors = unit_vectors(lat_deg, lon_deg)
    made = partial(grow, vectors, group, time, n_groups, share)
    return vectors, made if time.size else made()


def grow(
    vectors: np.ndarray,
    group: np.ndarray,
    time: np.ndarray,
    n_groups: int,
    share: float,
    width: int | None = None,
) -> Forest:
    """The forest of some references, of which each is in one tree.

    With a `width` a tree holds all that windows up to so wide meet whose middle is in its time.
    """
    able = (group >= 0) & ~np.isnan(vectors[:, 0])
    sizes = np.bincount(group[able], minlength=n_groups)
    if time.size:
        rows = np.argsort(time)
        rows = rows[able[rows]]
        if n_groups > 1:
            rows = rows[np.argsort(group[rows], kind="stable")]
        least = np.full(n_groups, _LEAST_OF_A_TREE)
        # Halves of windows, and what their rounding may add. A tree has the time of two windows.
        margin = 0 if width is None else width // 2 + 2
        lengths = (np.uint64(min(times * margin, 2**64 - 1)) for times in (4, 2, 1))
        if width is None:
            least = np.maximum(least, (sizes * share).astype(np.int64))
        part = np.full((len(vectors), 1 if width is None else 2), -1, np.int32)
        firsts = _cut(rows, group, time, least, *lengths, part)
        ends = np.append(firsts[1:], rows.size)[: firsts.size]
        trees = np.searchsorted(firsts, np.append(0, sizes.cumsum()))
        earliest, latest = time[rows[firsts]], time[rows[ends - 1]]
    else:
        trees = np.append(0, (sizes > 0).cumsum())
        part = np.where(able, trees[group], -1).astype(np.int32)[:, None]
        earliest, latest = np.full(trees[-1], LEAST), np.full(trees[-1], GREATEST)
    memory = Scratch(vectors, np.empty(part.size, np.int64), np.empty(part.size, np.int64))
    held = sort_parts(memory, part, earliest.size)
    n_leaves = -(-np.diff(held) // WIDTH)
    leaves, nodes = (np.append(0, each.cumsum()) for each in (n_leaves, _nodes_over(n_leaves)))
    n_timed = int(time.size > 0)
    forest = Forest(
        kept(leaves[-1], 3, WIDTH),
        kept(leaves[-1], WIDTH),
        kept(leaves[-1], dtype=np.int64),
        kept(nodes[-1], 6, WIDTH),
        kept(n_timed * leaves[-1], WIDTH, dtype=np.int64),
        held,
        leaves,
        nodes,
        earliest,
        latest,
        np.empty(n_timed * earliest.size * FINER, np.int64),
        trees,
        width is not None,
    )
    in_threads(_fill, threads_for(held[-1], _GRAIN), vectors, memory.order, time, forest)
    if n_timed:
        _fill_buckets(forest)
    return forest
