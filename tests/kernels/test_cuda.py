"""The kernels on a GPU, against numpy on the CPU: the same rows and the same bits."""

import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

cp = pytest.importorskip("cupy", reason="needs CuPy and a GPU")

from georesolve.benchmarks import kernels_cuda, peers_cuda, radius_cuda  # noqa: E402
from georesolve.benchmarks.inputs import inputs as evenly  # noqa: E402
from georesolve.kernels import (  # noqa: E402
    build_index,
    cells_cuda,
    nearest,
    order_cuda,
    reduce_cuda,
    sizes_cuda,
    tree_cuda,
    walk_cuda,
    ways,
)
from georesolve.kernels.coordinates_cpu import unit_vectors as unit_vectors_cpu  # noqa: E402
from georesolve.kernels.coordinates_cuda import answer_of, unit_vectors  # noqa: E402
from georesolve.kernels.query import Degrees, Found, Query  # noqa: E402
from tests.conftest import sphere  # noqa: E402
from tests.kernels.point_sets import SETS, points  # noqa: E402

pytestmark = pytest.mark.gpu


def naive(vectors, observations, query):
    """The k nearest by sorting every distance of an observation, in numpy."""
    n, k = observations.shape[1], query.k
    rows, chords = np.full((n, k), -1), np.full((n, k), math.inf)
    for i in range(n):
        dx, dy, dz = (vectors[axis] - observations[axis, i] for axis in range(3))
        chord2 = (dx * dx + dy * dy) + dz * dz
        chord2[np.isnan(chord2)] = math.inf
        if query.exclude_self and 0 <= query.first_row + i < chord2.size:
            chord2[query.first_row + i] = math.inf
        best = np.argsort(chord2, kind="stable")[:k]
        best = best[chord2[best] < math.inf]
        rows[i, : best.size], chords[i, : best.size] = best, chord2[best]
    return Found(rows, chords)


def uniform(rng, n):
    return np.degrees(np.arcsin(rng.uniform(-1, 1, n))), rng.uniform(-180, 180, n)


