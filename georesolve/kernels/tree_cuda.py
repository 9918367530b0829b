"""The pruned search on a GPU: a table of cells, or walks down the tree of boxes, sorted or not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from georesolve.kernels import cells_cuda
from georesolve.kernels.boxes_cuda import MAX_ROWS, Tree, build, check_rows, whole
from georesolve.kernels.coordinates_cuda import unit_vectors
from georesolve.kernels.order_cuda import extent, order
from georesolve.kernels.query import Answer, Degrees, Found, Query
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.walk_cuda import launch_walk
from georesolve.kernels.ways import suits_cells, walk

if TYPE_CHECKING:
    from georesolve.kernels.index import ReferenceIndex

__all__ = ["MAX_ROWS", "Tree", "build", "search", "whole"]

_COPIES = 1 << 15
"""Observations of copies of few points from which sorting observations pays."""
SAMPLE = 1 << 20
"""Observations that tell where all of them lie, to order them: a few elsewhere do no harm."""


def search(
    index: ReferenceIndex,
    observations: Degrees,
    query: Query,
    *,
    measure: bool = False,
    width: int | None = None,
) -> Found | Answer:
    """The k nearest references of every observation; of one that is not valid, none.

    With `measure`, an `Answer`. `width` is the number of observations a warp: a power of two up to
    32, after sorting them, or 1 as they come. Where it is not given their number decides, and
    whether cells answer; the answer is the same.
    """
    import cupy as cp

    n = observations.lat_deg.size
    check_rows("observations", n)
    found = Found(cp.empty((n, query.k), cp.int64), cp.empty((n, query.k)))
    if not n:
        return Answer(*found) if measure else found
    n_references = index.vectors.shape[1]
    if not n_references:
        found.reference.fill(-1)
        found.key.fill(math.nan if measure else math.inf)
    elif width is not None:
        _walk(index, observations, query, width, found, measure)
    elif not (
        index.earth == "sphere"
        and suits_cells("cuda", n, n_references, query)
        and _search_cells(index, observations, found, measure)
    ):
        width = _width(n, n_references, query)
        # Of copies few points are left, which tie: lanes settle ties of 32 observations at a time.
        if width == 1 and n >= _COPIES and n_references > WARP**2 >= index.tree.points.shape[0]:
            width = WARP
        _walk(index, observations, query, width, found, measure)
    return Answer(*found) if measure else found


def _width(n_observations: int, n_references: int, query: Query) -> int:
    """Observations that walk together in a warp."""
    walked = walk("cuda", n_observations, n_references, query)
    return WARP if walked.search == "packets" else 1


def _walk(
    index: ReferenceIndex,
    observations: Degrees,
    query: Query,
    width: int,
    found: Found,
    measure: bool,
) -> None:
    if width > 1:
        box = extent(observations, SAMPLE, index.earth)
        rows, vectors, _ = order(observations, box, earth=index.earth)
        # The device sorts by the time that the index's tree is asked for.
        if index.tree.fine:
            rows, vectors, _ = order(observations, box, finely=True, earth=index.earth)
        launch_walk(index, vectors, query, found, rows=rows, width=width, measure=measure)
    else:
        vectors = unit_vectors(*observations, earth=index.earth)
        launch_walk(index, vectors, query, found, by_axis=True, measure=measure)


def _search_cells(
    index: ReferenceIndex, observations: Degrees, found: Found, measure: bool
) -> bool:
    """Answer from cells, and for what they leave over by walks; False where cells do not suit."""
    left_over = cells_cuda.search(index, observations, found, measure)
    if left_over is None:
        return False
    rows, some = left_over
    if rows.size:
        width = _width(rows.size, index.vectors.shape[1], Query())
        answer = search(index, some, Query(), width=width)
        cells_cuda.fill_in(rows, answer, found, measure)
    return True
