"""Degrees to unit vectors, and answers to metres, on a CPU: the loops around the formulas."""

import math

import numpy as np
from numba import njit, prange

from kernels.coordinates import unit_vector
from kernels.distance import metres, metres_of_chord
from kernels.query import Found
from kernels.threads_cpu import threads_for

_GRAIN = 1 << 14
"""Points that are worth a thread, at a nanosecond each."""


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _fill(lat_deg, lon_deg, vectors):  # type: ignore[no-untyped-def]
    for i in prange(lat_deg.size):
        x, y, z = unit_vector(lat_deg[i], lon_deg[i])
        vectors[0, i] = x
        vectors[1, i] = y
        vectors[2, i] = z


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _measure(chord2, distance_m):  # type: ignore[no-untyped-def]
    # What `metres` does with the same squared chord, without fetching the reference; NaN where
    # there is none or where the chord alone is not accurate.
    for i in prange(chord2.size):
        near = chord2[i] <= 2.0
        value = metres_of_chord(chord2[i] if near else 0.0)
        distance_m[i] = value if near else math.nan


@njit(cache=True, nogil=True, error_model="numpy")
def _measure_far(vectors, observations, reference, chord2, distance_m):  # type: ignore[no-untyped-def]
    n, k = reference.shape
    for i in range(n):
        # The last one is the farthest: one look tells for most observations.
        if chord2[i, k - 1] <= 2.0:
            continue
        for j in range(k):
            row = reference[i, j]
            if row >= 0 and chord2[i, j] > 2.0:
                distance_m[i, j] = metres(
                    observations[0, i], observations[1, i], observations[2, i],
                    vectors[0, row], vectors[1, row], vectors[2, row],
                )  # fmt: skip


def unit_vectors(lat_deg: np.ndarray, lon_deg: np.ndarray) -> np.ndarray:
    """Unit vectors of float64 degrees, shape (3, n); NaN where a coordinate is not valid."""
    vectors = np.empty((3, lat_deg.size))
    with threads_for(lat_deg.size, _GRAIN):
        _fill(lat_deg, lon_deg, vectors)
    return vectors


def distances(vectors: np.ndarray, observations: np.ndarray, found: Found) -> np.ndarray:
    """Great-circle distances of what was found, in metres.

    Parameters
    ----------
    vectors : float64 array, shape (3, n_references)
        Unit vectors of the references.
    observations : float64 array, shape (3, n_observations)
        Unit vectors of the observations.
    found : Found
        Rows and squared chords, shape (n_observations, k).

    Returns
    -------
    float64 array, shape (n_observations, k)
        `kernels.distance.metres` of each pair; NaN where there is none.
    """
    distance_m = np.empty(found.chord2.shape)
    with threads_for(distance_m.size, _GRAIN):
        _measure(found.chord2.ravel(), distance_m.ravel())
    _measure_far(vectors, observations, found.reference, found.chord2, distance_m)
    return distance_m
