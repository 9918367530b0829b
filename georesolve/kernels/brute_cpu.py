"""Every reference against every observation, on a CPU with all its cores."""

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import NO_LIMIT, WIDTH
from georesolve.kernels.coordinates_cpu import answer_of, readable, unit_vectors
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import lanes_near, load_lanes, lowest_bit
from georesolve.kernels.order_cpu import ROW
from georesolve.kernels.packets_cpu import LANES, aligned_rows
from georesolve.kernels.query import Answer, Degrees, Found, Query, StepsSpent
from georesolve.kernels.threads_cpu import in_threads, threads_for

_GRAIN = 1 << 16
"""Pairs that are worth a thread."""


@njit(cache=True, nogil=True, error_model="numpy")
def _search(  # type: ignore[no-untyped-def]
    thread, threads, vectors, rows, points, order, exclude_self, first_row, reference, chord2
):
    """Write the k nearest of some rows for the observations of an order, sixteen at a time."""
    n, k = order.size, reference.shape[1]
    n_packets = (n + LANES - 1) // LANES
    lanes, chords, box = aligned_rows(4, LANES), aligned_rows(1, LANES), aligned_rows(1, WIDTH)
    places = np.empty(LANES, np.int64)
    for packet in range(n_packets * thread // threads, n_packets * (thread + 1) // threads):
        first = packet * LANES
        used = min(LANES, n - first)
        for lane in range(LANES):
            # Lanes that are not used repeat the last observation, to which nothing is near.
            i = order[first + min(lane, used - 1)] & ROW
            places[lane] = i
            lanes[3, lane] = np.inf if lane < used else -1.0
            for j in range(k):
                reference[i, j], chord2[i, j] = -1, np.inf
        load_lanes(points, places, lanes, box, 0)
        for at in range(rows.size):
            near = lanes_near(vectors, at, 0, lanes, chords, 0)
            while near:
                lane = lowest_bit(near)
                near &= near - 1
                c, i, row = chords[0, lane], places[lane], rows[at]
                # Rows ascend, so behind its equals is where a candidate belongs.
                if not c < lanes[3, lane] or (exclude_self and row == first_row + i):
                    continue
                j = k - 1
                while j > 0 and c < chord2[i, j - 1]:
                    chord2[i, j] = chord2[i, j - 1]
                    reference[i, j] = reference[i, j - 1]
                    j -= 1
                chord2[i, j] = c
                reference[i, j] = row
                lanes[3, lane] = chord2[i, k - 1]


def search(
    index: ReferenceIndex, observations: Degrees, query: Query, *, measure: bool = False
) -> Found | Answer:
    """The k nearest references of every observation; those that are not valid match nothing."""
    n = observations.lat_deg.size
    found = Found(np.full((n, query.k), -1), np.full((n, query.k), np.inf))
    points = unit_vectors(*readable(observations))
    order = np.flatnonzero(points[:, 2] >= -1.0)
    left = NO_LIMIT if query.most_steps is None else query.most_steps
    compare_all(index.vectors, np.arange(len(index.vectors)), points, order, query, left, found)
    return answer_of(found) if measure else found


def compare_all(
    vectors: np.ndarray, rows: np.ndarray, points: np.ndarray, order: np.ndarray, query: Query,
    left: int, found: Found,
) -> None:  # fmt: skip
    """Compare observations of an order with references of some rows, if so many steps allow it."""
    threads = threads_for(rows.size * order.size, _GRAIN)
    steps = rows.size * LANES * -(-order.size // (LANES * threads))
    if steps > left:
        raise StepsSpent(f"brute force takes {steps} steps, of which {left} are left")
    own = query.exclude_self, query.first_row
    in_threads(_search, threads, vectors[:, :, None], rows, points, order, *own, *found)
