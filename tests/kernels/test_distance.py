"""Sine, cosine, arcsine and metres against mpmath."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from georesolve.kernels import build_index, nearest
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.distance import metres_of_chord
from georesolve.kernels.query import EARTH_RADIUS_M
from georesolve.kernels.trig import arcsine, sine_cosine_deg
from tests.kernels.point_sets import NASTY_LAT, NASTY_LON

mpmath.mp.dps = 50

CHORD2_ERROR = 8 * np.spacing(3.9)
"""By how much a squared chord may be off near 4: unit vectors are rounded, and so is each step."""

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
    # An angle x short of a half turn has a squared chord of 4 - x * x, so an error e of that is one
    # of e / x in x, and of sqrt(e) at most.
    short = math.pi - exact / EARTH_RADIUS_M
    from_chord = min(math.sqrt(CHORD2_ERROR), CHORD2_ERROR / short if short > 0 else 1.0)
    assert abs(got - exact) <= max(1e-3, 1e-12 * exact, EARTH_RADIUS_M * from_chord)


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


@settings(max_examples=400, deadline=None)
@given(st.floats(0, 4) | st.floats(0, 1e-9).map(lambda a: 4 - a))
def test_metres_of_a_chord(chord2):
    exact = EARTH_RADIUS_M * 2 * mpmath.asin(mpmath.sqrt(mpmath.mpf(chord2)) / 2)
    assert abs(metres_of_chord(chord2) - exact) <= 1e-15 * exact


def test_a_chord_longer_than_a_diameter_is_half_the_globe():
    assert metres_of_chord(4.0) == metres_of_chord(np.nextafter(4.0, 5)) == math.pi * EARTH_RADIUS_M


@njit
def _falls(chord2, n):
    """Of n successive float64, how many have fewer metres than the one before."""
    falls = 0
    before = metres_of_chord(chord2)
    for _ in range(n):
        chord2 = np.nextafter(chord2, 5.0)
        metres = metres_of_chord(chord2)
        falls += metres < before
        before = metres
    return falls


@pytest.mark.parametrize(
    "chord2", [0, 1e-300, 1e-20, 1e-9, 1e-3, 0.1, 0.5, 1, 1.5, 1.9, 2, 2.1, 3, 3.5, 3.999, 4]
)
def test_metres_never_fall_as_the_chord_grows(chord2):
    n = 400_000
    assert _falls(max(0.0, chord2 - n / 2 * np.spacing(float(chord2))), n) == 0
