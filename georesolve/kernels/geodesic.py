"""The geodesic between two points of the WGS 84 ellipsoid: its length, and where it begins.

Lengths are made of points in units of the semi-major axis, `point`: so they are equal where points
are equal to the last bit, and the same in both directions. They are within 0.4 um of the true ones
(10 nm beyond 300 km and below 100 km), of which 4 nm are those of the points themselves.

Long lines
----------
C. F. F. Karney, Algorithms for geodesics (J. Geodesy 87, 2013): the ellipsoid's geodesic is a great
circle of an auxiliary sphere, on which points have their reduced latitudes; series in the third
flattening give its length and longitude. The azimuth at the first point is searched for whose line
meets the longitude of the second, by Newton's method with a bracket that is halved where a step
leaves it: it ends near antipodes, too, where Vincenty's method does not. Terms of series below 1 nm
are left out. What is left of the longitude when it ends, v, is taken off the length to first order:
that grows by ``sin(azimuth at the equator)`` times v. The second order is v^2 by the reduced
length, and v is small enough for it.

Short lines
-----------
Up to `SHORT2` a length s is made of the straight chord c, without search. Of a curve of curvature
k(s), with derivatives in the middle of it,

    c^2 = s^2 - k^2 s^4 / 12 + (k^4 / 360 - k'^2 / 720 - k k'' / 240) s^6 + ...

(torsion comes with the square of the flattening). An arc of a circle of the curvature
``(8 k + k1 + k2) / 10``, of the middle and the ends, has that but for k'^2 and what else comes with
the square of the flattening. That grows with the fifth power of s, and is at most 0.31 um at 300 km
(10^7 pairs tried). Both ends are ``m - h`` and ``m + h``, and as the ellipsoid is x^T Q x = 1 with
a diagonal Q, m^T Q h is 0: the chord is parallel to the surface above its middle, so the curvature
there is exact.
"""

import math

from numba import njit

from georesolve.kernels.arithmetic import polynomial, product, total
from georesolve.kernels.coordinates import unit_vector
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.trig import arcsine, sine_cosine_deg

SEMI_MAJOR_M = 6_378_137.0
FLATTENING = 1.0 / 298.257223563
"""Of WGS 84."""
AXES = 1.0 - FLATTENING
"""The semi-minor axis in units of the semi-major one."""
SHORT2 = 0.0022
"""Squared chord up to which a line is short: 299 km."""

_Q = 1.0 / (AXES * AXES)
_E2 = FLATTENING * (2.0 - FLATTENING)
_EP2 = _E2 * _Q
_N = FLATTENING / (2.0 - FLATTENING)
_HALF_PI = math.pi / 2.0
_DEGREES_PER_RADIAN = 180.0 / math.pi
_RADIANS = math.pi / 180.0
_STEPS = 100
"""Of a search: halving alone takes 53."""
_EXACT = 1e-15
"""Longitudes, in radians, are not told apart more finely."""
_NEAR2 = 0.01
"""Square of a sine, in all, up to which points are close: 600 km."""
_TURNS = 8
_STRAIGHT = 2.0**-50
"""Sine of a difference of longitudes up to which a line is one of a meridian."""
_MIN_SINE = 2.0**-200
"""Smallest sine of a latitude other than 0: the square of a smaller one might underflow."""
_MIN_CHORD2 = 2.0**-900
"""Squared chord below which a line is straight: terms of its curvature might underflow."""
_ENLARGE = 2.0**340
"""Factor for tiny steps: those below 2^-400 degrees become 2^-60 at most, and 2^-400 at least."""

