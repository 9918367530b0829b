"""Neighbours put next to each other on a CPU: Hilbert keys and a parallel radix sort of them.

A set may cover the globe, a street, or a street and one wrong position far away. So the bits that
all keys share are left out, the next ones are sorted in two passes of all cores, and runs that are
still equal are sorted by their own next bits, each on one core.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, prange

from kernels.hilbert import NO_KEY, cell, curve_key, octahedral
from kernels.threads_cpu import threads_for

ROW = (1 << 32) - 1
"""What of a word of the order is the row."""

_BLOCK = 64
"""Points whose cells are found together: the loop over them vectorises."""
_LINE = 8
"""Words of a cache line: what threads write stands that far apart."""
_GRAIN = 1 << 12
"""Points that are worth a thread."""
_MAX_DIGIT_BITS = 12
_INSERTION = 24
_RUN_DIGIT_BITS = 10


class Scratch(NamedTuple):
    """Memory of a sort, to be used again: first touch of new pages costs as much as a pass.

    Attributes
    ----------
    keys : int64 array, shape (n,)
        Hilbert keys in row order.
    words, order : int64 array, shape (n,)
        Leading bits of the key above 32 bits of row; `order` is sorted at the end.
    """

    keys: np.ndarray
    words: np.ndarray
    order: np.ndarray


def scratch(n: int) -> Scratch:
    """Memory to sort up to n points."""
    return Scratch(np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64))


# Without numpy's error model a check for division by zero keeps the loop from being vectorised.
@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _keys(vectors, start, stop, threads, keys, common):  # type: ignore[no-untyped-def]
    """Write keys of columns `start` to `stop`; by thread, the bits that any and that all have."""
    blocks = (stop - start + _BLOCK - 1) // _BLOCK
    for thread in prange(threads):
        x = np.zeros(_BLOCK, np.int32)
        y = np.zeros(_BLOCK, np.int32)
        any_has = np.int64(0)
        all_have = np.int64(-1)
        for block in range(blocks * thread // threads, blocks * (thread + 1) // threads):
            first = block * _BLOCK
            last = min(first + _BLOCK, stop - start)
            # Views, because indices that might be negative keep a loop from being vectorised.
            px = vectors[0, start + first : start + last]
            py = vectors[1, start + first : start + last]
            pz = vectors[2, start + first : start + last]
            block_keys = keys[first:last]
            for i in range(last - first):
                u, v = octahedral(px[i], py[i], pz[i])
                # A NaN has no cell; it gets its key below.
                x[i] = cell(u if u >= -1.0 else 0.0)
                y[i] = cell(v if v >= -1.0 else 0.0)
            for i in range(last - first):
                key = curve_key(np.int64(x[i]), np.int64(y[i]))
                valid = pz[i] >= -1.0
                block_keys[i] = key if valid else NO_KEY
                any_has |= key if valid else np.int64(0)
                all_have &= key if valid else np.int64(-1)
        common[thread, 0] = any_has
        common[thread, 1] = all_have


@njit(inline="always")
def _bit_length(value):  # type: ignore[no-untyped-def]
    bits = 0
    while value:
        bits += 1
        value >>= 1
    return bits


@njit(cache=True, nogil=True, error_model="numpy")
def _sort_run(keys, order, start, stop, run, buffer, counts, stack):  # type: ignore[no-untyped-def]
    """Sort ``order[start:stop]`` by the keys down to runs of `run`, most significant bits first."""
    stack[0, 0] = start
    stack[0, 1] = stop
    top = 1
    while top:
        top -= 1
        a = stack[top, 0]
        b = stack[top, 1]
        if b - a <= _INSERTION:
            for i in range(a + 1, b):
                word = order[i]
                key = keys[word & ROW]
                j = i
                while j > a and keys[order[j - 1] & ROW] > key:
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = word
            continue
        one = keys[order[a] & ROW]
        differing = np.int64(0)
        for i in range(a, b):
            differing |= keys[order[i] & ROW] ^ one
        bits = _bit_length(differing)
        if bits == 0:
            continue
        digit_bits = min(_RUN_DIGIT_BITS, bits, max(4, _bit_length(b - a) - 2))
        shift = bits - digit_bits
        mask = (1 << digit_bits) - 1
        counts[: mask + 2] = 0
        for i in range(a, b):
            counts[((keys[order[i] & ROW] >> shift) & mask) + 1] += 1
        for digit in range(mask):
            counts[digit + 1] += counts[digit]
        # From here on a count is where the digit's next row goes; at the end, where it stops.
        for i in range(a, b):
            digit = (keys[order[i] & ROW] >> shift) & mask
            buffer[counts[digit]] = order[i]
            counts[digit] += 1
        for i in range(b - a):
            order[a + i] = buffer[i]
        if shift:
            begin = 0
            for digit in range(mask + 1):
                end = counts[digit]
                if end - begin > run:
                    stack[top, 0] = a + begin
                    stack[top, 1] = a + end
                    top += 1
                begin = end


@njit(inline="always")
def _starts(counts):  # type: ignore[no-untyped-def]
    """Turn counts of (thread, digit) into first places; returns how many there are."""
    place = 0
    for digit in range(counts.shape[1]):
        for thread in range(counts.shape[0]):
            count = counts[thread, digit]
            counts[thread, digit] = place
            place += count
    return place


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _first_pass(keys, n, threads, shift, digit_bits, words):  # type: ignore[no-untyped-def]
    """From keys to (leading bits, row) in one word each, by the lower digit; `NO_KEY` drops out."""
    mask = (1 << digit_bits) - 1
    lead_mask = (1 << (2 * digit_bits)) - 1
    counts = np.zeros((threads, 1 << digit_bits), np.int32)
    for thread in prange(threads):
        for i in range(n * thread // threads, n * (thread + 1) // threads):
            if keys[i] != NO_KEY:
                counts[thread, (keys[i] >> shift) & mask] += 1
    n_valid = _starts(counts)
    for thread in prange(threads):
        for i in range(n * thread // threads, n * (thread + 1) // threads):
            if keys[i] != NO_KEY:
                lead = (keys[i] >> shift) & lead_mask
                place = counts[thread, lead & mask]
                words[place] = (lead << 32) | i
                counts[thread, lead & mask] = place + 1
    return n_valid


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _second_pass(words, n, threads, digit_bits, order):  # type: ignore[no-untyped-def]
    """By the upper digit."""
    mask = (1 << digit_bits) - 1
    shift = 32 + digit_bits
    counts = np.zeros((threads, 1 << digit_bits), np.int32)
    for thread in prange(threads):
        for i in range(n * thread // threads, n * (thread + 1) // threads):
            counts[thread, (words[i] >> shift) & mask] += 1
    _starts(counts)
    for thread in prange(threads):
        for i in range(n * thread // threads, n * (thread + 1) // threads):
            digit = (words[i] >> shift) & mask
            place = counts[thread, digit]
            order[place] = words[i]
            counts[thread, digit] = place + 1


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _sort_runs(keys, order, n, threads, run):  # type: ignore[no-untyped-def]
    """Sort what the two passes left equal, where it is longer than `run`."""
    stride = run // 2
    for thread in prange(threads):
        part = n * thread // threads
        stop = n * (thread + 1) // threads
        counts = np.empty((1 << _RUN_DIGIT_BITS) + 1, np.int64)
        # A level leaves at most as many runs as a digit has values, and there are 6 levels.
        stack = np.empty((6 << _RUN_DIGIT_BITS, 2), np.int64)
        buffer = np.empty(0, np.int64)
        # Every run longer than `run` has equal leading bits at two neighbouring strides.
        for i in range((part + stride - 1) // stride * stride, min(stop, n - stride), stride):
            lead = order[i] >> 32
            if order[i + stride] >> 32 != lead or (i >= stride and order[i - stride] >> 32 == lead):
                continue
            # The first stride of a run is where it is sorted, whichever part it reaches into.
            a = i
            while a > 0 and order[a - 1] >> 32 == lead:
                a -= 1
            b = i + stride
            while b < n and order[b] >> 32 == lead:
                b += 1
            if b - a > buffer.size:
                buffer = np.empty(2 * (b - a), np.int64)
            _sort_run(keys, order, a, b, run, buffer, counts, stack)


def sort(vectors: np.ndarray, start: int, stop: int, run: int, memory: Scratch) -> int:
    """Order the points of columns `start` to `stop` of unit vectors, shape (3, n).

    Writes keys (``memory.keys[i]`` of column ``start + i``) and the order (``memory.order & ROW``,
    rows counted from `start`); points with a NaN have `NO_KEY` and are left out. Runs of up to
    `run` points that share their leading bits may stay unordered.

    Returns
    -------
    int
        How many points there are in the order.
    """
    with threads_for(stop - start, _GRAIN) as threads:
        return _sort(vectors, start, stop, run, memory, threads)


def _sort(
    vectors: np.ndarray, start: int, stop: int, run: int, memory: Scratch, threads: int
) -> int:
    n = stop - start
    keys, words, order = memory
    common = np.empty((threads, _LINE), np.int64)
    _keys(vectors, start, stop, threads, keys, common)
    any_has = int(np.bitwise_or.reduce(common[:, 0]))
    all_have = int(np.bitwise_and.reduce(common[:, 1]))
    bits = (any_has & ~all_have).bit_length()
    digit_bits = min(_MAX_DIGIT_BITS, (n.bit_length() + 3 - run.bit_length() // 2) // 2)
    shift = max(0, bits - 2 * digit_bits)
    n_valid = int(_first_pass(keys, n, threads, shift, digit_bits, words))
    _second_pass(words, n_valid, threads, digit_bits, order)
    if shift:
        _sort_runs(keys, order, n_valid, threads, run)
    return n_valid
