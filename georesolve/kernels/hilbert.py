"""A point of the sphere as a place on one long curve: neighbours there are neighbours on the globe.

The sphere is unfolded onto a square by way of an octahedron, and the square is filled by a Hilbert
curve. Keys order references and observations so that neighbours lie together in memory. They decide
nothing: any order gives the same answer, only slower.
"""

from numba import njit

LEVELS = 31
"""Halvings of either side of the square; a cell is then 9 mm wide."""
KEY_BITS = 2 * LEVELS
NO_KEY = 1 << 62
"""Key of a point that is NaN."""

_ALL = (1 << LEVELS) - 1
_SCALE = 2.0 ** (LEVELS - 1) * (1.0 - 2.0**-40)


@njit(inline="always")
def octahedral(x: float, y: float, z: float) -> tuple[float, float]:
    """Where a point of the unit sphere lies on the square, each side from -1 to 1.

    The upper half is projected along the rays of the octahedron ``|x| + |y| + |z| = 1``; the lower
    half's four faces are folded outwards into the corners (Cigolle and others, 2014).
    """
    size = abs(x) + abs(y) + abs(z)
    u = x / size
    v = y / size
    folded_u = 1.0 - abs(v)
    folded_v = 1.0 - abs(u)
    folded_u = -folded_u if u < 0.0 else folded_u
    folded_v = -folded_v if v < 0.0 else folded_v
    return (u if z >= 0.0 else folded_u), (v if z >= 0.0 else folded_v)


@njit(inline="always")
def cell(u: float) -> int:
    """A coordinate of the square as an integer of `LEVELS` bits."""
    return int((u + 1.0) * _SCALE)


@njit(inline="always")
def spread(bits: int) -> int:
    """Put a zero before every bit of a number of 32 bits."""
    bits = (bits | bits << 16) & 0x0000FFFF0000FFFF
    bits = (bits | bits << 8) & 0x00FF00FF00FF00FF
    bits = (bits | bits << 4) & 0x0F0F0F0F0F0F0F0F
    bits = (bits | bits << 2) & 0x3333333333333333
    return (bits | bits << 1) & 0x5555555555555555


@njit(inline="always")
def curve_key(x: int, y: int) -> int:
    """Place on the curve of a cell of the square, `KEY_BITS` bits.

    A quarter of a Hilbert curve is the curve itself with its axes swapped, or both its directions
    flipped, or both: two bits of state, (swap, flip), and with a and b the bits of x and y after
    them, the next level's are ``swap ^ ~b`` and ``flip ^ (a & ~b)``. Written out for x = y and for
    x != y that is an affine map of (swap, flip) over the field of two elements, whose coefficients
    are bits of x and y. So the states of all levels come from a prefix composition of the maps, all
    levels at once in the bits of ten integers, in five doublings: no loop over levels, no table,
    and a loop over points that vectorises.
    """
    differ = x ^ y
    same = ~differ & _ALL
    # The map of each level: swap' = m00 swap ^ m01 flip ^ c0, flip' = m10 swap ^ m11 flip ^ c1.
    m00, m01, m10, m11 = same, _ALL, differ, same
    c0 = (same & ~x) | (differ & ~y)
    c1 = differ & ~y
    for shift in (1, 2, 4, 8, 16):
        # Compose with the map of the levels before; before the first one it is the identity.
        start = _ALL ^ (_ALL >> shift)
        p00, p01, p10, p11 = (
            (m00 >> shift) | start,
            m01 >> shift,
            m10 >> shift,
            (m11 >> shift) | start,
        )
        d0, d1 = c0 >> shift, c1 >> shift
        c0, c1 = c0 ^ (m00 & d0) ^ (m01 & d1), c1 ^ (m10 & d0) ^ (m11 & d1)
        m00, m01, m10, m11 = (
            (m00 & p00) ^ (m01 & p10),
            (m00 & p01) ^ (m01 & p11),
            (m10 & p00) ^ (m11 & p10),
            (m10 & p01) ^ (m11 & p11),
        )
    # The first level starts with neither, so the constants alone are the state after each level.
    swap, flip = c0 >> 1, c1 >> 1
    change = differ & swap
    a = x ^ flip ^ change
    b = y ^ flip ^ change
    return spread(a) << 1 | spread(a ^ b)
