"""Degrees to unit vectors on a CPU: the loop around `kernels.coordinates.unit_vector`."""

import numpy as np
from numba import njit, prange

from kernels.coordinates import unit_vector


@njit(parallel=True, cache=True, nogil=True)
def _fill(lat_deg, lon_deg, vectors):  # type: ignore[no-untyped-def]
    for i in prange(lat_deg.size):
        x, y, z = unit_vector(lat_deg[i], lon_deg[i])
        vectors[0, i] = x
        vectors[1, i] = y
        vectors[2, i] = z


def unit_vectors(lat_deg: np.ndarray, lon_deg: np.ndarray) -> np.ndarray:
    """Unit vectors of float64 degrees, shape (3, n); NaN where a coordinate is not valid."""
    vectors = np.empty((3, lat_deg.size))
    _fill(lat_deg, lon_deg, vectors)
    return vectors
