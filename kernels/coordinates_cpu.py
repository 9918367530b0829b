"""Degrees to unit vectors, and answers to metres, on a CPU: the loops around the formulas."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from kernels.coordinates import unit_vector
from kernels.distance import metres_of_antipode, metres_of_chord, squared_chord
from kernels.query import Found
from kernels.threads_cpu import in_threads, threads_for

_GRAIN = 1 << 14
"""Points that are worth a thread, at some nanoseconds each."""
_BLOCK = 64
"""Points that are computed together before they are stored: the loop over them vectorises."""


class Degrees(NamedTuple):
    """Points as they came, read-only float64 arrays of shape (n,).

    What searches on a CPU take: they make vectors of a few at a time, where they need them.
    """

    lat_deg: np.ndarray
    lon_deg: np.ndarray


def observations(lat_deg: np.ndarray, lon_deg: np.ndarray) -> Degrees:
    """What a search on a CPU takes of float64 degrees."""
    degrees = Degrees(lat_deg.view(), lon_deg.view())
    for array in degrees:
        # Not every caller's arrays can be written to: all alike, a loop is compiled once.
        array.flags.writeable = False
    return degrees


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(thread, threads, lat_deg, lon_deg, vectors):  # type: ignore[no-untyped-def]
    start = lat_deg.size * thread // threads
    stop = lat_deg.size * (thread + 1) // threads
    x = np.empty(_BLOCK)
    y = np.empty(_BLOCK)
    z = np.empty(_BLOCK)
    for first in range(start, stop, _BLOCK):
        # Views, because indices that might be negative keep a loop from being vectorised.
        last = min(first + _BLOCK, stop)
        lat = lat_deg[first:last]
        lon = lon_deg[first:last]
        block = vectors[first:last]
        for i in range(last - first):
            x[i], y[i], z[i] = unit_vector(lat[i], lon[i])
        for i in range(last - first):
            block[i, 0] = x[i]
            block[i, 1] = y[i]
            block[i, 2] = z[i]
            block[i, 3] = 0.0


@njit
def _measure_far(vectors, lat, lon, rows, part):  # type: ignore[no-untyped-def]
    """Replace the squared chords of one observation that are negative."""
    x, y, z = unit_vector(lat, lon)
    for j in range(part.size):
        row = rows[j]
        if row < 0:
            part[j] = math.nan
        elif part[j] < 0.0:
            a, b, c = vectors[row, 0], vectors[row, 1], vectors[row, 2]
            part[j] = metres_of_antipode(squared_chord(x, y, z, -a, -b, -c))


@njit(cache=True, nogil=True, error_model="numpy")
def _measure(thread, threads, vectors, lat_deg, lon_deg, reference, flat):  # type: ignore[no-untyped-def]
    """Turn squared chords into metres; `flat` is the whole of them in one row."""
    n, k = reference.shape
    stop = n * (thread + 1) // threads
    for first in range(n * thread // threads, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        block = flat[first * k : last * k]
        far = 0
        for place in range(block.size):
            # Without fetching the reference. The chord stays, negative, where it alone is not
            # accurate and where there is none.
            near = block[place] <= 2.0
            value = metres_of_chord(block[place] if near else 0.0)
            block[place] = value if near else -block[place]
            far += not near
        if far:
            for i in range(first, last):
                part = flat[i * k : (i + 1) * k]
                _measure_far(vectors, lat_deg[i], lon_deg[i], reference[i], part)


def empty_vectors(n: int) -> np.ndarray:
    """Memory for n unit vectors, float64 of shape (n, 4): none lies across two cache lines."""
    memory = np.empty(4 * n + 8)
    first = -memory.ctypes.data % 64 // 8
    return memory[first : first + 4 * n].reshape(n, 4)


def unit_vectors(
    lat_deg: np.ndarray, lon_deg: np.ndarray, out: np.ndarray | None = None
) -> np.ndarray:
    """Unit vectors of float64 degrees; NaN where a coordinate is not valid.

    Returns
    -------
    float64 array, shape (n, 4)
        x, y, z and zero; `out` where that is given.
    """
    vectors = empty_vectors(lat_deg.size) if out is None else out
    degrees = observations(lat_deg, lon_deg)
    in_threads(_fill, threads_for(lat_deg.size, _GRAIN), *degrees, vectors)
    return vectors


def distances(vectors: np.ndarray, observations: Degrees, found: Found) -> np.ndarray:
    """Great-circle distances of what was found, in metres, written over its squared chords.

    Parameters
    ----------
    vectors : float64 array, shape (n_references, 4)
        Unit vectors of the references.
    observations : Degrees
        The observations.
    found : Found
        Rows and squared chords, shape (n_observations, k).

    Returns
    -------
    float64 array, shape (n_observations, k)
        Metres of each pair; NaN where there is none.
    """
    chord2 = found.chord2
    threads = threads_for(chord2.size, _GRAIN)
    in_threads(_measure, threads, vectors, *observations, found.reference, chord2.ravel())
    return chord2
