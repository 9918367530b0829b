"""Every reference against every observation, on a CPU with all its cores."""

import numpy as np
from numba import njit

from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.coordinates_cpu import answer_of, readable
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.query import Answer, Degrees, Found, Query, StepsSpent
from georesolve.kernels.threads_cpu import in_threads, threads_for

_GRAIN = 1 << 16
"""Pairs that are worth a thread."""
_LANES = 16
"""Observations that share one pass over the references: the inner loop over them vectorises."""


@njit(inline="always")
def _load(lat_deg, lon_deg, first, lanes):  # type: ignore[no-untyped-def]
    for lane in range(_LANES):
        # The last packet repeats its last observation: one loop length, no remainder loop.
        i = min(first + lane, lat_deg.size - 1)
        lanes[0, lane], lanes[1, lane], lanes[2, lane] = unit_vector(lat_deg[i], lon_deg[i])


@njit(inline="always")
def _scan(references, start, stop, lanes, best_chord2, best_row):  # type: ignore[no-untyped-def]
    for row in range(start, stop):
        x, y, z = references[row, 0], references[row, 1], references[row, 2]
        for lane in range(_LANES):
            chord2 = squared_chord(lanes[0, lane], lanes[1, lane], lanes[2, lane], x, y, z)
            # Rows ascend, so a plain "less" leaves ties with the lowest one.
            if chord2 < best_chord2[lane]:
                best_chord2[lane] = chord2
                best_row[lane] = row


@njit(cache=True, nogil=True, error_model="numpy")
def _search_one(  # type: ignore[no-untyped-def]
    thread, threads, references, lat_deg, lon_deg, own, reference, chord2
):
    n = lat_deg.size
    n_references = references.shape[0]
    n_packets = (n + _LANES - 1) // _LANES
    lanes = np.empty((3, _LANES))
    for packet in range(n_packets * thread // threads, n_packets * (thread + 1) // threads):
        first = packet * _LANES
        best_chord2 = np.full(_LANES, np.inf)
        best_row = np.full(_LANES, -1, np.int64)
        _load(lat_deg, lon_deg, first, lanes)
        start = 0
        # The packet's own rows, which ascend: only there has a lane something to leave out.
        for row in own[first : first + _LANES]:
            if not start <= row < n_references:
                continue
            _scan(references, start, row, lanes, best_chord2, best_row)
            start = row + 1
            for lane in range(min(_LANES, n - first)):
                if row != own[first + lane]:
                    c = squared_chord(
                        lanes[0, lane], lanes[1, lane], lanes[2, lane],
                        references[row, 0], references[row, 1], references[row, 2],
                    )  # fmt: skip
                    if c < best_chord2[lane]:
                        best_chord2[lane] = c
                        best_row[lane] = row
        _scan(references, start, n_references, lanes, best_chord2, best_row)
        for lane in range(min(_LANES, n - first)):
            reference[first + lane, 0] = best_row[lane]
            chord2[first + lane, 0] = best_chord2[lane]


@njit(cache=True, nogil=True, error_model="numpy")
def _search_many(  # type: ignore[no-untyped-def]
    thread, threads, references, lat_deg, lon_deg, own, reference, chord2
):
    n, k = reference.shape
    n_packets = (n + _LANES - 1) // _LANES
    lanes = np.empty((3, _LANES))
    for packet in range(n_packets * thread // threads, n_packets * (thread + 1) // threads):
        first = packet * _LANES
        used = min(_LANES, n - first)
        chords = np.empty(_LANES)
        worst = np.full(_LANES, np.inf)
        _load(lat_deg, lon_deg, first, lanes)
        for i in range(first, first + used):
            for j in range(k):
                reference[i, j] = -1
                chord2[i, j] = np.inf
        for row in range(references.shape[0]):
            x, y, z = references[row, 0], references[row, 1], references[row, 2]
            better = 0
            for lane in range(_LANES):
                c = squared_chord(lanes[0, lane], lanes[1, lane], lanes[2, lane], x, y, z)
                chords[lane] = c
                better += c < worst[lane]
            if better == 0:
                continue
            for lane in range(used):
                c = chords[lane]
                i = first + lane
                if not c < worst[lane] or (own.size and row == own[i]):
                    continue
                # Rows ascend, so behind its equals is where a candidate belongs.
                j = k - 1
                while j > 0 and c < chord2[i, j - 1]:
                    chord2[i, j] = chord2[i, j - 1]
                    reference[i, j] = reference[i, j - 1]
                    j -= 1
                chord2[i, j] = c
                reference[i, j] = row
                worst[lane] = chord2[i, k - 1]


def search(
    index: ReferenceIndex, observations: Degrees, query: Query, *, measure: bool = False
) -> Found | Answer:
    """The k nearest references of every observation; those that are not valid match nothing."""
    n = observations.lat_deg.size
    own = query.first_row + np.arange(n if query.exclude_self else 0)
    found = search_rows(index.vectors, observations, own, query.k, query.most_steps)
    return answer_of(found) if measure else found


def steps_a_pair(k: int) -> float:
    """What the comparison of a pair takes: to keep a list of several takes longer, whatever k."""
    return 1.0 if k == 1 else 2.5


def search_rows(
    vectors: np.ndarray, observations: Degrees, own: np.ndarray, k: int, most_steps: int | None
) -> Found:
    """As `search`; observation i does not match row ``own[i]``: these ascend, or there is none."""
    n = observations.lat_deg.size
    threads = threads_for(len(vectors) * n, _GRAIN)
    packets = -(-n // (_LANES * threads))
    steps = int(len(vectors) * _LANES * packets * steps_a_pair(k))
    if most_steps is not None and steps > most_steps:
        raise StepsSpent(f"brute force takes {steps} steps, of which {most_steps} are left")
    found = Found(np.empty((n, k), np.int64), np.empty((n, k)))
    loop = _search_one if k == 1 else _search_many
    in_threads(loop, threads, vectors, *readable(observations), own, *found)
    return found
