"""Degrees to unit vectors. The only place where degrees exist."""

import math

from numba import njit

from georesolve.kernels.arithmetic import product
from georesolve.kernels.query import is_valid
from georesolve.kernels.trig import sine_cosine_deg

_is_valid = njit(inline="always")(is_valid)


@njit(inline="always")
def unit_vector(lat_deg: float, lon_deg: float) -> tuple[float, float, float]:
    """The point of the unit sphere at a latitude and longitude; three NaN where they are not valid.

    A NaN is never nearer than anything, so an invalid row can neither match nor be matched.
    """
    if not _is_valid(lat_deg, lon_deg):
        return math.nan, math.nan, math.nan
    sine_lat, cosine_lat = sine_cosine_deg(lat_deg)
    sine_lon, cosine_lon = sine_cosine_deg(lon_deg)
    return product(cosine_lat, cosine_lon), product(cosine_lat, sine_lon), sine_lat
