"""Geodesics of WGS 84 against GeographicLib: anywhere, antipodes, poles, 1 mm apart, tiny."""

import numpy as np
import pytest
from geographiclib.geodesic import Geodesic
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from pyproj import Geod

from georesolve.kernels.bearing import bearings
from georesolve.kernels.geodesic import FLATTENING, SHORT2, geodesic_m, point
from georesolve.kernels.query import Degrees
from tests.kernels.point_sets import antimeridian, equatorial, magnitudes, poles, sphere

WITHIN_M = 1e-6
N = 1_000


@njit(error_model="numpy")
def lengths(lat, lon, to_lat, to_lon):
    """Metres there, and metres back."""
    metres = np.empty((2, lat.size))
    for i in range(lat.size):
        x, y, z = point(lat[i], lon[i])
        to_x, to_y, to_z = point(to_lat[i], to_lon[i])
        metres[0, i] = geodesic_m(x, y, z, to_x, to_y, to_z)
        metres[1, i] = geodesic_m(to_x, to_y, to_z, x, y, z)
    return metres


def inverse(here, there):
    """Metres and azimuths by GeographicLib."""
    mask = Geodesic.DISTANCE | Geodesic.AZIMUTH
    found = [Geodesic.WGS84.Inverse(*pair, mask) for pair in zip(*here, *there, strict=True)]
    return np.array([(one["s12"], one["azi1"] % 360) for one in found]).T


def assert_right(here, there, turned_m=2e-8):
    here, there = ([np.asarray(axis, float) for axis in one] for one in (here, there))
    metres, azimuth = inverse(here, there)
    found, back = lengths(*here, *there)
    assert found.tobytes() == back.tobytes()
    assert np.abs(found - metres).max() <= WITHIN_M
    bearing = bearings(Degrees(*here), Degrees(*there), "wgs84")
    assert ((bearing >= 0) & (bearing < 360)).all()
    # Near an antipode a little way at the other end turns a line by much.
    off = np.radians(np.abs((bearing - azimuth + 180) % 360 - 180))
    # To the antipode two are as short.
    mirrored = np.radians(np.abs((bearing + azimuth) % 360 - 180))
    off = np.where(np.abs(here[0] + there[0]) < 1e-9, np.minimum(off, mirrored), off)
    reduced = [
        Geodesic.WGS84.Inverse(*pair, Geodesic.REDUCEDLENGTH)["m12"]
        for pair in zip(*here, *there, strict=True)
    ]
    apart = np.abs(reduced) > 1
    assert (off * np.abs(reduced) <= turned_m)[apart].all()


def drawn(make, seed):
    rng = np.random.default_rng(seed)
    return make(rng, N), make(rng, N)


def away(here, metres, rng):
    """Points so far from others, in any direction."""
    azimuths = rng.uniform(0, 360, here[0].size)
    found = [Geodesic.WGS84.Direct(*pair, metres) for pair in zip(*here, azimuths, strict=True)]
    return [np.array([one[name] for one in found]) for name in ("lat2", "lon2")]


def equator(rng, n):
    return rng.choice([0, 0, -0.0, 1e-9, -1e-9, 1e-3], n), rng.uniform(-180, 360, n)


@pytest.mark.parametrize("make", [sphere, poles, antimeridian, equator])
def test_pairs(make):
    assert_right(*drawn(make, 1))


@pytest.mark.parametrize("make", [magnitudes, equatorial])
def test_a_million_pairs_of_all_magnitudes(make):
    """Pairs with latitudes and longitudes whose squares underflow, too; PROJ has GeographicLib."""
    rng = np.random.default_rng(6)
    (lat, lon), (to_lat, to_lon) = make(rng, 1_000_000), make(rng, 1_000_000)
    there, back = lengths(lat, lon, to_lat, to_lon)
    assert there.tobytes() == back.tobytes()
    expected = Geod(ellps="WGS84").inv(lon, lat, to_lon, to_lat)[2]
    assert np.abs(there - expected).max() <= WITHIN_M


exponents = st.floats(-324, -140) | st.floats(-324, 1.9)
degrees = st.builds(lambda sign, exponent: sign * 10**exponent, st.sampled_from([-1, 1]), exponents)


@settings(max_examples=1000, deadline=None)
@given(
    *[st.sampled_from([0.0, -0.0]) | degrees] * 2,
    st.sampled_from([0.0, 180.0, 179.4, -179.5]) | degrees | st.floats(-180, 180),
)
def test_any_magnitude(lat, to_lat, lon):
    assert_right(([lat], [0.0]), ([to_lat], [lon]))


def test_azimuths_of_tiny_steps():
    """On a flat neighbourhood of (0, 0): by the radii of curvature there, at any scale."""
    rng = np.random.default_rng(7)
    north, east = rng.normal(size=(2, N))
    expected = np.degrees(np.arctan2(east, north * (1 - FLATTENING) ** 2)) % 360
    for exponent in range(-1000, -40, 8):
        there = Degrees(np.ldexp(north, exponent), np.ldexp(east, exponent))
        bearing = bearings(Degrees(np.zeros(N), np.zeros(N)), there, "wgs84")
        # Numbers below 2^-1022 have fewer bits, which turns the true direction by as much.
        turned = 1e-12 + np.degrees(2.0 ** (-1073 - exponent)) / np.hypot(north, east)
        assert (np.abs((bearing - expected + 180) % 360 - 180) <= turned).all()


@pytest.mark.parametrize("off_deg", [0, 1e-12, 1e-6, 1e-3, 0.2, 1.0])
def test_antipodes(off_deg):
    rng = np.random.default_rng(2)
    lat, lon = sphere(rng, N)
    there = np.clip(-lat + rng.normal(0, off_deg, N), -90, 90), lon + 180
    assert_right((lat, lon), (there[0], (there[1] + rng.normal(0, off_deg, N) / 2) % 360))


def test_along_the_equator_to_the_antipode():
    rng = np.random.default_rng(3)
    lat, lon = equator(rng, N)
    assert_right((lat, lon), (equator(rng, N)[0], (lon + 180 - rng.uniform(0, 1, N)) % 360))


@pytest.mark.parametrize("metres", [1e-3, 1.0, 1e3, 1e5, 2.9e5, 3.1e5, 7e5])
def test_lines_of_one_length(metres):
    rng = np.random.default_rng(4)
    here = sphere(rng, N)
    assert_right(here, away(here, metres, rng))


def test_lengths_meet_where_the_way_to_make_them_changes():
    rng = np.random.default_rng(5)
    lat, lon = sphere(rng, N)
    limit = SHORT2**0.5 * 6_378_137
    found = [lengths(lat, lon, *away((lat, lon), limit + off, rng))[0] for off in (-50, 50)]
    assert np.abs(np.array(found) - limit - np.array([[-50], [50]])).max() <= WITHIN_M


def test_no_line_leads_from_or_to_what_is_not_valid():
    nan = np.array([np.nan, 91.0, 0.0])
    assert np.isnan(lengths(nan, np.zeros(3), np.zeros(3), np.array([0, 0, 400.0]))).all()
