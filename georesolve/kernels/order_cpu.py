"""Neighbours put next to each other on a CPU: Hilbert keys and a parallel radix sort of them.

A point is sorted by its lead: 31 bits of its key, counted from where most of a sample of the keys
begins, in steps that let the sample's range fill them. So a set may cover the globe, a street, or a
street and a wrong position far away. All cores part the points by the upper bits of the lead; each
part is then sorted by one core. Points that still have one lead get new ones, from their own range.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.hilbert import NO_KEY, cell, curve_key, octahedral
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.query import Degrees
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.query import Earth

ROW = (1 << 32) - 1
"""What of a word of the order is the row; above it is the lead."""
MAX_ROWS = ROW + 1
"""Points that one order takes."""

_LEAD_BITS = 31
_LEAST = (1 << _LEAD_BITS) - 1
BLOCK = 64
"""Points whose keys are found together: the loops over them vectorise."""
_GRAIN = 1 << 13
"""Points that are worth a thread."""
_SAMPLE = 512
_PARTS_BITS = 11
_PART_BITS = 8
"""At most so many parts of the whole, and about so many points in each."""
_WINDOW, _WINDOW_OF_REFERENCES = 1 << 20, 2
"""Observations sorted at a time, at least and a reference: their memory is used again."""
_INSERTION = 24
_DIGIT_BITS = 8


class Scratch(NamedTuple):
    """Memory of a sort.

    `points` (n, 4) are the unit vectors that are sorted. `words` and `order`, int64, are the lead
    above 32 bits of row, in row order and sorted by lead.
    """

    points: np.ndarray
    words: np.ndarray
    order: np.ndarray


def scratch(n: int) -> Scratch:
    """Memory to sort n points."""
    memory = kept(6 * n)
    words, order = memory[4 * n : 5 * n].view(np.int64), memory[5 * n :].view(np.int64)
    return Scratch(memory[: 4 * n].reshape(n, 4), words, order)


# Without numpy's error model a check for division by zero keeps a loop from being vectorised.
@njit(cache=True, nogil=True, error_model="numpy")
def keys_of(x, y, z, keys):  # type: ignore[no-untyped-def]
    """Write the Hilbert keys of up to 64 points; a NaN has `NO_KEY`."""
    across = np.empty(BLOCK, np.int32)
    along = np.empty(BLOCK, np.int32)
    for i in range(keys.size):
        u, v = octahedral(x[i], y[i], z[i])
        # A NaN has no cell; it gets its key below.
        across[i] = cell(u if u >= -1.0 else 0.0)
        along[i] = cell(v if v >= -1.0 else 0.0)
    for i in range(keys.size):
        key = curve_key(np.int64(across[i]), np.int64(along[i]))
        keys[i] = key if z[i] >= -1.0 else NO_KEY


@njit(nogil=True, error_model="numpy")
def keys_along(points, order, first, step, n, keys):  # type: ignore[no-untyped-def]
    """Write the keys of up to 64 of n points of an order, the next one so many places behind."""
    x, y, z = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for j in range(keys.size):
        i = order[min(first + j * step, n - 1)] & ROW
        x[j], y[j], z[j] = points[i, 0], points[i, 1], points[i, 2]
    keys_of(x, y, z, keys)


@njit(cache=True, nogil=True, error_model="numpy")
def _label(thread, threads, points, low, shift, digit_shift, words, counts):  # type: ignore[no-untyped-def]
    """Write a word for every point, -1 for a NaN, and count them by the upper digit."""
    n = points.shape[0]
    stop = n * (thread + 1) // threads
    x = np.empty(BLOCK)
    y = np.empty(BLOCK)
    z = np.empty(BLOCK)
    keys = np.empty(BLOCK, np.int64)
    for first in range(n * thread // threads, stop, BLOCK):
        # Views, because indices that might be negative keep a loop from being vectorised.
        last = min(first + BLOCK, stop)
        block = points[first:last]
        part = words[first:last]
        for i in range(last - first):
            x[i] = block[i, 0]
            y[i] = block[i, 1]
            z[i] = block[i, 2]
        keys_of(x, y, z, keys[: last - first])
        for i in range(last - first):
            lead = min(max((keys[i] - low) >> shift, 0), _LEAST)
            part[i] = lead << 32 | (first + i) if keys[i] != NO_KEY else -1
        for i in range(last - first):
            if part[i] >= 0:
                counts[thread, part[i] >> digit_shift] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _count_parts(thread, threads, points, part, counts):  # type: ignore[no-untyped-def]
    n = part.shape[0]
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        for j in range(part.shape[1]):
            if part[i, j] >= 0 and points[i, 2] >= -1.0:
                counts[thread, part[i, j]] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _label_parts(thread, threads, labels, part, starts, digit_shift, words, counts):  # type: ignore[no-untyped-def]
    """Give every part as many leads as it has points, and points leads of their parts."""
    columns = part.shape[1]
    # Of each point.
    leads = (_LEAST + 1) // max(1, starts[-1])
    # Shares are those of `_part`, which goes by what is counted here.
    for place in range(words.size * thread // threads, words.size * (thread + 1) // threads):
        i = place // columns
        label, number = labels[i], part[i, place - i * columns]
        words[place] = -1
        if label >= 0 and number >= 0:
            first, stop = starts[number], starts[number + 1]
            lead = first * leads + ((stop - first) * leads * (label >> 32) >> _LEAD_BITS)
            words[place] = lead << 32 | i
            counts[thread, words[place] >> digit_shift] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _part(thread, threads, words, digit_shift, places, order):  # type: ignore[no-untyped-def]
    """Put every word where its digit's next one goes."""
    n = words.size
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        word = words[i]
        if word >= 0:
            digit = word >> digit_shift
            order[places[thread, digit]] = word
            places[thread, digit] += 1


