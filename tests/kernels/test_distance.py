"""Sine, cosine, arcsine and metres against mpmath."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import build_index, nearest
from kernels.coordinates_cpu import unit_vectors
from kernels.distance import EARTH_RADIUS_M
from kernels.trig import arcsine, sine_cosine_deg
from tests.kernels.point_sets import NASTY_LAT, NASTY_LON

mpmath.mp.dps = 50
angles = st.sampled_from([*NASTY_LAT, *NASTY_LON]) | st.floats(-360, 360)


def exact_vector(lat, lon):
    p, q = (mpmath.radians(mpmath.mpf(float(a))) for a in (lat, lon))
    return mpmath.cos(p) * mpmath.cos(q), mpmath.cos(p) * mpmath.sin(q), mpmath.sin(p)


def exact_metres(lat, lon, other_lat, other_lon):
    a, b = exact_vector(lat, lon), exact_vector(other_lat, other_lon)
    near = mpmath.sqrt(sum((p - q) ** 2 for p, q in zip(a, b, strict=True)))
    far = mpmath.sqrt(sum((p + q) ** 2 for p, q in zip(a, b, strict=True)))
    return EARTH_RADIUS_M * 2 * mpmath.atan2(near, far)


@settings(max_examples=400, deadline=None)
@given(angles)
def test_sine_and_cosine(angle_deg):
    sine, cosine = sine_cosine_deg(angle_deg)
    x = mpmath.radians(mpmath.mpf(angle_deg))
    assert abs(sine - mpmath.sin(x)) <= 2.3e-16
    assert abs(cosine - mpmath.cos(x)) <= 2.3e-16


@settings(max_examples=400, deadline=None)
@given(st.floats(0, math.sqrt(0.5)))
def test_arcsine(x):
    exact = mpmath.asin(mpmath.mpf(x))
    assert abs(arcsine(x) - exact) <= 3e-16 * exact


@pytest.mark.parametrize("quarter", range(-4, 5))
def test_quarters_are_exact(quarter):
    want = [(0, 1), (1, 0), (0, -1), (-1, 0)][quarter % 4]
    assert sine_cosine_deg(90.0 * quarter) == want


def test_every_longitude_of_a_pole_is_one_point_and_both_antimeridians_coincide():
    poles = unit_vectors(np.full(4, 90.0), np.array([-180.0, 0.0, 77.7, 360.0])).T
    assert (poles == poles[:, :1]).all()
    meridians = unit_vectors(np.array([33.3, 33.3]), np.array([-180.0, 180.0])).T
    assert (meridians[:, 0] == meridians[:, 1]).all()


def metres(lat, lon, other_lat, other_lon):
    one = (np.array([float(a)]) for a in (lat, lon))
    other = (np.array([float(a)]) for a in (other_lat, other_lon))
    return nearest(build_index(*other), *one).distance_m[0]


def assert_right(lat, lon, other_lat, other_lon):
    exact = exact_metres(lat, lon, other_lat, other_lon)
    got = metres(lat, lon, other_lat, other_lon)
    assert abs(got - exact) <= max(1e-3, 1e-12 * exact)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(NASTY_LAT) | st.floats(-90, 90),
    st.sampled_from(NASTY_LON) | st.floats(-180, 360),
    st.sampled_from(NASTY_LAT) | st.floats(-90, 90),
    st.sampled_from(NASTY_LON) | st.floats(-180, 360),
)
def test_metres(lat, lon, other_lat, other_lon):
    assert_right(lat, lon, other_lat, other_lon)


@pytest.mark.parametrize("apart_deg", [0, 1e-12, 1e-9, 1e-6, 1e-3, 1, 45, 89.999999, 90.0000001])
@pytest.mark.parametrize("from_the_antipode", [False, True])
@pytest.mark.parametrize(("lat", "lon"), [(0.0, 0.0), (48.1, 11.6), (-33.9, 151.2), (89.0, -60.0)])
def test_metres_near_and_antipodal(lat, lon, apart_deg, from_the_antipode):
    other = (-lat, lon - 180 if lon > 0 else lon + 180) if from_the_antipode else (lat, lon)
    for step in ((0, apart_deg), (-apart_deg, 0)):
        other_lat = max(-90.0, other[0] + step[0])
        assert_right(lat, lon, other_lat, other[1] + step[1])
