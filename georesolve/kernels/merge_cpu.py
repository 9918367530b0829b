"""The loop that merges two answers on a CPU, by key and then by row."""

import numpy as np
from numba import njit

from georesolve.kernels.distance import closer
from georesolve.kernels.query import Found
from georesolve.kernels.threads_cpu import in_threads, threads_for

_GRAIN = 1 << 13
"""Answers that are worth a thread."""


@njit(cache=True, nogil=True)
def _merge(  # type: ignore[no-untyped-def]
    thread, threads, left_row, left_key, right_row, right_key, row, key
):
    n, k = row.shape
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        left = 0
        right = 0
        # Of "none" against "none" (both infinite, row -1) either may be taken: they are the same.
        for j in range(k):
            if closer(
                right_key[i, right], right_row[i, right], left_key[i, left], left_row[i, left]
            ):
                row[i, j] = right_row[i, right]
                key[i, j] = right_key[i, right]
                right += 1
            else:
                row[i, j] = left_row[i, left]
                key[i, j] = left_key[i, left]
                left += 1


def merge_pair(left: Found, right: Found) -> Found:
    """The k closest of two answers for the same observations, in the order of `closer`."""
    row = np.empty_like(left.reference)
    key = np.empty_like(left.key)
    in_threads(_merge, threads_for(row.size, _GRAIN), *left, *right, row, key)
    return Found(row, key)
