"""Every reference against every observation, on a CPU with all its cores."""

import numpy as np
from numba import njit, prange

from kernels.distance import squared_chord
from kernels.index import ReferenceIndex
from kernels.query import Found, Query
from kernels.threads_cpu import threads_for

_GRAIN = 1 << 16
"""Pairs that are worth a thread."""
_LANES = 16
"""Observations that share one pass over the references: the inner loop over them vectorises."""


@njit(inline="always")
def _load(observations, first, lanes):  # type: ignore[no-untyped-def]
    for lane in range(_LANES):
        # The last packet repeats its last observation: one loop length, no remainder loop.
        i = min(first + lane, observations.shape[1] - 1)
        lanes[0, lane] = observations[0, i]
        lanes[1, lane] = observations[1, i]
        lanes[2, lane] = observations[2, i]


@njit(inline="always")
def _scan(references, start, stop, lanes, best_chord2, best_row):  # type: ignore[no-untyped-def]
    for row in range(start, stop):
        x, y, z = references[0, row], references[1, row], references[2, row]
        for lane in range(_LANES):
            chord2 = squared_chord(lanes[0, lane], lanes[1, lane], lanes[2, lane], x, y, z)
            # Rows ascend, so a plain "less" leaves ties with the lowest one.
            if chord2 < best_chord2[lane]:
                best_chord2[lane] = chord2
                best_row[lane] = row


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _search_one(references, observations, exclude_self, first_row, reference, chord2):  # type: ignore[no-untyped-def]
    n = observations.shape[1]
    n_references = references.shape[1]
    for packet in prange((n + _LANES - 1) // _LANES):
        first = packet * _LANES
        lanes = np.empty((3, _LANES))
        best_chord2 = np.full(_LANES, np.inf)
        best_row = np.full(_LANES, -1, np.int64)
        _load(observations, first, lanes)
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
                        references[0, row], references[1, row], references[2, row],
                    )  # fmt: skip
                    if c < best_chord2[lane]:
                        best_chord2[lane] = c
                        best_row[lane] = row
        _scan(references, stop, n_references, lanes, best_chord2, best_row)
        for lane in range(min(_LANES, n - first)):
            reference[first + lane, 0] = best_row[lane]
            chord2[first + lane, 0] = best_chord2[lane]


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _search_many(references, observations, exclude_self, first_row, reference, chord2):  # type: ignore[no-untyped-def]
    n, k = reference.shape
    for packet in prange((n + _LANES - 1) // _LANES):
        first = packet * _LANES
        used = min(_LANES, n - first)
        lanes = np.empty((3, _LANES))
        chords = np.empty(_LANES)
        worst = np.full(_LANES, np.inf)
        _load(observations, first, lanes)
        for i in range(first, first + used):
            for j in range(k):
                reference[i, j] = -1
                chord2[i, j] = np.inf
        for row in range(references.shape[1]):
            x, y, z = references[0, row], references[1, row], references[2, row]
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


def search(index: ReferenceIndex, observations: np.ndarray, query: Query) -> Found:
    """The k nearest references of every observation.

    Parameters
    ----------
    index : ReferenceIndex
        References on the CPU.
    observations : float64 array, shape (3, n)
        Unit vectors of the observations; NaN rows match nothing.
    query : Query
        How many, and whether a row may match itself.
    """
    shape = (observations.shape[1], query.k)
    found = Found(np.empty(shape, np.int64), np.empty(shape))
    loop = _search_one if query.k == 1 else _search_many
    with threads_for(index.vectors.shape[1] * observations.shape[1], _GRAIN):
        loop(index.vectors, observations, query.exclude_self, query.first_row, *found)
    return found