# (arcsin x / x) as a polynomial in x^2: x is below 0.04.
_ARC = (1.0, 1.0 / 6.0, 3.0 / 40.0, 5.0 / 112.0, 35.0 / 1152.0)
# Karney's equations 17, 18, 24, 25, 42 and 43, each as a polynomial in epsilon.
_A1 = (1.0, 0.0, 1.0 / 4.0, 0.0, 1.0 / 64.0)
_C11 = (0.0, -1.0 / 2.0, 0.0, 3.0 / 16.0)
_C12 = (0.0, 0.0, -1.0 / 16.0, 0.0, 1.0 / 32.0)
_C13 = (0.0, 0.0, 0.0, -1.0 / 48.0)
_C14 = (0.0, 0.0, 0.0, 0.0, -5.0 / 512.0)
_A2 = (1.0, 0.0, -3.0 / 4.0)
_C21 = (0.0, 1.0 / 2.0, 0.0, 1.0 / 16.0)
_C22 = (0.0, 0.0, 3.0 / 16.0)
_A3 = (
    1.0,
    -(1.0 / 2.0 - _N / 2.0),
    -(1.0 / 4.0 + _N / 8.0 - 3.0 * _N**2 / 8.0),
    -(1.0 / 16.0 + 3.0 * _N / 16.0 + _N**2 / 16.0),
    -(3.0 / 64.0 + _N / 32.0),
)
_C31 = (0.0, 1.0 / 4.0 - _N / 4.0, 1.0 / 8.0 - _N**2 / 8.0, 3.0 / 64.0 + 3.0 * _N / 64.0)
_C32 = (0.0, 0.0, 1.0 / 16.0 - 3.0 * _N / 32.0 + _N**2 / 32.0, 3.0 / 64.0 - _N / 32.0)
_C33 = (0.0, 0.0, 0.0, 5.0 / 192.0 - 3.0 * _N / 64.0)


@njit(inline="always")
def on_ellipsoid(x: float, y: float, z: float) -> tuple[float, float, float]:
    """The point of the ellipsoid whose normal is a unit vector, in units of the semi-major axis."""
    root = math.sqrt(total(1.0, -product(_E2, product(z, z))))
    return x / root, y / root, product(1.0 - _E2, z) / root


@njit(inline="always")
def point(lat_deg: float, lon_deg: float) -> tuple[float, float, float]:
    """The point at a latitude and longitude; three NaN where they are not valid."""
    x, y, z = unit_vector(lat_deg, lon_deg)
    return on_ellipsoid(x, y, z)


@njit(inline="always")
def _sum2(a, b, c, d):  # type: ignore[no-untyped-def]
    return total(product(a, b), product(c, d))


@njit(inline="always")
def _length(a, b):  # type: ignore[no-untyped-def]
    return math.sqrt(_sum2(a, a, b, b))


@njit(inline="always")
def _angle(y, x):  # type: ignore[no-untyped-def]
    """The angle of (x, y) from the x axis, -pi to pi; 0 of (0, 0)."""
    across, along = abs(y), abs(x)
    larger, smaller = (across, along) if across > along else (along, across)
    ratio = smaller / larger if larger > 0.0 else 0.0
    angle = arcsine(ratio / math.sqrt(total(1.0, product(ratio, ratio))))
    angle = total(_HALF_PI, -angle) if across > along else angle
    angle = total(math.pi, -angle) if x < 0.0 else angle
    return -angle if y < 0.0 else angle


@njit(inline="always")
def _sines(c1, c2, c3, c4, sine, cosine):  # type: ignore[no-untyped-def]
    """``c1 sin(2 s) + c2 sin(4 s) + c3 sin(6 s) + c4 sin(8 s)``, by Clenshaw's rule."""
    twice = product(2.0, product(total(cosine, -sine), total(cosine, sine)))
    b3 = total(c3, product(twice, c4))
    b2 = total(total(c2, product(twice, b3)), -c4)
    b1 = total(total(c1, product(twice, b2)), -b3)
    return product(product(2.0, product(sine, cosine)), b1)


@njit(inline="always")
def _epsilon(k2):  # type: ignore[no-untyped-def]
    root = total(1.0, math.sqrt(total(1.0, k2)))
    return k2 / total(product(2.0, root), k2)