def inputs(name):
    """Latitudes and longitudes of references, then of observations."""
    rng = np.random.default_rng(1)
    if name == "uniform":
        return *uniform(rng, 5000), *uniform(rng, 3000)
    if name == "one leaf":
        return *uniform(rng, 7), *uniform(rng, 300)
    if name == "one":
        return *uniform(rng, 1), *uniform(rng, 50)
    if name == "many":
        return *uniform(rng, 60_000), *uniform(rng, 200)
    if name == "clustered":
        lat, lon = uniform(rng, 30)
        pick, other = rng.integers(0, 30, 6000), rng.integers(0, 30, 2000)
        return (
            np.clip(lat[pick] + rng.normal(0, 0.01, 6000), -90, 90),
            lon[pick] + rng.normal(0, 0.01, 6000),
            np.clip(lat[other] + rng.normal(0, 0.02, 2000), -90, 90),
            lon[other] + rng.normal(0, 0.02, 2000),
        )
    if name == "box":
        return (
            47.0 + rng.uniform(0, 0.1, 4000), 8.0 + rng.uniform(0, 0.1, 4000),
            47.0 + rng.uniform(0, 0.1, 2000), 8.0 + rng.uniform(0, 0.1, 2000),
        )  # fmt: skip
    if name == "box seen from afar":
        return 47.0 + rng.uniform(0, 0.1, 4000), 8.0 + rng.uniform(0, 0.1, 4000), *uniform(rng, 999)
    if name == "millimetres":
        return (
            rng.uniform(0, 1e-8, 2000), rng.uniform(0, 1e-8, 2000),
            rng.uniform(0, 1e-8, 1000), rng.uniform(0, 1e-8, 1000),
        )  # fmt: skip
    if name == "grid":
        lat, lon = (a.ravel() for a in np.meshgrid(np.arange(-30.0, 30), np.arange(-40.0, 40)))
        return lat, lon, lat + 0.5, lon + 0.5
    if name == "duplicates":
        lat, lon = uniform(rng, 40)
        pick = rng.integers(0, 40, 3000)
        return lat[pick], lon[pick], lat[pick[:500]], lon[pick[:500]]
    if name == "seams":
        lat = np.array([90.0, -90, 90, -90, 0, 0, 0, 45, -45, -45, -0.0, 1e-200] * 20)
        lon = np.array([0.0, 13, 77, 180, 180, -180, 360, 90, 180, -180, 0, 1e-200] * 20)
        lat[12:], lon[12:] = (
            np.clip(lat[12:] + rng.normal(0, 1, 228), -90, 90),
            np.clip(lon[12:] + rng.normal(0, 1, 228), -180, 360),
        )
        return lat, lon, np.concatenate([lat[:40], -lat]), np.concatenate([lon[:40], lon])
    if name == "invalid":
        lat, lon = uniform(rng, 2000)
        lat[::3], lon[1::7] = math.nan, 1e9
        return lat, lon, lat[::-1][:700].copy(), lon[:700].copy()
    if name == "rings":
        # Around each of few centres, references all but equally near: float32 tells no two apart.
        lat, lon = uniform(rng, 9)
        turn, pick = rng.uniform(0, 2 * math.pi, 3000), rng.integers(0, 9, 3000)
        radius = 0.5 + rng.choice([0, 1e-13, 1e-11, 1e-9], 3000)
        lat = np.clip(lat, -60, 60)
        middle, away = np.radians(lat[pick]), np.radians(radius)
        north = np.sin(middle) * np.cos(away) + np.cos(middle) * np.sin(away) * np.cos(turn)
        east = np.arctan2(
            np.sin(turn) * np.sin(away) * np.cos(middle), np.cos(away) - np.sin(middle) * north
        )
        return (
            np.degrees(np.arcsin(north)), np.clip(lon[pick] + np.degrees(east), -180, 180),
            np.repeat(lat, 99), np.repeat(lon, 99),
        )  # fmt: skip
    if name == "copies":
        # More of each place than an answer can hold, in any order, and places share a cell.
        lat, lon = uniform(rng, 4000)
        pick = rng.integers(0, 5, 3000)
        lat[:3000], lon[:3000] = 47.0 + 1e-4 * pick, 8.0 + 1e-3 * (pick % 2)
        turn = rng.permutation(4000)
        lat, lon = lat[turn], lon[turn]
        return lat, lon, np.append(lat[:900], 47 + 1e-7), np.append(lon[:900], 8.0)
    if name == "a metre of a global set":
        # And a millimetre of that metre.
        lat, lon = uniform(rng, 9000)
        lat[:8000], lon[:8000] = 47 + rng.uniform(0, 1e-5, 8000), 8 + rng.uniform(0, 1e-5, 8000)
        lat[:3000] = 47 + rng.uniform(0, 1e-8, 3000)
        lon[:3000] = 8 + rng.uniform(0, 1e-8, 3000)
        turn = rng.permutation(9000)
        return lat[turn], lon[turn], lat[turn[:700]] + 3e-9, lon[turn[:700]]
    if name == "a metre from afar":
        # float32 resolves metres from there.
        lat, lon = rng.uniform(-60, -50, 9000), rng.uniform(-180, -170, 9000)
        lat[:8000], lon[:8000] = 47 + rng.uniform(0, 1e-5, 8000), 8 + rng.uniform(0, 1e-5, 8000)
        turn = rng.permutation(9000)
        away = rng.choice([-1, 1], (2, 400)) * rng.uniform(10, 20, (2, 400))
        return lat[turn], lon[turn], 47 + away[0], 8 + away[1]
    if name == "circle":
        turn = rng.uniform(-180, 180, 9000)
        lat = 90 - rng.choice([0, 0, 0, 1e-13, 1e-9, 1e-3, 20], 400)
        return np.zeros(9000), turn, lat, turn[:400]
    if name == "antipode":
        away = [rng.uniform(0, 1e-4, 9000) for _ in range(2)]
        return 7 + away[0], 8 + away[1], -7 - away[0][:300], away[1][:300] - 172
    if name == "nothing valid":
        return np.full(40_000, math.nan), np.zeros(40_000), np.zeros(40), np.zeros(40)
    raise ValueError(name)


