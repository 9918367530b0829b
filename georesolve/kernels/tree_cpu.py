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

from typing import Any

import numpy as np

from georesolve.kernels.boxes_cpu import NO_LIMIT, Tree, build, whole
from georesolve.kernels.brute_cpu import search_rows
from georesolve.kernels.cells_cpu import search as search_cells
from georesolve.kernels.coordinates_cpu import answer_of, readable, unit_vectors
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lists_cpu import search_lists
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import MAX_ROWS, ROW, in_windows
from georesolve.kernels.packets_cpu import LANES, OnSphere, search_packets, take
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
    window: int | None = None,
) -> Found | Answer:
    """The k nearest references of every observation; as `kernels.brute_cpu.search`.

    `by` says how to search, cells for k = 1 and without `exclude_self`; `way` where it is left out.
    `window` is how many observations are sorted at a time. Neither has an effect on the answer.
    """
    lat_deg, lon_deg = readable(observations)
    n = lat_deg.size
    tree: Tree = index.tree
    found = Found(kept(n, query.k, dtype=np.int64), kept(n, query.k))
    if not tree.keys.size or not n:
        found.reference.fill(-1)
        found.key.fill(np.nan if measure else np.inf)
        return Answer(*found) if measure else found
    lists = query.k > 1 or query.exclude_self
    sizes = (n, tree.rows.size, query)
    chosen = by or way("cpu", *sizes, "tree").search
    if chosen == "cells":
        left = search_cells(index, Degrees(lat_deg, lon_deg), found, sampled=by is None)
        if left is not None:
            rest = Degrees(lat_deg[left], lon_deg[left])
            walked = walk("cpu", left.size, tree.rows.size, query).search
            some = search(index, rest, query, by=walked, window=window)
            found.reference[left], found.key[left] = some
            return answer_of(found) if measure else found
        chosen = walk("cpu", *sizes).search
    packets = chosen == "packets"
    # A list is measured where it is made.
    in_metres = measure and lists and packets
    loop = search_singles if not packets else search_lists if lists else search_packets
    lanes = LANES if packets else 1
    brute = lanes * tree.rows.size
    least = _LEAST_PATIENCE * lanes**0.5 * (2 + query.k / 6)
    # Of the steps of brute force, what a walk may take before that takes its observations over: the
    # more, the longer a walk for lists takes for a step.
    patience = max(least, brute / (8 + query.k / 3))
    most_steps = NO_LIMIT if query.most_steps is None else query.most_steps
    seen = Degrees(lat_deg, lon_deg)
    for part, points, order in in_windows(seen, LANES, tree.rows.size, window):
        start = part.start
        reference, chord2 = found.reference[part], found.key[part]
        into: tuple[Any, ...] = (OnSphere(),)
        if lists or not packets:
            if order.size < part.stop - start:
                reference.fill(-1)
                chord2.fill(np.nan if in_metres else np.inf)
            into = (reference, chord2, query.exclude_self, query.first_row + start)
            into = (*into, in_metres) if packets else into
        threads = threads_for(order.size, _GRAIN)
        limits = np.array([int(patience), most_steps])
        tally = np.empty((threads, 2), np.int64)
        in_threads(loop, threads, tree, points, order, order.size, limits, tally, *into)
        most_steps = steps_left(most_steps, tally[:, 0], query.most_steps)
        if loop is search_packets:
            threads = threads_for(part.stop - start, _TAKE_GRAIN)
            in_threads(take, threads, points, 1, reference[:, 0], chord2[:, 0])
        if tally[:, 1].any():
            rows = ~order[order < 0] & ROW
            rest = Degrees(lat_deg[part][rows], lon_deg[part][rows])
            some = _compare_all(index, rest, start + rows, query, most_steps)
            reference[rows] = some.reference
            chord2[rows] = answer_of(some).distance_m if in_metres else some.key
    if in_metres:
        return Answer(*found)
    return answer_of(found) if measure else found


def _compare_all(
    index: ReferenceIndex, observations: Degrees, rows: np.ndarray, query: Query, most_steps: int
) -> Found:
    """Search some rows of the observations by brute force, equal ones once."""
    own = query.first_row + rows if query.exclude_self else rows[:0]
    places = np.arange(rows.size)
    if not query.exclude_self:
        vectors = unit_vectors(*observations)
        _, first, places = np.unique(vectors, axis=0, return_index=True, return_inverse=True)
        observations = Degrees(*(degrees[first] for degrees in observations))
    vectors, standing = index.vectors, index.tree.rows
    inside = np.arange(len(vectors))
    if 2 * standing.size < len(vectors):
        # Most references have too many equals of lower rows to be found.
        inside = np.unique(standing).astype(np.int64)
        vectors = vectors[inside]
        at = np.searchsorted(inside, own)
        own = np.where(np.take(inside, at, mode="clip") == own, at, -1)
    found = search_rows(vectors, observations, own, query.k, most_steps)
    reference = np.where(found.reference >= 0, inside[found.reference], -1)
    return Found(reference[places], found.key[places])
