"""Every reference against every observation, on a GPU: the block / global min-reduce pair.

`block_min_reduce` covers a slice of the references with each column of its grid and leaves one
candidate (squared chord, row) an observation and slice; `global_min_reduce` reduces the candidates
of an observation to its answer. Both reduce within a warp by shuffles, both settle ties with
`kernels.distance.closer`, so the answer does not depend on the grid.
"""

import math

import cupy as cp
from numba import cuda, float64, int64

from kernels.distance import closer, metres, squared_chord
from kernels.index import ReferenceIndex

_WARP = 32
_ALL_LANES = 0xFFFFFFFF
_WARPS = 8
"""Warps a block. Each works alone; eight fill a multiprocessor without starving its registers."""
_TILE = 4
"""Observations a warp holds in registers while its lanes stride over the references."""
_BLOCKS_PER_MULTIPROCESSOR = 16
"""How many blocks keep the device busy; fewer observations than that cut the references instead."""
_MIN_SLICE = 1024
"""References a slice has at least: a shorter one costs more in candidates than it gains."""
_NONE = 0x7FFFFFFFFFFFFFFF
"""Row of "nothing yet": it loses every tie."""


@cuda.jit(device=True, inline="always")
def _warp_min_reduce(chord2, row):  # type: ignore[no-untyped-def]
    # A butterfly: after five exchanges every lane holds the closest of the warp's 32 candidates.
    step = _WARP // 2
    while step > 0:
        other_chord2 = cuda.shfl_xor_sync(_ALL_LANES, chord2, step)
        other_row = cuda.shfl_xor_sync(_ALL_LANES, row, step)
        if closer(other_chord2, other_row, chord2, row):
            chord2 = other_chord2
            row = other_row
        step //= 2
    return chord2, row


@cuda.jit(cache=True)
def block_min_reduce(references, observations, candidate_chord2, candidate_row):  # type: ignore[no-untyped-def]
    """Leave the closest reference of every slice for every observation.

    Grid ``(slices, blocks)``, block ``(32, warps)``: the grid's x cuts the references into slices,
    a warp takes `_TILE` observations at a time, and its lanes stride over the slice.

    Parameters
    ----------
    references, observations : float64 array, shape (3, n_references) and (3, n_observations)
        Unit vectors.
    candidate_chord2, candidate_row : float64 and int64 array, shape (slices, n_observations)
        Written: squared chord and row of each slice's closest; infinity and the largest int64
        where a slice has none.
    """
    n_references = references.shape[1]
    n_observations = observations.shape[1]
    lane = cuda.threadIdx.x
    length = (n_references + cuda.gridDim.x - 1) // cuda.gridDim.x
    start = cuda.blockIdx.x * length
    stop = min(start + length, n_references)
    x = cuda.local.array(_TILE, float64)
    y = cuda.local.array(_TILE, float64)
    z = cuda.local.array(_TILE, float64)
    best_chord2 = cuda.local.array(_TILE, float64)
    best_row = cuda.local.array(_TILE, int64)
    warp = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    warps = cuda.gridDim.y * cuda.blockDim.y
    for first in range(warp * _TILE, n_observations, warps * _TILE):
        for t in range(_TILE):
            i = min(first + t, n_observations - 1)
            x[t] = observations[0, i]
            y[t] = observations[1, i]
            z[t] = observations[2, i]
            best_chord2[t] = math.inf
            best_row[t] = _NONE
        for row in range(start + lane, stop, _WARP):
            rx, ry, rz = references[0, row], references[1, row], references[2, row]
            for t in range(_TILE):
                chord2 = squared_chord(x[t], y[t], z[t], rx, ry, rz)
                # A lane's rows ascend, so a plain "less" leaves its ties with the lowest one.
                if chord2 < best_chord2[t]:
                    best_chord2[t] = chord2
                    best_row[t] = row
        for t in range(_TILE):
            chord2, row = _warp_min_reduce(best_chord2[t], best_row[t])
            if lane == 0 and first + t < n_observations:
                candidate_chord2[cuda.blockIdx.x, first + t] = chord2
                candidate_row[cuda.blockIdx.x, first + t] = row


@cuda.jit(cache=True)
def global_min_reduce(references, observations, candidate_chord2, candidate_row, reference, distance_m):  # type: ignore[no-untyped-def]
    """Reduce the candidates of every observation to its answer, a warp an observation.

    Parameters
    ----------
    references, observations, candidate_chord2, candidate_row
        As `block_min_reduce` has them.
    reference : int64 array, shape (n_observations,)
        Written: row of the nearest reference; -1 where there is none.
    distance_m : float64 array, shape (n_observations,)
        Written: great-circle distance in metres; NaN where there is none.
    """
    lane = cuda.threadIdx.x
    warp = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    for i in range(warp, observations.shape[1], cuda.gridDim.x * cuda.blockDim.y):
        chord2 = math.inf
        row = int64(_NONE)
        for piece in range(lane, candidate_row.shape[0], _WARP):
            if closer(candidate_chord2[piece, i], candidate_row[piece, i], chord2, row):
                chord2 = candidate_chord2[piece, i]
                row = candidate_row[piece, i]
        chord2, row = _warp_min_reduce(chord2, row)
        if lane == 0:
            if row == _NONE:
                reference[i] = -1
                distance_m[i] = math.nan
            else:
                reference[i] = row
                distance_m[i] = metres(
                    observations[0, i], observations[1, i], observations[2, i],
                    references[0, row], references[1, row], references[2, row],
                )  # fmt: skip


def search(index: ReferenceIndex, observations: cp.ndarray) -> tuple[cp.ndarray, cp.ndarray]:
    """The nearest reference of every observation; as `kernels.brute_cpu.search`, on a GPU."""
    n_references, n_observations = index.vectors.shape[1], observations.shape[1]
    reference = cp.empty(n_observations, cp.int64)
    distance_m = cp.empty(n_observations)
    if not n_observations:
        return reference, distance_m
    resident = _BLOCKS_PER_MULTIPROCESSOR * cuda.get_current_device().MULTIPROCESSOR_COUNT
    blocks = min(-(-n_observations // (_WARPS * _TILE)), resident)
    slices = max(1, min(resident // blocks, n_references // _MIN_SLICE))
    candidate_chord2 = cp.empty((slices, n_observations))
    candidate_row = cp.empty((slices, n_observations), cp.int64)
    block_min_reduce[(slices, blocks), (_WARP, _WARPS)](
        index.vectors, observations, candidate_chord2, candidate_row
    )
    global_min_reduce[min(-(-n_observations // _WARPS), resident), (_WARP, _WARPS)](
        index.vectors, observations, candidate_chord2, candidate_row, reference, distance_m
    )
    return reference, distance_m
