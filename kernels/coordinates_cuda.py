"""Degrees to unit vectors on a GPU: the loop around `kernels.coordinates.unit_vector`."""

import cupy as cp
from numba import cuda

from kernels.coordinates import unit_vector

_THREADS = 256


@cuda.jit(cache=True)
def fill_unit_vectors(lat_deg, lon_deg, vectors):  # type: ignore[no-untyped-def]
    """A thread an observation, striding over the grid: degrees in, (3, n) unit vectors out."""
    for i in range(cuda.grid(1), lat_deg.size, cuda.gridsize(1)):
        x, y, z = unit_vector(lat_deg[i], lon_deg[i])
        vectors[0, i] = x
        vectors[1, i] = y
        vectors[2, i] = z


def unit_vectors(lat_deg: cp.ndarray, lon_deg: cp.ndarray) -> cp.ndarray:
    """Unit vectors of float64 degrees, shape (3, n); NaN where a coordinate is not valid."""
    vectors = cp.empty((3, lat_deg.size))
    if lat_deg.size:
        blocks = min(-(-lat_deg.size // _THREADS), 16 * cuda.get_current_device().MULTIPROCESSOR_COUNT)
        fill_unit_vectors[blocks, _THREADS](lat_deg, lon_deg, vectors)
    return vectors
