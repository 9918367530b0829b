"""All references within a distance of every observation on a CPU: how many, and which."""

import numpy as np
from numba import njit

from georesolve.kernels.coordinates_cpu import measure_part, unit_vectors
from georesolve.kernels.distance import closer, squared_chord
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.query import Degrees, Pairs, Within
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.walk_cpu import put
from georesolve.kernels.ways import Search

_GRAIN = 1 << 16
"""Pairs that are worth a thread."""
_RUN = 16
"""Pairs that are put in order one by one; runs of them are merged."""


@njit(inline="always")
def _sort(chords, rows, spare):  # type: ignore[no-untyped-def]
    """Sort pairs by squared chord and row; gives back the memory of as many that this took."""
    n = rows.size
    for first in range(0, n, _RUN):
        c, r = chords[first : first + _RUN], rows[first : first + _RUN]
        for j in range(1, r.size):
            put(c, r, j, c[j], r[j])
    if n > _RUN and spare[0].size < n:
        spare = np.empty(2 * n), np.empty(2 * n, np.int64)
    from_c, from_r, to_c, to_r = chords, rows, spare[0], spare[1]
    width = _RUN
    while width < n:
        for first in range(0, n, 2 * width):
            middle, stop = min(first + width, n), min(first + 2 * width, n)
            left, right = first, middle
            for place in range(first, stop):
                if right < stop and (
                    left == middle
                    or closer(from_c[right], from_r[right], from_c[left], from_r[left])
                ):
                    to_c[place], to_r[place] = from_c[right], from_r[right]
                    right += 1
                else:
                    to_c[place], to_r[place] = from_c[left], from_r[left]
                    left += 1
        from_c, from_r, to_c, to_r = to_c, to_r, from_c, from_r
        width *= 2
    # An odd number of passes ends in the spare memory.
    passes = 0
    width = _RUN
    while width < n:
        passes += 1
        width *= 2
    if passes % 2:
        chords[:] = from_c[:n]
        rows[:] = from_r[:n]
    return spare


@njit(cache=True, nogil=True, error_model="numpy")
def _compare_all(  # type: ignore[no-untyped-def]
    thread, threads, vectors, points, chord2, exclude_self, once, first_row, counts, starts,
    reference, key,
):  # fmt: skip
    """Count by brute force or, where there is memory for pairs, write them."""
    n = counts.size
    spare = np.empty(0), np.empty(0, np.int64)
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        bound = chord2[i if chord2.size > 1 else 0]
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        own = first_row + i
        count = 0
        for row in range(max(own + 1, 0) if once else 0, vectors.shape[0]):
            c = squared_chord(x, y, z, vectors[row, 0], vectors[row, 1], vectors[row, 2])
            if c <= bound and not (exclude_self and row == own):
                if key.size:
                    key[starts[i] + count] = c
                    reference[starts[i] + count] = row
                count += 1
        counts[i] = count
        if key.size:
            part = slice(starts[i], starts[i + 1])
            spare = _sort(key[part], reference[part], spare)
            measure_part(key[part])


def count(index: ReferenceIndex, observations: Degrees, asked: Within, by: Search) -> np.ndarray:
    """How many references lie within the distance of every observation."""
    n = observations.lat_deg.size
    counts = np.empty(n, np.int64)
    none = np.empty(0, np.int64)
    points = unit_vectors(*observations)
    threads = threads_for(n * len(index.vectors), _GRAIN)
    at = (index.vectors, points, *asked, counts, none, none, np.empty(0))
    in_threads(_compare_all, threads, *at)
    return counts


def pairs(index: ReferenceIndex, observations: Degrees, asked: Within, by: Search) -> Pairs:
    """All references within the distance of every observation, nearest first, equals by row."""
    counts = count(index, observations, asked, by)
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    found = Pairs(starts, np.empty(starts[-1], np.int64), np.empty(starts[-1]))
    points = unit_vectors(*observations)
    threads = threads_for(counts.size * len(index.vectors), _GRAIN)
    at = (index.vectors, points, *asked, counts, *found)
    in_threads(_compare_all, threads, *at)
    return found
