"""Coordinates that are no degrees are refused with the evidence; strange ones that are, are not."""

import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.io.columns import Reading
from georesolve.io.errors import InvalidInput
from georesolve.io.formats import Table
from georesolve.io.points import Bounds, PointTable, gather
from georesolve.io.validation import looks_swapped, of_extents, remarks
from tests.conftest import SAMPLES, look_up

BOUNDS = Bounds(rows=10**6, columns=20)
KEEP = {"on_invalid": "null"}
RANDOM = np.random.default_rng(41)


def sample(name):
    table = pq.read_table(SAMPLES / f"{name}.parquet", columns=["lat", "lon"])
    return table["lat"].to_numpy(), table["lon"].to_numpy()


def web_mercator(lat, lon):
    radius = 6_378_137.0
    lat = np.clip(lat, -85, 85)
    northing = radius * np.log(np.tan(np.pi / 4 + np.radians(lat) / 2))
    return northing, radius * np.radians(lon)


def read(lat, lon, names=("lat", "lon"), batch=10_000, **reading):
    table = pa.table(dict(zip(names, (lat, lon), strict=True)))
    batches = Table(table.schema, iter(table.to_batches(batch)), table.num_rows)
    options = {"lat": names[0], "lon": names[1], **reading}
    return gather(PointTable(batches, Reading(**options), "points", BOUNDS), None)


def refusal(*arguments, **options):
    with pytest.raises(InvalidInput) as caught:
        read(*arguments, **options)
    assert read(*arguments, **{**options, **KEEP}, coordinates="trust").rows > 0
    return caught.value


def test_null_island_is_remarked_by_the_dozen():
    lat, lon = (column.copy() for column in sample("airports"))
    few = read(lat, lon)
    zeros = np.linspace(0, lat.size - 1, 25, dtype=int)
    lat[zeros], lon[zeros] = -0.0, 0.0
    many = read(lat, lon)
    assert many.null_island == (25, tuple(zeros[:10].tolist()))
    assert remarks(few, few) == []
    [remark] = remarks(few, many)
    assert remark.startswith("references: 25 rows are at exactly (0, 0)")
    assert remark.endswith(f"counted from 0: {', '.join(map(str, zeros[:10]))}")
    # One is a point like others, and so are eleven; a number that is missing is none of them.
    lat[zeros[:14]] = np.nan
    eleven = read(lat, lon, **KEEP)
    assert eleven.null_island.rows == 11
    assert remarks(eleven, few) == []


@pytest.mark.parametrize("reading", [{}, KEEP], ids=["error", "null"])
@pytest.mark.parametrize("name", ["airports", "places"])
def test_samples_in_radians(name, reading):
    lat, lon = map(np.radians, sample(name))
    problem = refusal(lat, lon, **reading)
    place = problem.errors[0]
    assert re.search(rf"{lat.size} of {lat.size} rows look like radians", problem.detail)
    assert "multiply them by 180/pi" in problem.detail
    row = place["row"]
    assert f"row {row}, for one, has lat={float(lat[row])!r}" in problem.detail
    assert (place["file"], place["column"]) == ("points", "lat")


def test_radians_in_float32_and_in_few_rows():
    lat, lon = (np.radians(degrees).astype(np.float32) for degrees in sample("airports"))
    refusal(lat, lon)
    few = RANDOM.permutation(lat.size)[:500]
    refusal(np.append(lat[few], np.float32(0.7)), np.append(lon[few], np.float32(np.pi)))


def test_columns_named_radians():
    # Berlin and Paris: nothing but the names tells.
    lat, lon = np.radians([52.52, 48.86]), np.radians([13.4, 2.35])
    for names in (("lat_rad", "lon_rad"), ("Latitude radians", "Longitude radians")):
        assert "radians" in refusal(lat, lon, names=names).detail
    assert read(lat, lon, names=("lat_grad", "lon_grad")).rows == 2
    assert read(np.degrees(lat), np.degrees(lon), names=("lat_rad", "lon_rad")).rows == 2


@pytest.mark.parametrize("reading", [{}, KEEP], ids=["error", "null"])
@pytest.mark.parametrize("name", ["airports", "places"])
def test_samples_in_metres(name, reading):
    northing, easting = web_mercator(*sample(name))
    problem = refusal(northing, easting, **reading, names=("y", "x"))
    assert "look like metres of a projected CRS" in problem.detail
    assert "EPSG:4326" in problem.detail
    assert int(re.search(r"(\d+) of", problem.detail)[1]) > 0.99 * northing.size


@pytest.mark.parametrize("reading", [{}, KEEP], ids=["error", "null"])
@pytest.mark.parametrize("scale", [1e6, 1e7, 1e9])
def test_samples_as_whole_numbers(scale, reading):
    """Not metres: to transform them from a CRS would give nonsense."""
    lat, lon = (np.rint(degrees * scale).astype(np.int64) for degrees in sample("airports"))
    problem = refusal(lat, lon, **reading)
    assert f"look like degrees times {scale:.0f}, stored as whole numbers" in problem.detail
    assert "divide them by their scale" in problem.detail
    assert "metres" not in problem.detail + problem.errors[0]["detail"]
    assert "42.2586842 and -71.0572883" in refusal([422586842], [-710572883]).detail


