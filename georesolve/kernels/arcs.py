"""Great-circle arcs: how far a point is from one, on which side of it, and what is nearest.

An arc is sixteen numbers: the unit vectors of its ends A and B, western end first (of equal
longitudes the southern); ``n = (A - B) x (A + B)``, which is twice A x B; one by the square of n, 0
where that has no direction; and n x A and B x n, which point along the arc at its ends. A x B
itself loses millimetres of an arc of some metres, as do products with it. Differences of what is
close are exact, and so n is as exact relative to its own length however short the arc is.

How much is lost
----------------
Let u = 2^-53. A - B and A + B are rounded once a component, so each component of n is within
6 u |A - B| |A + B| of its own, and n's direction is within 8 u. With it the sine of the angle to
the plane of the arc is within 15 u |P - A|, and so is where P stands along the arc. Beyond 45
degrees the cosine decides, which is as good there. So the root of a squared chord is within 2^-48
of the root of the true one. What is no farther than `TOUCHING` from an arc, 45 nanometres, is on
it: its squared chord is 0. Arcs shorter than twice as much have no direction: they are their ends.
"""

import math

from numba import njit

from georesolve.kernels.arithmetic import product, total

ARC = 16
"""Numbers of an arc."""
TOUCHING = 2.0**-94
"""Squared chord up to which a point is on an arc: float64 cannot tell on which side of it."""
MARGIN = 2.0**-46
"""What a box around an arc has room for besides the arc: all that is lost, and what a bound is off
itself."""
_SHORTEST = 2.0**-90
"""Square of n up to which it has no direction."""


@njit(inline="always")
def _dot(ax, ay, az, bx, by, bz):  # type: ignore[no-untyped-def]
    return total(total(product(ax, bx), product(ay, by)), product(az, bz))


@njit(inline="always")
def _cross(ax, ay, az, bx, by, bz):  # type: ignore[no-untyped-def]
    return (
        total(product(ay, bz), -product(az, by)),
        total(product(az, bx), -product(ax, bz)),
        total(product(ax, by), -product(ay, bx)),
    )


@njit(inline="always")
def put_arc(arc, ax, ay, az, bx, by, bz):  # type: ignore[no-untyped-def]
    """Write the numbers of an arc between two unit vectors."""
    nx, ny, nz = _cross(
        total(ax, -bx), total(ay, -by), total(az, -bz), total(ax, bx), total(ay, by), total(az, bz)
    )
    square = _dot(nx, ny, nz, nx, ny, nz)
    arc[0], arc[1], arc[2], arc[3], arc[4], arc[5] = ax, ay, az, bx, by, bz
    arc[6], arc[7], arc[8], arc[9] = nx, ny, nz, 1.0 / square if square > _SHORTEST else 0.0
    arc[10], arc[11], arc[12] = _cross(nx, ny, nz, ax, ay, az)
    arc[13], arc[14], arc[15] = _cross(bx, by, bz, nx, ny, nz)


@njit(inline="always")
def above(x, y, z, arc):  # type: ignore[no-untyped-def]
    """Whether a point is to the left of an arc: north of it, if it is on a meridian that it meets.

    What `arc_chord2` says to be farther than 0 is on the side that this says.
    """
    dx, dy, dz = total(x, -arc[0]), total(y, -arc[1]), total(z, -arc[2])
    return _dot(dx, dy, dz, arc[6], arc[7], arc[8]) > 0.0


@njit(inline="always")
def _seen(x, y, z, arc):  # type: ignore[no-untyped-def]
    """Squared chords to the ends, whether the nearest point is neither, and the squared sine."""
    dx, dy, dz = total(x, -arc[0]), total(y, -arc[1]), total(z, -arc[2])
    ex, ey, ez = total(x, -arc[3]), total(y, -arc[4]), total(z, -arc[5])
    height = _dot(dx, dy, dz, arc[6], arc[7], arc[8])
    beside = (
        (_dot(dx, dy, dz, arc[10], arc[11], arc[12]) > 0.0)
        & (_dot(ex, ey, ez, arc[13], arc[14], arc[15]) > 0.0)
        & (arc[9] > 0.0)
    )
    return (
        _dot(dx, dy, dz, dx, dy, dz),
        _dot(ex, ey, ez, ex, ey, ez),
        beside,
        product(product(height, height), arc[9]),
    )


@njit(inline="always")
def near_parts(x, y, z, arc):  # type: ignore[no-untyped-def]
    """What `arc_chord2` is made of, without branches: the least of each of several arcs is theirs.

    The squared chord to the nearest end, the squared sine, for `chord2_of`, or infinity where an
    end is nearest, and whether the sine is beyond 45 degrees, for which `arc_chord2` has another
    way.
    """
    to_a, to_b, beside, sine2 = _seen(x, y, z, arc)
    return (
        _touching(to_a if to_a < to_b else to_b, arc[9]),
        sine2 if beside else math.inf,
        beside & (sine2 > 0.5),
    )


@njit(inline="always")
def chord2_of(sine2):  # type: ignore[no-untyped-def]
    """The squared chord of a squared sine: no operation of it falls as the sine grows."""
    rest = total(1.0, -sine2)
    chord2 = product(2.0, sine2) / total(1.0, math.sqrt(rest if rest > 0.0 else 0.0))
    return 0.0 if chord2 <= TOUCHING else chord2


@njit(inline="always")
def _touching(chord2, inverse):  # type: ignore[no-untyped-def]
    # What has no direction may be a point, and is as far as points are.
    return 0.0 if (chord2 <= TOUCHING) & (inverse > 0.0) else chord2


@njit(inline="always")
def arc_chord2(x, y, z, arc):  # type: ignore[no-untyped-def]
    """Squared chord from a point of the unit sphere to the nearest point of an arc."""
    ends, sine2, is_far = near_parts(x, y, z, arc)
    if is_far:
        cx, cy, cz = _cross(arc[6], arc[7], arc[8], x, y, z)
        cosine = math.sqrt(product(_dot(cx, cy, cz, cx, cy, cz), arc[9]))
        return min(ends, _touching(total(2.0, -product(2.0, cosine)), arc[9]))
    return min(ends, chord2_of(sine2))


@njit(inline="always")
def arc_point(x, y, z, arc):  # type: ignore[no-untyped-def]
    """Which point of an arc is nearest: 0 or 1 for its ends, else 2, and where, of any length."""
    to_a, to_b, beside, _ = _seen(x, y, z, arc)
    if not beside or arc_chord2(x, y, z, arc) == min(to_a, to_b):
        return (0, arc[0], arc[1], arc[2]) if to_a <= to_b else (1, arc[3], arc[4], arc[5])
    dx, dy, dz = total(x, -arc[0]), total(y, -arc[1]), total(z, -arc[2])
    share = product(_dot(dx, dy, dz, arc[6], arc[7], arc[8]), arc[9])
    return (
        2,
        total(x, -product(share, arc[6])),
        total(y, -product(share, arc[7])),
        total(z, -product(share, arc[8])),
    )
