"""Maps and distances of results of many parts, against numpy, pandas and web mercator."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from georesolve.query import MatchOptions
from georesolve.workers.job import Job
from georesolve.workers.results.distances import PERCENTS, measure
from georesolve.workers.tiles.map_files import Map, write_map
from tests.conftest import sphere, store_points
from tests.workers.test_assembly import put_together

N = 300_000
CROWD = 120_000
"""Observations at one point: more than a thread takes at a time."""
EDGES = [0, 1, 40_000, 41_000, 130_000, 131_072, 250_000, N]


@pytest.fixture(scope="module", params=["spread", "equal"])
def result(request, tmp_path_factory):
    """A result: its folder, manifest and observations, and all that a map shows of them."""
    chance = np.random.default_rng(7)
    lat, lon = sphere(N, 8)
    lat[:CROWD], lon[:CROWD] = 47.0, 8.0
    lat[CROWD : 2 * CROWD] = chance.normal(47, 0.01, CROWD)
    lon[CROWD : 2 * CROWD] = chance.normal(8, 0.01, CROWD)
    lat[-5:], lon[-9:-4] = np.nan, [180, -180, 360, 359.99, 0]
    order = chance.permutation(N)
    lat, lon = lat[order], lon[order]
    missing = chance.random(N) < 0.1
    metres = chance.lognormal(5, 3, N) if request.param == "spread" else np.zeros(N)
    folder = tmp_path_factory.mktemp("result")
    (folder / "job" / "parts").mkdir(parents=True)
    seen = store_points(pa.table({"lat": lat, "lon": lon}), folder / "points.parquet")
    job = Job(seen, seen, MatchOptions(), id="job", folder=folder / "job")
    status = pa.DictionaryArray.from_arrays(pa.array(missing.astype("i1")), ["matched", "beyond"])
    table = pa.table(
        {
            "observation": np.arange(N),
            "reference": pa.array(np.zeros(N, np.int64), mask=missing),
            "distance_m": pa.array(metres, mask=missing),
            "status": status,
        }
    )
    metres = np.where(missing, np.nan, metres)
    return folder, put_together(job, table, EDGES), seen, lat, lon, metres


@pytest.fixture(scope="module")
def drawn(result):
    folder, manifest, seen, *_ = result
    write_map(folder, manifest, seen)
    return Map(folder, manifest.digest)


@pytest.mark.parametrize("z", [0, 3, 11, 18])
def test_a_square_is_what_pandas_counts(result, drawn, z):
    *_, lat, lon, metres = result
    shown = np.abs(lat) <= 85.05112877980659
    assert drawn.rows == shown.sum()
    assert drawn.beyond == (np.abs(lat) > 85.05112877980659).sum()
    across = ((lon[shown] + 180) % 360) / 360 * (256 << z)
    down = (1 - np.arcsinh(np.tan(np.radians(lat[shown]))) / np.pi) / 2 * (256 << z)
    column, row = across.astype(int), down.astype(int)
    pixels = pd.Series(metres[shown]).groupby([row, column])
    assert drawn.densest(z) == pixels.size().max()
    # Where all at one point are.
    x, y = (int(one) for one in pixels.size().idxmax()[::-1])
    x, y = x >> 8, y >> 8
    square = drawn.square(z, x, y)
    is_in = (column >> 8 == x) & (row >> 8 == y)
    rows, distance_m = drawn.rows_of(z, x, y)
    assert np.array_equal(rows, np.flatnonzero(shown)[is_in])
    assert np.array_equal(distance_m, metres[rows], equal_nan=True)
    pixel = (row[is_in] & 255) * 256 + (column[is_in] & 255)
    inside = pd.Series(metres[shown][is_in]).groupby(pixel)
    expected = pd.DataFrame(
        {"size": inside.size(), "matched": inside.count(), "median": inside.median()}
    ).reindex(range(256 * 256))
    assert np.array_equal(square.matched.ravel(), expected["matched"].fillna(0))
    assert np.array_equal((square.matched + square.unmatched).ravel(), expected["size"].fillna(0))
    assert np.array_equal(square.numbers.ravel(), expected["median"], equal_nan=True)
    greatest = inside.max().reindex(range(256 * 256))
    square = drawn.square(z, x, y, greatest=True)
    assert np.array_equal(square.numbers.ravel(), greatest, equal_nan=True)


def test_distances_of_many_parts_are_what_numpy_says(result):
    _, manifest, *_, metres = result
    found = measure(manifest)
    matched = metres[~np.isnan(metres)]
    assert found.counts == {"matched": matched.size, "beyond": N - matched.size}
    assert found.percentiles == pytest.approx(np.percentile(matched, PERCENTS), rel=1e-4)
    assert found.percentiles[::8] == [matched.min(), matched.max()]
    for bins in (found.linear, found.logarithmic):
        assert np.array_equal(bins.counts, np.histogram(matched, bins.edges)[0])
        assert sum(bins.counts) == matched.size
    np.testing.assert_allclose(widths := np.diff(found.linear.edges), widths.mean(), rtol=0.02)
    if found.logarithmic != found.linear:
        ratios = np.diff(np.log(found.logarithmic.edges[1:]))
        np.testing.assert_allclose(ratios, ratios.mean(), rtol=0.02)


def test_distances_that_are_mostly_0(tmp_path):
    (tmp_path / "job" / "parts").mkdir(parents=True)
    seen = store_points(pa.table({"lat": [1.0], "lon": [2.0]}), tmp_path / "points.parquet")
    job = Job(seen, seen, MatchOptions(), id="job", folder=tmp_path / "job")
    metres = np.append(np.zeros(900), np.linspace(1, 1000, 100))
    status = ["matched"] * 1000
    table = pa.table({"observation": np.arange(1000), "distance_m": metres, "status": status})
    found = measure(put_together(job, table, [0, 1000])).percentiles
    assert found == pytest.approx(np.percentile(metres, PERCENTS), rel=1e-4)


@pytest.mark.parametrize("most", [0, 1, 2, 63, 64, 65, 8_192, 300_000])
def test_counts_between_whole_numbers(tmp_path, most):
    (tmp_path / "job" / "parts").mkdir(parents=True)
    seen = store_points(pa.table({"lat": [1.0], "lon": [2.0]}), tmp_path / "points.parquet")
    job = Job(seen, seen, MatchOptions(), id="job", folder=tmp_path / "job")
    counts = np.random.default_rng(most).integers(0, most, 1000, endpoint=True)
    counts[::7] = most
    missing = np.arange(1000) % 10 == 3
    status = pa.DictionaryArray.from_arrays(pa.array(missing.astype("i1")), ["matched", "invalid"])
    table = pa.table(
        {"observation": np.arange(1000), "count": pa.array(counts, mask=missing), "status": status}
    )
    found = measure(put_together(job, table, [0, 10, 400, 1000]))
    counts = counts[~missing]
    assert found.percentiles == pytest.approx(np.percentile(counts, PERCENTS), rel=1e-4)
    for bins in (found.linear, found.logarithmic):
        assert bins.edges == sorted({*map(int, bins.edges)})
        assert (bins.edges[0], bins.edges[-1]) == (0, most + 1)
        assert np.array_equal(bins.counts, np.histogram(counts, bins.edges)[0])
        if most < 8:
            assert bins.edges == [*range(most + 2)]
