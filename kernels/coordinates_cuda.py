"""Degrees to unit vectors and answers to metres on a GPU: loops around the scalar formulas.

Those are in `kernels.coordinates` and `kernels.distance`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from numba import cuda

from kernels.coordinates import unit_vector
from kernels.distance import metres_of_antipode, metres_of_chord, squared_chord
from kernels.launch_cuda import blocks_for, launch, resident_blocks
from kernels.query import Found

if TYPE_CHECKING:
    import cupy as cp

_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 16


@cuda.jit(cache=True)
def fill_unit_vectors(lat_deg, lon_deg, vectors):  # type: ignore[no-untyped-def]
    """A thread an observation, striding over the grid: degrees in, (3, n) unit vectors out."""
    for i in range(cuda.grid(1), lat_deg.size, cuda.gridsize(1)):
        x, y, z = unit_vector(lat_deg[i], lon_deg[i])
        vectors[0, i] = x
        vectors[1, i] = y
        vectors[2, i] = z


@cuda.jit(cache=True)
def fill_distances(vectors, observations, reference, chord2, k, distance_m):  # type: ignore[no-untyped-def]
    """A thread an answer, striding over the grid: rows and chords in, metres out, n * k of each."""
    for place in range(cuda.grid(1), reference.size, cuda.gridsize(1)):
        row = reference[place]
        distance = math.nan
        if row >= 0 and chord2[place] <= 2.0:
            distance = metres_of_chord(chord2[place])
        elif row >= 0:
            i = place // k
            opposite = squared_chord(
                observations[0, i], observations[1, i], observations[2, i],
                -vectors[0, row], -vectors[1, row], -vectors[2, row],
            )  # fmt: skip
            distance = metres_of_antipode(opposite)
        distance_m[place] = distance


def unit_vectors(lat_deg: cp.ndarray, lon_deg: cp.ndarray) -> cp.ndarray:
    """Unit vectors of float64 degrees, shape (3, n); NaN where a coordinate is not valid."""
    import cupy as cp

    vectors = cp.empty((3, lat_deg.size))
    if lat_deg.size:
        blocks = blocks_for(lat_deg.size, _THREADS, resident_blocks(_BLOCKS_PER_MULTIPROCESSOR))
        launch(fill_unit_vectors, blocks, _THREADS, lat_deg, lon_deg, vectors)
    return vectors


observations = unit_vectors
"""What searches on a GPU take."""


def distances(vectors: cp.ndarray, observations: cp.ndarray, found: Found) -> cp.ndarray:
    """Great-circle distances of what was found; as `kernels.coordinates_cpu.distances`."""
    import cupy as cp

    n, k = found.reference.shape
    distance_m = cp.empty(n * k)
    if distance_m.size:
        blocks = blocks_for(distance_m.size, _THREADS, resident_blocks(_BLOCKS_PER_MULTIPROCESSOR))
        launch(
            fill_distances, blocks, _THREADS,
            vectors, observations, found.reference.ravel(), found.chord2.ravel(), k, distance_m,
        )  # fmt: skip
    return distance_m.reshape(n, k)
