"""`within` and `count_within` on a GPU: the bytes of the CPU, by every walk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

cp = pytest.importorskip("cupy", reason="needs CuPy and a GPU")

from georesolve.benchmarks.inputs import inputs as evenly  # noqa: E402
from georesolve.kernels import build_index, count_within, within, within_cuda  # noqa: E402
from georesolve.kernels.coordinates_cpu import answer_of, chord2_within, unit_vectors  # noqa: E402
from georesolve.kernels.passes import PassesDisagreeError  # noqa: E402
from georesolve.kernels.query import Degrees, Found, Within  # noqa: E402
from tests import oracle  # noqa: E402
from tests.kernels.point_sets import SETS, crowded, points  # noqa: E402
from tests.kernels.test_cuda import NAMES, inputs  # noqa: E402

pytestmark = pytest.mark.gpu

BY = ["packets", "singles", "brute"]
FILTERS = [{}, {"exclude_self": True}, {"once": True, "first_row": -9}]
HARD = {f"hard: {name}": pair for name, pair in SETS.items()} | {
    name: ((p := inputs(name))[:2], p[2:]) for name in NAMES
}


def metres(chord2):
    return answer_of(Found(np.empty(chord2.size, np.int64), chord2.copy())).distance_m


def on_device(degrees):
    return Degrees(*map(cp.asarray, degrees))


@pytest.fixture(scope="module", params=HARD)
def case(request):
    references, observations = HARD[request.param]
    sample = slice(None, None, max(1, observations[0].size // 100))
    observations = tuple(p[sample].copy() for p in observations)
    vectors = [unit_vectors(*p)[:, :3].T for p in (references, observations)]
    chords = oracle.rows_within(*vectors, 9.0)[2]
    # Each is the distance of a pair, which counts; or, without any, none is.
    chords = np.append(chords, [chord2_within(np.array([30.0]))] if not chords.size else [])
    limits = np.quantile(chords, [0, 1e-3, 0.05, 0.6], method="nearest")
    index = build_index(*on_device(references), copies=True)
    assert index.whole
    return index, on_device(observations), vectors, limits


def assert_same(found, want, what):
    starts, reference, chords = want
    assert found.starts.get().tobytes() == starts.tobytes(), what
    wrong = np.flatnonzero(found.reference.get() != reference)
    assert not wrong.size, f"{what}: {wrong.size} of {reference.size} rows, first {wrong[0]}"
    assert found.distance_m.get().tobytes() == metres(chords).tobytes(), what


@pytest.mark.parametrize("query", FILTERS, ids=str)
def test_every_walk_finds_what_numpy_finds(case, query):
    index, seen, vectors, limits = case
    n = seen.lat_deg.size
    each = np.random.default_rng(3).choice(limits, n)
    for chord2 in [*limits[:, None], each] if n > 1 else limits[:, None]:
        want = oracle.rows_within(*vectors, chord2, **query)
        asked = Within(chord2, **query)
        for by in BY:
            what = f"{by}, {chord2[:3]}"
            counts = within_cuda.count(index, seen, asked, by).get()
            wrong = np.flatnonzero(counts != np.diff(want[0]))
            assert not wrong.size, (
                f"{what}: {wrong.size} counts, first of {wrong[0]}: {counts[wrong[0]]} but "
                f"{np.diff(want[0])[wrong[0]]}"
            )
            assert_same(within_cuda.pairs(index, seen, asked, by), want, what)


@pytest.mark.parametrize("name", ["uniform", "copies", "box", "a metre of a global set"])
def test_walks_write_the_same_pairs_where_brute_force_would_be_sooner(name, monkeypatch):
    references, observations = HARD[name]
    index, seen = build_index(*on_device(references), copies=True), on_device(observations)
    asked = Within(chord2_within(np.array([1e6])))
    want = within_cuda.pairs(index, seen, asked, "brute")
    monkeypatch.setattr(within_cuda, "_SHARE", 0)
    for by in BY:
        found = within_cuda.pairs(index, seen, asked, by)
        for left, right in zip(found, want, strict=True):
            assert left.get().tobytes() == right.get().tobytes(), by


@pytest.mark.parametrize("kind", ["uniform", "cities", "box", "cluster", "copies"])
def test_walks_of_many_count_what_brute_force_counts(kind):
    lat, lon, *observations = (
        cp.asarray(a) for pair in evenly(kind, 1 << 15, 1 << 14) for a in pair
    )
    index, seen = build_index(lat, lon, copies=True), Degrees(*observations)
    for distance_m in (0.0, 0.5, 100.0, 2e4, 1e6, 9e6):
        asked = Within(chord2_within(np.array([distance_m])))
        want = within_cuda.count(index, seen, asked, "brute").get()
        for by in ("packets", "singles"):
            np.testing.assert_array_equal(within_cuda.count(index, seen, asked, by).get(), want)


@settings(max_examples=150, deadline=None)
@given(crowded(), points(), st.data(), st.sampled_from(FILTERS), st.sampled_from(["tree", "brute"]))
def test_points_of_every_kind_give_the_bytes_of_the_cpu(
    references, observations, data, query, algorithm
):
    n = observations[0].size
    distances = st.sampled_from([0.0, 1.0, 5e5, 1e7, 2.1e7]) | st.floats(0, 2.1e7)
    distance_m = data.draw(distances | st.lists(distances, min_size=n, max_size=n).map(np.array))
    on_cpu = build_index(*references, copies=True)
    want = within(on_cpu, *observations, distance_m, algorithm="brute", **query)
    index, seen = build_index(*on_device(references), copies=True), on_device(observations)
    if np.ndim(distance_m):
        distance_m = cp.asarray(distance_m, cp.float64)
    found = within(index, *seen, distance_m, algorithm=algorithm, **query)
    for left, right in zip(found, want, strict=True):
        assert left.get().tobytes() == right.tobytes()
    counts = count_within(index, *seen, distance_m, algorithm=algorithm, **query)
    np.testing.assert_array_equal(counts.get(), np.diff(want.starts))


def test_an_observation_with_many_pairs_gets_them_in_order():
    lat, lon, *_ = (a for pair in evenly("copies", 10, 1 << 18) for a in pair)
    want = within(build_index(lat, lon, copies=True), lat[:2], lon[:2], 1e7)
    index = build_index(cp.asarray(lat), cp.asarray(lon), copies=True)
    found = within(index, cp.asarray(lat[:2]), cp.asarray(lon[:2]), 1e7)
    assert found.reference.size > 1 << 18
    for left, right in zip(found, want, strict=True):
        assert left.get().tobytes() == right.tobytes()


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("share", [0, 1 << 40])
@pytest.mark.parametrize("change", [-1, 1, -7, 500])
def test_counts_that_differ_are_an_error(by, share, change, monkeypatch):
    references, observations = SETS["uniform"]
    index, seen = build_index(*on_device(references), copies=True), on_device(observations)
    bounds = Within(chord2_within(np.array([1e6])))
    # Brute force fills where there are many pairs.
    monkeypatch.setattr(within_cuda, "_SHARE", share)
    counts = within_cuda.count(index, seen, bounds, by)
    assert int(counts.min()) > 7
    within_cuda.pairs(index, seen, bounds, by)
    for row in (0, counts.size // 2, counts.size - 1):
        wrong = counts.copy()
        wrong[row] += change
        monkeypatch.setattr(within_cuda, "count_seen", lambda *_, wrong=wrong: wrong)
        with pytest.raises(PassesDisagreeError, match=f"^observation {row} has"):
            within_cuda.pairs(index, seen, bounds, by)


def test_an_index_that_leaves_out_copies_is_refused():
    lat = cp.zeros(200)
    with pytest.raises(ValueError, match="copies=True"):
        count_within(build_index(lat, lat), lat, lat, 1.0)
    lat[50:150] = cp.nan
    index = build_index(lat, lat, copies=True)
    assert index.whole
    assert count_within(index, lat, lat, 1.0).get().tolist() == [100] * 50 + [0] * 100 + [100] * 50
