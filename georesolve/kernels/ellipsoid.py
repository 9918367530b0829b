"""The nearest on the ellipsoid: what squared chords say of geodesics, so that few are computed.

References stand in the tree as points of the ellipsoid, in units of its semi-major axis. So boxes
bound straight chords, and a chord c bounds the geodesic s on both sides.

Between two circles
-------------------
Radii of curvature of the ellipsoid are between r = b^2 / a and R = a^2 / b. By Blaschke's theorem a
ball of radius r rolls inside of it, and it rolls inside a ball of radius R. Let f(u) be the squared
chord from a point P to the point at u along a geodesic from there. Its curvature is the surface's,
k, towards the inside, so f'' = 2 - 2 k h, where h is how far P lies below the tangent plane. P is
in the large ball that touches there, and outside the small one: f / (2 R) <= h <= f / (2 r). As
1 / R <= k <= 1 / r,

    2 - f / r^2 <= f'' <= 2 - f / R^2,    f(0) = f'(0) = 0

and, by Sturm's comparison, as long as s is at most pi r or pi R,

    2 r sin(s / (2 r)) <= c <= 2 R sin(s / (2 R)).

No geodesic is longer than pi R: points of the unit sphere with the same reduced latitudes, at the
angle t, are mapped to these by pressing the poles together, which makes nothing longer, and no
chord shorter than by b / a: s <= a t, and c >= 2 b sin(t / 2). Where c <= 1.9 a, s is below pi r.

With a = 1: what is no farther than something at the squared chord x is itself at most at
``x + 0.0052 x^2``. Up to c = 1.9 the two circles say 0.0047 x^2 at most, up to 1.98 the sphere says
less, and beyond that is more than any squared chord. Lengths and squared chords are
computed within 2^-38 of themselves; `_ROOM` is more.
"""

import math

from numba import njit

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.geodesic import AXES, SEMI_MAJOR_M
from georesolve.kernels.trig import sine_cosine_deg

_ROOM = 2.0**-36
ONE, MORE = 1.0 + _ROOM, 0.0052
_BEYOND = 5.0
"""More than any squared chord."""
_DEGREES_PER_METRE = 180.0 / math.pi / SEMI_MAJOR_M
_LEAST = AXES
_GREATEST = 1.0 / (AXES * AXES)
"""Curvatures."""
_FAR_M = 2.5 * SEMI_MAJOR_M
"""Beyond it no chord says that a geodesic is shorter."""


@njit(inline="always")
def reach(chord2: float) -> float:
    """The greatest squared chord of what is no farther than something at a squared chord."""
    return product(chord2, total(ONE, product(MORE, chord2)))


@njit(inline="always")
def outermost(distance_m: float) -> float:
    """What is farther by its squared chord than this is farther than a distance."""
    half_deg = product(distance_m, 0.5 * _LEAST * _DEGREES_PER_METRE)
    if not half_deg < 90.0:
        return _BEYOND
    sine, _ = sine_cosine_deg(half_deg)
    sine = product(sine, (1.0 + _ROOM) * 2.0 / _LEAST)
    return product(sine, sine)


@njit(inline="always")
def innermost(distance_m: float) -> float:
    """What is no farther by its squared chord than this is within a distance."""
    metres = distance_m if distance_m < _FAR_M else _FAR_M
    sine, _ = sine_cosine_deg(product(metres, 0.5 * _GREATEST * _DEGREES_PER_METRE))
    sine = product(sine, (1.0 - _ROOM) * 2.0 / _GREATEST)
    return product(sine, sine)
