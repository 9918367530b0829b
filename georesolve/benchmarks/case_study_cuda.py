"""The case study's kernel pair: brute-force haversine in float32 on a GPU, as a baseline.

As the 2022 case study had it: every observation against every reference, float32 radians, a block
reduction over grid (32, 108) of blocks (32, 16), then a global one over grid (1, 2160). It is about
a metre off and takes a wrong neighbour where references lie close; it is here to be compared with.
"""

import math

import numpy as np
from numba import cuda, float32, int32

from georesolve.kernels.devices import Array

_ALL_LANES = 0xFFFFFFFF
_BLOCK = (32, 16)
_BLOCK_GRID = (32, 108)
_GLOBAL_GRID = (1, 2160)
_FARTHEST = np.float32(1e30)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_HALF = np.float32(0.5)
_DIAMETER_M = np.float32(2 * 6_371_008.8)


@cuda.jit(device=True, inline="always")
def _warp_min(distance, row):  # type: ignore[no-untyped-def]
    step = 16
    while step > 0:
        other_distance = cuda.shfl_down_sync(_ALL_LANES, distance, step)
        other_row = cuda.shfl_down_sync(_ALL_LANES, row, step)
        if other_distance < distance:
            distance = other_distance
            row = other_row
        step //= 2
    return distance, row


@cuda.jit
def block_min(reference, observation, block_distance, block_row):  # type: ignore[no-untyped-def]
    """Leave each block's nearest reference: (n, 2) radians in, (n, 32) metres and rows out."""
    lane = cuda.threadIdx.x
    for i in range(cuda.grid(2)[1], observation.shape[0], cuda.gridsize(2)[1]):
        lat = observation[i, 0]
        lon = observation[i, 1]
        cosine = math.cos(lat)
        best = float32(_FARTHEST)
        best_row = int32(-1)
        for j in range(cuda.grid(2)[0], reference.shape[0], cuda.gridsize(2)[0]):
            sine_lat = math.sin((reference[j, 0] - lat) * _HALF)
            sine_lon = math.sin((reference[j, 1] - lon) * _HALF)
            a = sine_lat * sine_lat + cosine * math.cos(reference[j, 0]) * sine_lon * sine_lon
            distance = _DIAMETER_M * math.asin(min(_ONE, math.sqrt(a)))  # type: ignore[arg-type]
            if distance < best:
                best = distance
                best_row = int32(j)
        best, best_row = _warp_min(best, best_row)
        if lane == 0:
            block_distance[i, cuda.blockIdx.x] = best
            block_row[i, cuda.blockIdx.x] = best_row


@cuda.jit
def global_min(block_distance, block_row, distance_m, row):  # type: ignore[no-untyped-def]
    """Reduce the 32 blocks' candidates of an observation to one."""
    lane = cuda.threadIdx.x
    for i in range(cuda.grid(2)[1], block_row.shape[0], cuda.gridsize(2)[1]):
        best, best_row = _warp_min(block_distance[i, lane], block_row[i, lane])
        if lane == 0:
            distance_m[i] = best
            row[i] = best_row


fast_block_min = cuda.jit(fastmath=True)(block_min.py_func)
"""With hardware sine, root and division: twice as fast."""


def radians(lat_deg: Array, lon_deg: Array) -> Array:
    """Points as the pair takes them, (n, 2) float32 radians."""
    import cupy as cp

    both = cp.stack([cp.radians(lat_deg), cp.radians(lon_deg)], axis=1)
    return cp.ascontiguousarray(both, cp.float32)


def nearest(reference: Array, observation: Array, *, fast: bool = False) -> tuple[Array, Array]:
    """Rows and float32 metres of the nearest references; arguments are (n, 2) float32 radians."""
    import cupy as cp

    n = observation.shape[0]
    block_distance = cp.empty((n, 32), cp.float32)
    block_row = cp.empty((n, 32), cp.int32)
    distance_m = cp.empty(n, cp.float32)
    row = cp.empty(n, cp.int32)
    kernel = fast_block_min if fast else block_min
    kernel[_BLOCK_GRID, _BLOCK](reference, observation, block_distance, block_row)
    global_min[_GLOBAL_GRID, _BLOCK](block_distance, block_row, distance_m, row)
    return row, distance_m
