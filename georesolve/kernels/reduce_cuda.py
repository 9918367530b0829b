"""Every reference against every observation, on a GPU: the block / global min-reduce pair.

`block_min_reduce` covers a slice of the references with each column of its grid and leaves the
closest candidates (row, squared chord) of an observation and slice; `global_min_reduce` reduces the
candidates of an observation to its answer, and so merges the answers of a reference set's pieces
too. Both reduce within a warp by shuffles, both settle ties with `kernels.distance.closer`, so the
answer does not depend on the grid.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from numba import cuda, float64, int64

from georesolve.kernels.coordinates_cuda import distances, unit_vectors
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.launch_cuda import blocks_for, launch, resident_blocks
from georesolve.kernels.query import Degrees, Found, Query
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import list_merge, list_store, warp_closest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import cupy as cp

    from georesolve.kernels.index import ReferenceIndex

_WARPS = 8
"""Warps a block. Each works alone; eight fill a multiprocessor without starving its registers."""
_TILE = 4
"""Observations a warp holds in registers while its lanes stride over the references."""
_BLOCKS_PER_MULTIPROCESSOR = 16
"""How many blocks keep the device busy; fewer observations than that cut the references instead."""
_MIN_SLICE = 1024
"""References a slice has at least: a shorter one costs more in candidates than it gains."""
_NOT_A_ROW = -2


@cuda.jit(cache=True)
def block_min_reduce(  # type: ignore[no-untyped-def]
    references, observations, k, exclude_self, first_row, candidate_row, candidate_chord2
):
    """Leave the closest references of every slice for every observation.

    Grid ``(slices, blocks)``, block ``(32, warps)``: the grid's x cuts the references into slices,
    a warp takes observations in turn (`_TILE` at a time for k = 1), and its lanes stride over the
    slice.

    Parameters
    ----------
    references, observations : float64 array, shape (3, n_references) and (3, n_observations)
        Unit vectors.
    k, exclude_self, first_row
        As `Query` has them.
    candidate_row, candidate_chord2 : int64 and float64 array, shape (slices, n_observations, k)
        Written: as `Found` has them, for each slice.
    """
    n_references = references.shape[1]
    n_observations = observations.shape[1]
    lane = cuda.threadIdx.x
    length = (n_references + cuda.gridDim.x - 1) // cuda.gridDim.x
    start = cuda.blockIdx.x * length
    stop = min(start + length, n_references)
    warp = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    warps = cuda.gridDim.y * cuda.blockDim.y
    if k == 1:
        x = cuda.local.array(_TILE, float64)
        y = cuda.local.array(_TILE, float64)
        z = cuda.local.array(_TILE, float64)
        own = cuda.local.array(_TILE, int64)
        best_chord2 = cuda.local.array(_TILE, float64)
        best_row = cuda.local.array(_TILE, int64)
        for first in range(warp * _TILE, n_observations, warps * _TILE):
            for t in range(_TILE):
                i = min(first + t, n_observations - 1)
                x[t] = observations[0, i]
                y[t] = observations[1, i]
                z[t] = observations[2, i]
                own[t] = first_row + i if exclude_self else _NOT_A_ROW
                best_chord2[t] = math.inf
                best_row[t] = -1
            for row in range(start + lane, stop, WARP):
                rx, ry, rz = references[0, row], references[1, row], references[2, row]
                for t in range(_TILE):
                    chord2 = squared_chord(x[t], y[t], z[t], rx, ry, rz)
                    # A lane's rows ascend, so a plain "less" leaves its ties with the lowest one.
                    if chord2 < best_chord2[t] and row != own[t]:
                        best_chord2[t] = chord2
                        best_row[t] = row
            for t in range(_TILE):
                chord2, row = warp_closest(best_chord2[t], best_row[t])
                if lane == 0 and first + t < n_observations:
                    candidate_row[cuda.blockIdx.x, first + t, 0] = row
                    candidate_chord2[cuda.blockIdx.x, first + t, 0] = chord2
    else:
        for i in range(warp, n_observations, warps):
            ox, oy, oz = observations[0, i], observations[1, i], observations[2, i]
            self_row = first_row + i if exclude_self else _NOT_A_ROW
            low_chord2 = high_chord2 = math.inf
            low_row = high_row = int64(-1)
            for first in range(start, stop, WARP):
                row = int64(first + lane)
                chord2 = math.inf
                if row < stop and row != self_row:
                    chord2 = squared_chord(
                        ox, oy, oz, references[0, row], references[1, row], references[2, row]
                    )
                if not chord2 < math.inf:
                    # None, whatever the row: at infinity closer would let a lower row before it.
                    row = int64(0x7FFFFFFFFFFFFFFF)
                low_chord2, low_row, high_chord2, high_row = list_merge(
                    k, chord2, row, low_chord2, low_row, high_chord2, high_row
                )
            list_store(
                k, low_chord2, low_row, high_chord2, high_row,
                candidate_row[cuda.blockIdx.x, i], candidate_chord2[cuda.blockIdx.x, i],
            )  # fmt: skip


@cuda.jit(cache=True)
def global_min_reduce(candidate_row, candidate_chord2, reference, chord2):  # type: ignore[no-untyped-def]
    """Reduce the candidates of every observation to its answer, a warp an observation.

    Parameters
    ----------
    candidate_row, candidate_chord2 : int64 and float64 array, shape (pieces, n_observations, k)
        As `block_min_reduce` leaves them, or the `Found` of a reference set's pieces.
    reference, chord2 : int64 and float64 array, shape (n_observations, k)
        Written: as `Found` has them.
    """
    lane = cuda.threadIdx.x
    pieces, n, k = candidate_row.shape
    warp = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    for i in range(warp, n, cuda.gridDim.x * cuda.blockDim.y):
        if k == 1:
            best_chord2 = math.inf
            best_row = int64(-1)
            for piece in range(lane, pieces, WARP):
                if closer(
                    candidate_chord2[piece, i, 0], candidate_row[piece, i, 0], best_chord2, best_row
                ):
                    best_chord2 = candidate_chord2[piece, i, 0]
                    best_row = candidate_row[piece, i, 0]
            best_chord2, best_row = warp_closest(best_chord2, best_row)
            if lane == 0:
                reference[i, 0] = best_row
                chord2[i, 0] = best_chord2
        else:
            low_chord2 = high_chord2 = math.inf
            low_row = high_row = int64(-1)
            for first in range(0, pieces * k, WARP):
                place = first + lane
                new_chord2 = math.inf
                new_row = int64(0x7FFFFFFFFFFFFFFF)
                if place < pieces * k and candidate_row[place // k, i, place % k] >= 0:
                    new_chord2 = candidate_chord2[place // k, i, place % k]
                    new_row = candidate_row[place // k, i, place % k]
                low_chord2, low_row, high_chord2, high_row = list_merge(
                    k, new_chord2, new_row, low_chord2, low_row, high_chord2, high_row
                )
            list_store(k, low_chord2, low_row, high_chord2, high_row, reference[i], chord2[i])


def _reduce(candidate_row: cp.ndarray, candidate_chord2: cp.ndarray) -> Found:
    import cupy as cp

    found = Found(cp.empty(candidate_row.shape[1:], cp.int64), cp.empty(candidate_row.shape[1:]))
    if found.reference.size:
        resident = resident_blocks(_BLOCKS_PER_MULTIPROCESSOR)
        blocks = blocks_for(candidate_row.shape[1], _WARPS, resident)
        threads = (WARP, _WARPS)
        launch(global_min_reduce, blocks, threads, candidate_row, candidate_chord2, *found)
    return found


def search(
    index: ReferenceIndex, observations: Degrees, query: Query, *, measure: bool = False
) -> Found:
    """The k nearest references of every observation; as `kernels.tree_cuda.search`."""
    found = _search(index, unit_vectors(*observations), query)
    return Found(found.reference, distances(found)) if measure else found


def _search(index: ReferenceIndex, observations: cp.ndarray, query: Query) -> Found:
    import cupy as cp

    n_references, n_observations = index.vectors.shape[1], observations.shape[1]
    resident = resident_blocks(_BLOCKS_PER_MULTIPROCESSOR)
    tile = _TILE if query.k == 1 else 1
    blocks = max(1, min(-(-n_observations // (_WARPS * tile)), resident, 65535))
    slices = max(1, min(resident // blocks, n_references // _MIN_SLICE))
    candidate_row = cp.empty((slices, n_observations, query.k), cp.int64)
    candidate_chord2 = cp.empty(candidate_row.shape)
    if n_observations:
        launch(
            block_min_reduce, (slices, blocks), (WARP, _WARPS),
            index.vectors, observations, query.k, query.exclude_self, query.first_row,
            candidate_row, candidate_chord2,
        )  # fmt: skip
    if slices == 1:
        return Found(candidate_row[0], candidate_chord2[0])
    return _reduce(candidate_row, candidate_chord2)


def merge_all(parts: Sequence[Found]) -> Found:
    """The k closest of several answers for the same observations, in the order of `closer`."""
    import cupy as cp

    return _reduce(
        cp.stack([part.reference for part in parts]), cp.stack([part.chord2 for part in parts])
    )


def merge_pair(left: Found, right: Found) -> Found:
    """The k closest of two answers for the same observations, in the order of `closer`."""
    return merge_all([left, right])