NAMES = [
    "uniform", "one leaf", "one", "many", "clustered", "box", "box seen from afar", "millimetres",
    "grid", "duplicates", "copies", "a metre of a global set", "a metre from afar", "rings",
    "circle", "antipode", "seams", "invalid", "nothing valid",
]  # fmt: skip
QUERIES = [
    Query(1), Query(2), Query(7), Query(16), Query(20), Query(64),
    Query(1, True), Query(7, True), Query(1, True, 100), Query(2, True, -50),
]  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def case(request):
    lat, lon, other_lat, other_lon = inputs(request.param)
    vectors = unit_vectors_cpu(lat, lon)[:, :3].T
    observations = unit_vectors_cpu(other_lat, other_lon)[:, :3].T
    index = build_index(cp.asarray(lat), cp.asarray(lon))
    seen = Degrees(cp.asarray(other_lat), cp.asarray(other_lon))
    assert index.vectors.get().tobytes() == vectors.tobytes()
    assert unit_vectors(*seen).get().tobytes() == observations.tobytes()
    return index, seen, vectors, observations


def assert_same(found, expected, what):
    rows, chords = found.reference.get(), found.key.get()
    wrong = np.flatnonzero((rows != expected.reference).any(axis=1))
    assert not wrong.size, (
        f"{what}: {wrong.size} wrong, first {wrong[0]}: {rows[wrong[0]]}, {chords[wrong[0]]} "
        f"but {expected.reference[wrong[0]]}, {expected.key[wrong[0]]}"
    )
    assert chords.tobytes() == expected.key.tobytes(), what


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_every_search_finds_what_numpy_finds(case, query):
    index, seen, vectors, observations = case
    expected = naive(vectors, observations, query)
    assert_same(reduce_cuda.search(index, seen, query), expected, "brute")
    for width in (1, 4, 32):
        found = tree_cuda.search(index, seen, query, width=width)
        assert_same(found, expected, f"tree, {width} observations a warp")
        measured = tree_cuda.search(index, seen, query, width=width, measure=True)
        assert measured.reference.get().tobytes() == found.reference.get().tobytes()
        assert measured.distance_m.get().tobytes() == answer_of(found).distance_m.get().tobytes()


@pytest.mark.parametrize(
    ("name", "kept", "fine"),
    [("uniform", 5000, False), ("copies", 1325, False), ("a metre of a global set", 9000, True)],
)
def test_what_no_answer_can_hold_is_not_in_the_tree(name, kept, fine):
    lat, lon, _, _ = map(cp.asarray, inputs(name))
    index = build_index(lat, lon)
    assert index.vectors.shape == (3, lat.size)
    assert (index.tree.points[:, 3] >= 0).sum() == kept
    assert index.tree.fine == fine


@pytest.mark.parametrize("k", [1, 7, 64])
@pytest.mark.parametrize("name", ["circle", "antipode"])
def test_walks_give_up_where_no_bound_leaves_any_out(name, k, monkeypatch):
    given_up = []
    monkeypatch.setattr(
        walk_cuda, "search_hard", lambda *arguments: given_up.append(int(arguments[5].get()[0]))
    )
    lat, lon, *observations = map(cp.asarray, inputs(name))
    for width in (1, 32):
        tree_cuda.search(build_index(lat, lon), Degrees(*observations), Query(k), width=width)
    assert min(given_up) > 100


