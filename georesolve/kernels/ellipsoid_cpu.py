"""The nearest references on the ellipsoid, and all within a distance, on a CPU.

The walks of the sphere find the nearest by their chords, one more than are wanted. Where that one
is too far to be nearer by its geodesic, the others are put in order by theirs. Where it is not, the
observation walks the tree again by itself, and looks at geodesics on the way.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import ALL, NO_LIMIT, STACK, WIDTH, held
from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.coordinates_cpu import readable
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.ellipsoid import MORE, ONE, innermost, outermost
from georesolve.kernels.geodesic import (
    AXES,
    SEMI_MAJOR_M,
    SHORT2,
    geodesic_m,
    on_ellipsoid,
    short_m,
)
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import children_within, lowest_bit
from georesolve.kernels.lists_cpu import search_lists
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.order_cpu import ROW, in_windows, keys_of
from georesolve.kernels.packets_cpu import LANES, OnEllipsoid, search_packets
from georesolve.kernels.query import MAX_K, Answer, Degrees, Found, Pairs, Query, StepsSpent, Within
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.walk_cpu import leaf_of, leaves_near, leaves_to_fill, looks, put, walk
from georesolve.kernels.ways import Search
from georesolve.kernels.within_cpu import RUN, asked_twice, count_whole, put_in_order

_GRAIN = 256
"""Observations that are worth a thread."""
_TURN = 64
"""Observations that a thread takes in its turn."""
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


def _leave_out(collector, tree, node, level, bits, box):  # type: ignore[no-untyped-def]
    """Leave out far boxes by a geodesic to their middles, where chords tell less than these.

    What is in a box is no nearer than its middle on the ellipsoid, less how far it is from that
    middle: up to `_BALL_M` that is at most 1.001 of its chord.
    """
    x, y, z, _, _, key = collector
    worst = key[key.size - 1]
    if not _CHORDS_DO_M < worst < np.inf:
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


@looks(Ranked, _leave_out)
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


@njit(nogil=True, error_model="numpy")
def _load(lat_deg, lon_deg, reference, key, here):  # type: ignore[no-untyped-def]
    """Load some observations, and begin their lists."""
    x, y, z = here[0, : lat_deg.size], here[1, : lat_deg.size], here[2, : lat_deg.size]
    for i in range(x.size):
        x[i], y[i], z[i] = unit_vector(lat_deg[i], lon_deg[i])
    for i in range(x.size):
        x[i], y[i], z[i] = on_ellipsoid(x[i], y[i], z[i])
    for i in range(x.size):
        _start(reference[i], key[i])


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
    others. Where that is below 0, or not given, it is not known: they walk by themselves.
    """
    n, k = key.shape
    box, stack = np.empty(6), np.empty(STACK, np.int64)
    n_near = leaves_to_fill(k, exclude_self)
    keys, x_of, y_of, z_of = np.empty(1, np.int64), np.empty(1), np.empty(1), np.empty(1)
    here, there, found = np.empty((3, _BLOCK)), np.empty((3, _BLOCK)), np.empty((2, _BLOCK))
    steps = 0
    stop = n * (thread + 1) // threads
    for first in range(n * thread // threads, stop, _BLOCK):
        if steps > most:
            break
        last = min(first + _BLOCK, stop)
        _load(
            lat_deg[first:last], lon_deg[first:last], reference[first:last], key[first:last], here
        )
        if beyond.size:
            for j in range(k):
                _measure(vectors, by_chord[first:last, j], here, there, found)
                for i in range(first, last):
                    row = by_chord[i, j]
                    if row >= 0:
                        metres, chord2 = found[0, i - first], found[1, i - first]
                        if not 0.0 < chord2 <= SHORT2:
                            x, y, z = here[0, i - first], here[1, i - first], here[2, i - first]
                            metres = geodesic_m(
                                x, y, z, vectors[row, 0], vectors[row, 1], vectors[row, 2]
                            )
                        put(key[i], reference[i], k - 1, metres, row)
            steps += (last - first) * k * _GEODESIC_STEPS
        for i in range(first, last):
            x, y, z = here[0, i - first], here[1, i - first], here[2, i - first]
            rows, lengths = reference[i], key[i]
            most_near = beyond[i] if beyond.size else -1.0
            worst = ALL
            if most_near >= 0.0:
                # Mostly the others are far, and an estimate, a little more than the bound, will do.
                is_far = most_near >= _FAR2 * lengths[k - 1] ** 2
                worst = 0.0 if is_far else min(worst, outermost(lengths[k - 1]))
            if x == x and most_near <= worst:
                _start(rows, lengths)
                own = first_row + i if exclude_self else -1
                ranked = Ranked(x, y, z, own, rows, lengths)
                if brute:
                    _compare_all(ranked, vectors, worst)
                    steps += vectors.shape[0]
                else:
                    box[0], box[1], box[2], box[3], box[4], box[5] = x, y, z, x, y, z
                    x_of[0], y_of[0], z_of[0] = x, y, z
                    keys_of(x_of, y_of, z_of, keys)
                    leaf = leaf_of(tree.keys, keys[0], 0)
                    near, near_stop = leaves_near(tree.keys, leaf, n_near)
                    steps += walk(tree, ranked, box, worst, near, near_stop, most - steps, stack)
            for j in range(k):
                if lengths[j] == np.inf:
                    rows[j] = -1
    tally[thread] = steps


@njit(cache=True, nogil=True, error_model="numpy")
def _take_two(thread, threads, points, by_chord, beyond):  # type: ignore[no-untyped-def]
    """Fetch what `search_packets` has written; of points that are NaN anything."""
    n = beyond.size
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        row = points[i, 0]
        by_chord[i, 0] = np.int64(row) if row >= 0.0 else -1
        beyond[i] = points[i, 2]


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


class Around(NamedTuple):
    """Counts what is within a distance of one observation, or writes its row and its metres.

    Rows below `least` and the row `own` are left out. Boxes of which all is within `inside` are
    counted in `whole`, as `within_cpu.count_whole` does.
    """

    x: float
    y: float
    z: float
    own: int
    least: int
    distance_m: float
    inside: float
    n: int
    whole: np.ndarray
    row: np.ndarray
    metres: np.ndarray


@looks(Around, count_whole)
def _take(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    x, y, z, own, least, distance_m, inside, _, whole, rows, metres = collector
    while bits:
        leaf = node * WIDTH + lowest_bit(bits)
        bits &= bits - 1
        for j in range(WIDTH):
            px, py, pz = tree.points[leaf, 0, j], tree.points[leaf, 1, j], tree.points[leaf, 2, j]
            row = np.int64(tree.rows[leaf, j])
            chord2 = squared_chord(x, y, z, px, py, pz)
            if chord2 <= worst and row != own and row >= least:
                if rows.size:
                    length = geodesic_m(x, y, z, px, py, pz)
                    if length <= distance_m:
                        rows[whole[0]], metres[whole[0]] = row, length
                        whole[0] += 1
                elif chord2 <= inside or geodesic_m(x, y, z, px, py, pz) <= distance_m:
                    whole[0] += 1
    return worst, 0


@njit(cache=True, nogil=True, error_model="numpy")
def _search_around(  # type: ignore[no-untyped-def]
    thread, threads, tree, n_held, vectors, points, order, brute, first_of_all, distances,
    exclude_self, once, first_row, counts, starts, reference, distance_m,
):  # fmt: skip
    """Count what is within a distance of the observations of an order, or write it."""
    fills = starts.size > 0
    box, stack = np.empty(6), np.empty(STACK, np.int64)
    whole, ranks = np.zeros(1, np.int64), np.empty(RUN, np.int64)
    found, ordered = (np.empty(RUN), np.empty(RUN)), (np.empty(RUN), np.empty(RUN))
    for turn in range(order.size):
        # What has many pairs lies together in the order.
        if turn // _TURN % threads != thread:
            continue
        i = order[turn] & ROW
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        limit = distances[first_of_all + i if distances.size > 1 else 0]
        row = first_row + i
        size = starts[i + 1] - starts[i] if fills else 0
        if fills and not size:
            continue
        if found[0].size < size + RUN:
            found = np.empty(2 * size + RUN), np.empty(2 * size + RUN)
            ordered = np.empty(2 * size + RUN), np.empty(2 * size + RUN)
        # Of whole boxes it is not known which rows they hold.
        inside = -1.0 if fills or once or exclude_self else innermost(limit)
        around = Around(
            x, y, z, row if exclude_self else -1, row + 1 if once else 0, limit, inside, n_held,
            whole, found[1] if fills else found[1][:0], found[0],
        )  # fmt: skip
        whole[0] = 0
        if brute:
            _take_all(around, vectors, outermost(limit))
        else:
            box[0], box[1], box[2], box[3], box[4], box[5] = x, y, z, x, y, z
            walk(tree, around, box, outermost(limit), 0, 0, NO_LIMIT, stack)
        if not fills:
            counts[i] = whole[0]
            continue
        put_in_order(found, 0, size, ordered, 0, ranks)
        for j in range(size):
            distance_m[starts[i] + j] = ordered[0][j]
            reference[starts[i] + j] = np.int64(ordered[1][j])


@njit(inline="always")
def _take_all(around, vectors, worst):  # type: ignore[no-untyped-def]
    x, y, z, own, least, distance_m, _, _, whole, rows, metres = around
    for row in range(vectors.shape[0]):
        px, py, pz = vectors[row, 0], vectors[row, 1], vectors[row, 2]
        if row != own and row >= least and squared_chord(x, y, z, px, py, pz) <= worst:
            length = geodesic_m(x, y, z, px, py, pz)
            if length <= distance_m:
                if rows.size:
                    rows[whole[0]], metres[whole[0]] = row, length
                whole[0] += 1


def search(
    index: ReferenceIndex, observations: Degrees, query: Query, by: Search, *, measure: bool = False
) -> Found | Answer:
    """The k nearest references of every observation by their geodesics; keys are metres."""
    n, k, tree = observations.lat_deg.size, query.k, index.tree
    found = Found(kept(n, k, dtype=np.int64), kept(n, k))
    left = NO_LIMIT if query.most_steps is None else query.most_steps
    degrees, size = readable(observations), tree.rows.size
    together = by == "packets" and k < MAX_K and size > 0
    for part, points, order in in_windows(degrees, LANES, size, earth="wgs84"):
        threads = threads_for(order.size, _GRAIN)
        asked = (query.exclude_self, query.first_row + part.start)
        by_chord, beyond = np.empty((len(points), 0), np.int64), np.empty(0)
        if together:
            limits = np.array([max(_PATIENCE, LANES * size // 64), left])
            tally = np.empty((threads, 2), np.int64)
            at = (tree, points, order, order.size, limits, tally)
            if k == 1 and not query.exclude_self:
                in_threads(search_packets, threads, *at, OnEllipsoid(ONE, MORE))
                by_chord, beyond = kept(len(points), 1, dtype=np.int64), kept(len(points))
                in_threads(_take_two, threads, points, by_chord, beyond)
            else:
                by_chord = kept(len(points), k + 1, dtype=np.int64)
                chord2 = kept(len(points), k + 1)
                if order.size < len(points):
                    by_chord.fill(-1)
                in_threads(search_lists, threads, *at, by_chord, chord2, *asked, False)
                beyond = chord2[:, k].copy()
            if tally[:, 1].any():
                given_up = ~order[order < 0] & ROW
                by_chord[given_up], beyond[given_up] = -1, -1.0
            left = _spent(left, tally[:, 0], query)
        steps = np.zeros(threads, np.int64)
        in_threads(
            _settle, threads, tree, index.vectors, *(one[part] for one in degrees),
            by == "brute" or not size, *asked, by_chord, beyond, found.reference[part],
            found.key[part], left, steps,
        )  # fmt: skip
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


def _around(
    index: ReferenceIndex, observations: Degrees, asked: Within, by: Search, counts: np.ndarray,
    found: Pairs,
) -> None:  # fmt: skip
    n_held = held(index.tree)
    if not n_held:
        return
    for part, points, order in in_windows(
        readable(observations), LANES, index.tree.rows.size, earth="wgs84"
    ):
        here = asked._replace(first_row=asked.first_row + part.start)
        starts = found.starts[part.start : part.stop + 1]
        in_threads(
            _search_around, threads_for(order.size, _GRAIN), index.tree, n_held, index.vectors,
            points, order, by == "brute", part.start, *here, counts[part], starts, *found[1:],
        )  # fmt: skip


count, pairs = asked_twice(_around)
