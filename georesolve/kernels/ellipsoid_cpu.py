"""The nearest references on the ellipsoid, and all within a distance, on a CPU.

The walks of the sphere find the nearest by their chords, one more than are wanted. Where that one
is too far to be nearer by its geodesic, the others are put in order by theirs. Where it is not, the
observation walks the tree again by itself, and looks at geodesics on the way.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, NO_LIMIT, STACK, WIDTH
from georesolve.kernels.coordinates_cpu import readable
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.ellipsoid import outermost
from georesolve.kernels.geodesic import geodesic_m
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import children_within, lowest_bit
from georesolve.kernels.lists_cpu import search_lists
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import ROW, in_windows, keys_of
from georesolve.kernels.packets_cpu import LANES
from georesolve.kernels.query import MAX_K, Answer, Degrees, Found, Query, StepsSpent
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.walk_cpu import leaf_of, leaves_near, leaves_to_fill, looks, put, walk
from georesolve.kernels.ways import Search

_GRAIN = 256
"""Observations that are worth a thread."""
_GEODESIC_STEPS = 256
"""Steps that a geodesic counts as: few are long."""
_PATIENCE = 1 << 16
"""Steps of a walk by chords that are always worth it: what takes more walks by itself."""


class Ranked(NamedTuple):
    """Collects the k nearest of one observation by geodesics, into its lines of the answer."""

    x: float
    y: float
    z: float
    own: int
    reference: np.ndarray
    key: np.ndarray


@looks(Ranked)
def _rank(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    x, y, z, own, reference, key = collector
    last = key.size - 1
    steps = 0
    while bits:
        leaf = node * WIDTH + lowest_bit(bits)
        bits &= bits - 1
        steps += WIDTH
        for j in range(WIDTH):
            px, py, pz = tree.points[leaf, 0, j], tree.points[leaf, 1, j], tree.points[leaf, 2, j]
            row = np.int64(tree.rows[leaf, j])
            if squared_chord(x, y, z, px, py, pz) <= worst and row != own:
                steps += _GEODESIC_STEPS
                metres = geodesic_m(x, y, z, px, py, pz)
                if closer(metres, row, key[last], reference[last]):
                    put(key, reference, last, metres, row)
                    worst = min(worst, outermost(key[last]))
        bits &= children_within(tree.boxes, node, box, worst)
    return worst, steps


@njit(inline="always")
def _start(reference, key):  # type: ignore[no-untyped-def]
    for j in range(key.size):
        reference[j], key[j] = ROW, np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def _settle(  # type: ignore[no-untyped-def]
    thread, threads, tree, vectors, points, order, brute, exclude_self, first_row, by_chord,
    chord2, reference, key, most, tally,
):  # fmt: skip
    """Write the k nearest of the observations of an order by their geodesics.

    `by_chord` and `chord2` have the k + 1 nearest by their chords, or no columns: then each walks
    by itself, as those do that are marked.
    """
    k = key.shape[1]
    box, stack = np.empty(6), np.empty(STACK, np.int64)
    n_near = leaves_to_fill(k, exclude_self)
    keys, x_of, y_of, z_of = np.empty(1, np.int64), np.empty(1), np.empty(1), np.empty(1)
    steps = 0
    for place in range(order.size * thread // threads, order.size * (thread + 1) // threads):
        if steps > most:
            break
        has_some = chord2.shape[1] > 0 and order[place] >= 0
        i = (order[place] if order[place] >= 0 else ~order[place]) & ROW
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        own = first_row + i if exclude_self else -1
        rows, lengths = reference[i], key[i]
        _start(rows, lengths)
        worst = ALL
        if has_some:
            for j in range(k):
                row = by_chord[i, j]
                if row >= 0:
                    metres = geodesic_m(x, y, z, vectors[row, 0], vectors[row, 1], vectors[row, 2])
                    put(lengths, rows, k - 1, metres, row)
            steps += k * _GEODESIC_STEPS
            worst = min(worst, outermost(lengths[k - 1]))
        if not has_some or chord2[i, k] <= worst:
            _start(rows, lengths)
            ranked = Ranked(x, y, z, own, rows, lengths)
            if brute:
                _compare_all(ranked, vectors, worst)
                steps += vectors.shape[0]
            else:
                box[0], box[1], box[2], box[3], box[4], box[5] = x, y, z, x, y, z
                x_of[0], y_of[0], z_of[0] = x, y, z
                keys_of(x_of, y_of, z_of, keys)
                near, near_stop = leaves_near(tree.keys, leaf_of(tree.keys, keys[0], 0), n_near)
                steps += walk(tree, ranked, box, worst, near, near_stop, most - steps, stack)
        for j in range(k):
            if lengths[j] == np.inf:
                rows[j] = -1
    tally[thread] = steps


@njit(inline="always")
def _compare_all(ranked, vectors, worst):  # type: ignore[no-untyped-def]
    x, y, z, own, reference, key = ranked
    last = key.size - 1
    for row in range(vectors.shape[0]):
        px, py, pz = vectors[row, 0], vectors[row, 1], vectors[row, 2]
        if squared_chord(x, y, z, px, py, pz) <= worst and row != own:
            metres = geodesic_m(x, y, z, px, py, pz)
            if closer(metres, row, key[last], reference[last]):
                put(key, reference, last, metres, row)
                worst = min(worst, outermost(key[last]))


def search(
    index: ReferenceIndex, observations: Degrees, query: Query, by: Search, *, measure: bool = False
) -> Found | Answer:
    """The k nearest references of every observation by their geodesics; keys are metres."""
    n, k, tree = observations.lat_deg.size, query.k, index.tree
    found = Found(kept(n, k, dtype=np.int64), kept(n, k))
    left = NO_LIMIT if query.most_steps is None else query.most_steps
    size = tree.rows.size
    for part, points, order in in_windows(readable(observations), LANES, size, earth="wgs84"):
        reference, key = found.reference[part], found.key[part]
        if order.size < len(points):
            reference.fill(-1)
            key.fill(np.inf)
        threads = threads_for(order.size, _GRAIN)
        asked = (query.exclude_self, query.first_row + part.start)
        walks_together = by in ("packets", "cells") and k < MAX_K and size
        width = k + 1 if walks_together else 0
        nearest = Found(kept(len(points), width, dtype=np.int64), kept(len(points), width))
        if width:
            limits = np.array([max(_PATIENCE, LANES * size // 64), left])
            tally = np.empty((threads, 2), np.int64)
            at = (tree, points, order, order.size, limits, tally, *nearest, *asked, False)
            in_threads(search_lists, threads, *at)
            left = _spent(left, tally[:, 0], query)
        steps = np.zeros(threads, np.int64)
        at = (
            tree,
            index.vectors,
            points,
            order,
            by == "brute" or not size,
            *asked,
            *nearest,
            reference,
            key,
        )
        in_threads(_settle, threads, *at, left, steps)
        left = _spent(left, steps, query)
    return answer_of(found) if measure else found


def _spent(left: int, steps: np.ndarray, query: Query) -> int:
    left -= int(steps.max())
    if left < 0:
        raise StepsSpent(f"the search takes more than {query.most_steps} steps")
    return left


def answer_of(found: Found) -> Answer:
    """The metres of what was found, which are its keys."""
    found.key[found.reference < 0] = np.nan
    return Answer(*found)
