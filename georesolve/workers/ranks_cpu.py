"""Distances counted in compiled loops: by bits, for exact ranks, and between edges.

Floats that are not negative are ordered as their bits are.
"""

import numpy as np
from numba import njit

LEAD = 48
"""Bits of a float behind its sign, its exponent and four bits of its fraction."""
BIN = 46
"""Bits behind the ones by which a bin is looked up."""


@njit(cache=True, nogil=True, error_model="numpy")
def tally(thread, threads, distances, brackets, first, shift, counts):  # type: ignore[no-untyped-def]
    """Count the distances of a thread's share in each of the steps of some brackets.

    Parameters
    ----------
    distances : tuple of float64 arrays
        A thread has a share of each.
    brackets : int64 array
        The bits that each begins with, ascending.
    first : int64 array
        The first bracket that does not end before a lead.
    shift
        A step has 2^shift values.
    counts : int64 array, shape (threads, brackets, steps)
    """
    steps = counts.shape[2]
    for array in distances:
        bits = array.view(np.int64)
        n = bits.size
        for i in range(n * thread // threads, n * (thread + 1) // threads):
            bracket = first[bits[i] >> LEAD]
            while bracket < brackets.size:
                step = (bits[i] - brackets[bracket]) >> shift
                if step < steps:
                    if step >= 0:
                        counts[thread, bracket, step] += 1
                    break
                bracket += 1


@njit(cache=True, nogil=True, error_model="numpy")
def histogram(thread, threads, distances, edges, first, counts):  # type: ignore[no-untyped-def]
    """Count the distances of a thread's share between edges; the last one belongs to its bin.

    Parameters
    ----------
    distances : tuple of float64 arrays
        A thread has a share of each.
    first : int64 array
        The bin of the least distance with the bits in front of `BIN`.
    counts : int64 array, shape (threads, bins)
    """
    last = edges.size - 2
    for array in distances:
        bits = array.view(np.int64)
        n = bits.size
        for i in range(n * thread // threads, n * (thread + 1) // threads):
            number = first[bits[i] >> BIN]
            while number < last and array[i] >= edges[number + 1]:
                number += 1
            counts[thread, number] += 1
