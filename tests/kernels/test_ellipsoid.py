"""The nearest on the ellipsoid against geodesics of PROJ: all sets, algorithms and splits."""

import numpy as np
import pytest
from numba import njit
from pyproj import Geod

from georesolve.kernels import (
    StepsSpent,
    build_index,
    count_within,
    find,
    measure,
    merge,
    nearest,
    within,
)
from georesolve.kernels.distance import squared_chord
from georesolve.kernels.ellipsoid import innermost, outermost, reach
from georesolve.kernels.geodesic import geodesic_m, point
from georesolve.kernels.query import is_valid
from tests.kernels.point_sets import SETS, box, sphere

WITHIN_M = 1e-6
WGS84 = Geod(ellps="WGS84")
SAMPLE = 20


def geodesics(observation, references):
    """Metres to each reference, infinite to those that are not valid."""
    lat, lon = references
    valid = is_valid(lat, lon)
    here = [np.full(valid.sum(), axis) for axis in observation]
    metres = np.full(lat.size, np.inf)
    metres[valid] = WGS84.inv(here[1], here[0], lon[valid], lat[valid])[2]
    return metres


def sampled(name):
    references, observations = SETS[name]
    step = max(1, observations[0].size // SAMPLE)
    return references, [axis[::step].copy() for axis in observations]


def assert_nearest(references, observations, answer, k, left_out=None):
    """The k least of all geodesics, and rows that are as far as they are said to be."""
    reference, metres = (one.reshape(-1, k) for one in answer)
    for i, observation in enumerate(zip(*observations, strict=True)):
        if not is_valid(*observation):
            assert (reference[i] == -1).all()
            continue
        all_of_them = geodesics(observation, references)
        if left_out is not None:
            all_of_them[left_out[i]] = np.inf
        n = min(k, np.isfinite(all_of_them).sum())
        assert (reference[i, n:] == -1).all()
        assert np.isnan(metres[i, n:]).all()
        rows = reference[i, :n]
        assert np.unique(rows).size == n
        np.testing.assert_allclose(metres[i, :n], np.sort(all_of_them)[:n], rtol=0, atol=WITHIN_M)
        np.testing.assert_allclose(metres[i, :n], all_of_them[rows], rtol=0, atol=WITHIN_M)
        if n == 0:
            continue
        tied = metres[i, 1:n] == metres[i, : n - 1]
        assert (np.diff(metres[i, :n]) >= 0).all()
        assert (np.diff(rows)[tied] > 0).all()


def same_bytes(left, right):
    return all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("k", [1, 3, 64])
@pytest.mark.parametrize("name", SETS)
def test_every_algorithm_finds_the_least_geodesics(name, k):
    references, observations = sampled(name)
    index = build_index(*references, earth="wgs84")
    want = nearest(index, *observations, k=k, algorithm="brute")
    assert_nearest(references, observations, want, k)
    assert same_bytes(nearest(index, *observations, k=k), want)
    # Many walk together, few by themselves.
    many = [np.tile(axis, 12) for axis in observations]
    found = nearest(index, *many, k=k, algorithm="tree")
    assert same_bytes(found, [np.concatenate([one] * 12) for one in want])


@pytest.mark.parametrize("k", [1, 5])
def test_a_row_never_matches_itself_when_excluded(k):
    lat, lon = (axis[:600] for axis in SETS["duplicates"][0])
    index = build_index(lat, lon, earth="wgs84")
    want = nearest(index, lat, lon, k=k, exclude_self=True, algorithm="brute")
    sample = slice(100, 140)
    rows = np.arange(100, 140)
    assert_nearest((lat, lon), (lat[sample], lon[sample]), [one[sample] for one in want], k, rows)
    assert same_bytes(nearest(index, lat, lon, k=k, exclude_self=True), want)
    part = nearest(index, lat[sample], lon[sample], k=k, exclude_self=True, first_row=100)
    assert same_bytes(part, [one[sample] for one in want])


def test_pieces_of_the_references_merge_to_the_whole():
    references, observations = SETS["cities"]
    whole = nearest(build_index(*references, earth="wgs84"), *observations, k=3)
    parts = [
        (
            find(
                build_index(*(a[i : i + 900] for a in references), earth="wgs84"),
                *observations,
                k=3,
            ),
            i,
        )
        for i in range(0, references[0].size, 900)
    ]
    assert same_bytes(measure(merge(parts), earth="wgs84"), whole)
    limit = float(np.median(whole.distance_m))
    near = measure(merge(parts), earth="wgs84", max_distance_m=limit)
    assert (near.reference >= 0).sum() == (whole.distance_m <= limit).sum()


@pytest.mark.parametrize("name", ["uniform", "box", "duplicates", "poles", "antipode", "NaN"])
def test_all_within_a_distance(name):
    references, observations = sampled(name)
    index = build_index(*references, copies=True, earth="wgs84")
    valid = [i for i in range(observations[0].size) if is_valid(*(a[i] for a in observations))]
    lengths = np.array([geodesics([a[i] for a in observations], references) for i in valid])
    for share in (0.002, 0.3):
        limit = float(np.quantile(lengths[np.isfinite(lengths)], share)) + 1e-3
        limit += 1e-2 * (np.abs(lengths - limit).min() < 1e-5)
        found = within(index, *observations, limit)
        counts = np.zeros(observations[0].size, np.int64)
        counts[valid] = (lengths <= limit).sum(axis=1)
        np.testing.assert_array_equal(np.diff(found.starts), counts)
        for algorithm in ("tree", "brute"):
            assert same_bytes(within(index, *observations, limit, algorithm=algorithm), found)
            same = count_within(index, *observations, limit, algorithm=algorithm)
            np.testing.assert_array_equal(same, counts)
        for i, row in zip(valid, lengths, strict=True):
            own = slice(found.starts[i], found.starts[i + 1])
            np.testing.assert_allclose(
                found.distance_m[own], row[found.reference[own]], 0, WITHIN_M
            )
            assert (np.diff(found.distance_m[own]) >= 0).all()
            assert np.unique(found.reference[own]).size == counts[i]


def test_pairs_of_a_set_with_itself():
    lat, lon = sphere(np.random.default_rng(1), 400)
    index = build_index(lat, lon, copies=True, earth="wgs84")
    own = within(index, lat, lon, 2e6)
    others, once = (
        within(index, lat, lon, 2e6, **{name: True}) for name in ("exclude_self", "once")
    )
    assert own.reference.size == others.reference.size + lat.size
    assert others.reference.size == 2 * once.reference.size > 0
    for name, pairs in (("exclude_self", others), ("once", once)):
        counts = count_within(index, lat, lon, 2e6, **{name: True})
        np.testing.assert_array_equal(counts, np.diff(pairs.starts))


@njit(error_model="numpy")
def bounds(lat, lon, to_lat, to_lon):
    found = np.empty((5, lat.size))
    for i in range(lat.size):
        x, y, z = point(lat[i], lon[i])
        to_x, to_y, to_z = point(to_lat[i], to_lon[i])
        metres = geodesic_m(x, y, z, to_x, to_y, to_z)
        chord2 = squared_chord(x, y, z, to_x, to_y, to_z)
        found[0, i], found[1, i] = chord2, metres
        found[2, i], found[3, i], found[4, i] = outermost(metres), innermost(metres), reach(chord2)
    return found


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e-2, 1.0, 100.0])
def test_chords_bound_geodesics_on_both_sides(scale):
    rng = np.random.default_rng(2)
    lat, lon = sphere(rng, 40_000)
    there = np.clip(lat + scale * rng.normal(size=lat.size), -90, 90)
    chord2, _, outer, inner, _ = bounds(
        lat, lon, there, (lon + scale * rng.normal(size=lat.size)) % 360
    )
    assert (inner <= chord2).all()
    assert (chord2 <= outer).all()
    chord2, _, outer, inner, _ = bounds(lat, lon, -there, (lon + 180) % 360)
    assert (inner <= chord2).all()
    assert (chord2 <= outer).all()


