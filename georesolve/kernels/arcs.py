"""Great-circle arcs: how far a point is from one, on which side of it, and what is nearest.

An arc is ten numbers: the unit vectors of its ends, western end first (of equal longitudes the
southern), the vector ``n = (A - B) x (A + B)``, which is twice A x B, and its square. A x B itself
loses millimetres of an arc of some metres, as do products with it. Differences of what is close are
exact, and so n is as exact relative to its own length however short the arc is.

How much is lost
----------------
Let u = 2^-53. A - B and A + B are rounded once a component, so each component of n is within
6 u |A - B| |A + B| of its own, and n's direction is within 8 u. With it the sine of the angle to
the plane of the arc is within 15 u |P - A|, and so is where P stands along the arc. Beyond 45
degrees the cosine decides, which is as good there. So the root of a squared chord is within 2^-48
of the root of the true one, and what is no farther than `TOUCHING` from an arc, 45 nanometres, is
on it: its squared chord is 0. Arcs shorter than twice as much have no direction: they are their
ends.
"""

import math

from numba import njit

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.distance import squared_chord

ARC = 10
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
    """Write the ten numbers of an arc between two unit vectors."""
    nx, ny, nz = _cross(
        total(ax, -bx), total(ay, -by), total(az, -bz), total(ax, bx), total(ay, by), total(az, bz)
    )
    arc[0], arc[1], arc[2], arc[3], arc[4], arc[5] = ax, ay, az, bx, by, bz
    arc[6], arc[7], arc[8], arc[9] = nx, ny, nz, _dot(nx, ny, nz, nx, ny, nz)


@njit(inline="always")
def above(x, y, z, arc):  # type: ignore[no-untyped-def]
    """Whether a point is to the left of an arc: north of it, if it is on a meridian that it meets.

    What `arc_chord2` says to be farther than 0 is on the side that this says.
    """
    return _height(x, y, z, arc) > 0.0


@njit(inline="always")
def _height(x, y, z, arc):  # type: ignore[no-untyped-def]
    return _dot(
        total(x, -arc[0]), total(y, -arc[1]), total(z, -arc[2]), arc[6], arc[7], arc[8]
    )  # fmt: skip


@njit(inline="always")
def is_beside(x, y, z, arc):  # type: ignore[no-untyped-def]
    """Whether the nearest point of an arc is none of its ends."""
    nx, ny, nz = arc[6], arc[7], arc[8]
    if not arc[9] > _SHORTEST:
        return False
    wx, wy, wz = _cross(nx, ny, nz, arc[0], arc[1], arc[2])
    if not _dot(total(x, -arc[0]), total(y, -arc[1]), total(z, -arc[2]), wx, wy, wz) > 0.0:
        return False
    wx, wy, wz = _cross(arc[3], arc[4], arc[5], nx, ny, nz)
    return _dot(total(x, -arc[3]), total(y, -arc[4]), total(z, -arc[5]), wx, wy, wz) > 0.0


@njit(inline="always")
def arc_chord2(x, y, z, arc):  # type: ignore[no-untyped-def]
    """Squared chord from a point of the unit sphere to the nearest point of an arc."""
    to_a = squared_chord(x, y, z, arc[0], arc[1], arc[2])
    to_b = squared_chord(x, y, z, arc[3], arc[4], arc[5])
    nearest = min(to_a, to_b)
    if is_beside(x, y, z, arc):
        height = _height(x, y, z, arc)
        sine2 = product(height, height) / arc[9]
        if sine2 <= 0.5:
            chord2 = product(2.0, sine2) / total(1.0, math.sqrt(total(1.0, -sine2)))
        else:
            cx, cy, cz = _cross(arc[6], arc[7], arc[8], x, y, z)
            cosine = math.sqrt(_dot(cx, cy, cz, cx, cy, cz) / arc[9])
            chord2 = total(2.0, -product(2.0, cosine))
        nearest = min(nearest, chord2)
    # What has no length is a point, and as far as points are.
    return 0.0 if nearest <= TOUCHING and arc[9] > 0.0 else nearest


@njit(inline="always")
def arc_point(x, y, z, arc):  # type: ignore[no-untyped-def]
    """Which point of an arc is nearest: 0 or 1 for its ends, else 2, and where, of any length."""
    to_a = squared_chord(x, y, z, arc[0], arc[1], arc[2])
    to_b = squared_chord(x, y, z, arc[3], arc[4], arc[5])
    if not is_beside(x, y, z, arc) or arc_chord2(x, y, z, arc) == min(to_a, to_b):
        return (0, arc[0], arc[1], arc[2]) if to_a <= to_b else (1, arc[3], arc[4], arc[5])
    share = _height(x, y, z, arc) / arc[9]
    return (
        2,
        total(x, -product(share, arc[6])),
        total(y, -product(share, arc[7])),
        total(z, -product(share, arc[8])),
    )
