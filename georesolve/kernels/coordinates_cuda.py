"""Degrees to unit vectors and answers to metres on a GPU: loops around the scalar formulas.

Those are in `kernels.coordinates` and `kernels.distance`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from numba import cuda

from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.distance import half_chord, metres_of_half
from georesolve.kernels.geodesic import on_ellipsoid
from georesolve.kernels.launch_cuda import stride
from georesolve.kernels.query import Answer, Found
from georesolve.query import Earth

if TYPE_CHECKING:
    import cupy as cp

_BLOCKS_PER_MULTIPROCESSOR = 16


@cuda.jit(device=True, forceinline=True)
def vector(lat_deg, lon_deg, flat):  # type: ignore[no-untyped-def]
    """The unit vector of a latitude and longitude, or the point of the ellipsoid, which is flat."""
    x, y, z = unit_vector(lat_deg, lon_deg)
    if flat:
        x, y, z = on_ellipsoid(x, y, z)
    return x, y, z


@cuda.jit(cache=True)
def fill_unit_vectors(lat_deg, lon_deg, flat, vectors):  # type: ignore[no-untyped-def]
    """A thread an observation, striding over the grid: degrees in, (3, n) unit vectors out."""
    for i in range(cuda.grid(1), lat_deg.size, cuda.gridsize(1)):
        x, y, z = vector(lat_deg[i], lon_deg[i], flat)
        vectors[0, i] = x
        vectors[1, i] = y
        vectors[2, i] = z


@cuda.jit(device=True, forceinline=True)
def metres_or_none(half, chord2):  # type: ignore[no-untyped-def]
    """Metres of a squared chord and its half; NaN of infinity, which stands for no reference."""
    distance = metres_of_half(half, chord2)
    return distance if chord2 < math.inf else math.nan


@cuda.jit(device=True, forceinline=True)
def metres(chord2):  # type: ignore[no-untyped-def]
    """Metres of a squared chord; NaN of infinity."""
    return metres_or_none(half_chord(chord2), chord2)


@cuda.jit(cache=True)
def measure(chord2):  # type: ignore[no-untyped-def]
    """A thread an answer, striding over the grid: metres take the place of n * k squared chords."""
    for place in range(cuda.grid(1), chord2.size, cuda.gridsize(1)):
        chord2[place] = metres(chord2[place])


def unit_vectors(
    lat_deg: cp.ndarray, lon_deg: cp.ndarray, *, earth: Earth = "sphere"
) -> cp.ndarray:
    """Unit vectors of float64 degrees, shape (3, n); NaN where a coordinate is not valid.

    Of the ellipsoid they are its points, in units of the semi-major axis.
    """
    import cupy as cp

    vectors = cp.empty((3, lat_deg.size))
    if lat_deg.size:
        stride(
            fill_unit_vectors, lat_deg.size, lat_deg, lon_deg, earth == "wgs84", vectors,
            per_multiprocessor=_BLOCKS_PER_MULTIPROCESSOR,
        )  # fmt: skip
    return vectors


def answer_of(found: Found) -> Answer:
    """The great-circle metres of what was found, written over its squared chords."""
    chord2 = found.key
    if chord2.size:
        values = chord2.ravel()
        stride(measure, values.size, values, per_multiprocessor=_BLOCKS_PER_MULTIPROCESSOR)
    return Answer(found.reference, chord2)
