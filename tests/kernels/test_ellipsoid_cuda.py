"""The ellipsoid on a GPU: the bytes of the CPU."""

import numpy as np
import pytest

cp = pytest.importorskip("cupy", reason="needs CuPy and a GPU")

from georesolve.kernels import (  # noqa: E402
    build_index,
    count_within,
    ellipsoid_cuda,
    nearest,
    within,
    within_cuda,
)
from tests.kernels.point_sets import SETS, equatorial, magnitudes, sphere  # noqa: E402

pytestmark = pytest.mark.gpu


def same_bytes(left, right):
    return all(a.get().tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


def on_device(degrees):
    return [cp.asarray(axis) for axis in degrees]


@pytest.mark.parametrize("k", [1, 3, 64])
@pytest.mark.parametrize("name", SETS)
def test_the_nearest(name, k):
    references, observations = SETS[name]
    observations = [axis[:600].copy() for axis in observations]
    want = nearest(build_index(*references, earth="wgs84"), *observations, k=k)
    index = build_index(*on_device(references), earth="wgs84")
    for algorithm in ("auto", "tree", "brute"):
        found = nearest(index, *on_device(observations), k=k, algorithm=algorithm)
        assert same_bytes(found, want), algorithm


@pytest.mark.parametrize(
    "query", [{}, {"exclude_self": True}, {"exclude_self": True, "first_row": -9}]
)
@pytest.mark.parametrize("k", [63, 64])
def test_few_observations_are_searched_again(query, k, monkeypatch):
    """References that may be among the nearest are counted once, and few of them are found."""
    references, _ = SETS["uniform"]
    lat, lon = (axis[:3000].copy() for axis in references)
    want = nearest(build_index(*references, earth="wgs84"), lat, lon, k=k, **query)
    sizes = {"count": [], "pairs": []}
    for name, calls in sizes.items():
        search = getattr(within_cuda, name)

        def counted(index, observations, *options, search=search, calls=calls):
            calls.append(observations.lat_deg.size)
            return search(index, observations, *options)

        monkeypatch.setattr(within_cuda, name, counted)
    index = build_index(*on_device(references), earth="wgs84")
    assert same_bytes(nearest(index, *on_device((lat, lon)), k=k, **query), want)
    assert len(sizes["count"]) <= 1
    assert sum(sizes["pairs"]) < 300


def test_parts_of_pairs_are_counted_once(monkeypatch):
    references, observations = SETS["uniform"]
    observations = [axis[:300].copy() for axis in observations]
    want = within(build_index(*references, copies=True, earth="wgs84"), *observations, 3e6)
    monkeypatch.setattr(ellipsoid_cuda, "_MOST_PAIRS", 5000)
    calls = []
    count = within_cuda.count_seen
    monkeypatch.setattr(within_cuda, "count_seen", lambda *args: calls.append(1) or count(*args))
    index = build_index(*on_device(references), copies=True, earth="wgs84")
    assert same_bytes(within(index, *on_device(observations), 3e6), want)
    assert len(calls) == 1


@pytest.mark.parametrize("make", [sphere, magnitudes, equatorial])
def test_a_million_pairs(make):
    """A million geodesics: long, short, and of coordinates whose squares underflow."""
    rng = np.random.default_rng(1)
    references, observations = make(rng, 2_000), make(rng, 500)
    want = within(build_index(*references, copies=True, earth="wgs84"), *observations, 3e7)
    index = build_index(*on_device(references), copies=True, earth="wgs84")
    assert same_bytes(within(index, *on_device(observations), 3e7), want)


@pytest.mark.parametrize("query", [{}, {"exclude_self": True}, {"once": True, "first_row": -9}])
@pytest.mark.parametrize("name", ["uniform", "box", "duplicates", "NaN", "antipode"])
def test_all_within_a_distance(name, query):
    references, observations = SETS[name]
    observations = [axis[:300].copy() for axis in observations]
    cpu = build_index(*references, copies=True, earth="wgs84")
    gpu = build_index(*on_device(references), copies=True, earth="wgs84")
    for distance_m in (0.0, 5e4, 5e6, np.random.default_rng(2).uniform(0, 1e7, 300)):
        want = within(cpu, *observations, distance_m, **query)
        limits = cp.asarray(distance_m) if np.ndim(distance_m) else distance_m
        for algorithm in ("tree", "brute"):
            asked = {**query, "algorithm": algorithm}
            assert same_bytes(within(gpu, *on_device(observations), limits, **asked), want)
            counts = count_within(gpu, *on_device(observations), limits, **asked)
            assert counts.get().tobytes() == np.diff(want.starts).tobytes()


@pytest.mark.parametrize("n", [200, 200_000])
def test_a_set_against_itself(n):
    lat, lon = sphere(np.random.default_rng(3), n)
    want = nearest(build_index(lat, lon, earth="wgs84"), lat, lon, k=2, exclude_self=True)
    degrees = on_device((lat, lon))
    index = build_index(*degrees, earth="wgs84")
    assert same_bytes(nearest(index, *degrees, k=2, exclude_self=True), want)
