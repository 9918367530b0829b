"""Degrees to unit vectors, and answers to metres, on a CPU: the loops around the formulas."""

import math

import numpy as np
from numba import njit

from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.distance import metres_of_chord
from georesolve.kernels.geodesic import on_ellipsoid
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.query import EARTH_RADIUS_M, Answer, Degrees, Found
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.query import Earth

_GRAIN = 1 << 14
"""Points that are worth a thread, at some nanoseconds each."""
_BEYOND = 5.0
"""More than any squared chord, rounding included."""
_NEAR = 16
"""Steps of a float64 by which an estimate of a squared chord is off at most, as a rule."""
_BLOCK = 64
"""Points that are computed together before they are stored: the loop over them vectorises."""


def readable(degrees: Degrees) -> Degrees:
    """The same degrees, read-only."""
    # Not every caller's arrays can be written to: all alike, a loop is compiled once.
    views = Degrees(degrees.lat_deg.view(), degrees.lon_deg.view())
    for array in views:
        array.flags.writeable = False
    return views


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(thread, threads, lat_deg, lon_deg, flat, vectors):  # type: ignore[no-untyped-def]
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
        if flat:
            for i in range(last - first):
                x[i], y[i], z[i] = on_ellipsoid(x[i], y[i], z[i])
        for i in range(last - first):
            block[i, 0] = x[i]
            block[i, 1] = y[i]
            block[i, 2] = z[i]
            block[i, 3] = 0.0


@njit(inline="always")
def measure_part(chord2):  # type: ignore[no-untyped-def]
    """Turn squared chords, an array whose rows lie together, into metres, and infinity into NaN."""
    part = chord2.reshape(chord2.size)
    for i in range(part.size):
        metres = metres_of_chord(part[i])
        part[i] = metres if part[i] < math.inf else math.nan


@njit(cache=True, nogil=True, error_model="numpy")
def _measure(thread, threads, chord2):  # type: ignore[no-untyped-def]
    measure_part(chord2[chord2.size * thread // threads : chord2.size * (thread + 1) // threads])


def unit_vectors(
    lat_deg: np.ndarray,
    lon_deg: np.ndarray,
    out: np.ndarray | None = None,
    *,
    earth: Earth = "sphere",
) -> np.ndarray:
    """Unit vectors of float64 degrees, shape (n, 4): x, y, z and zero, into `out` if that is given.

    They are NaN where a coordinate is not valid. Of the ellipsoid they are its points, in units of
    the semi-major axis.
    """
    # Records of 32 bytes: none lies across two cache lines.
    vectors = kept(lat_deg.size, 4) if out is None else out
    degrees = readable(Degrees(lat_deg, lon_deg))
    in_threads(_fill, threads_for(lat_deg.size, _GRAIN), *degrees, earth == "wgs84", vectors)
    return vectors


@njit(cache=True, nogil=True, error_model="numpy")
def _bisect(thread, threads, distance_m, chord2):  # type: ignore[no-untyped-def]
    # Bits of what is not negative are in its order.
    value = np.full(1, _BEYOND)
    bits = value.view(np.int64)
    beyond = bits[0]
    for i in range(chord2.size * thread // threads, chord2.size * (thread + 1) // threads):
        low, high = 0, beyond
        value[0] = 4.0 * math.sin(distance_m[i] / (2.0 * EARTH_RADIUS_M)) ** 2
        # First on either side of an estimate.
        guess, other = bits[0] - _NEAR, bits[0] + _NEAR
        while high - low > 1:
            bits[0] = guess if low < guess < high else low + (high - low) // 2
            guess = other
            if metres_of_chord(value[0]) <= distance_m[i]:
                low = bits[0]
            else:
                high = bits[0]
        bits[0] = low
        chord2[i] = value[0]


def chord2_within(distance_m: np.ndarray) -> np.ndarray:
    """The greatest squared chords that measure at most some distances, none of them negative.

    A squared chord is at most the one of a distance where, and only where, its metres are at most
    the distance. Of half the Earth's girth or more it is beyond all squared chords.
    """
    chord2 = np.empty(distance_m.size)
    distance_m = distance_m.view()
    distance_m.flags.writeable = False
    in_threads(_bisect, threads_for(chord2.size, _GRAIN), distance_m, chord2)
    return chord2


def answer_of(found: Found) -> Answer:
    """The great-circle metres of what was found, written over its squared chords."""
    chord2 = found.key
    in_threads(_measure, threads_for(chord2.size, _GRAIN), chord2.ravel())
    return Answer(found.reference, chord2)