@njit(inline="always")
def _along(epsilon, sigma, ssig1, csig1, ssig2, csig2):  # type: ignore[no-untyped-def]
    """Length of an arc of the auxiliary sphere on the ellipsoid, by the semi-minor axis.

    And that length without the factor that is common to all of the line, and that factor.
    """
    c1, c2 = polynomial(_C11, epsilon), polynomial(_C12, epsilon)
    c3, c4 = polynomial(_C13, epsilon), polynomial(_C14, epsilon)
    rest = total(_sines(c1, c2, c3, c4, ssig2, csig2), -_sines(c1, c2, c3, c4, ssig1, csig1))
    factor = polynomial(_A1, epsilon) / total(1.0, -epsilon)
    return product(factor, total(sigma, rest)), rest, factor


@njit(inline="always")
def _between(ssig1, csig1, ssig2, csig2):  # type: ignore[no-untyped-def]
    """The angle, 0 to pi, from one place of a great circle to another."""
    sine = total(product(csig1, ssig2), -product(ssig1, csig2))
    return _angle(sine if sine > 0.0 else 0.0, _sum2(csig1, csig2, ssig1, ssig2))


@njit(inline="always")
def _turned(epsilon, sigma, ssig1, csig1, ssig2, csig2):  # type: ignore[no-untyped-def]
    """By how much longitudes of the sphere and of the ellipsoid differ, without a factor."""
    c1, c2, c3 = polynomial(_C31, epsilon), polynomial(_C32, epsilon), polynomial(_C33, epsilon)
    rest = total(_sines(c1, c2, c3, 0.0, ssig2, csig2), -_sines(c1, c2, c3, 0.0, ssig1, csig1))
    return product(product(FLATTENING, polynomial(_A3, epsilon)), total(sigma, rest))


@njit(inline="always")
def _normal_sine(sine):  # type: ignore[no-untyped-def]
    """Replace a tiny sine by one whose square is a normal number, and preserve 0 and the sign.

    Moving an end by 4e-54 m changes the length by no more than that.
    """
    tiny = -_MIN_SINE if sine < 0.0 else _MIN_SINE
    return tiny if sine != 0.0 and abs(sine) < _MIN_SINE else sine


@njit(inline="always")
def enlargement(lat_step_deg: float, lon_step_deg: float) -> float:
    """Factor by which to scale a step in degrees so that its direction does not underflow.

    The factor is 1 unless both components are tiny. The surface is flat over a tiny step, so the
    direction of the enlarged step is the same.
    """
    north, east = abs(lat_step_deg), abs(lon_step_deg)
    larger = north if north > east else east
    scale = _ENLARGE if larger < 2.0**-400 else 1.0
    return _ENLARGE * _ENLARGE if larger < 2.0**-740 else scale