@pytest.mark.parametrize("k", [1, 7, 64])
def test_walks_in_float64_tell_apart_what_float32_cannot(k, monkeypatch):
    search, given_up, hard = walk_cuda.search_precisely, [], []

    def counted(index, *asked):
        search(index, *asked)
        given_up.append(int(asked[4].get()[0]))
        hard.append(int(asked[-1].get()[0]))

    monkeypatch.setattr(walk_cuda, "search_precisely", counted)
    lat, lon, *observations = map(cp.asarray, inputs("a metre from afar"))
    for width in (1, 32):
        tree_cuda.search(build_index(lat, lon), Degrees(*observations), Query(k), width=width)
    assert min(given_up) > 100
    assert max(hard) < 20


@pytest.mark.parametrize("looked_at", [1, 37])
def test_observations_that_lie_beyond_the_sample_find_what_numpy_finds(
    case, monkeypatch, looked_at
):
    index, seen, vectors, observations = case
    monkeypatch.setattr(tree_cuda, "SAMPLE", looked_at)
    for query in (Query(1), Query(7)):
        found = tree_cuda.search(index, seen, query, width=32)
        assert_same(found, naive(vectors, observations, query), f"{looked_at} looked at")


@pytest.mark.parametrize("period", [2, 16, 100, 1024])
def test_a_sample_sees_what_recurs_in_the_rows(period):
    n = 1 << 16
    lon = np.where(np.arange(n) % period == 1, 90.0, 0.0)
    seen = Degrees(cp.zeros(n), cp.asarray(lon))
    box, all_of_it = order_cuda.extent(seen, n // 8), order_cuda.extent(seen)
    assert box.get().tobytes() == all_of_it.get().tobytes()


@pytest.fixture
def cells_for_all(monkeypatch):
    """Have every search that may take cells take them, however little it gains."""
    # Not 0 for each reference: then no number of observations would do.
    monkeypatch.setitem(ways._CELLS, "cuda", (1, 1e-9))
    monkeypatch.setattr(cells_cuda, "_SPREAD", 0)
    monkeypatch.setattr(cells_cuda, "_MOST_LEFT", 1)


@pytest.mark.parametrize("sort_from", [1, 1 << 20])
def test_cells_and_walks_for_the_rest_find_what_numpy_finds(
    case, cells_for_all, monkeypatch, sort_from
):
    index, seen, vectors, observations = case
    monkeypatch.setattr(ways, "_SORT_FROM", sort_from)
    found = tree_cuda.search(index, seen, Query())
    assert_same(found, naive(vectors, observations, Query()), "cells")


def test_cells_answer_most_where_references_are_spread_evenly():
    degrees = [cp.asarray(a) for pair in evenly("uniform", 1 << 21, 1 << 14) for a in pair]
    index, seen = build_index(*degrees[:2]), Degrees(*degrees[2:])
    expected = tree_cuda.search(index, seen, Query(), width=32)
    found = tree_cuda.search(index, seen, Query())
    assert found.reference.get().tobytes() == expected.reference.get().tobytes()
    assert found.key.get().tobytes() == expected.key.get().tobytes()
    # They were not all walked for: cells leave few over.
    rows, _ = cells_cuda.search(index, seen, found, measure=False)
    assert 0 < rows.size < 1 << 14


def test_cells_are_not_made_of_references_that_crowd():
    degrees = [cp.asarray(a) for pair in evenly("cities", 1 << 10, 1 << 14) for a in pair]
    index, seen = build_index(*degrees[:2]), Degrees(*degrees[2:])
    assert cells_cuda.search(index, seen, Found(None, None), measure=False) is None


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(references=points(), observations=points())
def test_cells_of_points_of_every_kind_give_the_bytes_of_the_cpu(
    cells_for_all, references, observations
):
    expected = nearest(build_index(*references), *observations, algorithm="brute")
    index = build_index(*map(cp.asarray, references))
    answer = nearest(index, *map(cp.asarray, observations), algorithm="tree")
    assert answer.reference.get().tobytes() == expected.reference.tobytes()
    assert answer.distance_m.get().tobytes() == expected.distance_m.tobytes()


@pytest.mark.parametrize("name", SETS)
def test_cells_of_hard_sets_give_the_bytes_of_the_cpu(name, cells_for_all):
    references, observations = SETS[name]
    expected = nearest(build_index(*references), *observations)
    index = build_index(*map(cp.asarray, references))
    answer = nearest(index, *map(cp.asarray, observations), algorithm="tree")
    assert answer.reference.get().tobytes() == expected.reference.tobytes()
    assert answer.distance_m.get().tobytes() == expected.distance_m.tobytes()


def test_cells_tell_references_apart_whose_squared_chord_underflows(cells_for_all):
    lat, lon = uniform(np.random.default_rng(2), 50)
    lat[:2], lon[:2] = [1e-163, 0.0], 0.0
    observations = np.full(300, -1e-152), np.zeros(300)
    expected = nearest(build_index(lat, lon), *observations, algorithm="brute")
    assert (expected.reference == 1).all()
    index = build_index(cp.asarray(lat), cp.asarray(lon))
    answer = nearest(index, *map(cp.asarray, observations), algorithm="tree")
    assert answer.reference.get().tobytes() == expected.reference.tobytes()


@pytest.mark.parametrize("query", [Query(1), Query(7), Query(64)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_pieces_merge_to_the_whole(name, query):
    lat, lon, *observations = map(cp.asarray, inputs(name))
    seen = Degrees(*observations)
    whole = tree_cuda.search(build_index(lat, lon), seen, query)
    n = lat.size
    parts = []
    for first, last in ((n // 2, n), (0, n // 3), (n // 3, n // 2)):
        piece = build_index(lat[first:last], lon[first:last])
        found = tree_cuda.search(piece, seen, query)
        parts.append(Found(cp.where(found.reference < 0, -1, found.reference + first), found.key))
    merged = reduce(reduce_cuda.merge_pair, parts)
    assert merged.reference.get().tobytes() == whole.reference.get().tobytes()
    assert merged.key.get().tobytes() == whole.key.get().tobytes()


def test_no_observations_and_no_references():
    none = Degrees(cp.empty(0), cp.empty(0))
    some = Degrees(cp.zeros(5), cp.zeros(5))
    empty, index = build_index(*none), build_index(*some)
    for module in (tree_cuda, reduce_cuda):
        found = module.search(empty, some, Query(2))
        assert (found.reference.get() == -1).all()
        assert np.isinf(found.key.get()).all()
        assert module.search(index, none, Query(2)).reference.shape == (0, 2)


@pytest.mark.parametrize("k", [1, 7])
def test_nearest_gives_the_bytes_of_the_cpu(k):
    lat, lon, other_lat, other_lon = inputs("uniform")
    expected = nearest(build_index(lat, lon), other_lat, other_lon, k=k, algorithm="brute")
    index = build_index(cp.asarray(lat), cp.asarray(lon))
    for algorithm in ("tree", "brute", "auto"):
        answer = nearest(
            index, cp.asarray(other_lat), cp.asarray(other_lon), k=k, algorithm=algorithm
        )
        assert answer.reference.get().tobytes() == expected.reference.tobytes()
        assert answer.distance_m.get().tobytes() == expected.distance_m.tobytes()


@settings(max_examples=100, deadline=None)
@given(points(), points(), st.sampled_from([1, 2, 7, 64]), st.booleans())
def test_points_of_every_kind_give_the_bytes_of_the_cpu(references, observations, k, exclude_self):
    query = {"k": k, "exclude_self": exclude_self}
    on_cpu = build_index(*references)
    expected = nearest(on_cpu, *observations, algorithm="brute", **query)
    index = build_index(*map(cp.asarray, references))
    for algorithm in ("tree", "brute", "auto"):
        answer = nearest(index, *map(cp.asarray, observations), algorithm=algorithm, **query)
        assert answer.reference.get().tobytes() == expected.reference.tobytes()
        assert answer.distance_m.get().tobytes() == expected.distance_m.tobytes()


@pytest.mark.parametrize("name", SETS)
def test_hard_sets_give_the_bytes_of_the_cpu(name):
    references, observations = SETS[name]
    expected = nearest(build_index(*references), *observations)
    index = build_index(*map(cp.asarray, references))
    for algorithm in ("tree", "brute"):
        answer = nearest(index, *map(cp.asarray, observations), algorithm=algorithm)
        assert answer.reference.get().tobytes() == expected.reference.tobytes()
        assert answer.distance_m.get().tobytes() == expected.distance_m.tobytes()


def test_what_is_sent_home_of_an_index_that_goes_overwrites_nothing():
    """A set of the host, which is made while the copy to the memory of another index waits."""
    lat, lon = map(cp.asarray, sphere(1 << 20, 5))
    busy = build_index(lat, lon)
    for n in range(20):
        reduce_cuda.search(busy, Degrees(lat[: 1 << 14], lon[: 1 << 14]), Query())
        build_index(lat[:100], lon[:100])
        made = [cp.array([1.0 + n, 2.0, 3.0]) for _ in range(8)]
        assert all(one.tolist() == [1.0 + n, 2.0, 3.0] for one in made)


def test_distances_reach_the_antipode():
    lat = cp.array([0.0, 0.0, 10.0, math.nan])
    seen = Degrees(lat, cp.array([180.0, 179.999999, 20.0, 0.0]))
    found = reduce_cuda.search(build_index(cp.zeros(1), cp.zeros(1)), seen, Query(1))
    distance_m = answer_of(found).distance_m.get()[:, 0]
    assert distance_m[0] == math.pi * 6_371_008.8
    assert np.isnan(distance_m[3])


@pytest.mark.parametrize("name", ["many", "uniform"])
def test_search_bytes_covers_what_a_search_takes(name):
    # Too many references for cells, and few enough.
    lat, lon, other_lat, other_lon = inputs(name)
    pool = cp.get_default_memory_pool()
    lat, lon = cp.asarray(lat), cp.asarray(lon)
    times = (1 << 21) // other_lat.size + 1
    other_lat, other_lon = (cp.tile(cp.asarray(a), times) for a in (other_lat, other_lon))
    pool.free_all_blocks()
    before = pool.total_bytes()
    answer = nearest(build_index(lat, lon), other_lat, other_lon, algorithm="tree")
    taken = pool.total_bytes() - before
    assert answer.reference.size == other_lat.size
    assert taken <= sizes_cuda.search_bytes(lat.size, other_lat.size)


@pytest.mark.parametrize(
    "kind", ["uniform", "cities", "box", "grid", "zeros", "coincident", "cluster", "ring"]
)
def test_the_benchmark_finds_no_wrong_row(kind):
    assert kernels_cuda.measure(kind, 10, 8, repeats=1)["wrong"] == 0


@pytest.mark.parametrize("kind", ["uniform", "cities"])
def test_the_benchmark_of_counts_finds_none_wrong(kind):
    row = radius_cuda.measure(kind, 10, 9, mean=10, repeats=1)
    assert row["wrong"] == 0
    assert row["found"] == pytest.approx(10 * 2**10, rel=0.1)


@pytest.mark.parametrize("name", [peers_cuda.OURS, "CuPy KDTree"])
def test_the_benchmark_of_peers_counts_rows_that_are_not_ours(name):
    row = peers_cuda.measure(name, "toy 2^16 x 2^13", 2, repeats=1)
    assert row["median"] > 0
    assert row.get("wrong", 0) == 0
