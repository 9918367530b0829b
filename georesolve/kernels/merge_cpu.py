"""The loop around `kernels.distance.closer` that merges two answers on a CPU."""

import numpy as np
from numba import njit

from georesolve.kernels.distance import closer
from georesolve.kernels.query import Found
from georesolve.kernels.threads_cpu import in_threads, threads_for

_GRAIN = 1 << 13
"""Answers that are worth a thread."""


@njit(cache=True, nogil=True)
def _merge(  # type: ignore[no-untyped-def]
    thread, threads, left_row, left_chord2, right_row, right_chord2, row, chord2
):
    n, k = row.shape
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        left = 0
        right = 0
        # Of "none" against "none" (both infinite, row -1) either may be taken: they are the same.
        for j in range(k):
            if closer(
                right_chord2[i, right], right_row[i, right], left_chord2[i, left], left_row[i, left]
            ):
                row[i, j] = right_row[i, right]
                chord2[i, j] = right_chord2[i, right]
                right += 1
            else:
                row[i, j] = left_row[i, left]
                chord2[i, j] = left_chord2[i, left]
                left += 1


def merge_pair(left: Found, right: Found) -> Found:
    """The k closest of two answers for the same observations, in the order of `closer`."""
    row = np.empty_like(left.reference)
    chord2 = np.empty_like(left.chord2)
    in_threads(_merge, threads_for(row.size, _GRAIN), *left, *right, row, chord2)
    return Found(row, chord2)