def test_metres_that_are_whole_numbers():
    northing, easting = map(np.rint, web_mercator(*sample("airports")))
    for zone in (0, 32_000_000):
        assert "look like metres" in refusal(northing, easting + zone).detail


def test_metres_among_which_some_rows_say_nothing():
    northing, easting = web_mercator(*sample("airports"))
    northing[:100], easting[100:200] = math.nan, math.nan
    northing[200:300] = easting[200:300] = 0.0
    problem = refusal(northing, easting, **KEEP)
    assert problem.errors[0]["row"] >= 300


@pytest.mark.parametrize("reading", [{}, KEEP], ids=["error", "null"])
@pytest.mark.parametrize("name", ["airports", "places"])
def test_samples_swapped(name, reading):
    lat, lon = sample(name)
    problem = refusal(lon, lat, **reading)
    beyond = int((np.abs(lon) > 90).sum())
    assert f"{beyond} of {lat.size} rows look like swapped axes" in problem.detail
    assert "lat=lon and lon=lat" in problem.detail
    assert abs(lon[problem.errors[0]["row"]]) > 90


def test_a_few_swapped_rows_that_are_all():
    for reading in ({}, KEEP):
        assert "swapped" in refusal([-122.4, -118.2], [37.8, 34.1], **reading).detail


def test_few_rows_of_which_some_are_valid_as_they_are():
    # New York and San Francisco.
    lat, lon = [-73.9, -74.0, -122.4], [40.7, 40.6, 37.8]
    with pytest.raises(InvalidInput) as caught:
        read(lat, lon)
    assert "1 of 3 rows have invalid coordinates, the first one row 2" in caught.value.detail
    assert "swapped: if the axes are, send the options lat=lon and lon=lat" in caught.value.detail
    assert read(lat, lon, **KEEP).invalid_rows == 1
    # Not all are valid once they are swapped: one is missing, or both ways invalid.
    for other in ([math.nan, *lat], [95.0, *lat]):
        with pytest.raises(InvalidInput) as caught:
            read(other, [120.0, *lon])
        assert "swapped" not in caught.value.detail
    with pytest.raises(InvalidInput) as caught:
        read([*lon, None], [*lat, 1.0])
    assert "swapped" not in caught.value.detail, "without the empty one they are as they should be"


def test_a_missing_value_and_a_typo_are_no_swap():
    lat, lon = EUROPE[0].copy(), EUROPE[1]
    lat[7] = 95.0
    few = slice(5, 9)
    for sample, is_said in ((slice(None), False), (few, True)):
        for missing in (False, True):
            if missing:
                lat[6] = math.nan
            with pytest.raises(InvalidInput) as caught:
                read(lat[sample], lon[sample])
            said = "all coordinates are valid once they are swapped" in caught.value.detail
            assert said == (is_said and not missing)
        lat[6] = EUROPE[0][6]


def extents(lat, lon):
    return read(lat, lon).bbox


def test_sets_that_match_when_one_is_swapped():
    lat, lon = EUROPE
    swapped = extents(lon, lat)
    for sets in ((swapped, extents(lat, lon)), (extents(lat, lon), swapped)):
        [remark] = looks_swapped(*sets)
        assert "observation_lat and observation_lon, or reference_lat" in remark
        assert "latitudes from -9.99" in remark
    part = lat < 50
    assert looks_swapped(extents(lon[part], lat[part]), extents(lat, lon))
    world = extents(*sample("places"))
    africa = extents(RANDOM.uniform(-35, 0, 99), RANDOM.uniform(10, 40, 99))
    one = extents([20.0], [45.0])
    for other in (extents(lat, lon), world, africa, one, None):
        assert looks_swapped(other, extents(lat, lon)) == []
        assert looks_swapped(extents(lat, lon), other) == []
    assert looks_swapped(swapped, world) == []


@pytest.mark.parametrize(
    ("one", "other", "are_far"),
    [
        ((6, 47, 15, 55), (20, 47, 29, 55), False),  # 5 degrees
        ((6, 47, 15, 55), (30, 47, 35, 55), True),  # 15, and 9 wide
        ((-125, 25, -65, 49), (-9, 36, 30, 60), False),  # 56, and 60 wide
        ((6, 47, 15, 55), (6, 10, 15, 20), True),  # 27 to the south
        ((170, -20, 179, -10), (-179, -20, -170, -10), False),  # over the antimeridian
        ((181, -20, 190, -10), (-150, -20, -140, -10), True),
        ((0, 0, 0, 0), (9, 0, 9, 0), False),
    ],
)
def test_sets_that_lie_far_apart(one, other, are_far):
    for sets in ((one, other), (other, one)):
        assert [words.partition(":")[0] for words in of_extents(*sets)] == (
            ["the two sets lie far apart"] if are_far else []
        )
    assert of_extents(one, None) == of_extents(None, one) == of_extents(one, one) == []


