"""The nearest reference by a table of cells on a CPU, where observations outnumber references.

The part of the octahedral square that the references cover (`kernels.hilbert`) is cut into cells,
and a cell knows every reference that can be the nearest of a point in it. So an observation needs
no sort and no walk: it finds its cell, compares itself with the cell's few candidates, and is done.
What falls into a cell of more candidates than it has places for, or outside of the cells, is left
to a walk; the answer is the same. A sample of the observations says beforehand how many those are.

Which references a cell keeps
-----------------------------
The square is cut into an even number of rows and columns, so the lines along which it is folded
pass through cells' corners only: a cell is one flat piece of the octahedron, or two triangles of
its corners. Put on the sphere, a point o of a piece is a sum of the piece's corners with weights
that are not negative, and at least as long as their mean: o = t * mean(v), t >= 1. For references p
and q let f(o) = |o - p|^2 - |o - q|^2, which is linear in o but for c = |p|^2 - |q|^2. Hence
f(o) >= t * min f(v) - (t - 1) |c|: where q is nearer than p at every corner, it is nearer in all of
the cell, and p is left out. q is the reference that is nearest to one of the corners.

That must hold of what is computed. With w the greatest squared chord of q at the corners: squared
chords have a relative error of 5 * 2^-53, and those of o are at most 4 w; t - 1 is below w, and |c|
below 1e-15. The place of o on the square, and the corners, are off by 1e-14 on the sphere, which
moves f by 2e-14 |p - q|, where |p - q| is at most 4 sqrt(w) or f is far from 0. So f at the corners
must be above 2e-13 sqrt(w) + 4e-14 w, twice what all of these come to; a cell is wider than 1e-9.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.boxes_cpu import NO_LIMIT, STACK, WIDTH
from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.hilbert import octahedral
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.lanes_cpu import (
    bound_cells,
    cells_within,
    greatest_of_16,
    lanes_near,
    lanes_within,
    load_lanes,
    lowest_bit,
    nearest_of_eight,
    prefetch_for_read,
)
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.packets_cpu import LANES, OnSphere, aligned_rows, search_packets
from georesolve.kernels.query import Degrees, Found
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.walk_cpu import look, walk

PLACES = 8
"""Candidates that a cell has places for."""
_CROWDED = -1
"""What stands in the first place of a cell that has more; others repeat their first candidate."""
_PER_REFERENCE = 3.5
"""Cells a reference: of more, filling them takes longer; of fewer, more is left over."""
_SAMPLE = 32
_MOST_LEFT = 1 / 4
"""Observations of a sample, about, and the share of them that may be left over."""
_LEAST_SIDE = 64
"""Cells along a side of the square from which their bounds hold."""
_LEAST_EXTENT = 1e-6
"""Extent on the square below which cells are not made smaller."""
_CELLS = 3
"""Cells of a block's side: its corners are the sixteen lanes of a packet."""
_LISTED = 128
"""References that a block looks at before its cells are called crowded."""
_BLOCK = 256
"""Observations whose cells are found together."""
_AHEAD = 6
_ASKED_FOR = 4
"""How far ahead candidates are asked for, and how many of a cell."""
_GRAIN = 256
"""Blocks or observations that are worth a thread."""


class Grid(NamedTuple):
    """Where cells lie on the square.

    It has `side` of them along its side, an even number; the table has whole blocks.
    """

    side: int
    first_row: int
    first_column: int
    rows: int
    columns: int


class Listed(NamedTuple):
    """Collects what is within the bounds of a block's corners, the lanes: too many end the walk."""

    lanes: np.ndarray
    chord2: np.ndarray
    rows: np.ndarray
    found: np.ndarray


@look.of(Listed)
def _look(collector, tree, node, bits, box, worst):  # type: ignore[no-untyped-def]
    lanes, chord2, listed, count = collector
    found = count[0]
    while bits and found <= _LISTED:
        j = lowest_bit(bits)
        bits &= bits - 1
        if lanes_within(lanes, tree.boxes, node, j):
            leaf = node * WIDTH + j
            for member in range(WIDTH):
                listed[found] = np.int32(tree.rows[leaf, member])
                found += lanes_near(tree.points, leaf, member, lanes, chord2, found) != 0
    count[0] = found
    return worst if found <= _LISTED else -1.0, 0