@njit(nogil=True, error_model="numpy")
def _search(sbet1, cbet1, sbet2, cbet2, slam, clam, wanted):  # type: ignore[no-untyped-def]
    """Length by the semi-major axis, and sines and cosines of the azimuths at both ends.

    The first point is as far from the equator as the second, or farther, and not north of it; the
    second lies to the east. The search ends where the square of what is left of the longitude is at
    most `wanted` of the reduced length.
    """
    if slam <= _STRAIGHT:
        # Along a meridian; over the pole, where they are opposite.
        clam = 1.0 if clam > 0.0 else -1.0
        csig1 = product(clam, cbet1)
        sigma = _between(sbet1, csig1, sbet2, cbet2)
        s, _, _ = _along(_epsilon(_EP2), sigma, sbet1, csig1, sbet2, cbet2)
        return product(AXES, s), 0.0, clam, 0.0, 1.0
    lam = _angle(slam, clam)
    sbet1, sbet2 = _normal_sine(sbet1), _normal_sine(sbet2)
    if sbet1 == 0.0 and lam <= math.pi * AXES:
        return lam, 1.0, 0.0, 1.0, 0.0
    dn1 = math.sqrt(total(1.0, product(_EP2, product(sbet1, sbet1))))
    dn2 = math.sqrt(total(1.0, product(_EP2, product(sbet2, sbet2))))
    # As on a sphere.
    salp1 = product(cbet2, slam)
    calp1 = total(product(cbet1, sbet2), -product(product(sbet1, cbet2), clam))
    low_s, low_c, high_s, high_c = 0.0, 1.0, 0.0, -1.0
    s = 0.0
    salp2, calp2 = 0.0, 1.0
    for step in range(_STEPS):
        size = _length(salp1, calp1)
        salp1, calp1 = salp1 / size, calp1 / size
        if sbet1 == 0.0 and calp1 == 0.0:
            # Along the equator a line turns back where it should not.
            calp1 = -_EXACT
        salp0 = product(salp1, cbet1)
        calp0 = _length(calp1, product(salp1, sbet1))
        comg1 = product(calp1, cbet1)
        size = _length(sbet1, comg1)
        ssig1, csig1 = sbet1 / size, comg1 / size
        salp2, calp2 = salp1, abs(calp1)
        if cbet2 != cbet1 or abs(sbet2) != -sbet1:
            salp2 = salp0 / cbet2
            more = total(sbet1, -sbet2), total(sbet1, sbet2)
            if cbet1 < -sbet1:
                more = total(cbet2, -cbet1), total(cbet1, cbet2)
            square = _sum2(comg1, comg1, more[0], more[1])
            calp2 = math.sqrt(square if square > 0.0 else 0.0) / cbet2
        comg2 = product(calp2, cbet2)
        size = _length(sbet2, comg2)
        ssig2, csig2 = sbet2 / size, comg2 / size
        sigma = _between(ssig1, csig1, ssig2, csig2)
        somg1, somg2 = product(salp0, sbet1), product(salp0, sbet2)
        somg = total(product(comg1, somg2), -product(somg1, comg2))
        somg = somg if somg > 0.0 else 0.0
        comg = _sum2(comg1, comg2, somg1, somg2)
        k2 = product(_EP2, product(calp0, calp0))
        epsilon = _epsilon(k2)
        turned = product(salp0, _turned(epsilon, sigma, ssig1, csig1, ssig2, csig2))
        v = _angle(total(product(somg, clam), -product(comg, slam)), _sum2(comg, clam, somg, slam))
        v = total(v, -turned)
        s, rest, a1 = _along(epsilon, sigma, ssig1, csig1, ssig2, csig2)
        a2 = polynomial(_A2, epsilon) / total(1.0, epsilon)
        c1, c2 = polynomial(_C21, epsilon), polynomial(_C22, epsilon)
        rest2 = total(
            _sines(c1, c2, 0.0, 0.0, ssig2, csig2), -_sines(c1, c2, 0.0, 0.0, ssig1, csig1)
        )
        j = total(total(product(a1, total(sigma, rest)), -product(a2, sigma)), -product(a2, rest2))
        reduced = total(
            total(product(dn2, product(csig1, ssig2)), -product(dn1, product(ssig1, csig2))),
            -product(product(csig1, csig2), j),
        )
        s = total(product(AXES, s), -product(salp0, v))
        if product(v, v) <= product(wanted, reduced) or abs(v) <= _EXACT:
            break
        # The greater the azimuth, the greater the longitude.
        if v > 0.0:
            high_s, high_c = salp1, calp1
        else:
            low_s, low_c = salp1, calp1
        slope = (
            product(-2.0 * AXES, dn1) / sbet1 if calp2 == 0.0 else product(AXES, reduced) / comg2
        )
        if slope > 0.0 and step < _STEPS // 2:
            change = -v / slope
            if abs(change) < 1.0:
                sine, cosine = sine_cosine_deg(product(change, _DEGREES_PER_RADIAN))
                new_s, new_c = (
                    _sum2(salp1, cosine, calp1, sine),
                    total(product(calp1, cosine), -product(salp1, sine)),
                )
                inside = (
                    total(product(new_s, low_c), -product(new_c, low_s)) > 0.0
                    and total(product(new_s, high_c), -product(new_c, high_s)) < 0.0
                )
                if new_s > 0.0 and inside:
                    salp1, calp1 = new_s, new_c
                    continue
        salp1, calp1 = total(low_s, high_s), total(low_c, high_c)
        if salp1 == 0.0 and calp1 == 0.0:
            salp1 = 1.0
    return s, salp1, calp1, salp2, calp2


