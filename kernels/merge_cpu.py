"""The loop around `kernels.distance.closer` that merges two answers on a CPU."""

import numpy as np
from numba import njit, prange

from kernels.distance import closer
from kernels.query import Found
from kernels.threads_cpu import threads_for

_GRAIN = 1 << 13
"""Answers that are worth a thread."""


@njit(parallel=True, cache=True, nogil=True)
def _merge(left_row, left_chord2, right_row, right_chord2, row, chord2):  # type: ignore[no-untyped-def]
    n, k = row.shape
    for i in prange(n):
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
    with threads_for(row.size, _GRAIN):
        _merge(left.reference, left.chord2, right.reference, right.chord2, row, chord2)
    return Found(row, chord2)
