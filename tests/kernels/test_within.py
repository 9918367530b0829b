"""`within` and `count_within` against oracles: distances, ties, copies, filters, any split."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from georesolve.kernels import (
    Within,
    build_index,
    count_within,
    nearest,
    order_cpu,
    within,
    within_cpu,
)
from georesolve.kernels.coordinates_cpu import answer_of, chord2_within, unit_vectors
from georesolve.kernels.distance import metres_of_chord
from georesolve.kernels.query import EARTH_RADIUS_M, Degrees, Found
from georesolve.kernels.threads_cpu import allowed
from tests import oracle
from tests.kernels.point_sets import SETS, cities, crowded, points, sphere

ALGORITHMS = ["auto", "tree", "brute"]
HALF_GIRTH_M = math.pi * EARTH_RADIUS_M
DISTANCES_M = [0.0, 1e-9, 1.0, 5e3, 3e5, 6e6, HALF_GIRTH_M / 2, 2e7, HALF_GIRTH_M, math.inf]

distances = st.sampled_from(DISTANCES_M) | st.floats(0, 2.1e7) | st.floats(0, 1e-3)
filters = st.sampled_from([{}, {"exclude_self": True}, {"once": True}])


def same_bytes(left, right):
    return all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


def vectors(points):
    return unit_vectors(*points)[:, :3].T


def metres(chord2):
    return answer_of(Found(np.empty(chord2.size, np.int64), chord2.copy())).distance_m


def expected(references, observations, distance_m, **query):
    """By the definition, the threshold too: what nearest's metres say is at most the distance."""
    n = observations[0].size
    starts, rows, chords = oracle.rows_within(vectors(references), vectors(observations), 9.0)
    distance = metres(chords)
    limit = np.repeat(np.broadcast_to(distance_m, n), np.diff(starts))
    own = np.repeat(query.get("first_row", 0) + np.arange(n), np.diff(starts))
    keep = distance <= limit
    if query.get("exclude_self"):
        keep &= rows != own
    if query.get("once"):
        keep &= rows > own
    counts = np.add.reduceat(np.append(keep, False), starts[:-1]) if n else starts[:0]
    counts = np.where(np.diff(starts) > 0, counts, 0).astype(np.int64)
    return np.append(0, counts.cumsum()), rows[keep], distance[keep]


@settings(max_examples=300, deadline=None)
@given(distances)
def test_the_threshold_is_the_greatest_squared_chord_within_the_distance(distance_m):
    (chord2,) = chord2_within(np.array([distance_m]))
    if distance_m >= HALF_GIRTH_M:
        assert chord2 > 4.0 + 1e-9
        return
    assert metres_of_chord(chord2) <= distance_m
    assert metres_of_chord(np.nextafter(chord2, 9)) > distance_m
    with mpmath.workdps(50):
        exact = 4 * mpmath.sin(mpmath.mpf(distance_m) / (2 * EARTH_RADIUS_M)) ** 2
    # Near the antipode a float64 of metres stands for many squared chords.
    assert chord2 == pytest.approx(float(exact), rel=4e-15, abs=1e-300)