@njit(inline="always")
def _curvature(z, hz, square, bend, sign):  # type: ignore[no-untyped-def]
    """The curvature at an end of a short line, in the direction of the other end."""
    # The square of the normal, which is (x, y, q z) before it has a length.
    normal2 = total(1.0, product(_Q * (_Q - 1.0), product(z, z)))
    along = total(hz, product(sign, product(bend, product(_Q, z)) / normal2))
    rest = total(square, -product(bend, bend) / normal2)
    rise2 = product(along, along) / rest
    return total(1.0, product(_Q - 1.0, rise2)) / math.sqrt(normal2)


@njit(inline="always")
def is_short(chord2: float) -> bool:
    """Whether `short_m` measures a line of a squared chord."""
    return (chord2 >= _MIN_CHORD2) & (chord2 <= SHORT2)


@njit(inline="always")
def short_m(x1, y1, z1, x2, y2, z2, chord2):  # type: ignore[no-untyped-def]
    """Metres of a short line, by its squared chord, which `is_short`; without branches."""
    hz = product(0.5, total(z2, -z1))
    mx, my = product(0.5, total(x1, x2)), product(0.5, total(y1, y2))
    mz = product(_Q, product(0.5, total(z1, z2)))
    square = product(0.25, chord2)
    # h^T Q h; and the same of m is what is left of 1.
    bend = total(square, product(_Q - 1.0, product(hz, hz)))
    normal2 = total(_sum2(mx, mx, my, my), product(mz, mz))
    middle = product(bend / square, math.sqrt(total(1.0, -bend) / normal2))
    ends = total(_curvature(z1, hz, square, bend, 1.0), _curvature(z2, hz, square, bend, -1.0))
    k = total(product(0.8, middle), product(0.1, ends))
    arc = polynomial(_ARC, product(product(k, k), square))
    return product(SEMI_MAJOR_M, product(math.sqrt(chord2), arc))


@njit(inline="always")
def _is_first(sine, cosine, other_sine, other_cosine):  # type: ignore[no-untyped-def]
    """Whether a point is farther from the equator than another one; a pole needs its cosine."""
    far, other = abs(sine), abs(other_sine)
    return far > other or (far == other and cosine < other_cosine)


@njit(nogil=True, error_model="numpy")
def _long(x1, y1, z1, x2, y2, z2):  # type: ignore[no-untyped-def]
    # One order of the two, so that either way has the same bits.
    cbet1, cbet2 = _length(x1, y1), _length(x2, y2)
    is_turned = _is_first(z2, cbet2, z1, cbet1)
    if not is_turned and not _is_first(z1, cbet1, z2, cbet2):
        is_turned = z1 > z2 or (z1 == z2 and (x1 < x2 or (x1 == x2 and y1 < y2)))
    if is_turned:
        x1, y1, z1, cbet1, x2, y2, z2, cbet2 = x2, y2, z2, cbet2, x1, y1, z1, cbet1
    if z1 > 0.0:
        z1, z2 = -z1, -z2
    across = total(product(x1, total(y2, -y1)), -product(y1, total(x2, -x1)))
    along = _sum2(x1, x2, y1, y2)
    size = _length(across, along)
    slam, clam = 0.0, 1.0
    if size > 0.0:
        slam, clam = abs(across) / size, along / size
    s, _, _, _, _ = _search(z1 / AXES, cbet1, z2 / AXES, cbet2, slam, clam, 1e-16)
    return s


@njit(nogil=True, error_model="numpy")
def geodesic_m(x1: float, y1: float, z1: float, x2: float, y2: float, z2: float) -> float:
    """Metres of the shortest line between two points that `point` gave; NaN where one is."""
    chord2 = squared_chord(x1, y1, z1, x2, y2, z2)
    if chord2 > SHORT2:
        return product(SEMI_MAJOR_M, _long(x1, y1, z1, x2, y2, z2))
    if is_short(chord2):
        return short_m(x1, y1, z1, x2, y2, z2, chord2)
    return product(SEMI_MAJOR_M, math.sqrt(chord2))


