"""Points on the squares of web maps, in compiled loops: cells along a Morton curve, and medians.

A cell is a square of 2^-26 of the world's width (0.6 m at the equator). Its number interleaves the
bits of its column, counted from 180 degrees west, and of its row, counted from 85.0511 degrees
north. So the cells of a tile, and of each of its pixels, stand one after the other.
"""

import math

import numpy as np
from numba import njit

BITS = 26
"""Of a column and of a row: 2^18 tiles of 2^8 pixels."""
_CELLS = 1 << BITS
MOST_LATITUDE_DEG = 85.05112877980659
"""Where a web map ends: it is a square."""


@njit(cache=True, nogil=True)
def spread(value):  # type: ignore[no-untyped-def]
    """The bits of a number of up to 32 bits, with a zero before each."""
    value = (value | value << 16) & 0x0000FFFF0000FFFF
    value = (value | value << 8) & 0x00FF00FF00FF00FF
    value = (value | value << 4) & 0x0F0F0F0F0F0F0F0F
    value = (value | value << 2) & 0x3333333333333333
    return (value | value << 1) & 0x5555555555555555


@njit(cache=True, nogil=True)
def place(lon_deg, lat_deg, distance_m, first_row, cells, distances, rows):  # type: ignore[no-untyped-def]
    """Write cell, distance and row of the points that a web map shows.

    Returns how many these are, and how many lie beyond the map.
    """
    shown = 0
    beyond = 0
    for i in range(lon_deg.size):
        lon = lon_deg[i]
        lat = lat_deg[i]
        if not (-180.0 <= lon <= 360.0 and -90.0 <= lat <= 90.0):
            continue
        if abs(lat) > MOST_LATITUDE_DEG:
            beyond += 1
            continue
        if lon >= 180.0:
            lon -= 360.0
        x = (lon + 180.0) / 360.0
        y = 0.5 - math.atanh(math.sin(math.radians(lat))) / (2.0 * math.pi)
        column = min(max(np.int64(x * _CELLS), 0), _CELLS - 1)
        row = min(max(np.int64(y * _CELLS), 0), _CELLS - 1)
        cells[shown] = spread(column) | spread(row) << 1
        distances[shown] = distance_m[i]
        rows[shown] = first_row + i
        shown += 1
    return shown, beyond


@njit(cache=True, nogil=True)
def tally(thread, threads, cells, low, shift, counts):  # type: ignore[no-untyped-def]
    """Count the cells of a thread's share by bucket."""
    n = cells.size
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        counts[thread, (cells[i] - low) >> shift] += 1


@njit(cache=True, nogil=True)
def scatter(thread, threads, given, low, shift, places, sorted_):  # type: ignore[no-untyped-def]
    """Put every point where its bucket's next one goes."""
    cells, distances, rows = given
    to_cells, to_distances, to_rows = sorted_
    n = cells.size
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        bucket = (cells[i] - low) >> shift
        to = places[thread, bucket]
        places[thread, bucket] = to + 1
        to_cells[to] = cells[i]
        to_distances[to] = distances[i]
        to_rows[to] = rows[i]


@njit(cache=True, nogil=True)
def densest(cells, shift):  # type: ignore[no-untyped-def]
    """The most points that a square of 2^shift cells has; the cells are sorted."""
    most = 0
    count = 0
    before = np.int64(-1)
    for cell in cells:
        square = cell >> shift
        count = count + 1 if square == before else 1
        before = square
        most = max(most, count)
    return most


@njit(cache=True, nogil=True)
def _select(values, n, rank):  # type: ignore[no-untyped-def]
    """Put the value of a rank where it belongs, none larger before it and none smaller behind."""
    low = 0
    high = n - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        i = low
        j = high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            return


@njit(cache=True, nogil=True)
def medians(thread, threads, edges, distances, matched, median_m):  # type: ignore[no-untyped-def]
    """Count the distances between edges that are numbers, and find their median.

    The median of an even number is the mean of the two in the middle, as numpy has it.
    """
    n = edges[-1] - edges[0]
    most = 0
    for p in range(edges.size - 1):
        most = max(most, edges[p + 1] - edges[p])
    values = np.empty(most)
    for p in range(edges.size - 1):
        start = edges[p] - edges[0]
        if not (n * thread <= start * threads < n * (thread + 1)):
            continue
        count = 0
        for i in range(edges[p], edges[p + 1]):
            if not math.isnan(distances[i]):
                values[count] = distances[i]
                count += 1
        matched[p] = count
        if count:
            middle = count // 2
            _select(values, count, middle)
            median = values[middle]
            if count % 2 == 0:
                other = values[0]
                for i in range(1, middle):
                    other = max(other, values[i])
                median = 0.5 * (median + other)
            median_m[p] = median