@pytest.mark.parametrize("distance_m", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("name", SETS)
def test_every_algorithm_finds_what_the_definition_says(name, distance_m):
    references, observations = SETS[name]
    index = build_index(*references, copies=True)
    sample = slice(None, None, max(1, observations[0].size // 200))
    some = [p[sample] for p in observations]
    want = expected(references, some, distance_m)
    for algorithm in ALGORITHMS:
        assert same_bytes(within(index, *some, distance_m, algorithm=algorithm), want), algorithm
        counts = count_within(index, *some, distance_m, algorithm=algorithm)
        np.testing.assert_array_equal(counts, np.diff(want[0]))


@pytest.mark.parametrize("query", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("name", SETS)
def test_packets_and_singles_in_windows_find_what_brute_force_finds(name, query, monkeypatch):
    monkeypatch.setattr(order_cpu, "_WINDOW", 100)
    (lat, lon), observations = SETS[name]
    index = build_index(lat[:2000], lon[:2000], copies=True)
    some = Degrees(*(p[:5000:5].copy() for p in observations))
    each = 10 ** np.random.default_rng(3).uniform(0, 6.5, some.lat_deg.size)
    asked = Within(chord2_within(each), *query, first_row=7)
    whole = within_cpu.pairs(index, some, asked, "brute")
    for by in ("packets", "singles"):
        assert same_bytes(within_cpu.pairs(index, some, asked, by), whole), by
        counts = within_cpu.count(index, some, asked, by)
        np.testing.assert_array_equal(counts, np.diff(whole.starts))


@pytest.mark.parametrize("threads", range(1, config.NUMBA_NUM_THREADS + 1))
def test_the_number_of_threads_does_not_show(threads, monkeypatch):
    rng = np.random.default_rng(2)
    references, observations = cities(rng, 9000), cities(rng, 30_000)
    index = build_index(*references, copies=True)
    want = within(index, *observations, 500.0)
    assert want.starts[-1] > 30_000
    monkeypatch.setattr(allowed, "threads", threads)
    assert same_bytes(within(index, *observations, 500.0), want)
    counts = count_within(index, *observations, 500.0)
    np.testing.assert_array_equal(counts, np.diff(want.starts))


@settings(max_examples=100, deadline=None)
@given(crowded(), points(), st.data(), filters)
def test_any_split_gives_the_same_bytes(references, observations, data, query):
    n = observations[0].size
    one = distances.map(float)
    distance_m = data.draw(one | st.lists(one, min_size=n, max_size=n).map(np.array), "distance")
    index = build_index(*references, copies=True)
    want = expected(references, observations, distance_m, **query)
    for algorithm in ALGORITHMS:
        got = within(index, *observations, distance_m, algorithm=algorithm, **query)
        assert same_bytes(got, want), algorithm
        counts = count_within(index, *observations, distance_m, algorithm=algorithm, **query)
        np.testing.assert_array_equal(counts, np.diff(want[0]))
    middle = data.draw(st.integers(0, n), "middle")
    each = np.broadcast_to(distance_m, n)
    parts = [
        within(index, *(p[s] for p in observations), each[s].copy(), first_row=first, **query)
        for s, first in ((slice(0, middle), 0), (slice(middle, n), middle))
    ]
    left, right = parts
    starts = np.append(left.starts, left.starts[-1] + right.starts[1:])
    joined = [np.concatenate(two) for two in zip(left[1:], right[1:], strict=True)]
    assert same_bytes((starts, *joined), want)


@settings(max_examples=100, deadline=None)
@given(points(), points(), distances, st.booleans())
def test_within_finds_what_nearest_finds(references, observations, distance_m, exclude_self):
    index = build_index(*(p[:64] for p in references), copies=True)
    found = within(index, *observations, distance_m, exclude_self=exclude_self)
    near = nearest(index, *observations, k=64, max_distance_m=distance_m, exclude_self=exclude_self)
    there = near.reference >= 0
    np.testing.assert_array_equal(np.diff(found.starts), there.sum(axis=1))
    assert same_bytes(found[1:], (near.reference[there], near.distance_m[there]))


def test_an_index_without_all_copies_is_refused():
    lat, lon = np.zeros(200), np.zeros(200)
    index = build_index(lat, lon)
    assert not index.whole
    for search in (within, count_within):
        with pytest.raises(ValueError, match=r"build it with build_index\(.*copies=True\)"):
            search(index, lat[:1], lon[:1], 1.0)
    whole = build_index(lat, lon, copies=True)
    assert whole.whole
    np.testing.assert_array_equal(within(whole, lat[:1], lon[:1], 1.0).reference, np.arange(200))
    assert same_bytes(nearest(whole, lat, lon, k=64), nearest(index, lat, lon, k=64))


@pytest.mark.parametrize("name", SETS)
def test_an_index_is_whole_unless_copies_are_left_out(name):
    references, _ = SETS[name]
    assert build_index(*references, copies=True).whole
    held = vectors(references)
    held = held[:, np.isfinite(held[0])]
    most = np.unique(held, axis=1, return_counts=True)[1].max() if held.size else 0
    assert build_index(*references).whole == (most <= 65)


@pytest.mark.parametrize(
    ("distance_m", "error", "text"),
    [
        (-1.0, ValueError, "distance_m must be 0 or more, got -1.0"),
        (math.nan, ValueError, "distance_m must be 0 or more, got nan"),
        (np.array([1.0, 2.0, -3.0]), ValueError, r"got -3\.0 in row 2"),
        (np.array([math.nan, 2.0, -3.0]), ValueError, r"got nan in row 0"),
        (np.ones(2), ValueError, r"a number or of shape \(3,\), .* got shape \(2,\)"),
        (np.array(["a", "b", "c"]), TypeError, "must hold real numbers"),
        (None, TypeError, "distance_m must be metres or an array of them, got None"),
        ("5", TypeError, "distance_m must be metres or an array of them, got '5'"),
    ],
)
def test_a_distance_that_is_none_is_refused(distance_m, error, text):
    index = build_index(*sphere(np.random.default_rng(1), 10))
    for search in (within, count_within):
        with pytest.raises(error, match=text):
            search(index, np.zeros(3), np.zeros(3), distance_m)