@njit(nogil=True, error_model="numpy")
def azimuth(lat_deg: float, to_lat_deg: float, apart_deg: float) -> tuple[float, float]:
    """East and north of the direction in which the shortest line to another point begins.

    `apart_deg` is from one longitude to the other, -180 to 180. Neither is of a certain length.
    """
    sine1, cosine1 = sine_cosine_deg(lat_deg)
    sine2, cosine2 = sine_cosine_deg(to_lat_deg)
    scale = enlargement(total(to_lat_deg, -lat_deg), apart_deg)
    lon_step_deg = product(scale, abs(apart_deg))
    slam, clam = sine_cosine_deg(lon_step_deg)
    east = -1.0 if apart_deg < 0.0 else 1.0
    size1, size2 = _length(product(AXES, sine1), cosine1), _length(product(AXES, sine2), cosine2)
    sbet1, cbet1 = product(AXES, sine1) / size1, cosine1 / size1
    sbet2, cbet2 = product(AXES, sine2) / size2, cosine2 / size2
    step, cosine = sine_cosine_deg(product(scale, total(to_lat_deg, -lat_deg)))
    step = product(AXES, step) / product(size1, size2)
    is_near = total(product(step, step), product(slam, slam)) < _NEAR2
    if is_near and clam > 0.0 and cosine > 0.0:
        across, along = _close(sbet1, cbet1, sbet2, cbet2, step, product(lon_step_deg, _RADIANS))
        return product(east, across), along
    turned = _is_first(sbet2, cbet2, sbet1, cbet1)
    if turned:
        sbet1, cbet1, sbet2, cbet2 = sbet2, cbet2, sbet1, cbet1
    north = 1.0
    if sbet1 >= 0.0:
        # Of two that are as short from a place of the equator, the northern one.
        sbet1, sbet2, north = -sbet1, -sbet2, -1.0
    _, salp1, calp1, salp2, calp2 = _search(sbet1, cbet1, sbet2, cbet2, slam, clam, 0.0)
    if turned:
        salp1, calp1, north = salp2, calp2, -north
    return product(east, salp1), product(north, calp1)


@njit(inline="always")
def _close(sbet1, cbet1, sbet2, cbet2, step, lam):  # type: ignore[no-untyped-def]
    """East and north, of points that are close: differences of what is nearly equal are exact.

    The longitude on the auxiliary sphere is put right a few times, each of which leaves as much of
    the error as the ellipsoid is flat.
    """
    omega = lam
    across, along = 0.0, 1.0
    for _ in range(_TURNS):
        half, cosine_half = sine_cosine_deg(product(0.5 * _DEGREES_PER_RADIAN, omega))
        twice = product(product(2.0, half), cbet2)
        across = product(twice, cosine_half)
        along = total(step, product(product(twice, half), sbet1))
        size = _length(across, along)
        if size == 0.0:
            break
        salp1, calp1 = across / size, along / size
        salp0 = product(salp1, cbet1)
        calp0 = _length(calp1, product(salp1, sbet1))
        at = _length(sbet1, product(calp1, cbet1))
        ssig1, csig1 = 0.0, 1.0
        if at > 0.0:
            ssig1, csig1 = sbet1 / at, product(calp1, cbet1) / at
        # A quarter of the globe at most.
        cosine = math.sqrt(total(1.0, -product(size, size)))
        ssig2, csig2 = (
            _sum2(ssig1, cosine, csig1, size),
            total(product(csig1, cosine), -product(ssig1, size)),
        )
        epsilon = _epsilon(product(_EP2, product(calp0, calp0)))
        turned = _turned(epsilon, arcsine(size), ssig1, csig1, ssig2, csig2)
        omega = total(lam, product(salp0, turned))
    return across, along
