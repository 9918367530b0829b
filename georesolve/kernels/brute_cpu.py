"""Every reference against every observation, on a CPU with all its cores."""

import numpy as np
from numba import njit

from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.coordinates_cpu import answer_of, readable
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import lanes_near, lowest_bit
from georesolve.kernels.packets_cpu import LANES, aligned_rows
from georesolve.kernels.query import Answer, Degrees, Found, Query, StepsSpent
from georesolve.kernels.threads_cpu import in_threads, threads_for

_GRAIN = 1 << 16
"""Pairs that are worth a thread."""


@njit(cache=True, nogil=True, error_model="numpy")
def _search(  # type: ignore[no-untyped-def]
    thread, threads, references, lat_deg, lon_deg, own, reference, chord2
):
    """Write the k nearest references of observations, sixteen of which share a pass over all."""
    n, k = reference.shape
    n_packets = (n + LANES - 1) // LANES
    lanes, chords = aligned_rows(4, LANES), aligned_rows(1, LANES)
    points = references.reshape(references.shape[0], 4, 1)
    for packet in range(n_packets * thread // threads, n_packets * (thread + 1) // threads):
        first = packet * LANES
        used = min(LANES, n - first)
        for lane in range(LANES):
            # Lanes that are not used repeat the last observation, to which nothing is near.
            i = first + min(lane, used - 1)
            lanes[0, lane], lanes[1, lane], lanes[2, lane] = unit_vector(lat_deg[i], lon_deg[i])
            lanes[3, lane] = np.inf if lane < used else -1.0
            for j in range(k):
                reference[i, j], chord2[i, j] = -1, np.inf
        for row in range(points.shape[0]):
            near = lanes_near(points, row, 0, lanes, chords, 0)
            while near:
                lane = lowest_bit(near)
                near &= near - 1
                c, i = chords[0, lane], first + lane
                # Rows ascend, so behind its equals is where a candidate belongs.
                if not c < lanes[3, lane] or (own.size and row == own[i]):
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
    own = query.first_row + np.arange(n if query.exclude_self else 0)
    found = search_rows(index.vectors, observations, own, query.k, query.most_steps)
    return answer_of(found) if measure else found


def search_rows(
    vectors: np.ndarray, observations: Degrees, own: np.ndarray, k: int, most_steps: int | None
) -> Found:
    """As `search`; observation i does not match row ``own[i]``, where there are such."""
    n = observations.lat_deg.size
    threads = threads_for(len(vectors) * n, _GRAIN)
    steps = len(vectors) * LANES * -(-n // (LANES * threads))
    if most_steps is not None and steps > most_steps:
        raise StepsSpent(f"brute force takes {steps} steps, of which {most_steps} are left")
    found = Found(np.empty((n, k), np.int64), np.empty((n, k)))
    in_threads(_search, threads, vectors, *readable(observations), own, *found)
    return found
