"""Points of the sphere in the order of a Hilbert curve over their own extent, on a GPU.

The sphere is unfolded onto a square by the octahedral map (a projection on the octahedron, its
lower half folded outwards), which is continuous but for the square's edges; a Hilbert curve of 2^16
by 2^16 cells runs over the part of the square that the points cover. Successive points of the curve
are neighbours on the sphere: there are no jumps as in a Morton code, where one warp that straddles
a jump would walk half of the tree.

The order never decides an answer, only how soon it is found.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from numba import cuda, float32, float64, int32, int64, uint32, uint64

from georesolve.kernels.coordinates_cuda import vector
from georesolve.kernels.hilbert import octahedral
from georesolve.kernels.launch_cuda import THREADS, stride
from georesolve.kernels.query import Degrees
from georesolve.kernels.sizes_cuda import WARP
from georesolve.kernels.warp_cuda import ALL_LANES, decode, encode, warp_max
from georesolve.query import Earth

if TYPE_CHECKING:
    import cupy as cp

_WARPS = THREADS // WARP
_STAGE = 4 * WARP
_BITS = 16
_CELLS = 1 << _BITS
CELLS = float(_CELLS)
_CURVES = 3
"""Curves, each over a cell of the one before, that reach down to where float64 ends."""
_PLACE_BITS = 2 * _BITS
_NOWHERE = 0xFFFFFFFF
"""Place of a point that is not valid."""
_GOLDEN = 0x9E3779B9
"""2^32 divided by the golden ratio."""
_SIGN = 0x80000000


@cuda.jit(device=True, forceinline=True)
def box_corners(box):  # type: ignore[no-untyped-def]
    """Least and largest x, y and z of a box of `bound`, in float32; NaN where it is empty."""
    return (
        -largest(box, 3),
        -largest(box, 4),
        -largest(box, 5),
        largest(box, 0),
        largest(box, 1),
        largest(box, 2),
    )


@cuda.jit(device=True, forceinline=True)
def largest(box, place):  # type: ignore[no-untyped-def]
    """The largest number that `widen` was given for a place of a box; NaN where there was none."""
    return decode(int32(box[place] ^ uint32(_SIGN)))


@cuda.jit(device=True, forceinline=True)
def widen(box, place, value):  # type: ignore[no-untyped-def]
    """Make the code at a place of a box the largest of it and of the warp's numbers.

    Codes are unsigned, so that 0 stands for nothing yet: memory is filled with it without a kernel.
    """
    value = warp_max(value)
    if cuda.threadIdx.x % WARP == 0:
        cuda.atomic.max(box, place, uint32(encode(value)) ^ uint32(_SIGN))


@cuda.jit(cache=True)
def bound(lat_deg, lon_deg, flat, looked_at, box):  # type: ignore[no-untyped-def]
    """Enclose points in a box, rounded to float32; those that are not valid are left out.

    `looked_at` of them, all or some that are spread evenly over the rows: their fractions follow
    the golden ratio, so that no period in the rows hides a part of them. `box`, which holds 0,
    becomes the largest x, y, z, -x, -y, -z, encoded.
    """
    low_x = low_y = low_z = high_x = high_y = high_z = float32(-2.0)
    seen = False
    n = uint64(lat_deg.size)
    is_sample = looked_at < lat_deg.size
    for place in range(cuda.grid(1), looked_at, cuda.gridsize(1)):
        i = uint64(place)
        if is_sample:
            i = uint64(uint64(uint32(uint32(place) * uint32(_GOLDEN))) * n) >> uint64(32)
        point_x, point_y, point_z = vector(lat_deg[i], lon_deg[i], flat)
        if point_x == point_x:
            seen = True
            x, y, z = float32(point_x), float32(point_y), float32(point_z)
            high_x, high_y, high_z = max(high_x, x), max(high_y, y), max(high_z, z)
            low_x, low_y, low_z = max(low_x, -x), max(low_y, -y), max(low_z, -z)
    if cuda.any_sync(ALL_LANES, seen):
        widen(box, 0, high_x)
        widen(box, 1, high_y)
        widen(box, 2, high_z)
        widen(box, 3, low_x)
        widen(box, 4, low_y)
        widen(box, 5, low_z)


@cuda.jit(device=True, forceinline=True)
def turned(main, x, y, z):  # type: ignore[no-untyped-def]
    """Coordinates with the axis that the points lie around last: its side has no seam."""
    if main == 0:
        return y, z, x
    if main == 1:
        return z, x, y
    return x, y, z


@cuda.jit(device=True, forceinline=True)
def _span(low, high, least_sum, largest_sum):  # type: ignore[no-untyped-def]
    # Bounds of a / s for a in [low, high] and s in [least_sum, largest_sum].
    first = min(low / least_sum, low / largest_sum)
    last = max(high / least_sum, high / largest_sum)
    return first, last


@cuda.jit(device=True, forceinline=True)
def _least_magnitude(low, high):  # type: ignore[no-untyped-def]
    if low > 0.0:
        return low
    if high < 0.0:
        return -high
    return 0.0


@cuda.jit(device=True, forceinline=True)
def frame(box):  # type: ignore[no-untyped-def]
    """Where points lie on the octahedral square.

    Which axis is the pole of the map, on which side, where the part of the square that the points
    cover begins, and how many of `CELLS` a unit is there. All of the square is covered where they
    reach around the equator of that pole.
    """
    low_x, low_y, low_z, high_x, high_y, high_z = box_corners(box)
    middle_x = abs(low_x + high_x)
    middle_y = abs(low_y + high_y)
    middle_z = abs(low_z + high_z)
    main = 2
    if middle_x >= middle_y and middle_x >= middle_z:
        main = 0
    elif middle_y >= middle_z:
        main = 1
    low_a, low_b, low_c = turned(main, float(low_x), float(low_y), float(low_z))
    high_a, high_b, high_c = turned(main, float(high_x), float(high_y), float(high_z))
    side = 1.0
    if low_c + high_c < 0.0:
        side = -1.0
        low_c, high_c = -high_c, -low_c
    first_u, last_u, first_v, last_v = -1.0, 1.0, -1.0, 1.0
    if low_c > 0.0:
        least_sum = max(
            1.0, low_c + _least_magnitude(low_a, high_a) + _least_magnitude(low_b, high_b)
        )
        largest_sum = high_c + max(-low_a, high_a) + max(-low_b, high_b)
        first_u, last_u = _span(low_a, high_a, least_sum, largest_sum)
        first_v, last_v = _span(low_b, high_b, least_sum, largest_sum)
    # One scale for both axes: square cells make round neighbourhoods.
    scale = CELLS / max(last_u - first_u, last_v - first_v, 1e-12)
    return main, side, first_u, first_v, scale


@cuda.jit(device=True, forceinline=True)
def spread(x):  # type: ignore[no-untyped-def]
    """16 bits at the even places of 32."""
    x = (x | (x << 8)) & 0x00FF00FF
    x = (x | (x << 4)) & 0x0F0F0F0F
    x = (x | (x << 2)) & 0x33333333
    return (x | (x << 1)) & 0x55555555


@cuda.jit(device=True, forceinline=True)
def hilbert(x, y):  # type: ignore[no-untyped-def]
    """Place on the Hilbert curve of a cell of 2^16 by 2^16.

    `kernels.hilbert.curve_key` has 31 levels in 64 bits; a GPU computes and sorts 32 bits in half
    the time, and over the points' own extent 16 levels are fine enough.

    The curve's state after a digit is a composition of the transformations of the digits before
    it. Composition is associative, so all 16 are found by a prefix scan over the bits in four
    steps, every step on all bits of a word at once, instead of a loop over digits.
    """
    a = x ^ y
    b = 0xFFFF ^ a
    c = 0xFFFF ^ (x | y)
    d = x & (y ^ 0xFFFF)
    swap = a | (b >> 1)
    keep = (a >> 1) ^ a
    flip_x = ((c >> 1) ^ (b & (d >> 1))) ^ c
    flip_y = ((a & (c >> 1)) ^ (d >> 1)) ^ d
    step = 2
    while step < 16:
        a, b, c, d = swap, keep, flip_x, flip_y
        flip_x = flip_x ^ ((a & (c >> step)) ^ (b & (d >> step)))
        flip_y = flip_y ^ ((b & (c >> step)) ^ ((a ^ b) & (d >> step)))
        swap = (a & (a >> step)) ^ (b & (b >> step))
        keep = (a & (b >> step)) ^ (b & ((a ^ b) >> step))
        step *= 2
    a = flip_x ^ (flip_x >> 1)
    b = flip_y ^ (flip_y >> 1)
    low = x ^ y
    high = b | (0xFFFF ^ (low | a))
    return (spread(high) << 1) | spread(low)


@cuda.jit(cache=True)
def place(  # type: ignore[no-untyped-def]
    lat_deg, lon_deg, flat, box, finer, parts, bits, places, vectors, by_axis
):
    """Find every point's place on the Hilbert curve over a box, and its unit vector.

    Points that are not valid come last, with NaN. A side of a cell is cut into `finer` parts: 1, or
    a power of 2^16 for the place on a curve over one of the cells of the curve before. `vectors`
    becomes x, y, z and 0 of each point side by side, so that one memory transaction fetches a point
    in whatever order they are wanted. So does `by_axis`, of shape (3, n), or (3, 0) for no need.
    Where there are `bits` they take the place of the lowest, before all others: those of a part.
    """
    # Through shared memory, so that a warp writes whole lines and not every fourth value of them.
    stage = cuda.shared.array((_WARPS, _STAGE), float64)
    lane = cuda.threadIdx.x % WARP
    warp = cuda.threadIdx.x // WARP
    n = lat_deg.size
    main, side, first_u, first_v, scale = frame(box)
    scale *= float(finer)
    last_cell = int64(_CELLS * finer - 1)
    stage[warp, 4 * lane + 3] = 0.0
    for i in range(cuda.grid(1), -(-n // WARP) * WARP, cuda.gridsize(1)):
        x = y = z = math.nan
        if i < n:
            x, y, z = vector(lat_deg[i], lon_deg[i], flat)
        stage[warp, 4 * lane] = x
        stage[warp, 4 * lane + 1] = y
        stage[warp, 4 * lane + 2] = z
        a, b, c = turned(main, x, y, z)
        c *= side
        key = int64(_NOWHERE)
        if a == a:
            u, v = octahedral(a, b, c)
            column = min(max(int64((u - first_u) * scale), 0), last_cell)
            row = min(max(int64((v - first_v) * scale), 0), last_cell)
            # Below that of what is not valid, so that a leaf whose first point is not has none.
            key = min(int64(hilbert(column & (_CELLS - 1), row & (_CELLS - 1))), _NOWHERE - 1)
        if i < n:
            if bits > 0:
                key = (key >> bits) | (int64(parts[i]) << (_PLACE_BITS - bits))
            places[i] = uint32(key)
            if by_axis.shape[1] > 0:
                by_axis[0, i] = x
                by_axis[1, i] = y
                by_axis[2, i] = z
        cuda.syncwarp()
        for part in range(4):
            at = 4 * (i - lane) + WARP * part + lane
            if at < 4 * n:
                vectors[at] = stage[warp, WARP * part + lane]
        cuda.syncwarp()


def extent(points: Degrees, most: int | None = None, earth: Earth = "sphere") -> cp.ndarray:
    """The box of points, as `bound` writes it, or of so many of them; and a place behind it."""
    import cupy as cp

    box = cp.zeros(7, cp.uint32)
    n = points.lat_deg.size
    looked_at = n if most is None else min(n, most)
    stride(bound, looked_at, *points, earth == "wgs84", looked_at, box)
    return box


def order(
    points: Degrees,
    box: cp.ndarray,
    *,
    finely: bool = False,
    by_axis: cp.ndarray | None = None,
    earth: Earth = "sphere",
    parts: tuple[cp.ndarray, int] | None = None,
) -> tuple[cp.ndarray, cp.ndarray, cp.ndarray]:
    """Rows of points along the Hilbert curve over a box; what lies beyond goes to its edge.

    `finely`, the points of a cell lie along a curve over it, and again: then equal points follow
    each other. That takes three times as long, and pays where points crowd. Equal places are by
    ascending row. Gives rows; by row unit vectors (n, 4); in the new order places on the first
    curve. Unit vectors are written into `by_axis` (3, n), too. Where the points are in `parts`, of
    each the number and how many there are, those of a part follow each other.
    """
    import cupy as cp

    n = points.lat_deg.size
    places = cp.empty(n, cp.uint32)
    vectors = cp.empty(4 * n)
    rows = cp.empty(0, cp.int64)
    if by_axis is None:
        by_axis = cp.empty((3, 0))
    part, n_parts = parts or (cp.empty(0, cp.int32), 1)
    bits = (n_parts - 1).bit_length()
    # What is left of a place tells points of a part apart, or the parts are sorted by themselves.
    together = n.bit_length() + bits <= _PLACE_BITS
    for curve in reversed(range(_CURVES if finely else 1)):
        stride(
            place, n, *points, earth == "wgs84", box, 1 << _BITS * curve, part,
            bits if together else 0, places, vectors, by_axis,
        )  # fmt: skip
        # Sorts are stable: what a finer curve tells apart stays so among equals of a coarser one.
        if rows.size:
            places = places[rows]
            rows = rows[sort(places)]
        else:
            rows = sort(places)
    if bits and not together:
        rows = rows[sort(part[rows].astype(cp.uint16 if bits <= _BITS else cp.uint32))]
    return rows, vectors.reshape(n, 4), places


def sort(keys: cp.ndarray) -> cp.ndarray:
    """Sort keys, equal ones as they come, and give the rows that they stood in.

    `keys.argsort()` calls this on a copy of the keys; making that takes as long as a kernel.
    """
    import cupy as cp

    rows = cp.empty(keys.size, cp.int64)
    if keys.size:
        cp.cuda.thrust.argsort(keys.dtype, rows.data.ptr, keys.data.ptr, 0, keys.shape)
    return rows
