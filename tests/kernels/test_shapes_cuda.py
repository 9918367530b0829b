"""Lines and polygons on a GPU: the bytes of the CPU, by walks and by brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

cp = pytest.importorskip("cupy", reason="needs CuPy and a GPU")
shapely = pytest.importorskip("shapely")

from georesolve import kernels  # noqa: E402
from georesolve.io.datasets import Edging  # noqa: E402
from georesolve.io.outlines import outline_of, shapes_of  # noqa: E402
from georesolve.kernels import shapes_cuda  # noqa: E402
from georesolve.kernels.passes import PassesDisagreeError  # noqa: E402
from tests.kernels.test_shapes import observations, shape  # noqa: E402

pytestmark = pytest.mark.gpu

EDGINGS = [Edging("spherical"), Edging("planar", densify_m=1e4)]


def both(geometries, edging):
    """Indexes of the CPU and of the GPU."""
    shapes = shapes_of(outline_of(np.array(geometries, object), edging), edging)
    return [kernels.ShapeIndex(len(geometries), shapes, device) for device in ("cpu", "cuda")]


def assert_same(own, other):
    for given_, found in zip(own, other, strict=True):
        assert given_.tobytes() == found.get().tobytes()


def compare(geometries, edging, lat, lon, k, distances):
    index, on_device = both(geometries, edging)
    here, there = (lat, lon), (cp.asarray(lat), cp.asarray(lon))
    for algorithm in ("auto", "brute"):
        own = kernels.nearest(index, *here, k=k, algorithm=algorithm)
        assert_same(own, kernels.nearest(on_device, *there, k=k, algorithm=algorithm))
        for distance_m in distances:
            each = np.full(lat.size, distance_m)
            each[::3] = 0.0
            for limit, limit_there in ((distance_m, distance_m), (each, cp.asarray(each))):
                own = kernels.within(index, *here, limit, algorithm=algorithm)
                found = kernels.within(on_device, *there, limit_there, algorithm=algorithm)
                assert_same(own, found)
                own = kernels.count_within(index, *here, limit, algorithm=algorithm)
                found = kernels.count_within(on_device, *there, limit_there, algorithm=algorithm)
                assert own.tobytes() == found.get().tobytes()
            own = kernels.count_near(index, *here, distance_m, algorithm=algorithm)
            found = kernels.count_near(on_device, *there, distance_m, algorithm=algorithm)
            assert own.tobytes() == found.get().tobytes()


@pytest.mark.parametrize("edging", EDGINGS, ids=["spherical", "planar"])
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 40), k=st.sampled_from([1, 2, 5, 64]))
def test_any_shapes(edging, seed, n, k):
    rng = np.random.default_rng(seed)
    geometries = [shape(rng) for _ in range(n)]
    if edging.edges == "planar":
        geometries = [one for one in geometries if np.diff(shapely.bounds(one)[::2]) < 3] or [
            shapely.Point(0, 0)
        ]
    lat, lon = observations(rng, geometries, 20)
    lat[:2], lon[2:4] = np.nan, 400.0
    compare(geometries, edging, lat, lon, k, [0.0, 1e-3, 5e4, 3e7])


@pytest.mark.parametrize("edging", EDGINGS, ids=["spherical", "planar"])
def test_many_buildings_and_a_country(edging):
    rng = np.random.default_rng(7)
    lat, lon = rng.uniform(40, 55, 20_000), rng.uniform(0, 20, 20_000)
    size = rng.uniform(1e-5, 1e-2, 20_000)
    geometries = [*shapely.box(lon, lat, lon + size, lat + size)]
    turns = np.linspace(0, 2 * np.pi, 50_000, endpoint=False)
    radii = 5 + rng.uniform(0, 0.3, turns.size)
    around = np.stack([10 + radii * np.cos(turns), 47 + radii * np.sin(turns)], axis=1)
    geometries.append(shapely.Polygon(around))
    here = rng.uniform(39, 56, 30_000), rng.uniform(-1, 21, 30_000)
    index, on_device = both(geometries, edging)
    there = tuple(map(cp.asarray, here))
    for k in (1, 5):
        assert_same(kernels.nearest(index, *here, k=k), kernels.nearest(on_device, *there, k=k))
    assert_same(kernels.within(index, *here, 5e3), kernels.within(on_device, *there, 5e3))


@pytest.mark.parametrize("change", [-1, 1, -3, 500])
def test_counts_that_differ_are_an_error(change, monkeypatch):
    rng = np.random.default_rng(3)
    lat, lon = rng.uniform(40, 55, 2000), rng.uniform(0, 20, 2000)
    _, index = both([*shapely.box(lon, lat, lon + 0.1, lat + 0.1)], EDGINGS[0])
    there = cp.asarray(lat[:300]), cp.asarray(lon[:300])
    assert int(kernels.count_within(index, *there, 2e5).min()) > 3
    start = shapes_cuda.stride

    def disturbed(kernel, n, *arguments):
        start(kernel, n, *arguments)
        *_, counts, of, _, _ = arguments
        if kernel is shapes_cuda.search_around and not of.size:
            counts[170] += change

    monkeypatch.setattr(shapes_cuda, "stride", disturbed)
    with pytest.raises(PassesDisagreeError, match=r"^observation 170 has"):
        kernels.within(index, *there, 2e5)


def test_nothing_to_search_and_nothing_to_find():
    empty = np.empty(0)
    compare([shapely.Point(1, 2)], EDGINGS[0], empty, empty, 3, [10.0])
    compare([shapely.LineString([[0, 0], [1, 1]])], EDGINGS[0], np.array([5.0]), np.array([5.0]), 3,
            [10.0])  # fmt: skip
