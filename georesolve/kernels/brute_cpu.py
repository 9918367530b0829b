"""Every reference against every observation, on a CPU with all its cores."""

import numpy as np
from numba import njit

from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.coordinates_cpu import distances, readable
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.query import Degrees, Found, Query
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
    thread, threads, references, lat_deg, lon_deg, exclude_self, first_row, reference, chord2
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
        # The packet's own rows, the only ones where a lane has something to leave out.
        start = n_references
        stop = n_references
        if exclude_self:
            start = min(max(first_row + first, 0), n_references)
            stop = min(max(first_row + first + _LANES, 0), n_references)
        _scan(references, 0, start, lanes, best_chord2, best_row)
        for row in range(start, stop):
            for lane in range(_LANES):
                if row != first_row + first + lane:
                    c = squared_chord(
                        lanes[0, lane], lanes[1, lane], lanes[2, lane],
                        references[row, 0], references[row, 1], references[row, 2],
                    )  # fmt: skip
                    if c < best_chord2[lane]:
                        best_chord2[lane] = c
                        best_row[lane] = row
        _scan(references, stop, n_references, lanes, best_chord2, best_row)
        for lane in range(min(_LANES, n - first)):
            reference[first + lane, 0] = best_row[lane]
            chord2[first + lane, 0] = best_chord2[lane]


@njit(cache=True, nogil=True, error_model="numpy")
def _search_many(  # type: ignore[no-untyped-def]
    thread, threads, references, lat_deg, lon_deg, exclude_self, first_row, reference, chord2
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
                if not c < worst[lane] or (exclude_self and row == first_row + i):
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
) -> Found:
    """The k nearest references of every observation.

    Parameters
    ----------
    index : ReferenceIndex
        References on the CPU.
    observations : Degrees
        The observations; those that are not valid match nothing.
    query : Query
        How many, and whether a row may match itself.
    measure : bool
        Metres instead of squared chords.
    """
    n, n_references = observations.lat_deg.size, index.vectors.shape[0]
    found = Found(np.empty((n, query.k), np.int64), np.empty((n, query.k)))
    loop = _search_one if query.k == 1 else _search_many
    threads = threads_for(n_references * n, _GRAIN)
    at = (index.vectors, *readable(observations), query.exclude_self, query.first_row)
    in_threads(loop, threads, *at, *found)
    return Found(found.reference, distances(found)) if measure else found
