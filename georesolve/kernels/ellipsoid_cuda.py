"""The nearest references on the ellipsoid, and all within a distance, on a GPU.

As on a CPU (`kernels.ellipsoid_cpu`): the walks of the sphere find the nearest by their chords, one
more than are wanted, and geodesics put these in order. Where the one more may be nearer, all that
may be are found by `kernels.within_cuda`, by chords, and put in order by their geodesics.

Lists hold 64 references, so no walk finds one more than 64. Counting the references that may be
among the nearest costs less than finding them, and most counts say that the list is complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from numba import cuda

from georesolve.kernels import reduce_cuda, tree_cuda, within_cuda
from georesolve.kernels.coordinates_cuda import unit_vectors
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.ellipsoid import outermost
from georesolve.kernels.geodesic import geodesic_m
from georesolve.kernels.launch_cuda import stride
from georesolve.kernels.query import (
    Answer,
    Degrees,
    Found,
    Pairs,
    Query,
    Within,
)
from georesolve.kernels.walk_cpu import put
from georesolve.kernels.ways import Search
from georesolve.query import MAX_K

if TYPE_CHECKING:
    import cupy as cp

    from georesolve.kernels.index import ReferenceIndex

_NONE = 1 << 62
"""A row behind all others."""
_MOST_PAIRS = 1 << 25
"""Pairs that are measured together, unless those of one observation are more."""


@cuda.jit(cache=True)
def settle(  # type: ignore[no-untyped-def]
    references,
    observations,
    by_chord,
    chord2,
    exclude_self,
    first_row,
    reference,
    key,
    bounds,
    open_,
    listed,
):
    """A thread an observation, striding over the grid: the k nearest, in the order of geodesics.

    Of each there are the nearest by their chords, one more where there is room for it. `bounds`
    becomes the greatest squared chord of what may be among the k, and `open_` says whether there
    may be more than those. `listed` becomes the number of references within that squared chord that
    need no search: the k, and the own row.
    """
    k, width = key.shape[1], chord2.shape[1]
    for i in range(cuda.grid(1), key.shape[0], cuda.gridsize(1)):
        rows, lengths = reference[i], key[i]
        for j in range(k):
            rows[j], lengths[j] = _NONE, math.inf
        for j in range(k):
            row = by_chord[i, j]
            if row >= 0:
                metres = geodesic_m(
                    observations[0, i], observations[1, i], observations[2, i],
                    references[0, row], references[1, row], references[2, row],
                )  # fmt: skip
                put(lengths, rows, k - 1, metres, row)
        bounds[i] = outermost(lengths[k - 1])
        open_[i] = chord2[i, k] <= bounds[i] if width > k else chord2[i, width - 1] < math.inf
        listed[i] = k
        self_row = first_row + i
        if exclude_self and 0 <= self_row < references.shape[1]:
            self_chord2 = squared_chord(
                observations[0, i], observations[1, i], observations[2, i],
                references[0, self_row], references[1, self_row], references[2, self_row],
            )  # fmt: skip
            listed[i] += self_chord2 <= bounds[i]
        for j in range(k):
            if lengths[j] == math.inf:
                rows[j] = -1


@cuda.jit(cache=True)
def measure(references, observations, of, row, metres):  # type: ignore[no-untyped-def]
    """A thread a pair, striding over the grid: its geodesic."""
    for pair in range(cuda.grid(1), of.size, cuda.gridsize(1)):
        i, j = of[pair], row[pair]
        metres[pair] = geodesic_m(
            observations[0, i], observations[1, i], observations[2, i],
            references[0, j], references[1, j], references[2, j],
        )  # fmt: skip


@cuda.jit(cache=True)
def bound(distances, bounds):  # type: ignore[no-untyped-def]
    """The greatest squared chords of what is within some distances."""
    for i in range(cuda.grid(1), distances.size, cuda.gridsize(1)):
        bounds[i] = outermost(distances[i])


class _Part(NamedTuple):
    """Observations from `start` on, and for each of their pairs which, its row and its metres."""

    start: int
    size: int
    of: cp.ndarray
    row: cp.ndarray
    metres: cp.ndarray


def _parts(
    index: ReferenceIndex, observations: Degrees, request: Within, counts: cp.ndarray, by: Search,
    start: int = 0,
) -> Iterator[_Part]:  # fmt: skip
    """The pairs of observations within squared chords, as many at a time as memory holds.

    `counts` are the numbers of pairs of each observation.
    """
    import cupy as cp

    n = counts.size
    if n > 1 and int(counts.sum()) > _MOST_PAIRS:
        for half in (slice(0, n // 2), slice(n // 2, n)):
            some = Degrees(*(one[half] for one in observations))
            bounds = request.chord2[half] if request.chord2.size > 1 else request.chord2
            here = request._replace(chord2=bounds, first_row=request.first_row + half.start)
            yield from _parts(index, some, here, counts[half], by, start + half.start)
        return
    starts, row, _ = within_cuda.pairs(index, observations, request, by, counts)
    pair = cp.arange(row.size)
    of = cp.searchsorted(starts, pair, side="right") - 1
    metres = cp.empty(row.size)
    if row.size:
        vectors = unit_vectors(*observations, earth="wgs84")
        stride(measure, row.size, index.vectors, vectors, of, row, metres)
    yield _Part(start, n, of, row, metres)


def _in_order(part: _Part) -> _Part:
    import cupy as cp

    # Whole numbers are below 2^53.
    keys = [part.row.astype(cp.float64), part.metres, part.of.astype(cp.float64)]
    place = cp.lexsort(cp.stack(keys))
    return part._replace(of=part.of[place], row=part.row[place], metres=part.metres[place])


def search(
    index: ReferenceIndex, observations: Degrees, query: Query, by: Search, *, measure: bool = False
) -> Found | Answer:
    """The k nearest references of every observation by their geodesics; keys are metres."""
    import cupy as cp

    n, k = observations.lat_deg.size, query.k
    found = Found(cp.empty((n, k), cp.int64), cp.empty((n, k)))
    if n:
        wider = query._replace(k=min(k + 1, MAX_K))
        module = reduce_cuda if by == "brute" else tree_cuda
        nearest = module.search(index, observations, wider)
        vectors = unit_vectors(*observations, earth="wgs84")
        bounds, open_, listed = cp.empty(n), cp.empty(n, cp.bool_), cp.empty(n, cp.int64)
        own_rows = query.exclude_self, query.first_row
        stride(
            settle, n, index.vectors, vectors, *nearest, *own_rows, *found, bounds, open_, listed
        )
        left = cp.flatnonzero(open_)
        if left.size:
            _settle_left(index, observations, query, by, left, bounds, listed, found)
    return answer_of(found) if measure else found


def _settle_left(
    index: ReferenceIndex, observations: Degrees, query: Query, by: Search, left: cp.ndarray,
    bounds: cp.ndarray, listed: cp.ndarray, result: Found,
) -> None:  # fmt: skip
    """Write the k nearest of some rows of the observations, from all that may be among them.

    Complete lists do not change.
    """
    import cupy as cp

    some = Degrees(*(one[left] for one in observations))
    counts = within_cuda.count(index, some, Within(bounds[left]), by)
    more = cp.flatnonzero(counts > listed[left])
    if not more.size:
        return
    left, counts = left[more], counts[more]
    some = Degrees(*(one[left] for one in observations))
    for part in _parts(index, some, Within(bounds[left]), counts, by):
        rows = left[part.start : part.start + part.size]
        if query.exclude_self:
            others = part.row != query.first_row + rows[part.of]
            part = part._replace(
                of=part.of[others], row=part.row[others], metres=part.metres[others]
            )
        of, row, metres = _in_order(part)[2:]
        first = cp.searchsorted(of, cp.arange(part.size))
        rank = cp.arange(of.size) - first[of]
        is_near = rank < query.k
        at = rows[of[is_near]], rank[is_near]
        result.reference[rows], result.key[rows] = -1, math.inf
        result.reference[at], result.key[at] = row[is_near], metres[is_near]


def answer_of(found: Found) -> Answer:
    """The metres of what was found, which are its keys."""
    found.key[found.reference < 0] = math.nan
    return Answer(*found)


def _within(
    index: ReferenceIndex, observations: Degrees, request: Within, by: Search
) -> Iterator[_Part]:
    import cupy as cp

    distances = cp.asarray(request.chord2)
    bounds = cp.empty(distances.size)
    stride(bound, distances.size, distances, bounds)
    request = request._replace(chord2=bounds)
    counts = within_cuda.count(index, observations, request, by)
    for part in _parts(index, observations, request, counts, by):
        limits = distances
        if distances.size > 1:
            limits = distances[part.start : part.start + part.size][part.of]
        near = part.metres <= limits
        yield part._replace(of=part.of[near], row=part.row[near], metres=part.metres[near])


def count(index: ReferenceIndex, observations: Degrees, request: Within, by: Search) -> cp.ndarray:
    """How many references lie within the distance of every observation."""
    import cupy as cp

    counts = cp.zeros(observations.lat_deg.size, cp.int64)
    for part in _within(index, observations, request, by):
        own = cp.bincount(part.of, minlength=part.size)[: part.size]
        counts[part.start : part.start + part.size] = own
    return counts


def pairs(index: ReferenceIndex, observations: Degrees, request: Within, by: Search) -> Pairs:
    """All references within the distance of every observation, nearest first, equals by row."""
    import cupy as cp

    counts = cp.zeros(observations.lat_deg.size, cp.int64)
    rows, metres = [cp.empty(0, cp.int64)], [cp.empty(0)]
    for part in map(_in_order, _within(index, observations, request, by)):
        own = cp.bincount(part.of, minlength=part.size)[: part.size]
        counts[part.start : part.start + part.size] = own
        rows.append(part.row)
        metres.append(part.metres)
    starts = cp.zeros(counts.size + 1, cp.int64)
    cp.cumsum(counts, out=starts[1:])
    return Pairs(starts, cp.concatenate(rows), cp.concatenate(metres))
