"""Every reference against every observation, on a CPU with all its cores."""

import math

import numpy as np
from numba import njit, prange

from kernels.distance import metres, squared_chord
from kernels.index import ReferenceIndex

_LANES = 16
"""Observations that share one pass over the references: the inner loop over them vectorises."""


@njit(parallel=True, cache=True, nogil=True)
def _search(references, observations, reference, distance_m):  # type: ignore[no-untyped-def]
    n = observations.shape[1]
    for packet in prange((n + _LANES - 1) // _LANES):
        first = packet * _LANES
        lanes = np.empty((3, _LANES))
        best_chord2 = np.full(_LANES, np.inf)
        best_row = np.full(_LANES, -1, np.int64)
        for lane in range(_LANES):
            # The last packet repeats its last observation: one loop length, no remainder loop.
            i = min(first + lane, n - 1)
            lanes[0, lane] = observations[0, i]
            lanes[1, lane] = observations[1, i]
            lanes[2, lane] = observations[2, i]
        for row in range(references.shape[1]):
            x, y, z = references[0, row], references[1, row], references[2, row]
            for lane in range(_LANES):
                chord2 = squared_chord(lanes[0, lane], lanes[1, lane], lanes[2, lane], x, y, z)
                # Rows ascend, so a plain "less" leaves ties with the lowest one.
                if chord2 < best_chord2[lane]:
                    best_chord2[lane] = chord2
                    best_row[lane] = row
        for lane in range(min(_LANES, n - first)):
            row = best_row[lane]
            reference[first + lane] = row
            if row < 0:
                distance_m[first + lane] = math.nan
            else:
                distance_m[first + lane] = metres(
                    lanes[0, lane], lanes[1, lane], lanes[2, lane],
                    references[0, row], references[1, row], references[2, row],
                )  # fmt: skip


def search(index: ReferenceIndex, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest reference of every observation.

    Parameters
    ----------
    index : ReferenceIndex
        References on the CPU.
    observations : float64 array, shape (3, n)
        Unit vectors of the observations; NaN rows match nothing.

    Returns
    -------
    reference : int64 array, shape (n,)
        Row of the nearest reference, the lowest of equals; -1 where there is none.
    distance_m : float64 array, shape (n,)
        Great-circle distance in metres; NaN where there is none.
    """
    n = observations.shape[1]
    reference = np.empty(n, np.int64)
    distance_m = np.empty(n)
    _search(index.vectors, observations, reference, distance_m)
    return reference, distance_m