@njit(inline="always")
def _bit_length(value):  # type: ignore[no-untyped-def]
    bits = 0
    while value:
        bits += 1
        value >>= 1
    return bits


@njit(inline="always")
def _relabel(points, words, keys):  # type: ignore[no-untyped-def]
    """Give points of one lead new ones, from their own range; returns how many bits they have."""
    for first in range(0, words.size, BLOCK):
        last = min(first + BLOCK, words.size)
        keys_along(points, words, first, 1, last, keys[first:last])
    low = keys[0]
    high = keys[0]
    for i in range(words.size):
        low = min(low, keys[i])
        high = max(high, keys[i])
    shift = max(0, _bit_length(high - low) - _LEAD_BITS)
    for i in range(words.size):
        words[i] = ((keys[i] - low) >> shift) << 32 | (words[i] & ROW)
    return _bit_length((high - low) >> shift)


@njit(inline="always")
def _sort_part(points, words, bits, run, buffer, counts, stack):  # type: ignore[no-untyped-def]
    """Sort words that differ in some lower bits of their leads, down to runs of `run`."""
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, words.size, bits
    top = 1
    while top:
        top -= 1
        first, last, bits = stack[top, 0], stack[top, 1], stack[top, 2]
        if last - first <= _INSERTION:
            for i in range(first + 1, last):
                word = words[i]
                j = i
                while j > first and words[j - 1] > word:
                    words[j] = words[j - 1]
                    j -= 1
                words[j] = word
            continue
        if bits == 0:
            bits = _relabel(points, words[first:last], buffer[first:last])
            if bits == 0:
                continue
        digit_bits = min(_DIGIT_BITS, bits, _bit_length((last - first) // 4))
        shift = 32 + bits - digit_bits
        mask = (1 << digit_bits) - 1
        for digit in range(mask + 2):
            counts[digit] = 0
        for i in range(first, last):
            counts[((words[i] >> shift) & mask) + 1] += 1
        counts[0] = first
        for digit in range(mask):
            counts[digit + 1] += counts[digit]
        # From here on a count is where the digit's next word goes; at the end, where it stops.
        for i in range(first, last):
            digit = (words[i] >> shift) & mask
            buffer[counts[digit]] = words[i]
            counts[digit] += 1
        for i in range(first, last):
            words[i] = buffer[i]
        begin = first
        for digit in range(mask + 1):
            end = counts[digit]
            if end - begin > run:
                stack[top, 0], stack[top, 1], stack[top, 2] = begin, end, bits - digit_bits
                top += 1
            begin = end


@njit(cache=True, nogil=True, error_model="numpy")
def _sort_parts(thread, threads, points, starts, bits, run, order, buffer):  # type: ignore[no-untyped-def]
    """Sort the parts that begin in a thread's share of the order."""
    n = starts[-1]
    counts = np.empty((1 << _DIGIT_BITS) + 1, np.int64)
    # A digit leaves at most as many runs as it has values, a lead has 4 digits, a key 3 leads.
    stack = np.empty((12 << _DIGIT_BITS, 3), np.int64)
    for part in range(starts.size - 1):
        start = starts[part]
        if n * thread // threads <= start < n * (thread + 1) // threads:
            words = order[start : starts[part + 1]]
            if words.size > run:
                _sort_part(points, words, bits, run, buffer[start:], counts, stack)


def sort(memory: Scratch, run: int) -> int:
    """Order the points that lie in a sort's memory; returns how many there are in the order.

    ``memory.order & ROW`` are then their rows; points with a NaN are left out. Runs of up to `run`
    points that lie close together may stay unordered.
    """
    points, _, order = memory
    n = points.shape[0]
    if n <= run:
        rows = np.flatnonzero(~np.isnan(points[:, 0]))
        order[: rows.size] = rows
        return rows.size
    return int(_sort(memory, run, None, np.empty(0, np.int64))[-1])


@njit(cache=True, nogil=True, error_model="numpy")
def _part_runs(order, part, starts, run):  # type: ignore[no-untyped-def]
    """Part the points of runs that lie across where parts begin."""
    for edge in starts[1:-1]:
        first, stop = max(edge - run, 0), min(edge + run, starts[-1])
        for i in range(first + 1, stop):
            word = order[i]
            j = i
            while j > first and part[order[j - 1] & ROW, 0] > part[word & ROW, 0]:
                order[j] = order[j - 1]
                j -= 1
            order[j] = word


def sort_parts(memory: Scratch, part: np.ndarray, n_parts: int, run: int = 1) -> np.ndarray:
    """Order points by the number of their part, and within it as `sort`; where parts begin.

    `part` (n, m) names up to m parts of each point, -1 for none; `words` and `order` of the memory
    are m times as long as there are points. Runs longer than one are for one part of each.
    """
    threads = threads_for(len(part), max(_GRAIN, n_parts))
    counts = np.zeros((threads, n_parts), np.int64)
    in_threads(_count_parts, threads, memory.points, part, counts)
    starts = np.append(0, counts.sum(axis=0).cumsum())
    # Many parts have many edges.
    run = run if len(part) > 64 * n_parts else 1
    _sort(memory, run, part, starts)
    if run > 1:
        _part_runs(memory.order, part, starts, run)
    return starts


def _sort(memory: Scratch, run: int, part: np.ndarray | None, starts: np.ndarray) -> np.ndarray:
    points, words, order = memory
    threads = threads_for(len(points), _GRAIN)
    low, shift = _range(points)
    digit_bits = min(_PARTS_BITS, max(0, words.size.bit_length() - _PART_BITS))
    bits = _LEAD_BITS - digit_bits
    counts = np.zeros((threads, 1 << digit_bits), np.int64)
    labels = words if part is None else order
    in_threads(_label, threads, points, low, shift, 32 + bits, labels, counts)
    if part is not None:
        counts[:] = 0
        in_threads(_label_parts, threads, order, part, starts, 32 + bits, words, counts)
    stops = counts.T.cumsum().reshape(-1, threads)
    starts = np.append(0, stops[:, -1])
    places = np.ascontiguousarray(stops.T) - counts
    in_threads(_part, threads, words, 32 + bits, places, order)
    in_threads(_sort_parts, threads, points, starts, bits, run, order, words)
    return starts


def _range(points: np.ndarray) -> tuple[int, int]:
    """Where leads count from, and in steps of how many bits of the key: from a sample."""
    rows = np.linspace(0, len(points) - 1, min(len(points), _SAMPLE)).astype(int)
    vectors = points[rows].T.copy()
    keys = np.empty(rows.size, np.int64)
    for first in range(0, rows.size, BLOCK):
        part = slice(first, first + BLOCK)
        keys_of(*vectors[:3, part], keys[part])
    keys = np.sort(keys[keys != NO_KEY])
    if not keys.size:
        return 0, 0
    # Of the sample, 1 % at either end may lie anywhere; the others leave a margin.
    low, high = (int(keys[round(part * (keys.size - 1))]) for part in (0.01, 0.99))
    margin = (high - low) // 32
    return low - margin, max(0, (high - low + 2 * margin).bit_length() - _LEAD_BITS)


def windows(
    observations: Degrees, n_references: int, earth: Earth = "sphere", least: int = _WINDOW
) -> Iterator[tuple[slice, Scratch]]:
    """Parts of at least so many observations: their unit vectors, and memory to sort them."""
    lat_deg, lon_deg = observations
    n = lat_deg.size
    window = min(n, max(least, _WINDOW_OF_REFERENCES * n_references), MAX_ROWS)
    memory = scratch(window)
    for start in range(0, n, max(window, 1)):
        part = slice(start, min(start + window, n))
        here = Scratch(*(array[: part.stop - start] for array in memory))
        unit_vectors(lat_deg[part], lon_deg[part], here.points, earth=earth)
        yield part, here


def in_windows(
    observations: Degrees,
    run: int,
    n_references: int,
    earth: Earth = "sphere",
    least: int = _WINDOW,
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """As `windows`: the parts, their unit vectors, and these in order."""
    for part, here in windows(observations, n_references, earth, least):
        yield part, here.points, here.order[: sort(here, run)]
