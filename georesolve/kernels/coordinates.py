"""Degrees to unit vectors, and which coordinates are valid. The only place where degrees exist."""

import math
from typing import Any

from numba import njit

from georesolve.kernels.arithmetic import product
from georesolve.kernels.trig import sine_cosine_deg

LATITUDE_DEG = (-90.0, 90.0)
LONGITUDE_DEG = (-180.0, 360.0)


def is_valid(lat_deg: Any, lon_deg: Any) -> Any:
    """Whether coordinates lie on the globe: latitude -90 to 90, longitude -180 to 360, both finite.

    One source for a pair of numbers in compiled code and for whole arrays of numpy or CuPy: NaN
    and the infinities fail the comparisons.
    """
    return (
        (lat_deg >= LATITUDE_DEG[0])
        & (lat_deg <= LATITUDE_DEG[1])
        & (lon_deg >= LONGITUDE_DEG[0])
        & (lon_deg <= LONGITUDE_DEG[1])
    )


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
