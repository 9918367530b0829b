"""Every reference against every observation, on a GPU: the block / global min-reduce pair.

`block_min_reduce` covers a slice of the references with each column of its grid and leaves the
closest candidates (row, squared chord) of an observation and slice; `global_min_reduce` reduces the
candidates of an observation to its answer, and so merges the answers of a reference set's pieces
too. Both reduce within a warp by shuffles, both settle ties with `kernels.distance.closer`, so the
answer does not depend on the grid.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from numba import cuda, float64, int64, uint32

from georesolve.kernels.coordinates_cuda import answer_of, unit_vectors
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.filters_cuda import asked_by, group_of, matches
from georesolve.kernels.launch_cuda import blocks_for, launch, resident_blocks
from georesolve.kernels.query import Answer, Degrees, Found, Query
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import (
    list_merge,
    list_of,
    list_store,
    no_list,
    warp_closest,
)
from georesolve.query import MAX_K

if TYPE_CHECKING:
    import cupy as cp

    from georesolve.kernels.index import ReferenceIndex

_WARPS = 8
"""Warps a block. Each works alone; eight fill a multiprocessor without starving its registers."""
_HARD_WARPS = 16
_HARD_REGISTERS = 128
"""Warps a block of `hard_min_reduce`, and registers a thread of which one block fills a device's
multiprocessor."""
_TILE = 4
"""Observations a warp holds in registers while its lanes stride over the references."""
_BLOCKS_PER_MULTIPROCESSOR = 16
"""How many blocks keep the device busy; fewer observations than that cut the references instead."""
_MIN_SLICE = 1024
"""References a slice has at least: a shorter one costs more in candidates than it gains."""
NOT_A_ROW = -2


@cuda.jit(device=True, forceinline=True)
def _scan(  # type: ignore[no-untyped-def]
    references, start, stop, step, observations, row_step, axis_step, rows, first, n,
    exclude_self, first_row, found_rows, found_chords2, place,
):  # fmt: skip
    """Find the closest reference of each observation of a tile, which a warp takes together.

    They are `first` and those after it of the observations in `rows`, or of all; what is found is
    written from a place on.
    """
    x = cuda.local.array(_TILE, float64)
    y = cuda.local.array(_TILE, float64)
    z = cuda.local.array(_TILE, float64)
    own = cuda.local.array(_TILE, int64)
    best_chord2 = cuda.local.array(_TILE, float64)
    best_row = cuda.local.array(_TILE, int64)
    for t in range(_TILE):
        i = int64(min(first + t, n - 1))
        if rows.size > 0:
            i = int64(rows[i])
        x[t] = observations[i * row_step]
        y[t] = observations[i * row_step + axis_step]
        z[t] = observations[i * row_step + 2 * axis_step]
        own[t] = first_row + i if exclude_self else NOT_A_ROW
        best_chord2[t] = math.inf
        best_row[t] = -1
    for row in range(start + cuda.threadIdx.x, stop, step):
        rx, ry, rz = references[0, row], references[1, row], references[2, row]
        for t in range(_TILE):
            chord2 = squared_chord(x[t], y[t], z[t], rx, ry, rz)
            # A lane's rows ascend, so a plain "less" leaves its ties with the lowest one.
            if chord2 < best_chord2[t] and row != own[t]:
                best_chord2[t] = chord2
                best_row[t] = row
    for t in range(_TILE):
        chord2, row = warp_closest(best_chord2[t], best_row[t])
        if cuda.threadIdx.x == 0 and first + t < n:
            found_rows[place + t] = row
            found_chords2[place + t] = chord2


@cuda.jit(device=True, forceinline=True)
def _scan_list(  # type: ignore[no-untyped-def]
    references, start, stop, step, observations, row_step, axis_step, i, exclude_self, first_row, k
):
    """The k closest references of an observation, as a warp's list."""
    x = observations[i * row_step]
    y = observations[i * row_step + axis_step]
    z = observations[i * row_step + 2 * axis_step]
    own = first_row + i if exclude_self else NOT_A_ROW
    held = no_list()
    for first in range(start, stop, step):
        row = int64(first + cuda.threadIdx.x)
        chord2 = math.inf
        if row < stop and row != own:
            chord2 = squared_chord(
                x, y, z, references[0, row], references[1, row], references[2, row]
            )
        held = list_merge(k, held, chord2, row)
    return held


