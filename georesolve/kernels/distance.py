"""Squared chord, metres, and `closer`: the total order that settles ties."""

import math

from numba import njit

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.query import EARTH_RADIUS_M
from georesolve.kernels.trig import arcsine


@njit(inline="always")
def squared_chord(ax: float, ay: float, az: float, bx: float, by: float, bz: float) -> float:
    """Squared length of the straight line between two points of the unit sphere, 0 to 4.

    It grows with the great-circle distance, so the smallest one is the nearest, without a root or
    an arcsine for the rest.
    """
    dx = total(ax, -bx)
    dy = total(ay, -by)
    dz = total(az, -bz)
    return total(total(product(dx, dx), product(dy, dy)), product(dz, dz))


@njit(inline="always")
def metres_of_chord(chord2: float) -> float:
    """Great-circle distance of a squared chord, in metres; a longer chord never has fewer.

    So the order by squared chord is an order by metres, and a greatest distance cuts it.

    Beyond a quarter of the globe (a squared chord of 2) the distance is counted from the antipode,
    whose squared chord is the rest of 4, without rounding: the arcsine of a long chord would lose
    13 cm. With either chord its argument stays below sqrt(1/2), and metres are within 1e-15
    relative of those that the squared chord has.

    That is off itself by some 1e-15, unit vectors being rounded. Up to 150 m from the antipode this
    shows in more than a millimetre, and in 0.4 m at most; everywhere else the error is below 1 mm
    or 1e-12 relative, whichever is larger.
    """
    return metres_of_half(half_chord(chord2), chord2)


@njit(inline="always")
def half_chord(chord2: float) -> float:
    """Half of a chord, or of the one from the antipode where that is shorter."""
    rest = total(4.0, -chord2) if chord2 > 2.0 else chord2
    # Rounded, the chord of two antipodes may be longer than a diameter.
    return product(0.5, math.sqrt(rest if rest > 0.0 else 0.0))


@njit(inline="always")
def metres_of_half(half: float, chord2: float) -> float:
    """What `metres_of_chord` makes of `half_chord`: apart, so that a GPU does several at a time."""
    angle = product(2.0, arcsine(half))
    return product(EARTH_RADIUS_M, total(math.pi, -angle) if chord2 > 2.0 else angle)


@njit(inline="always")
def closer(chord2: float, row: int, best_chord2: float, best_row: int) -> bool:
    """Whether a candidate comes before the best one: nearer, or as near and of a lower row."""
    # Not "or" and "and": a branch would keep loops over this from being vectorised.
    return (chord2 < best_chord2) | ((chord2 == best_chord2) & (row < best_row))
