"""Sine, cosine and arcsine from ``+ - * /`` alone, so that a CPU and a GPU give the same bits.

The polynomials interpolate at Chebyshev nodes and were solved in 60 digits; their own error is
below 2e-17 relative, so that what remains is rounding: at most 2.3e-16 from the true sine or cosine
and 3e-16 relative from the true arcsine, both held by tests against mpmath.
"""

import math

from numba import njit

from georesolve.kernels.arithmetic import polynomial, product, total

_RADIANS_PER_DEGREE = math.pi / 180.0

# (sin x - x) / x^3 and (cos x - 1 + x^2 / 2) / x^4 as polynomials in x^2, |x| <= pi / 4.
_SINE = (
    -0.16666666666666666,
    0.008333333333330948,
    -0.00019841269836756774,
    2.7557316101617874e-06,
    -2.505113165023518e-08,
    1.5918115263265974e-10,
)
_COSINE = (
    0.041666666666666664,
    -0.0013888888888887398,
    2.480158729876456e-05,
    -2.7557317271145144e-07,
    2.087614614655861e-09,
    -1.1382623647474604e-11,
)
# (arcsin x - x) / x^3 as a polynomial in x^2, 0 <= x^2 <= 1 / 2.
_ARCSINE = (
    0.16666666666666666,
    0.07500000000000008,
    0.04464285714282907,
    0.030381944448020757,
    0.022372158849874504,
    0.017352774360057686,
    0.01396457046121755,
    0.011557107429462284,
    0.009685962974230921,
    0.00920420878636291,
    0.0005731002839379691,
    0.04998359680701682,
    -0.21553903372187563,
    0.893615558248704,
    -2.812283281583298,
    7.019881097688262,
    -13.56664904952384,
    19.994130903347237,
    -21.699773880077043,
    16.41544178054625,
    -7.751765667329285,
    1.7421218462318502,
)


@njit(inline="always")
def sine_cosine_deg(angle_deg: float) -> tuple[float, float]:
    """Sine and cosine of an angle in degrees.

    The angle is reduced to [-45, 45] *in degrees*, where the subtraction of a multiple of 90 is
    exact for every float64 up to 360 in magnitude. So the sine of 180 and the cosine of 90 are
    exactly zero: every longitude of a pole is one point, and 180 and -180 coincide. Both are within
    2.3e-16 of the true values.
    """
    quarter = math.floor(total(angle_deg / 90.0, 0.5))
    x = product(total(angle_deg, product(-90.0, quarter)), _RADIANS_PER_DEGREE)
    u = product(x, x)
    sine = total(x, product(product(x, u), polynomial(_SINE, u)))
    cosine = total(1.0, product(u, total(-0.5, product(u, polynomial(_COSINE, u)))))
    turn = int(quarter) & 3
    if turn & 1:
        sine, cosine = cosine, sine
    if turn & 2:
        sine = -sine
    if (turn + 1) & 2:
        cosine = -cosine
    return sine, cosine


@njit(inline="always")
def arcsine(x: float) -> float:
    """Arcsine in radians of ``0 <= x <= sqrt(1/2)``, within 3e-16 relative.

    The range is all that distances need: see `kernels.distance.metres_of_chord`.
    """
    u = product(x, x)
    return total(x, product(product(x, u), polynomial(_ARCSINE, u)))