@cuda.jit(cache=True)
def block_min_reduce(  # type: ignore[no-untyped-def]
    references, observations, rows, k, exclude_self, first_row, candidate_row, candidate_chord2
):
    """Leave the closest references of every slice for every observation.

    Grid ``(slices, blocks)``, block ``(32, warps)``: the grid's x cuts the references into slices,
    a warp takes observations in turn (`_TILE` at a time for k = 1), and its lanes stride over the
    slice. Observations are x, y and z one after the other; `rows` is empty, for all of them.
    Candidates have the shape (slices, n_observations, k).
    """
    n_references = references.shape[1]
    n = candidate_row.shape[1]
    length = (n_references + cuda.gridDim.x - 1) // cuda.gridDim.x
    start = cuda.blockIdx.x * length
    stop = min(start + length, n_references)
    warp = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    warps = cuda.gridDim.y * cuda.blockDim.y
    found_rows, found_chords2 = candidate_row[cuda.blockIdx.x], candidate_chord2[cuda.blockIdx.x]
    if k == 1:
        for first in range(warp * _TILE, n, warps * _TILE):
            _scan(
                references, start, stop, WARP, observations, 1, n, rows, first, n,
                exclude_self, first_row, found_rows[:, 0], found_chords2[:, 0], first,
            )  # fmt: skip
    else:
        for i in range(warp, n, warps):
            held = _scan_list(
                references, start, stop, WARP, observations, 1, n, i, exclude_self, first_row, k
            )
            list_store(k, held, found_rows[i], found_chords2[i], False)


@cuda.jit(cache=True)
def global_min_reduce(candidate_row, candidate_chord2, reference, chord2):  # type: ignore[no-untyped-def]
    """Reduce the candidates of every observation to its answer, a warp an observation.

    Candidates are as `block_min_reduce` leaves them, or the `Found` of a reference set's pieces.
    """
    pieces, n, k = candidate_row.shape
    warp = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    for i in range(warp, n, cuda.gridDim.x * cuda.blockDim.y):
        held = list_of(k, pieces, candidate_chord2[:, i], candidate_row[:, i], 0, 0)
        list_store(k, held, reference[i], chord2[i], False)


def _hard_blocks(many: bool) -> int:
    """Blocks of `hard_min_reduce` a multiprocessor: a tile of observations takes its registers."""
    return 2 if many else 1


