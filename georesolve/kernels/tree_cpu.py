"""The pruned search on a CPU: neighbouring observations walk a tree of boxes together.

References stand in a tree (`kernels.boxes_cpu`). Observations are sorted along the same curve
(`kernels.order_cpu`) and walk the tree in packets: `kernels.packets_cpu` finds the nearest one,
`kernels.lists_cpu` several. Where observations have little of their walks in common, each walks by
itself (`kernels.singles_cpu`). Where there are many observations a reference, most of them are
answered from a table of cells before that (`kernels.cells_cpu`).

Nothing that could win or tie is left out, rounding included. Let an observation's coordinate a lie
in the packet's [p, q] and a reference's b in the box's [l, h]. Then |a - b| >= g with
g = max(l - q, p - h, 0). Rounding is monotonic: a difference, product or sum of larger operands is,
rounded, not smaller. So fl(|a - b|) >= fl(g), the same holds of their squares, and of the sum of
three squares taken in the same order. The bound of a box is computed by the very steps of
`kernels.distance.squared_chord`, hence at most every squared chord it covers *as computed*, and no
tolerance is needed. A box is dropped only if its bound is strictly greater than the worst best, so
equals with a lower row are still met, and `kernels.distance.closer` orders what is met.

NaN compares false: a NaN in a leaf (padding) is never closer, and points that are NaN are left out
of every order, hence have no place in the tree and in no packet.
"""

import numpy as np

from georesolve.kernels.boxes_cpu import NO_LIMIT, Tree, build, whole
from georesolve.kernels.brute_cpu import compare_all
from georesolve.kernels.cells_cpu import search as search_cells
from georesolve.kernels.coordinates_cpu import answer_of, readable
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lists_cpu import search_lists
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import MAX_ROWS, ROW, in_windows
from georesolve.kernels.packets_cpu import LANES, OnEllipsoid, OnSphere, search_packets, take
from georesolve.kernels.query import Answer, Degrees, Found, Query, steps_left
from georesolve.kernels.singles_cpu import search_singles
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.ways import Search, walk, way

__all__ = ["MAX_ROWS", "build", "search", "whole"]

_GRAIN = 256
"""Observations that are worth a thread."""
_TAKE_GRAIN = 1 << 15
"""Answers that are worth a thread."""
_LEAST_PATIENCE = 1 << 12
"""Steps of a walk that are always worth it. Sixteen observations that share one take four times as
many, as they lie apart, and longer lists are made of more leaves."""


def search(
    index: ReferenceIndex,
    observations: Degrees,
    query: Query,
    *,
    measure: bool = False,
    by: Search | None = None,
) -> Found | Answer:
    """The k nearest references of every observation; those that are not valid match nothing.

    `by` says how to search, cells for k = 1 and without `exclude_self`; `way` where it is left out.
    It has no effect on the answer.
    """
    degrees, tree = readable(observations), index.tree
    n = degrees.lat_deg.size
    found = Found(kept(n, query.k, dtype=np.int64), kept(n, query.k))
    if not tree.rows.size or not n:
        found.reference.fill(-1)
        found.key.fill(np.inf)
        return answer_of(found) if measure else found
    sizes = (n, tree.rows.size, query)
    chosen = by or way("cpu", *sizes, "tree").search
    if chosen == "cells":
        rows = search_cells(index, degrees, found, sampled=by is None)
        if rows is not None:
            rest = Degrees(*(each[rows] for each in degrees))
            walked = walk("cpu", rows.size, tree.rows.size, query).search
            some = search(index, rest, query, by=walked)
            found.reference[rows], found.key[rows] = some
            return answer_of(found) if measure else found
        chosen = walk("cpu", *sizes).search
    lanes = LANES if chosen == "packets" else 1
    least = _LEAST_PATIENCE * lanes**0.5 * (2 + query.k / 6)
    # Of the steps of brute force, what a walk may take before that takes its observations over: the
    # more, the longer a walk for lists takes for a step.
    patience = max(least, lanes * tree.rows.size / (8 + query.k / 3))
    left = NO_LIMIT if query.most_steps is None else query.most_steps
    for part, points, order in in_windows(degrees, LANES, tree.rows.size):
        here = Found(found.reference[part], found.key[part])
        if order.size < len(points):
            here.reference.fill(-1)
            here.key.fill(np.inf)
        asked = query._replace(first_row=query.first_row + part.start)
        how = (asked, chosen, left, patience, here, OnSphere())
        left, rows = search_part(tree, points, order, *how)
        if rows.size:
            first = places = np.arange(rows.size)
            if not query.exclude_self:
                # Equal ones are compared once.
                _, first, places = np.unique(
                    points[rows], axis=0, return_index=True, return_inverse=True
                )
            vectors, standing = index.vectors, np.arange(len(index.vectors))
            if 2 * tree.rows.size < standing.size:
                # Most have too many equals of lower rows to be found.
                standing = np.unique(tree.rows).astype(np.int64)
                vectors = vectors[standing]
            compare_all(vectors, standing, points, rows[first], asked, left, here)
            for each in here:
                each[rows] = each[rows[first[places]]]
    return answer_of(found) if measure else found


def search_part(
    tree: Tree,
    points: np.ndarray,
    order: np.ndarray,
    query: Query,
    by: Search,
    left: int,
    patience: float,
    found: Found,
    kind: OnSphere | OnEllipsoid,
) -> tuple[int, np.ndarray]:
    """Write the k nearest references of the observations of an order, by packets or singles.

    Returns what is `left` of the steps, and the rows of those whose walk took more than its
    `patience`, of which nothing is written that is of use.
    """
    threads = threads_for(order.size, _GRAIN)
    limits, tally = np.array([int(patience), left]), np.empty((threads, 2), np.int64)
    at = (tree, points, order, order.size, limits, tally)
    if by == "packets" and query.k == 1 and not query.exclude_self:
        in_threads(search_packets, threads, *at, kind)
        one = (each[:, 0] for each in found)
        column = 1 if isinstance(kind, OnSphere) else 2
        in_threads(take, threads_for(len(points), _TAKE_GRAIN), points, column, *one)
    else:
        loop = search_lists if by == "packets" else search_singles
        in_threads(loop, threads, *at, *found, query.exclude_self, query.first_row)
    return steps_left(left, tally[:, 0], query.most_steps), ~order[order < 0] & ROW
