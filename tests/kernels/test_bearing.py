"""Bearings against mpmath: points far apart and a millimetre, poles, antimeridian, antipodes."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georesolve.kernels.bearing import bearings
from georesolve.kernels.query import Degrees, is_valid
from tests import oracle
from tests.kernels.point_sets import NASTY_LAT, NASTY_LON, SETS, antimeridian, poles, sphere

mpmath.mp.dps = 50

ERROR_DEG = 1e-13


def direction(lat, lon, to_lat, to_lon):
    """Where another point lies, by the textbook in 50 digits: to the east, north, and above."""
    radians = (mpmath.radians(mpmath.mpf(float(one))) for one in (lat, to_lat, to_lon, lon))
    one, other, end, start = radians
    (cos_one, sin_one), (cos_other, sin_other) = mpmath.cos_sin(one), mpmath.cos_sin(other)
    cos_east, sin_east = mpmath.cos_sin(end - start)
    return (
        sin_east * cos_other,
        cos_one * sin_other - sin_one * cos_other * cos_east,
        sin_one * sin_other + cos_one * cos_other * cos_east,
    )


def assert_right(here, there):
    """Each bearing is the true one, and near the antipode as near as the angle between allows."""
    found = bearings(Degrees(*here), Degrees(*there))
    assert ((found >= 0) & (found < 360)).all()
    for given_deg, *pair in zip(found.tolist(), *here, *there, strict=True):
        lat, lon, to_lat, to_lon = pair
        is_tiny = max(abs(to_lat - lat), abs(to_lon - lon)) < 1e-20
        # The textbook's difference loses twice the digits of a step.
        with mpmath.workdps(700 if is_tiny else 50):
            east, north, above = direction(*pair)
            sine = mpmath.hypot(east, north)
        if sine < (mpmath.mpf("1e-330") if is_tiny else 1e-25):
            continue  # One point, or an antipode: any bearing is right.
        off = abs((given_deg - mpmath.degrees(mpmath.atan2(east, north)) + 180) % 360 - 180)
        assert off <= (ERROR_DEG if above > 0 else ERROR_DEG / sine), pair


def pairs(n, seed):
    rng = np.random.default_rng(seed)
    return sphere(rng, n), sphere(rng, n)


def test_pairs_anywhere():
    assert_right(*pairs(10_000, 1))


def test_many_pairs_by_the_textbook_in_long_doubles():
    """10^5 of them, where 64 bits of a textbook's difference are enough: none is near."""
    here, there = pairs(100_000, 2)
    found = bearings(Degrees(*here), Degrees(*there))
    expected, sine = oracle.bearing_deg(*here, *there)
    off = np.abs((found - expected + 180) % 360 - 180)
    assert (off * sine <= ERROR_DEG).all()


@pytest.mark.parametrize("apart_m", [1e-6, 1e-3, 1.0, 1e3])
def test_points_that_are_close(apart_m):
    rng = np.random.default_rng(3)
    lat, lon = sphere(rng, 2_000)
    step = np.degrees(apart_m / oracle.RADIUS_M)
    east = rng.normal(0, step, lat.size) / np.cos(np.radians(lat))
    there = np.clip(lat + rng.normal(0, step, lat.size), -90, 90), lon + east
    assert_right((lat, lon), there)


@pytest.mark.parametrize("make", [poles, antimeridian])
def test_where_longitudes_meet(make):
    rng = np.random.default_rng(4)
    assert_right(make(rng, 2_000), make(rng, 2_000))


def test_a_millimetre_across_the_antimeridian():
    rng = np.random.default_rng(5)
    lat, off, other = rng.uniform(-80, 80, 2_000), *rng.uniform(0, 1e-8, (2, 2_000))
    west, east = (lat, 180 - off), (lat + rng.uniform(-1e-8, 1e-8, 2_000), -180 + other)
    assert_right(west, east)
    assert_right(east, west)
    assert_right(west, (east[0], east[1] + 360))


@settings(max_examples=400, deadline=None)
@given(
    *[
        st.sampled_from(NASTY_LAT) | st.floats(-90, 90),
        st.sampled_from(NASTY_LON) | st.floats(-180, 360),
    ]
    * 2
)
def test_any_pair(lat, lon, to_lat, to_lon):
    here, there = ([np.array([axis]) for axis in one] for one in ((lat, lon), (to_lat, to_lon)))
    assert_right(here, there)


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ((0, 0), (10, 0), 0),
        ((0, 0), (0, 10), 90),
        ((0, 350), (0, -20), 270),
        ((10, 20), (-10, 20), 180),
        # From a pole the longitude given says where north is.
        ((90, 0), (80, 30), 150),
        ((-90, 0), (80, 30), 30),
        ((47, 8), (90, 123), 0),
        ((47, 8), (-90, 123), 180),
        # Over the pole, on either side of the antimeridian.
        ((60, -180), (60, 0), 0),
        ((60, 180), (60, 360), 0),
        ((0, 0), (0, 180), 0),
        ((1, -5e-324), (1, -1e-300), 270),
        ((0, 0), (5e-324, 5e-324), 45),
        ((0, 0), (-1e-160, 1e-160), 135),
        ((89.99999999999999, 0), (89.99999999999999, 1e-310), 90),
    ],
)
def test_bearings_that_are_known(here, there, expected):
    one, other = (Degrees(*(np.array([float(a)]) for a in degrees)) for degrees in (here, there))
    assert bearings(one, other)[0] == pytest.approx(expected, abs=3e-14)


@pytest.mark.parametrize("name", SETS)
def test_sets_of_points_in_any_number_of_threads(name):
    there, here = SETS[name]
    if not there[0].size:
        return
    rows = np.arange(here[0].size) % there[0].size
    there = [axis[rows] for axis in there]
    found = bearings(Degrees(*here), Degrees(*there))
    many = bearings(*(Degrees(*(np.tile(axis, 20) for axis in one)) for one in (here, there)))
    assert many.tobytes() == np.tile(found, 20).tobytes()
    few = np.flatnonzero(is_valid(*here) & is_valid(*there))[:300]
    assert_right([axis[few] for axis in here], [axis[few] for axis in there])
