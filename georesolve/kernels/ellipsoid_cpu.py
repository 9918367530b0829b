"""The nearest references on the ellipsoid on a CPU; `within_cpu` finds all within a distance.

The walks of the sphere find the nearest by their chords, one more than are wanted. Where that one
is too far to be nearer by its geodesic, the others are put in order by theirs. Where it is not, the
observation walks the tree again by itself, and looks at geodesics on the way.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, NO_LIMIT, STACK, WIDTH
from georesolve.kernels.brute_cpu import compare_all
from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.coordinates_cpu import readable
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.ellipsoid import MORE, ONE, outermost
from georesolve.kernels.geodesic import (
    AXES,
    SEMI_MAJOR_M,
    geodesic_m,
    is_short,
    on_ellipsoid,
    short_m,
)
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import children_within, lowest_bit
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import ROW, in_windows
from georesolve.kernels.packets_cpu import LANES, OnEllipsoid
from georesolve.kernels.query import Answer, Degrees, Found, Query, steps_left
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.tree_cpu import search_part
from georesolve.kernels.walk_cpu import look, put, take_whole, walk
from georesolve.kernels.ways import Search
from georesolve.kernels.within_cpu import count, pairs

__all__ = ["answer_of", "count", "pairs", "search"]

_GRAIN = 256
"""Observations that are worth a thread."""
_GEODESIC_STEPS = 256
"""Steps that a geodesic counts as: few are long."""
_FAR2 = 1.001 / SEMI_MAJOR_M**2
"""The square of a geodesic by this is more than `outermost`: no chord is longer."""
_CHORDS_DO_M, _BALL_M = 3e5, 3e5
_GAP = 4 * 8.4e-4 / SEMI_MAJOR_M**2
"""Of a cube of metres: four times by how much geodesics of one chord may differ."""
_BLOCK = 64
"""Observations that are measured together: the loops over them vectorise."""
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


@take_whole.of(Ranked)
def _leave_out(collector, tree, node, level, bits, box):  # type: ignore[no-untyped-def]
    """Leave out far boxes by a geodesic to their middles, where chords tell less than these.

    What is in a box is no nearer than its middle on the ellipsoid, less how far it is from that
    middle: up to `_BALL_M` that is at most 1.001 of its chord.
    """
    x, y, z, _, _, key = collector
    worst = key[key.size - 1]
    # By brute force, from a box around all, nothing is left out.
    if box[0] < -1.5 or not _CHORDS_DO_M < worst < np.inf:
        return bits
    useful = min(_BALL_M, _GAP * worst**3)
    left = bits
    while left:
        j = lowest_bit(left)
        left &= left - 1
        wide = np.empty(3)
        middle = np.empty(3)
        for axis in range(3):
            low, high = tree.boxes[node, axis, j], tree.boxes[node, 3 + axis, j]
            middle[axis], wide[axis] = 0.5 * (low + high), 0.5 * (high - low)
        size = math.sqrt(middle[0] ** 2 + middle[1] ** 2 + (middle[2] / AXES) ** 2)
        off = math.sqrt((middle**2).sum()) * abs(1.0 / size - 1.0)
        radius = SEMI_MAJOR_M * 1.001 * (math.sqrt((wide**2).sum()) + off) + 1e-3
        if radius < useful:
            metres = geodesic_m(x, y, z, middle[0] / size, middle[1] / size, middle[2] / size)
            if metres - radius > worst:
                bits &= ~(np.int64(1) << j)
    return bits


@look.of(Ranked)
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


@njit(nogil=True, error_model="numpy")
def _load(lat_deg, lon_deg, here):  # type: ignore[no-untyped-def]
    x, y, z = here[0, : lat_deg.size], here[1, : lat_deg.size], here[2, : lat_deg.size]
    for i in range(x.size):
        x[i], y[i], z[i] = unit_vector(lat_deg[i], lon_deg[i])
    for i in range(x.size):
        x[i], y[i], z[i] = on_ellipsoid(x[i], y[i], z[i])


@njit(nogil=True, error_model="numpy")
def _measure(vectors, rows, here, there, found):  # type: ignore[no-untyped-def]
    """Metres to a reference each, if it is a short way, and squared chords."""
    n = rows.size
    px, py, pz = there[0, :n], there[1, :n], there[2, :n]
    for i in range(n):
        row = rows[i] if rows[i] > 0 else 0
        px[i], py[i], pz[i] = vectors[row, 0], vectors[row, 1], vectors[row, 2]
    x, y, z = here[0, :n], here[1, :n], here[2, :n]
    metres, chord2 = found[0, :n], found[1, :n]
    for i in range(n):
        chord2[i] = squared_chord(x[i], y[i], z[i], px[i], py[i], pz[i])
    for i in range(n):
        metres[i] = short_m(x[i], y[i], z[i], px[i], py[i], pz[i], chord2[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _settle(  # type: ignore[no-untyped-def]
    thread, threads, tree, vectors, lat_deg, lon_deg, brute, exclude_self, first_row, by_chord,
    beyond, reference, key, most, tally,
):  # fmt: skip
    """Write the k nearest of observations by their geodesics, in the order of their rows.

    `by_chord` has the k nearest by their chords, and `beyond` the least squared chord of all
    others. Where that is below 0 it is not known: they walk by themselves.
    """
    n, k = key.shape
    box, stack = np.empty(6), np.empty(STACK, np.int64)
    here, there, found = np.empty((3, _BLOCK)), np.empty((3, _BLOCK)), np.empty((2, _BLOCK))
    steps = 0
    stop = n * (thread + 1) // threads
    for first in range(n * thread // threads, stop, _BLOCK):
        if steps > most:
            break
        last = min(first + _BLOCK, stop)
        _load(lat_deg[first:last], lon_deg[first:last], here)
        reference[first:last], key[first:last] = ROW, np.inf
        for j in range(k):
            _measure(vectors, by_chord[first:last, j], here, there, found)
            for i in range(first, last):
                row = by_chord[i, j]
                if row >= 0:
                    metres, chord2 = found[0, i - first], found[1, i - first]
                    if not is_short(chord2):
                        x, y, z = here[0, i - first], here[1, i - first], here[2, i - first]
                        metres = geodesic_m(
                            x, y, z, vectors[row, 0], vectors[row, 1], vectors[row, 2]
                        )
                    put(key[i], reference[i], k - 1, metres, row)
        steps += (last - first) * k * _GEODESIC_STEPS
        for i in range(first, last):
            x, y, z = here[0, i - first], here[1, i - first], here[2, i - first]
            rows, lengths = reference[i], key[i]
            worst = ALL
            if beyond[i] >= 0.0:
                # Mostly the others are far, and an estimate, a little more than the bound, will do.
                is_far = beyond[i] >= _FAR2 * lengths[k - 1] ** 2
                worst = 0.0 if is_far else min(worst, outermost(lengths[k - 1]))
            if x == x and beyond[i] <= worst:
                # What was found by chords is found again, with how far it lies as a bound.
                rows[:], lengths[:] = ROW, lengths[k - 1]
                own = first_row + i if exclude_self else -1
                ranked = Ranked(x, y, z, own, rows, lengths)
                box[0], box[1], box[2], box[3], box[4], box[5] = x, y, z, x, y, z
                if brute:
                    box[:3], box[3:] = -2.0, 2.0
                steps += walk(tree, ranked, box, worst, 0, 0, most - steps, stack)
            for j in range(k):
                if lengths[j] == np.inf:
                    rows[j] = -1
    tally[thread] = steps


def search(
    index: ReferenceIndex, observations: Degrees, query: Query, by: Search, *, measure: bool = False
) -> Found | Answer:
    """The k nearest references of every observation by their geodesics; keys are metres."""
    n, k, tree = observations.lat_deg.size, query.k, index.tree
    found = Found(kept(n, k, dtype=np.int64), kept(n, k))
    if not tree.rows.size:
        found.reference.fill(-1)
        found.key.fill(np.inf)
        return answer_of(found) if measure else found
    left = NO_LIMIT if query.most_steps is None else query.most_steps
    patience = max(_PATIENCE, LANES * tree.rows.size // 64)
    # Packets find the second by chords, too.
    more = k > 1 or query.exclude_self or by != "packets"
    degrees = readable(observations)
    for part, points, order in in_windows(degrees, LANES, tree.rows.size, earth="wgs84"):
        asked = query._replace(k=k + more, first_row=query.first_row + part.start)
        chords = Found(kept(len(points), asked.k, dtype=np.int64), kept(len(points), asked.k))
        if order.size < len(points):
            chords.reference.fill(-1)
        given_up = order[:0]
        if by == "brute":
            rows = np.arange(len(index.vectors))
            compare_all(index.vectors, rows, points, order, asked, left, chords)
        else:
            of = (tree, points, order, asked, by, left, patience, chords, OnEllipsoid(ONE, MORE))
            left, given_up = search_part(*of)
        beyond = chords.key[:, -1].copy()
        chords.reference[given_up], beyond[given_up] = -1, -1.0
        threads = threads_for(order.size, _GRAIN)
        steps = np.zeros(threads, np.int64)
        in_threads(
            _settle, threads, tree, index.vectors, *(one[part] for one in degrees),
            by == "brute", asked.exclude_self, asked.first_row, chords.reference, beyond,
            found.reference[part], found.key[part], left, steps,
        )  # fmt: skip
        left = steps_left(left, steps, query.most_steps)
    return answer_of(found) if measure else found


def answer_of(found: Found) -> Answer:
    """The metres of what was found, which are its keys."""
    found.key[found.reference < 0] = np.nan
    return Answer(*found)