@njit(cache=True, nogil=True, error_model="numpy")
def _extent(vectors):  # type: ignore[no-untyped-def]
    """Least u, least v, greatest u and greatest v of points on the square; a NaN has none."""
    least_u = least_v = 1.0
    most_u = most_v = -1.0
    for i in range(vectors.shape[0]):
        u, v = octahedral(vectors[i, 0], vectors[i, 1], vectors[i, 2])
        if u == u:
            least_u, least_v = min(least_u, u), min(least_v, v)
            most_u, most_v = max(most_u, u), max(most_v, v)
    return least_u, least_v, most_u, most_v


@njit(inline="always")
def _place(grid, block):  # type: ignore[no-untyped-def]
    """Row and column of a block's first cell in the table."""
    blocks = grid.columns // _CELLS
    return block // blocks * _CELLS, block % blocks * _CELLS


@njit(inline="always")
def _on_sphere(u, v):  # type: ignore[no-untyped-def]
    """The unit vector of a place on the square."""
    z = 1.0 - abs(u) - abs(v)
    x = u if z >= 0.0 else math.copysign(1.0 - abs(v), u)
    y = v if z >= 0.0 else math.copysign(1.0 - abs(u), v)
    size = math.sqrt(x * x + y * y + z * z)
    return x / size, y / size, z / size


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_corners(thread, threads, grid, blocks, corners, points):  # type: ignore[no-untyped-def]
    """Write the sixteen corners of each block, twice: one of them a search writes over."""
    step = 2.0 / grid.side
    x = np.empty(LANES)
    y = np.empty(LANES)
    z = np.empty(LANES)
    for i in range(blocks.size * thread // threads, blocks.size * (thread + 1) // threads):
        row, column = _place(grid, blocks[i])
        row += grid.first_row
        column += grid.first_column
        for lane in range(LANES):
            # The last blocks may reach over the square's edge, where there are no points.
            u = min((column + (lane & 3)) * step - 1.0, 1.0)
            v = min((row + (lane >> 2)) * step - 1.0, 1.0)
            x[lane], y[lane], z[lane] = _on_sphere(u, v)
        for lane in range(LANES):
            at = i * LANES + lane
            corners[at, 0], corners[at, 1], corners[at, 2] = x[lane], y[lane], z[lane]
            points[at, 0], points[at, 1], points[at, 2] = x[lane], y[lane], z[lane]


@njit(cache=True, nogil=True, error_model="numpy")
def _collect(thread, threads, tree, vectors, grid, blocks, corners, nearest, table):  # type: ignore[no-untyped-def]
    """Write the candidates of each block's cells; `nearest` begins with the corners' rows."""
    # The cell of a lane has corners in it, the next one and the two that are four lanes on: what
    # reads them reads on behind the sixteen.
    lanes = aligned_rows(4, LANES + WIDTH)
    near = aligned_rows(3, LANES + WIDTH)
    for lane in range(LANES + WIDTH):
        for axis in range(3):
            lanes[axis, lane] = 0.0
            near[axis, lane] = 0.0
    bounds = aligned_rows(4, LANES)
    box_of = aligned_rows(1, WIDTH)
    chord2 = aligned_rows(_LISTED + 2 * WIDTH, LANES)
    listed = np.empty(_LISTED + 2 * WIDTH, np.int32)
    places = np.empty(LANES, np.int64)
    cells = np.empty(LANES, np.int64)
    counts = np.empty(LANES, np.int64)
    for lane in range(LANES):
        places[lane] = lane
        cells[lane] = lane // 4 * grid.columns + lane % 4
    near_block = Listed(lanes, chord2, listed, np.zeros(1, np.int64))
    stack = np.empty(STACK, np.int64)
    for i in range(blocks.size * thread // threads, blocks.size * (thread + 1) // threads):
        row, column = _place(grid, blocks[i])
        own = table[row * grid.columns + column :]
        load_lanes(corners[i * LANES : (i + 1) * LANES], places, lanes, box_of, 0)
        for lane in range(LANES):
            at = np.int64(nearest[i * LANES + lane, 0])
            for axis in range(3):
                near[axis, lane] = vectors[at, axis]
            lanes[3, lane] = 0.0
            counts[lane] = 0
        bound_cells(lanes, near, bounds)
        for first in (0, 4, 8):
            for cell in range(first, first + _CELLS):
                lanes[3, cell] = max(lanes[3, cell], bounds[0, cell])
                lanes[3, cell + 1] = max(lanes[3, cell + 1], bounds[1, cell])
                lanes[3, cell + 4] = max(lanes[3, cell + 4], bounds[2, cell])
                lanes[3, cell + 5] = max(lanes[3, cell + 5], bounds[3, cell])
        worst = greatest_of_16(lanes, 3)
        slack = 2e-13 * math.sqrt(worst) + 4e-14 * worst
        worst += slack
        for lane in range(LANES):
            lanes[3, lane] += slack
            for corner in range(4):
                bounds[corner, lane] += slack
        near_block.found[0] = 0
        walk(tree, near_block, box_of[0], worst, 0, 0, NO_LIMIT, stack)
        found = near_block.found[0]
        for entry in range(found):
            bits = cells_within(chord2, entry, bounds)
            while bits:
                cell = lowest_bit(bits)
                bits &= bits - 1
                own[cells[cell], min(counts[cell], PLACES - 1)] = listed[entry]
                counts[cell] += 1
        for first in (0, 4, 8):
            for cell in range(first, first + _CELLS):
                at = cells[cell]
                if found > _LISTED or counts[cell] > PLACES:
                    own[at, 0] = _CROWDED
                else:
                    for place in range(counts[cell], PLACES):
                        own[at, place] = own[at, 0]


@njit(cache=True, nogil=True, error_model="numpy")
def _cells_of(x, y, z, grid, cells):  # type: ignore[no-untyped-def]
    """Write the cells of points, -1 outside of the table and of a NaN."""
    half = grid.side / 2.0
    last_row = np.int32(grid.rows - 1)
    last_column = np.int32(grid.columns - 1)
    for i in range(cells.size):
        u, v = octahedral(x[i], y[i], z[i])
        column = (u + 1.0) * half - grid.first_column
        row = (v + 1.0) * half - grid.first_row
        inside = (column >= 0.0) & (column <= grid.columns) & (row >= 0.0) & (row <= grid.rows)
        # What lies on the far edges belongs to the last cells.
        across = min(np.int32(column if inside else 0.0), last_column)
        along = min(np.int32(row if inside else 0.0), last_row)
        cells[i] = along * grid.columns + across if inside else -1


@njit(cache=True, nogil=True, error_model="numpy")
def _look_up(  # type: ignore[no-untyped-def]
    thread, threads, lat_deg, lon_deg, vectors, grid, table, reference, chord2, left, counts
):
    """Find the nearest of the candidates of each observation's cell; note what is left over."""
    start = lat_deg.size * thread // threads
    stop = lat_deg.size * (thread + 1) // threads
    x = np.empty(_BLOCK)
    y = np.empty(_BLOCK)
    z = np.empty(_BLOCK)
    cells = np.empty(_BLOCK, np.int32)
    next_left = start
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        lat = lat_deg[first:last]
        lon = lon_deg[first:last]
        for i in range(last - first):
            x[i], y[i], z[i] = unit_vector(lat[i], lon[i])
        _cells_of(x, y, z, grid, cells[: last - first])
        for i in range(last - first):
            prefetch_for_read(table, max(cells[i], 0), 0)
        rows = reference[first:last]
        chords = chord2[first:last]
        for i in range(rows.size):
            cell = cells[i]
            # The first candidates of an observation some places ahead; mostly these are all.
            ahead = max(cells[min(i + _AHEAD, rows.size - 1)], 0)
            for place in range(_ASKED_FOR):
                prefetch_for_read(vectors, max(table[ahead, place], 0), 0)
            if cell >= 0 and table[cell, 0] != _CROWDED:
                chords[i], rows[i] = nearest_of_eight(vectors, table, cell, x[i], y[i], z[i])
                continue
            chords[i] = np.inf
            rows[i] = -1
            if z[i] >= -1.0:
                left[next_left] = first + i
                next_left += 1
    counts[thread] = next_left - start


def search(
    index: ReferenceIndex, observations: Degrees, found: Found, *, sampled: bool = True
) -> np.ndarray | None:
    """Write answers from cells into `found`, for k = 1 and one valid reference at least.

    Returns the rows that are left over; None where a sample of the observations says that cells are
    not worth it, and nothing is answered.
    """
    n = observations.lat_deg.size
    grid = _grid(index.vectors, index.tree.rows.size)
    if grid is None:
        return None
    table = kept(grid.rows * grid.columns, PLACES, dtype=np.int32)
    if sampled:
        points = unit_vectors(
            *(degrees[:: max(1, n // _SAMPLE)].copy() for degrees in observations)
        )
        cells = np.empty(len(points), np.int32)
        _cells_of(*points.T[:3].copy(), grid, cells)
        cells = cells[cells >= 0]
        _fill(index, grid, _blocks_of(cells, grid), table)
        answered = np.count_nonzero(table[cells, 0] != _CROWDED)
        if answered < (1.0 - _MOST_LEFT) * np.count_nonzero(points[:, 2] >= -1.0):
            return None
    _fill(index, grid, np.arange(grid.rows * grid.columns // _CELLS**2), table)
    left = kept(n, dtype=np.int64)
    threads = threads_for(n, _GRAIN)
    counts = np.zeros(threads, np.int64)
    into = (found.reference[:, 0], found.key[:, 0], left, counts)
    in_threads(_look_up, threads, *observations, index.vectors, grid, table, *into)
    starts = n * np.arange(threads) // threads
    return np.concatenate([left[a : a + b] for a, b in zip(starts, counts, strict=True)])


def _grid(vectors: np.ndarray, n_references: int) -> Grid | None:
    """Cells over the references; None where these lie on a line, so that cells would be many."""
    wanted = _PER_REFERENCE * n_references
    least_u, least_v, most_u, most_v = _extent(vectors)
    wide, high = (max(a, _LEAST_EXTENT) for a in (most_u - least_u, most_v - least_v))
    side = max(_LEAST_SIDE, 2 * math.ceil(math.sqrt(wanted / (wide * high))))
    firsts, counts = [], []
    for least, most in ((least_v, most_v), (least_u, most_u)):
        first, last = (int((a + 1.0) * side / 2.0) for a in (least, most))
        firsts.append(first)
        counts.append(-(-(last + 1 - first) // _CELLS) * _CELLS)
    # Whole blocks and a least side make more of a few.
    if math.prod(counts) > 2 * wanted + 4 * _LEAST_SIDE**2:
        return None
    return Grid(side, *firsts, *counts)


def _blocks_of(cells: np.ndarray, grid: Grid) -> np.ndarray:
    """Blocks that hold some cells; the inverse of `_place`."""
    row, column = np.divmod(cells.astype(np.int64), grid.columns)
    return np.unique(row // _CELLS * (grid.columns // _CELLS) + column // _CELLS)


def _fill(index: ReferenceIndex, grid: Grid, blocks: np.ndarray, table: np.ndarray) -> None:
    """Find the candidates of the cells of some blocks."""
    n = blocks.size * LANES
    threads = threads_for(blocks.size, _GRAIN)
    corners, points = kept(n, 4), kept(n, 4)
    in_threads(_fill_corners, threads, grid, blocks, corners, points)
    limits, tally = np.full(2, NO_LIMIT), np.empty((threads, 2), np.int64)
    in_threads(
        search_packets, threads, index.tree, points, np.arange(n), n, limits, tally, OnSphere()
    )
    in_threads(_collect, threads, index.tree, index.vectors, grid, blocks, corners, points, table)