@cache
def hard_min_reduce(many: bool) -> Any:
    """The kernel that compares some observations with every reference, for lists or for one."""

    @cuda.jit(cache=True, max_registers=_HARD_REGISTERS // _hard_blocks(many))
    def reduce_hard(  # type: ignore[no-untyped-def]
        references, observations, row_step, axis_step, hard, n_hard,
        k, exclude_self, first_row, measure, reference, chord2,
    ):  # fmt: skip
        """Find the closest references of some observations: how many is known on the device alone.

        Grid ``(blocks,)``, block ``(32, warps)``. Few observations are each shared by all warps of
        a block, which stride over the references; of many, a warp takes some by itself. Parameters
        are as `block_min_reduce` and `kernels.walk_cuda.walk` have them.
        """
        rows = cuda.shared.array((_HARD_WARPS, MAX_K), int64)
        chords2 = cuda.shared.array((_HARD_WARPS, MAX_K), float64)
        warp = cuda.threadIdx.y
        n_references = references.shape[1]
        n = n_hard[0]
        tile = _TILE if not many else 1
        shared_by = _HARD_WARPS
        while shared_by > 1 and n * shared_by > tile * cuda.gridDim.x * _HARD_WARPS:
            shared_by >>= 1
        part = warp & (shared_by - 1)
        start, step = WARP * part, WARP * shared_by
        a_block = tile * (_HARD_WARPS // shared_by)
        for base in range(cuda.blockIdx.x * a_block, n, cuda.gridDim.x * a_block):
            begin = base + warp // shared_by * tile
            if not many:
                _scan(
                    references, start, n_references, step, observations, row_step, axis_step, hard,
                    begin, n, exclude_self, first_row, rows[warp], chords2[warp], 0,
                )  # fmt: skip
            else:
                i = int64(hard[min(begin, n - 1)])
                held = _scan_list(
                    references, start, n_references, step, observations, row_step, axis_step, i,
                    exclude_self, first_row, k,
                )  # fmt: skip
                list_store(k, held, rows[warp], chords2[warp], False)
            cuda.syncthreads()
            if part == 0:
                for t in range(min(tile, n - begin)):
                    held = list_of(k, shared_by, chords2, rows, warp, t)
                    i = int64(hard[begin + t])
                    list_store(k, held, reference[i], chord2[i], measure and many)
            cuda.syncthreads()

    return reduce_hard


def search_hard(
    references: cp.ndarray, observations: cp.ndarray, row_step: int, axis_step: int,
    hard: cp.ndarray, n_hard: cp.ndarray, *asked: Any,
) -> None:  # fmt: skip
    """Answer the observations that walks gave up; parameters as `hard_min_reduce` has them."""
    many = asked[0] > 1
    launch(
        hard_min_reduce(many), resident_blocks(_hard_blocks(many)), (WARP, _HARD_WARPS),
        references, observations, row_step, axis_step, hard, n_hard, *asked,
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def _position_of(codes, code):  # type: ignore[no-untyped-def]
    """Position of the first point of a code or a greater one; padding, of code -1, comes last."""
    low, high = int64(0), int64(codes.size)
    while low < high:
        middle = (low + high) >> 1
        if int64(uint32(codes[middle])) < code:
            low = middle + 1
        else:
            high = middle
    return low


@cuda.jit(cache=True, max_registers=_HARD_REGISTERS // 2)
def compare_group(  # type: ignore[no-untyped-def]
    points, observations, row_step, axis_step, aborted, n_aborted,
    k, exclude_self, first_row, measure, reference, chord2, filters,
):  # fmt: skip
    """Find the closest references of some observations among all points of their groups.

    Grid ``(blocks,)``, block ``(32, warps)``; a block searches for one observation at a time, and
    its warps stride over the points of the group, which follow each other. Parameters are as those
    of `hard_min_reduce`; `points` and filters are those of a tree.
    """
    rows = cuda.shared.array((_HARD_WARPS, MAX_K), int64)
    chords2 = cuda.shared.array((_HARD_WARPS, MAX_K), float64)
    warp = cuda.threadIdx.y
    for place in range(cuda.blockIdx.x, n_aborted[0], cuda.gridDim.x):
        i = int64(aborted[place])
        x = observations[i * row_step]
        y = observations[i * row_step + axis_step]
        z = observations[i * row_step + 2 * axis_step]
        self_row = first_row + i if exclude_self else int64(NOT_A_ROW)
        request = asked_by(filters, i)
        group = int64(group_of(filters, request))
        start, stop = _position_of(filters.codes, group), _position_of(filters.codes, group + 1)
        nearest = no_list()
        for first in range(start + WARP * warp, stop, WARP * _HARD_WARPS):
            at = first + cuda.threadIdx.x
            row = int64(-1)
            apart2 = math.inf
            if at < stop and matches(filters, request, at):
                row = int64(points[at, 3])
                if row != self_row:
                    apart2 = squared_chord(x, y, z, points[at, 0], points[at, 1], points[at, 2])
            nearest = list_merge(k, nearest, apart2, row)
        list_store(k, nearest, rows[warp], chords2[warp], False)
        cuda.syncthreads()
        if warp == 0:
            nearest = list_of(k, _HARD_WARPS, chords2, rows, 0, 0)
            list_store(k, nearest, reference[i], chord2[i], measure and k > 1)
        cuda.syncthreads()


def search_groups(points: cp.ndarray, *request: Any) -> None:
    """Search for the observations of aborted walks with filters: see `compare_group`."""
    launch(
        compare_group, resident_blocks(_hard_blocks(True)), (WARP, _HARD_WARPS), points, *request
    )


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
) -> Found | Answer:
    """The k nearest references of every observation; as `kernels.tree_cuda.search`."""
    import cupy as cp

    n_references, n = index.vectors.shape[1], observations.lat_deg.size
    resident = resident_blocks(_BLOCKS_PER_MULTIPROCESSOR)
    tile = _TILE if query.k == 1 else 1
    blocks = max(1, min(-(-n // (_WARPS * tile)), resident, 65535))
    slices = max(1, min(resident // blocks, n_references // _MIN_SLICE))
    rows, chords2 = cp.empty((slices, n, query.k), cp.int64), cp.empty((slices, n, query.k))
    if n:
        launch(
            block_min_reduce, (slices, blocks), (WARP, _WARPS),
            index.vectors, unit_vectors(*observations, earth=index.earth).ravel(),
            cp.empty(0, cp.int32), query.k, query.exclude_self, query.first_row, rows, chords2,
        )  # fmt: skip
    found = Found(rows[0], chords2[0]) if slices == 1 else _reduce(rows, chords2)
    return answer_of(found) if measure else found


def merge_pair(left: Found, right: Found) -> Found:
    """The k closest of two answers for the same observations, in the order of `closer`."""
    import cupy as cp

    return _reduce(cp.stack([left.reference, right.reference]), cp.stack([left.key, right.key]))
