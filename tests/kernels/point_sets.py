"""Point sets that are hard on a search: degrees of references, then of observations."""

import numpy as np
from hypothesis import strategies as st

NASTY_LAT = [-90.0, -89.99999999999999, -45.0, -0.0, 0.0, 5e-324, 1e-9, 45.0, 60.0, 90.0]
NASTY_LAT += [-3e-155, 1e-160]
NASTY_LON = [-180.0, -179.99999999999997, -90.0, -0.0, 0.0, 1e-9, 45.0, 90.0, 180.0, 270.0, 360.0]
NASTY_LON += [-1e-160, 2e-310]


def sphere(rng, n):
    return np.degrees(np.arcsin(rng.uniform(-1, 1, n))), rng.uniform(-180, 180, n)


def box(rng, n):
    """A street: some metres apart in a box of 10 km."""
    return 48.0 + rng.uniform(0, 0.09, n), 11.0 + rng.uniform(0, 0.13, n)


def cities(rng, n):
    lat, lon = sphere(np.random.default_rng(5), 40)
    place = rng.choice(40, n, p=(w := 1 / np.arange(1, 41)) / w.sum())
    return np.clip(lat[place] + rng.normal(0, 0.01, n), -90, 90), lon[place] + rng.normal(
        0, 0.01, n
    )


def grid(step, offset=0.0):
    lat, lon = np.meshgrid(np.arange(-60, 60, step) + offset, np.arange(-60, 60, step) + offset)
    return lat.ravel().astype(float), lon.ravel().astype(float)


def poles(rng, n):
    lat = np.where(rng.random(n) < 0.5, 90.0, -90.0) * (1 - rng.choice([0, 1e-16, 1e-9, 1e-3], n))
    return lat, rng.uniform(-180, 360, n)


def antimeridian(rng, n):
    side = rng.choice([-180.0, 180.0], n)
    return rng.uniform(-80, 80, n), side - np.sign(side) * rng.choice([0, 1e-12, 1e-6, 0.1], n)


def magnitudes(rng, n):
    """Points with coordinates of all magnitudes: from 1e-320 degrees to the limit."""
    return tuple(
        rng.choice([-1.0, 1.0], n) * np.minimum(10 ** rng.uniform(-320, np.log10(limit), n), limit)
        for limit in (90.0, 180.0)
    )


def equatorial(rng, n):
    """Points with latitudes of all magnitudes, and any longitude."""
    return magnitudes(rng, n)[0], rng.uniform(-180, 360, n)


def crowds(rng, places, n):
    """So many places with n points each, in any order: more than an answer can name."""
    order = rng.permutation(n * places[0].size)
    return tuple(np.repeat(degrees, n)[order] for degrees in places)


def circle(rng, lat_deg, n):
    """References of which those who stand at the pole see all equally far."""
    return np.full(n, lat_deg), rng.uniform(-180, 180, n)


def with_nan(rng, points):
    lat, lon = points[0].copy(), points[1].copy()
    lat[rng.random(lat.size) < 0.1] = np.nan
    lon[rng.random(lon.size) < 0.1] = np.inf
    lat[:1] = 91.0
    return lat, lon


def _sets():
    rng = np.random.default_rng(11)
    nodes = grid(6)
    return {
        "uniform": (sphere(rng, 5000), sphere(rng, 6000)),
        "few references": (sphere(rng, 9), sphere(rng, 5000)),
        "few observations": (sphere(rng, 20000), sphere(rng, 50)),
        "one reference": (sphere(rng, 1), sphere(rng, 4500)),
        "one of each": (sphere(rng, 1), sphere(rng, 1)),
        "box": (box(rng, 4000), box(rng, 5000)),
        "box seen from afar": (box(rng, 2000), sphere(rng, 4500)),
        "box and one outlier": (
            tuple(np.append(p, 0.0) for p in box(rng, 3000)),
            tuple(np.append(p, 0.0) for p in box(rng, 5000)),
        ),
        "cities": (cities(rng, 4000), cities(rng, 5000)),
        "poles": (poles(rng, 2000), poles(rng, 4500)),
        "antimeridian": (antimeridian(rng, 3000), antimeridian(rng, 4500)),
        "magnitudes": (magnitudes(rng, 3000), magnitudes(rng, 4500)),
        "equatorial": (equatorial(rng, 3000), equatorial(rng, 4500)),
        "between nodes": (nodes, tuple(np.tile(p, 12) for p in grid(6, 3.0))),
        "duplicates": (tuple(np.repeat(p, 9) for p in nodes), tuple(np.tile(p, 12) for p in nodes)),
        "crowds": (
            crowds(rng, sphere(rng, 40), 100),
            sphere(rng, 4500),
        ),
        "crowds in one cell": (
            crowds(rng, (np.array([0.0, -0.0, 1e-8]), np.array([0.0, 360.0, 1e-8])), 900),
            (rng.normal(0, 1e-8, 4500), rng.normal(0, 1e-8, 4500)),
        ),
        "crowds seen from themselves": (crowds(rng, sphere(rng, 30), 150),) * 2,
        "equator seen from a pole": (
            circle(rng, 0.0, 8_000),
            (90 - rng.choice([0, 1e-9, 1e-3], 4500), rng.uniform(-180, 180, 4500)),
        ),
        "antipode": (
            (rng.normal(0, 1e-4, 8_000), 180 + rng.normal(0, 1e-4, 8_000)),
            (rng.normal(0, 1e-4, 4500), rng.normal(0, 1e-4, 4500)),
        ),
        "one point": ((np.full(300, 7.5), np.full(300, -3.25)),) * 2,
        "NaN": (with_nan(rng, sphere(rng, 3000)), with_nan(rng, sphere(rng, 6000))),
        "only NaN": ((np.full(20, np.nan),) * 2, sphere(rng, 30)),
        "no reference": ((np.empty(0),) * 2, sphere(rng, 30)),
        "no observation": (sphere(rng, 30), (np.empty(0),) * 2),
    }


SETS = _sets()


@st.composite
def points(draw, max_size=60):
    """Points from few values: poles, edges, duplicates and ties are common, some are invalid."""
    lat = st.sampled_from([*NASTY_LAT, *range(-88, 90, 8)]) | st.floats(-90, 90)
    lon = st.sampled_from([*NASTY_LON, *range(-176, 180, 16)]) | st.floats(-180, 360)
    pair = st.tuples(lat, lon) | st.sampled_from([(np.nan, 0.0), (0.0, np.inf), (95.0, 5.0)])
    pairs = np.array(draw(st.lists(pair, max_size=max_size)), float).reshape(-1, 2)
    repeats = draw(st.sampled_from([1, 1, 3]))
    return np.repeat(pairs[:, 0], repeats), np.repeat(pairs[:, 1], repeats)


def crowded():
    """Points as above, or a few of them more often than an answer can name them."""
    seeds = st.integers(0, 99).map(np.random.default_rng)
    return points() | st.builds(crowds, seeds, points(max_size=6), st.integers(60, 80))
