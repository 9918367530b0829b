"""The bearing from a point to another: its formula, and its loop on a CPU.

It is made there whatever device searched, so its bits are the same.
"""

import math

import numpy as np
from numba import njit

from georesolve.kernels.arithmetic import product, total
from georesolve.kernels.coordinates_cpu import readable
from georesolve.kernels.geodesic import azimuth, enlargement
from georesolve.kernels.query import Degrees
from georesolve.kernels.threads_cpu import in_threads, threads_for
from georesolve.kernels.trig import arcsine, sine_cosine_deg
from georesolve.query import Earth

_GRAIN = 1 << 13
"""Pairs that are worth a thread, at 40 nanoseconds each."""
_DEGREES_PER_RADIAN = 180.0 / math.pi


@njit(inline="always")
def direction_deg(east: float, north: float) -> float:
    """Degrees clockwise from north, 0 to 360, 360 not included; 0 where both are 0."""
    across, along = abs(east), abs(north)
    larger, smaller = (across, along) if across > along else (along, across)
    # By their ratio, as squares of what is tiny would vanish.
    ratio = smaller / larger if larger > 0.0 else 0.0
    sine = ratio / math.sqrt(total(1.0, product(ratio, ratio)))
    angle = product(arcsine(sine), _DEGREES_PER_RADIAN)
    angle = total(90.0, -angle) if across > along else angle
    angle = total(180.0, -angle) if north < 0.0 else angle
    angle = total(360.0, -angle) if east < 0.0 else angle
    return angle if angle < 360.0 else 0.0


@njit(inline="always")
def _apart_deg(lon_deg, to_lon_deg):  # type: ignore[no-untyped-def]
    """From one longitude to another, -180 to 180."""
    # What rounding takes from the difference (Knuth's sum of two) counts across the antimeridian,
    # where 360 is taken from it, which is exact.
    apart = total(to_lon_deg, -lon_deg)
    other = total(apart, -to_lon_deg)
    rest = total(total(to_lon_deg, -total(apart, -other)), total(-lon_deg, -other))
    turns = math.floor(total(apart / 360.0, 0.5))
    return total(total(apart, product(-360.0, turns)), rest)


@njit(inline="always")
def bearing_deg(lat_deg: float, lon_deg: float, to_lat_deg: float, to_lon_deg: float) -> float:
    """Degrees clockwise from north in which the great circle to another point begins.

    North is ``sin(dlat) + 2 sin(lat) cos(to_lat) sin(dlon / 2)^2``. That equals the textbook's
    ``cos(lat) sin(to_lat) - sin(lat) cos(to_lat) cos(dlon)``, which is the difference of two nearly
    equal terms where points are close.

    At a pole the longitude that is given says where north is: from (90, 0) to (80, 30) the bearing
    is 150 degrees. To a pole, it is 0 or 180. Of a point and its exact antipode any bearing is
    right, and this is one that depends on their coordinates alone.
    """
    apart = _apart_deg(lon_deg, to_lon_deg)
    lat_step = total(to_lat_deg, -lat_deg)
    scale = enlargement(lat_step, apart)
    half, cosine_half = sine_cosine_deg(product(product(0.5, scale), apart))
    step, _ = sine_cosine_deg(product(scale, lat_step))
    sine, _ = sine_cosine_deg(lat_deg)
    _, cosine = sine_cosine_deg(to_lat_deg)
    twice = product(product(2.0, half), cosine)
    return direction_deg(
        product(twice, cosine_half), total(step, product(product(twice, half), sine))
    )


@njit(inline="always")
def azimuth_deg(lat_deg: float, lon_deg: float, to_lat_deg: float, to_lon_deg: float) -> float:
    """Degrees clockwise from north in which the geodesic of WGS 84 to another point begins.

    What is said of poles and antipodes is as in `bearing_deg`.
    """
    east, north = azimuth(lat_deg, to_lat_deg, _apart_deg(lon_deg, to_lon_deg))
    return direction_deg(east, north)


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(thread, threads, flat, lat_deg, lon_deg, to_lat_deg, to_lon_deg, bearing):  # type: ignore[no-untyped-def]
    start = bearing.size * thread // threads
    stop = bearing.size * (thread + 1) // threads
    # Views, because indices that might be negative keep a loop from being vectorised.
    lat, lon, part = lat_deg[start:stop], lon_deg[start:stop], bearing[start:stop]
    to_lat, to_lon = to_lat_deg[start:stop], to_lon_deg[start:stop]
    # Where it is None the other loop is not compiled, and so no geodesic.
    if flat is None:
        for i in range(part.size):
            part[i] = bearing_deg(lat[i], lon[i], to_lat[i], to_lon[i])
    else:
        for i in range(part.size):
            part[i] = azimuth_deg(lat[i], lon[i], to_lat[i], to_lon[i])


def bearings(here: Degrees, there: Degrees, earth: Earth = "sphere") -> np.ndarray:
    """The bearings from points to others, as many: float64, any number where one is not valid.

    They are within 1e-13 degrees of the true ones of the coordinates given, beyond a quarter of the
    globe within as much divided by the sine of the angle between the two points. On the ellipsoid
    they are those of geodesics: within 1e-12 degrees up to 600 km, and beyond as far as 20 nm at
    the other end turn them.
    """
    bearing = np.empty(here.lat_deg.size)
    threads = threads_for(bearing.size, _GRAIN)
    in_threads(_fill, threads, earth == "wgs84" or None, *readable(here), *readable(there), bearing)
    return bearing