def test_what_is_no_farther_is_within_the_reach_of_a_chord():
    """Of all pairs, by their chords, none that is nearer than one before it is out of its reach."""
    rng = np.random.default_rng(3)
    lat, lon = sphere(rng, 200_000)
    to_lat, to_lon = sphere(rng, 200_000)
    far = rng.random(lat.size) < 0.5
    to_lat[far], to_lon[far] = -lat[far] + rng.normal(0, 0.5, far.sum()), (lon[far] + 180) % 360
    chord2, metres, *_, most = bounds(lat, lon, np.clip(to_lat, -90, 90), to_lon)
    order = np.argsort(metres)
    longest = np.maximum.accumulate(chord2[order])
    assert (longest <= most[order] * (1 + 1e-12)).all()


def test_a_search_that_takes_too_long_ends():
    references, observations = box(np.random.default_rng(4), 20_000), (np.zeros(64), np.zeros(64))
    index = build_index(*references, earth="wgs84")
    with pytest.raises(StepsSpent, match="takes more than 1000 steps"):
        nearest(index, *observations, most_steps=1000)


def test_what_is_found_by_chords_bounds_a_walk():
    """Of a town far away geodesics tell more than chords: then each observation walks."""
    random = np.random.default_rng(1)
    lat, lon = random.normal(0, 0.01, (2, 4000))
    observations = random.uniform(-0.01, 0.01, (2, 100))
    index = build_index(48 + lat, 11 + lon, earth="wgs84")
    there = observations[0] - 28, observations[1] + 11
    found = find(index, *there, most_steps=400_000)
    assert same_bytes(found, find(index, *there, algorithm="brute"))


def test_an_earth_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="earth must be one of sphere, wgs84, got 'flat'"):
        build_index(np.zeros(1), np.zeros(1), earth="flat")
