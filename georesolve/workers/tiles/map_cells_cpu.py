"""Points on the squares of web maps, in compiled loops: cells along a Morton curve, and medians.

A cell is a square of 2^-26 of the world's width (0.6 m at the equator). Its number interleaves the
bits of its column and of its row, so the cells of a tile stand one after the other.
"""

import math

import numpy as np

from georesolve.kernels.cache import cached_njit
from georesolve.kernels.hilbert import spread

BITS = 26
"""Of a column and of a row: 2^18 tiles of 2^8 pixels."""
_CELLS = 1 << BITS
_DIGIT_BITS = 11
MOST_LATITUDE_DEG = 85.05112877980659
"""Where a web map ends: it is a square."""


@cached_njit(nogil=True, error_model="numpy")
def place(lon_deg, lat_deg, distance_m, first_row, cells, distances, rows, bounds):  # type: ignore[no-untyped-def]
    """Write cell, distance and row of the points that a web map shows.

    Returns how many these are, and how many lie beyond the map; west, south, east and north of
    those shown are written to `bounds`, which is left alone where there are none.
    """
    shown = 0
    beyond = 0
    west, south, east, north = np.inf, np.inf, -np.inf, -np.inf
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
        west, south, east, north = min(west, lon), min(south, lat), max(east, lon), max(north, lat)
        x = (lon + 180.0) / 360.0
        sine = math.sin(lat * (math.pi / 180.0))
        y = 0.5 - math.log((1.0 + sine) / (1.0 - sine)) / (4.0 * math.pi)
        column = min(max(np.int64(x * _CELLS), 0), _CELLS - 1)
        row = min(max(np.int64(y * _CELLS), 0), _CELLS - 1)
        cells[shown] = spread(column) | spread(row) << 1
        distances[shown] = distance_m[i]
        rows[shown] = first_row + i
        shown += 1
    if shown:
        bounds[0], bounds[1], bounds[2], bounds[3] = west, south, east, north
    return shown, beyond


@cached_njit(nogil=True, error_model="numpy")
def sort(points, n, spare):  # type: ignore[no-untyped-def]
    """Sort the first `n` points by their cells, in as many passes as the range of these has digits.

    `points`, an int64 array of shape (3, m), has cells and two more words of each point, and is
    sorted in place; `spare`, of shape (3 m,), is overwritten.
    """
    if n == 0:
        return
    cells = points[0]
    low = cells[0]
    high = cells[0]
    for i in range(n):
        low = min(low, cells[i])
        high = max(high, cells[i])
    from_keys = spare[:n]
    to_keys = spare[n : 2 * n]
    halves = spare[2 * n : 3 * n].view(np.uint32)
    order = halves[:n]
    other = halves[n:]
    for i in range(n):
        from_keys[i] = cells[i] - low
        order[i] = i
    places = np.empty(1 << _DIGIT_BITS, np.int64)
    mask = (1 << _DIGIT_BITS) - 1
    shift = 0
    while (high - low) >> shift:
        places[:] = 0
        for i in range(n):
            places[(from_keys[i] >> shift) & mask] += 1
        before = 0
        for digit in range(mask + 1):
            count = places[digit]
            places[digit] = before
            before += count
        for i in range(n):
            key = from_keys[i]
            digit = (key >> shift) & mask
            to = places[digit]
            places[digit] = to + 1
            to_keys[to] = key
            other[to] = order[i]
        from_keys, to_keys = to_keys, from_keys
        order, other = other, order
        shift += _DIGIT_BITS
    for i in range(n):
        cells[i] = from_keys[i] + low
    # Word by word: two that are written at once are in each other's way.
    for word in range(1, 3):
        for i in range(n):
            to_keys[i] = points[word, order[i]]
        for i in range(n):
            points[word, i] = to_keys[i]


@cached_njit(nogil=True)
def gather(words, files, starts, sizes, begins, ends, points):  # type: ignore[no-untyped-def]
    """Copy from each of some runs what stands between its begin and its end.

    A run is three columns of so many words, one behind the other, in one of some files.
    """
    to = 0
    for run in range(starts.size):
        file = words[files[run]]
        for column in range(3):
            at = starts[run] + column * sizes[run]
            for i in range(ends[run] - begins[run]):
                points[column, to + i] = file[at + begins[run] + i]
        to += ends[run] - begins[run]


@cached_njit(nogil=True)
def densest(thread, threads, cells, shift, most):  # type: ignore[no-untyped-def]
    """Find the most points that a square of 2^shift cells has; the cells are sorted.

    A thread counts the squares that begin in its share.
    """
    n = cells.size
    start = n * thread // threads
    stop = n * (thread + 1) // threads
    while 0 < start < n and cells[start] >> shift == cells[start - 1] >> shift:
        start += 1
    count = 0
    before = np.int64(-1)
    for i in range(start, n):
        square = cells[i] >> shift
        if square == before:
            count += 1
        else:
            if i >= stop:
                break
            count = 1
            before = square
        most[thread] = max(most[thread], count)


@cached_njit(nogil=True)
def medians(thread, threads, edges, distances, greatest, matched, median_m):  # type: ignore[no-untyped-def]
    """Count the distances between edges that are numbers, and find their median or greatest."""
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
        if count and greatest:
            median_m[p] = values[:count].max()
        elif count:
            median_m[p] = np.median(values[:count])