def grid(half_lat, half_lon, n=60):
    lat, lon = np.meshgrid(np.linspace(-half_lat, half_lat, n), np.linspace(-half_lon, half_lon, n))
    return lat.ravel(), lon.ravel()


def gulf_of_guinea(n):
    return RANDOM.uniform(-1.5, 1.5, n), RANDOM.uniform(-3, 3, n)


AROUND = RANDOM.normal(0, 0.05, (2, 5_000))
GOOD = {
    "airports": sample("airports"),
    "places": sample("places"),
    "Gulf of Guinea": gulf_of_guinea(50_000),
    "ships off the equator": (RANDOM.normal(0, 0.3, 9_999), RANDOM.uniform(-3.0, 3.1, 9_999)),
    "a grid of three degrees": grid(1.5, 3.0),
    "a square grid": grid(3.1, 3.1),
    "a grid of five degrees": grid(5, 5),
    "the equator around the globe": (np.zeros(720), np.arange(-180, 180, 0.5)),
    "Null Island": (np.zeros(1_000), np.zeros(1_000)),
    "a buoy": (AROUND[0], AROUND[1]),
    "one point": ([0.5], [0.5]),
    "two points": ([1.0, -1.5], [3.1, -3.1]),
    "Berlin": (52.52 + AROUND[0], 13.4 + AROUND[1]),
    "Berlin in radians": (np.radians(52.52 + AROUND[0]), np.radians(13.4 + AROUND[1])),
    "Europe swapped": (RANDOM.uniform(-10, 30, 999), RANDOM.uniform(36, 70, 999)),
    "a pole": (np.full(720, 90.0), np.arange(0, 360, 0.5)),
    "longitudes to 360": (RANDOM.uniform(-90, 90, 999), RANDOM.uniform(0, 360, 999)),
    "no rows": (np.zeros(0), np.zeros(0)),
}


@pytest.mark.parametrize("name", GOOD)
def test_strange_sets_of_degrees_pass(name):
    dataset = read(*GOOD[name])
    assert (dataset.rows, dataset.invalid_rows) == (len(GOOD[name][0]), 0)


HALF = RANDOM.uniform(0, 1, 5_000) < 0.5
EUROPE = RANDOM.uniform(36, 70, 5_000), RANDOM.uniform(-10, 30, 5_000)
KEPT = {
    "no fix": (np.full(99, math.nan), np.full(99, math.nan)),
    "999999 for no fix": (np.full(99, 999_999.0), np.full(99, 999_999.0)),
    "half of them 999999": tuple(np.where(HALF, 999_999.0, x) for x in EUROPE),
    "half of them 99": (np.where(HALF, 99.0, EUROPE[0]), EUROPE[1]),
    "some metres among degrees": tuple(
        np.where(HALF, x, y) for x, y in zip(EUROPE, web_mercator(*EUROPE), strict=True)
    ),
    "a spike": (np.append(EUROPE[0], 93.7), np.append(EUROPE[1], 5.0)),
    "one row of metres": ([5_800_000.0], [1_490_000.0]),
    "one swapped row": ([-122.4], [37.8]),
    "infinities": ([np.inf, -np.inf], [1.0, 2.0]),
}


@pytest.mark.parametrize("name", KEPT)
def test_bad_rows_are_kept_when_they_are_to_be(name):
    dataset = read(*KEPT[name], **KEEP)
    assert dataset.rows == len(KEPT[name][0])
    assert dataset.invalid_rows > 0


def test_batches_do_not_matter():
    lat, lon = sample("airports")
    details = {refusal(lon, lat, batch=batch).detail for batch in (100, 7_777, 100_000)}
    assert len(details) == 1


def test_over_http(service):
    northing, easting = web_mercator(*sample("airports"))
    body = {
        "observations": {"y": northing[:50].tolist(), "x": easting[:50].tolist()},
        "references": {"lat": [1.0], "lon": [2.0]},
    }
    for on_invalid in ("error", "null"):
        answer = look_up(service, {**body, "on_invalid": on_invalid})
        assert answer.status_code == 400
        assert "50 of 50 rows look like metres" in answer.json()["detail"]
        assert answer.json()["errors"][0]["file"] == "/observations"
    kept = {"on_invalid": "null", "coordinates": "trust"}
    answer = look_up(service, {**body, **kept}, {"Accept": "text/csv"})
    assert answer.text.count("invalid_coordinate") == 50
    body["observations"] = {"y": [5_800_000.0], "x": [1_490_000.0]}
    assert "look like metres" in look_up(service, body).json()["detail"]
