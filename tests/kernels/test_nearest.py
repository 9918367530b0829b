"""`nearest` against oracles: every algorithm, k, exclude_self, max_distance_m, any split."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from georesolve.kernels import (
    Query,
    StepsSpent,
    build_index,
    cells_cpu,
    find,
    measure,
    merge,
    nearest,
    order_cpu,
    tree_cpu,
)
from georesolve.kernels.coordinates_cpu import readable, unit_vectors
from georesolve.kernels.query import Degrees, Found
from georesolve.kernels.threads_cpu import allowed
from tests import oracle
from tests.kernels.point_sets import SETS, box, circle, cities, crowded, crowds, points, sphere

ALGORITHMS = ["auto", "tree", "brute"]
KS = [1, 2, 7, 64]


def same_bytes(left, right):
    return all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


def vectors(points):
    return unit_vectors(*points)[:, :3].T


def expected(references, observations, **query):
    return oracle.nearest_rows(vectors(references), vectors(observations), **query)


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("name", SETS)
def test_every_algorithm_finds_what_the_definition_says(name, k):
    references, observations = SETS[name]
    index = build_index(*references)
    want = find(index, *observations, k=k, algorithm="brute")
    sample = slice(None, None, max(1, observations[0].size // 300))
    rows, chords = expected(references, [p[sample] for p in observations], k=k)
    np.testing.assert_array_equal(want.reference[sample], rows)
    np.testing.assert_array_equal(want.key[sample], chords)
    for algorithm in ("auto", "tree"):
        assert same_bytes(find(index, *observations, k=k, algorithm=algorithm), want), algorithm


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize(
    "name",
    [
        "uniform",
        "duplicates",
        "cities",
        "NaN",
        "one point",
        "poles",
        "crowds seen from themselves",
        "crowds in one cell",
        "equator seen from a pole",
    ],
)
def test_a_row_never_matches_itself_when_excluded(name, k):
    lat, lon = (p[:4200] for p in SETS[name][1])
    index = build_index(lat, lon)
    want = find(index, lat, lon, k=k, exclude_self=True, algorithm="brute")
    sample = slice(0, 150)
    rows, _ = expected((lat, lon), (lat[sample], lon[sample]), k=k, exclude_self=True)
    np.testing.assert_array_equal(want.reference[sample], rows)
    assert not (want.reference == np.arange(lat.size)[:, None]).any()
    for algorithm in ALGORITHMS:
        if algorithm != "brute":
            got = find(index, lat, lon, k=k, exclude_self=True, algorithm=algorithm)
            assert same_bytes(got, want), algorithm
        part = find(
            index, lat[100:], lon[100:], k=k, exclude_self=True, first_row=100, algorithm=algorithm
        )
        assert same_bytes(part, [a[100:] for a in want]), algorithm


@pytest.mark.parametrize("name", [n for n, (r, o) in SETS.items() if r[0].size and o[0].size])
def test_the_row_is_the_nearest_one_of_the_true_globe(name):
    references, observations = SETS[name]
    step = max(1, observations[0].size // 200)
    lat, lon = (p[::step] for p in observations)
    answer = nearest(build_index(*references), lat, lon)
    valid = np.isfinite(references[0] + references[1]) & (np.abs(references[0]) <= 90)
    rows = np.flatnonzero(valid)
    # Of invalid observations it is not asked.
    seen = (np.nan_to_num(degrees, posinf=0.0)[:, None] for degrees in (lat, lon))
    chords = oracle.chord2_exact(*seen, *(p[rows] for p in references))
    for i in range(lat.size):
        if not (abs(lat[i]) <= 90 and np.isfinite(lon[i]) and valid.any()):
            assert answer.reference[i] == -1
            assert np.isnan(answer.distance_m[i])
            continue
        exact = chords[i]
        chord2 = exact[rows == answer.reference[i]][0]
        # A float64 unit vector is off by some 1e-16: what lies closer together than that ties.
        tied = np.sqrt(chord2) - np.sqrt(exact.min()) <= 1e-15
        assert tied
        haversine = oracle.haversine_m(lat[i], lon[i], *(p[rows] for p in references)).min()
        assert answer.distance_m[i] == pytest.approx(haversine, rel=1e-7, abs=0.2)


@settings(max_examples=60, deadline=None)
@given(crowded(), points(), st.sampled_from([1, 2, 7, 64]), st.booleans(), st.data())
def test_any_split_gives_the_same_bytes(references, observations, k, exclude_self, data):
    n, m = references[0].size, observations[0].size
    index = build_index(*references)
    query = {"k": k, "exclude_self": exclude_self}
    whole = find(index, *observations, algorithm="brute", **query)
    rows, chords = expected(references, observations, **query)
    np.testing.assert_array_equal(whole.reference, rows)
    np.testing.assert_array_equal(whole.key, chords)
    assert same_bytes(find(index, *observations, algorithm="tree", **query), whole)

    cuts = sorted(data.draw(st.sets(st.integers(0, n), max_size=3), label="cuts") | {0, n})
    pieces = data.draw(st.permutations(list(pairwise(cuts))), label="pieces")
    parts = []
    for start, stop in pieces:
        piece = build_index(*(p[start:stop] for p in references))
        found = find(piece, *observations, first_row=-start, algorithm="tree", **query)
        parts.append((found, start))
    if parts:
        merged = merge(parts)
        assert same_bytes(merged, whole)
        answer = nearest(index, *observations, **query)
        assert same_bytes(measure(merged), answer)
    middle = data.draw(st.integers(0, m), label="middle")
    halves = [
        find(index, *(p[s] for p in observations), first_row=f, algorithm="tree", **query)
        for s, f in ((slice(0, middle), 0), (slice(middle, m), middle))
    ]
    assert same_bytes([np.concatenate(a) for a in zip(*halves, strict=True)], whole)


@pytest.mark.parametrize("k", [1, 9])
@pytest.mark.parametrize("name", SETS)
def test_packets_in_windows_find_the_same(name, k, monkeypatch):
    references, observations = SETS[name]
    index = build_index(*references)
    brute = find(index, *observations, k=k, algorithm="brute")
    seen = Degrees(*observations)
    monkeypatch.setattr(order_cpu, "_WINDOW_OF_REFERENCES", 0)
    for window, by in ((10, "packets"), (1000, "packets"), (1000, "singles")):
        monkeypatch.setattr(order_cpu, "_WINDOW", window)
        found = tree_cpu.search(index, seen, Query(k), by=by)
        assert same_bytes(found, brute), (window, by)


@settings(max_examples=60, deadline=None)
@given(crowded(), points(), st.sampled_from([1, 2, 8, 20, 64]), st.booleans())
def test_packets_find_what_brute_force_finds(references, observations, k, exclude_self):
    index = build_index(*references)
    seen = Degrees(*observations)
    query = Query(k, exclude_self)
    whole = find(index, *observations, k=k, exclude_self=exclude_self, algorithm="brute")
    for by in ("packets", "singles"):
        assert same_bytes(tree_cpu.search(index, seen, query, by=by), whole), by


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("k", [2, 9, 64])
@pytest.mark.parametrize("places", [1, 3, 50, 9000])
def test_lists_tell_apart_by_row_what_is_equally_near_however_much_they_have_seen(
    places, k, exclude_self
):
    # Of one point or of three a packet sees more references than a key has numbers; degrees that
    # are 1e-13 apart have squared chords that keys do not tell apart.
    rng = np.random.default_rng(places)
    lat = rng.permutation(np.resize(1e-13 * np.arange(places), 9000))
    lon = np.resize([0.0, 0.0, 1e-13], 9000)
    index = build_index(lat, lon)
    seen = Degrees(lat[:40] + 0.1, lon[:40])
    whole = find(index, *seen, k=k, exclude_self=exclude_self, algorithm="brute")
    found = tree_cpu.search(index, seen, Query(k, exclude_self), by="packets")
    assert same_bytes(found, whole)


@pytest.mark.parametrize("name", SETS)
def test_cells_find_the_same(name):
    references, observations = SETS[name]
    index = build_index(*references)
    brute = find(index, *observations, algorithm="brute")
    found = tree_cpu.search(index, Degrees(*observations), Query(), by="cells")
    assert same_bytes(found, brute)


@settings(max_examples=200, deadline=None)
@given(crowded(), points())
def test_cells_find_what_brute_force_finds(references, observations):
    index = build_index(*references)
    whole = find(index, *observations, algorithm="brute")
    found = tree_cpu.search(index, Degrees(*observations), Query(), by="cells")
    assert same_bytes(found, whole)


@pytest.mark.parametrize(
    ("draw", "share"), [(sphere, 0.9), (box, 0.9), (cities, None)], ids=["sphere", "box", "cities"]
)
def test_cells_answer_most_observations_of_references_that_are_spread_evenly(draw, share):
    rng = np.random.default_rng(5)
    index = build_index(*draw(rng, 1 << 11))
    observations = readable(Degrees(*draw(rng, 1 << 17)))
    n = observations.lat_deg.size
    found = Found(np.empty((n, 1), np.int64), np.empty((n, 1)))
    left = cells_cpu.search(index, observations, found)
    assert (left is None) == (share is None)
    if left is not None:
        assert left.size <= (1.0 - share) * n
        brute = find(index, *observations, algorithm="brute")
        answered = np.setdiff1d(np.arange(n), left)
        assert same_bytes([a[answered] for a in found], [a[answered] for a in brute])
    answer = nearest(index, *observations)
    assert same_bytes(answer, nearest(index, *observations, algorithm="brute"))


@pytest.mark.parametrize("threads", range(1, config.NUMBA_NUM_THREADS + 1))
def test_the_number_of_threads_does_not_show(threads, monkeypatch):
    rng = np.random.default_rng(2)
    references, observations = cities(rng, 9000), sphere(rng, 30_000)
    want = nearest(build_index(*references), *observations)
    monkeypatch.setattr(allowed, "threads", threads)
    got = nearest(build_index(*references), *observations)
    assert same_bytes(got, want)


@pytest.mark.parametrize("k", [1, 9])
@pytest.mark.parametrize(
    ("algorithm", "by"), [("tree", "packets"), ("tree", "singles"), ("brute", None), ("auto", None)]
)
def test_a_search_ends_when_its_steps_are_spent(algorithm, by, k):
    # Of the pole all references are equally far, and a walk can leave out none of them.
    rng = np.random.default_rng(0)
    index = build_index(np.zeros(1 << 17), rng.uniform(-180, 180, 1 << 17))
    pole = Degrees(np.full(100, 90.0), np.zeros(100))

    def search(most_steps):
        if by is None:
            return find(index, *pole, k=k, algorithm=algorithm, most_steps=most_steps)
        return tree_cpu.search(index, pole, Query(k, most_steps=most_steps), by=by)

    for most_steps in (0, 1 << 10, 1 << 15, 1 << 20):
        with pytest.raises(StepsSpent):
            search(most_steps)
    assert same_bytes(search(1 << 28), search(None))
    if algorithm == "auto":
        # As few are enough where references are not equally far.
        spread, seen = build_index(*sphere(rng, 1 << 17)), sphere(rng, 100)
        assert same_bytes(find(spread, *seen, k=k, most_steps=1 << 20), find(spread, *seen, k=k))


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("k", [1, 8, 64])
def test_coincident_references_take_no_more_work_than_others(k, exclude_self):
    # 2 048 observations and 2^20 references at one point took 29 s, those spread out 3 ms.
    n = 1 << 15
    index = build_index(np.full(n, 7.5), np.full(n, -3.25))
    query = {"k": k, "exclude_self": exclude_self, "first_row": n - 200}
    seen = np.full(200, 7.5), np.full(200, -3.25)
    found = find(index, *seen, **query, algorithm="tree", most_steps=200 * 6000)
    assert same_bytes(found, find(index, *seen, **query, algorithm="brute"))


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("k", [1, 8, 64])
@pytest.mark.parametrize("by", ["packets", "singles"])
def test_references_on_a_circle_take_little_more_work_than_brute_force(by, k, exclude_self):
    rng = np.random.default_rng(3)
    index = build_index(*circle(rng, 60.0, 1 << 16))
    seen = Degrees(90 - rng.uniform(0, 1e-9, 64), rng.uniform(-180, 180, 64))
    steps = (64 << 16) * (1.0 if k == 1 else 2.5)
    query = Query(k, exclude_self, most_steps=int(1.5 * steps))
    found = tree_cpu.search(index, seen, query, by=by)
    rows = find(index, *seen, k=k, exclude_self=exclude_self, algorithm="brute")
    assert same_bytes(found, rows)


@pytest.mark.parametrize("lon_deg", [360.0, 1e-8])
def test_a_tree_holds_as_many_points_of_a_place_as_an_answer_can_name(lon_deg):
    # Both lie in one cell of the curve, where their points alternate.
    places = np.array([-0.0, 0.0]), np.array([0.0, lon_deg])
    index = build_index(*crowds(np.random.default_rng(0), places, 200))
    held = index.tree.rows[np.isfinite(index.tree.points[:, 0])].astype(int)
    for place in np.unique(index.vectors, axis=0):
        rows = np.flatnonzero((index.vectors == place).all(axis=1))
        assert np.isin(rows[:65], held).all()
        assert not np.isin(rows[65:], held).any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_greatest_distance_is_inclusive(algorithm):
    rng = np.random.default_rng(3)
    references, observations = sphere(rng, 500), sphere(rng, 300)
    index = build_index(*references)
    free = nearest(index, *observations, k=3)
    limit = free.distance_m[5, 1]
    kept = nearest(index, *observations, k=3, max_distance_m=limit, algorithm=algorithm)
    near = free.distance_m <= limit
    assert near[5].tolist() == [True, True, False]
    np.testing.assert_array_equal(kept.reference, np.where(near, free.reference, -1))
    np.testing.assert_array_equal(kept.distance_m, np.where(near, free.distance_m, np.nan))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_greatest_distance_cuts_the_order_near_an_antipode(algorithm):
    # Within a metre of the antipode of the observation: there, few chords differ in float64.
    rng = np.random.default_rng(0)
    lat, lon = rng.normal(0, 2e-6, 4000), 180 + rng.normal(0, 2e-6, 4000)
    index, here = build_index(lat, lon), (np.zeros(1), np.zeros(1))
    free = nearest(index, *here, k=64, algorithm=algorithm)
    assert (np.diff(free.distance_m[0]) >= 0).all()
    for limit in free.distance_m[0, [0, 7, 20]]:
        kept = nearest(index, *here, k=64, max_distance_m=limit, algorithm=algorithm)
        n = np.count_nonzero(free.distance_m[0] <= limit)
        assert kept.reference[0].tolist() == [*free.reference[0, :n], *[-1] * (64 - n)]
    # The distance to each reference, measured alone.
    least = nearest(build_index(*here), lat, lon).distance_m.min()
    assert free.distance_m[0, 0] == least
    one = nearest(index, *here, max_distance_m=least, algorithm=algorithm)
    assert one.reference[0] == free.reference[0, 0]


def test_a_greatest_distance_of_zero_keeps_what_stands_on_the_spot():
    index = build_index(np.array([90.0, 10.0, 10.0]), np.array([0.0, 180.0, 20.0]))
    lat, lon = np.array([90.0, 10.0, 10.0]), np.array([123.0, -180.0, 20.0000001])
    answer = nearest(index, lat, lon, max_distance_m=0)
    assert answer.reference.tolist() == [0, 1, -1]
    np.testing.assert_array_equal(answer.distance_m, [0.0, 0.0, np.nan])


def test_more_neighbours_than_references_leave_a_tail():
    index = build_index(np.array([0.0, np.nan, 1.0]), np.zeros(3))
    for algorithm in ALGORITHMS:
        answer = nearest(index, np.array([2.0]), np.array([0.0]), k=4, algorithm=algorithm)
        assert answer.reference.tolist() == [[2, 0, -1, -1]]
        assert np.isnan(answer.distance_m[0, 2:]).all()


@pytest.mark.parametrize("k", [0, 65, -1])
def test_k_is_refused_with_both_numbers(k):
    index = build_index(np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match=f"k must be 1 to 64, got {k}"):
        nearest(index, np.zeros(1), np.zeros(1), k=k)


def test_what_cannot_be_is_refused():
    index = build_index(np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="max_distance_m must be 0 or more, got -1"):
        nearest(index, np.zeros(1), np.zeros(1), max_distance_m=-1)
    with pytest.raises(ValueError, match="one of auto, tree, brute, got 'ball'"):
        nearest(index, np.zeros(1), np.zeros(1), algorithm="ball")
    # As long as that, and one number in memory.
    many = np.broadcast_to(0.0, 2**32 + 1)
    with pytest.raises(ValueError, match="4294967296 rows at most, got 4294967297"):
        build_index(many, many)
    with pytest.raises(ValueError, match="merge needs at least one part"):
        merge([])
    one, two = (find(index, np.zeros(1), np.zeros(1), k=k) for k in (1, 2))
    with pytest.raises(ValueError, match=r"got \(1, 1\) and \(1, 2\)"):
        merge([(one, 0), (two, 3)])
