"""Results on web maps: what is drawn, against numpy and the formulas of web mercator."""

import asyncio
import io
import math
import threading
from collections import OrderedDict
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from georesolve.service.maps.cache import Maps
from georesolve.service.settings import Settings
from georesolve.service.store.store import Store
from tests.conftest import finished, points, roles_of, run_nearest, sphere, wait_until
from tests.service.test_results import finished_job

LATER = {"Prefer": "respond-async"}
N = 10_000
EDGE = 85.05112877980659
LIMIT_M = 150_000
CASES = {
    "left": {},
    "inner": {"how": "inner"},
    "three": {"k": 3},
    "all": {"max_distance_m": None},
    "pairs": {"question": "within", "distance_m": 400_000, "max_distance_m": None},
    "pairs and others": {
        "question": "within",
        "distance_m": LIMIT_M,
        "max_distance_m": None,
        "how": "left",
    },
}


def observations():
    """Points over the globe, in a cluster, beyond the antimeridian, near the poles, and none."""
    lat, lon = sphere(N, 5)
    lat[:2000] = 47 + np.random.default_rng(1).normal(0, 0.01, 2000)
    lon[:2000] = 8 + np.random.default_rng(2).normal(0, 0.01, 2000)
    lon[2000:4000] = np.random.default_rng(3).uniform(179.9, 180.1, 2000)
    lat[2000:4000] = np.random.default_rng(4).uniform(-1, 1, 2000)
    lat[4000:4100] = np.linspace(84.9, 90, 100)
    lat[4100:4105], lon[4105:4108] = math.nan, math.nan
    lon[4108:4111] = [-180.0, 180.0, 360.0]
    return lat, lon


@pytest.fixture
def maps(tmp_path):
    """Those of a front, without a job."""
    with closing(Store(tmp_path / "data")) as store:
        yield Maps(Settings(data_dir=tmp_path / "data"), store)


def test_a_map_may_be_closed_while_it_is_given(maps, monkeypatch):
    class Opened(OrderedDict):
        def __setitem__(self, id, drawn):
            super().__setitem__(id, drawn)
            # Its job is dismissed: a thread closes it, as nothing of it is there.
            maps.forget_gone()

    monkeypatch.setattr(maps, "_opened", Opened())
    monkeypatch.setattr(maps, "_made", lambda *_: "a map")
    assert asyncio.run(maps.drawn("", "a", None, None)) == "a map"
    assert not maps._opened


def test_owners_take_turns_to_draw(maps):
    order, begin = [], threading.Event()

    def draw(name):
        begin.wait()
        order.append(name)

    async def ask():
        names = [f"a{i}" for i in range(8)] + ["b"]
        tasks = [asyncio.create_task(maps.run(name[0], partial(draw, name))) for name in names]
        # All of them wait by now.
        await asyncio.sleep(0)
        begin.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(ask(), 60))
    assert order.index("b") < 4


def test_a_picture_is_drawn_once_while_there_is_room_for_it(maps):
    drawn = []

    def picture(name):
        async def draw():
            drawn.append(name)
            return name.encode() * (1 << 20)

        return maps.picture(name, draw)

    async def ask(names):
        return [await picture(name) for name in names]

    assert asyncio.run(ask("aab")) == [name * (1 << 20) for name in (b"a", b"a", b"b")]
    assert drawn == ["a", "b"]
    many = [chr(0x100 + i) for i in range(15)]
    asyncio.run(ask([*many, "a", "b"]))
    assert drawn == ["a", "b", *many, "a", "b"]
    asyncio.run(ask(["b", many[-1]]))
    assert drawn[-1] == "b"


@pytest.fixture(scope="module", params=CASES)
def drawn(request, service):
    """A job, and what it should show: longitudes, latitudes, distances (NaN where unmatched)."""
    lat, lon = observations()
    seen = pa.table({"id": np.arange(N), "lat": lat, "lon": lon})
    options = {"max_distance_m": LIMIT_M, "on_invalid": "null", **CASES[request.param]}
    options = {name: value for name, value in options.items() if value is not None}
    location = finished_job(service, seen, points(3000, 6), **options)
    table = pq.read_table(io.BytesIO(service.get(f"{location}/results").content))
    if "rank" in table.column_names:
        table = table.filter(np.asarray(table["rank"]) == 1)
    rows = table["observation"].to_numpy()
    status = np.array(table["status"].to_pylist())
    metres = table["distance_m"].to_numpy()
    return location, lon[rows], lat[rows], metres, status


def pixels_of(lon, lat, z, x, y):
    """Column and row of points in a tile, by the formulas of the wiki of OpenStreetMap."""
    scale = 256 << z
    across = ((lon + 180) % 360) / 360 * scale - 256 * x
    down = (1 - np.arcsinh(np.tan(np.radians(lat))) / math.pi) / 2 * scale - 256 * y
    return across, down


def tile(service, location, z, x, y):
    answer = service.get(f"{location}/tiles/{z}/{x}/{y}.png").raise_for_status()
    assert answer.headers["content-type"] == "image/png"
    return np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGBA"))


@pytest.mark.parametrize("at", [(0, 0, 0), (3, 4, 2), (3, 7, 4), (3, 0, 4), (9, 267, 180)])
def test_a_tile_is_what_numpy_counts(service, drawn, at):
    location, lon, lat, metres, status = drawn
    layer = service.get(f"{location}/tiles").raise_for_status().json()
    shown = (status != "invalid_coordinate") & (np.abs(lat) <= EDGE)
    assert layer["rows"] == shown.sum()
    assert layer["rows_beyond"] == ((status != "invalid_coordinate") & ~shown).sum()
    lon, lat, metres = lon[shown], lat[shown], metres[shown]
    across, down = pixels_of(lon, lat, *at)
    bins = {"bins": 256, "range": ((0, 256), (0, 256))}
    counts = np.histogram2d(down, across, **bins)[0]
    is_matched = ~np.isnan(metres)
    matched = np.histogram2d(down[is_matched], across[is_matched], **bins)[0]
    image = tile(service, location, *at).astype(int)
    assert np.array_equal(image[..., 3] > 0, counts > 0)
    assert counts.sum() > (0 if at[0] < 9 else 500)
    # More observations are drawn more opaquely, and as many equally.
    for few, many in zip(*(np.unique(counts[counts > 0])[i:] for i in (0, 1)), strict=False):
        assert image[counts == few, 3].max() <= image[counts == many, 3].min()
    assert all(np.unique(image[counts == n, 3]).size == 1 for n in np.unique(counts))
    names = np.array(
        [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue, _ in image.reshape(-1, 4)]
    )
    names = names.reshape(256, 256)
    assert (names[(counts > 0) & (matched == 0)] == layer["color_unmatched"]).all()
    from_m = np.array([one["distance_m"] for one in layer["colors"]])
    colours = [one["color"] for one in layer["colors"]]
    inside = is_matched & (across >= 0) & (across < 256) & (down >= 0) & (down < 256)
    pixel = down[inside].astype(int) * 256 + across[inside].astype(int)
    for one in np.unique(pixel):
        median = np.median(metres[inside][pixel == one])
        number = max(0, np.searchsorted(from_m, median, "right") - 1)
        assert names.flat[one] == colours[number]


def test_distances_are_what_numpy_says(service, drawn):
    location, _, _, metres, status = drawn
    told = service.get(f"{location}/distances").raise_for_status().json()
    assert told["counts"] == {name: (status == name).sum() for name in np.unique(status)}
    metres = metres[~np.isnan(metres)]
    percents = [one["percent"] for one in told["percentiles"]]
    assert percents == [0, 1, 5, 25, 50, 75, 95, 99, 100]
    given = [one["distance_m"] for one in told["percentiles"]]
    assert given == pytest.approx(np.percentile(metres, percents), rel=1e-4)
    for name in ("linear", "logarithmic"):
        edges = told[name]["edges_m"]
        assert len(edges) == 65
        assert np.array_equal(told[name]["counts"], np.histogram(metres, edges)[0])


def test_features_are_rows_of_the_result(service, drawn):
    location, lon, lat, metres, status = drawn
    shown = (status != "invalid_coordinate") & (np.abs(lat) <= EDGE)
    for at in ((7, 127, 63), (7, 0, 63), (6, 40, 30), (0, 0, 0)):
        across, down = pixels_of(lon, lat, *at)
        inside = shown & (across >= 0) & (across < 256) & (down >= 0) & (down < 256)
        answer = service.get(f"{location}/tiles/{'/'.join(map(str, at))}.geojson")
        told = answer.raise_for_status().json()
        assert told["observations"] == inside.sum()
        counted = service.get(f"{location}/tiles/{'/'.join(map(str, at))}.geojson?most=0").json()
        assert counted == {
            "type": "FeatureCollection",
            "observations": inside.sum(),
            "features": [],
        }
        if told["observations"] > 2000:
            assert told["features"] == []
            continue
        assert len(told["features"]) == inside.sum()
        for feature in told["features"]:
            about, geometry = feature["properties"], feature["geometry"]
            is_matched = about["reference"] is not None
            assert (about["status"] == "matched") == is_matched
            assert geometry["type"] in (
                ("LineString", "MultiLineString") if is_matched else ("Point",)
            )
        found = [one["properties"]["distance_m"] for one in told["features"]]
        found = sorted(one for one in found if one is not None)
        assert found == sorted(metres[inside & ~np.isnan(metres)].tolist())


@pytest.mark.parametrize("how", ["left", "inner"])
def test_all_ranks_of_an_observation(service, how):
    # On the equator: the first has two references near by, the second one, the third none.
    seen = pa.table({"lat": [0.0] * 3, "lon": [10.0, 20.0, 30.0]})
    references = pa.table({"lat": [0.0] * 3, "lon": [10.1, 10.2, 20.3]})
    asked = {"k": 2, "max_distance_m": 50_000, "how": how}
    location = finished_job(service, seen, references, **asked)
    address = f"{location}/tiles/0/0/0.geojson"
    for query, expected in (
        ("", [(0, 1, 0), (1, 1, 2), (2, 1, None)]),
        (
            "?ranks=all",
            [(0, 1, 0), (0, 2, 1), (1, 1, 2), (1, 2, None), (2, 1, None), (2, 2, None)],
        ),
    ):
        found = [one["properties"] for one in service.get(address + query).json()["features"]]
        rows = [(one["observation"], one["rank"], one["reference"]) for one in found]
        kept = [one for one in expected if how == "left" or one[2] is not None]
        assert sorted(rows, key=str) == sorted(kept, key=str)
        metres = {row: one["distance_m"] for row, one in zip(rows, found, strict=True)}
        assert metres[0, 1, 0] == pytest.approx(math.radians(0.1) * 6_371_008.8)


def test_pairs_stand_where_their_observations_are(service):
    # As many rows as there are observations from the first to the last, one of which has none.
    seen = pa.table({"lat": [10.0, 80.0, 20.0], "lon": [10.0, 80.0, 20.0]})
    references = pa.table({"lat": [10.0, 10.1, 20.0], "lon": [10.0, 10.1, 20.0]})
    asked = {"question": "within", "distance_m": 100_000}
    location = finished_job(service, seen, references, **asked)
    layer = service.get(f"{location}/tiles").raise_for_status().json()
    assert (layer["rows"], layer["bounds"]) == (3, [10, 10, 20, 20])
    found = service.get(f"{location}/tiles/4/8/7.geojson").json()["features"]
    assert [one["properties"]["observation"] for one in found] == [0, 0, 2]


@pytest.fixture(scope="module", params=["observation", "reference", "nearest"])
def counted(request, service):
    """A job of counts, and what it should show: longitudes, latitudes, counts (NaN for none)."""
    lat, lon = observations()
    sets = pa.table({"id": np.arange(N), "lat": lat, "lon": lon}), points(3000, 6)
    options = {"question": "within", "distance_m": 400_000, "summary_by": request.param}
    own = "reference" if request.param == "reference" else "observation"
    if request.param == "nearest":
        options = {"k": 9, "max_distance_m": 400_000}
    sets = sets[::-1] if own == "reference" else sets
    options |= {"on_invalid": "null", "summary": '{"count": true}'}
    location = finished_job(service, *sets, **options)
    table = pq.read_table(io.BytesIO(service.get(f"{location}/results").content))
    counts = table["count"].cast(pa.float64()).fill_null(np.nan).to_numpy()
    assert table[own].to_pylist() == [*range(N)]
    # The poles, the cluster and the rest have none, some and many.
    assert np.unique(counts[~np.isnan(counts)]).size > 8
    return location, own, lon, lat, counts


@pytest.mark.parametrize("at", [(0, 0, 0), (3, 4, 2), (3, 0, 4), (9, 267, 180)])
def test_a_pixel_shows_the_greatest_count(service, counted, at):
    location, _, lon, lat, counts = counted
    layer = service.get(f"{location}/tiles").raise_for_status().json()
    shown = ~np.isnan(counts) & (np.abs(lat) <= EDGE)
    assert layer["rows"] == shown.sum()
    starts = [one["count"] for one in layer["colors"]]
    assert starts[0] == 1
    assert starts == sorted({*starts})
    assert starts[-1] <= np.nanmax(counts)
    across, down = pixels_of(lon[shown], lat[shown], *at)
    inside = (across >= 0) & (across < 256) & (down >= 0) & (down < 256)
    pixel = down[inside].astype(int) * 256 + across[inside].astype(int)
    image = tile(service, location, *at).reshape(-1, 4)
    assert np.array_equal(np.flatnonzero(image[:, 3]), np.unique(pixel))
    assert {*image[:, 3].tolist()} <= {0, 255}
    for one in np.unique(pixel):
        most = counts[shown][inside][pixel == one].max()
        wanted = [each["color"] for each in layer["colors"] if each["count"] <= most]
        red, green, blue, _ = image[one]
        told = f"#{red:02x}{green:02x}{blue:02x}"
        assert told == (wanted or [layer["color_unmatched"]])[-1]


def test_features_of_counts_are_points(service, counted):
    location, own, lon, lat, counts = counted
    shown = ~np.isnan(counts) & (np.abs(lat) <= EDGE)
    for at in ((6, 40, 30), (5, 9, 17)):
        across, down = pixels_of(lon, lat, *at)
        inside = shown & (across >= 0) & (across < 256) & (down >= 0) & (down < 256)
        told = service.get(f"{location}/tiles/{'/'.join(map(str, at))}.geojson").json()
        assert len(told["features"]) == told["observations"] == inside.sum() > 0
        for feature in told["features"]:
            about, geometry = feature["properties"], feature["geometry"]
            row = about[own]
            assert inside[row]
            assert about["count"] == counts[row]
            assert geometry["type"] == "Point"
            assert geometry["coordinates"][1] == lat[row]
            assert (geometry["coordinates"][0] - lon[row]) % 360 == 0


def test_counts_are_spread_as_numpy_says(service, counted):
    location, *_, counts = counted
    told = service.get(f"{location}/distances").raise_for_status().json()
    counts = counts[~np.isnan(counts)]
    percents = [one["percent"] for one in told["percentiles"]]
    given = [one["count"] for one in told["percentiles"]]
    assert given == np.percentile(counts, percents).tolist()
    for name in ("linear", "logarithmic"):
        edges = told[name]["edges"]
        assert edges == sorted({*map(int, edges)})
        assert edges[-1] == counts.max() + 1
        assert np.array_equal(told[name]["counts"], np.histogram(counts, edges)[0])


def test_a_summary_without_a_count_has_no_map(service):
    table = pa.table({"lat": [1.0], "lon": [2.0], "size": [3]})
    asked = {"question": "within", "distance_m": 5, "summary": '{"size": ["sum"]}'}
    location = finished_job(service, table, table, **asked)
    for path in ("tiles", "tiles/0/0/0.png", "tiles/0/0/0.geojson", "distances"):
        answer = service.get(f"{location}/{path}")
        assert (answer.status_code, "ask for" in answer.json()["detail"]) == (404, True)


def test_a_tile_that_is_known_is_not_sent_again(service, drawn):
    location = drawn[0]
    for kind in ("png", "geojson"):
        path = f"{location}/tiles/1/1/1.{kind}"
        answer = service.get(path)
        assert "immutable" in answer.headers["cache-control"]
        again = service.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert service.head(path).status_code == 200
    for path in ("1/2/0.png", "2/0/4.geojson"):
        problem = service.get(f"{location}/tiles/{path}")
        assert (problem.status_code, problem.json()["status"]) == (404, 404)
    assert service.get(f"{location}/tiles/19/0/0.png").status_code == 400


@pytest.mark.parametrize("rows", [0, 1])
def test_a_map_of_nothing_is_empty(service, rows):
    seen = pa.table({"lat": [1.0], "lon": [2.0]})
    location = finished_job(
        service, seen, points(1, 1), max_distance_m=1, how="left" if rows else "inner"
    )
    layer = service.get(f"{location}/tiles").raise_for_status().json()
    assert (layer["rows"], layer["colors"]) == (rows, [])
    assert (tile(service, location, 0, 0, 0)[..., 3] > 0).sum() == rows
    told = service.get(f"{location}/tiles/0/0/0.geojson").json()
    assert [one["geometry"] for one in told["features"]] == [
        {"type": "Point", "coordinates": [2.0, 1.0]}
    ] * rows
    assert service.get(f"{location}/distances").json()["percentiles"] == []


def test_a_map_goes_with_its_job(service):
    inputs = {"observations": {"lat": [1.0], "lon": [2.0]}, "references": {"lat": [1], "lon": [3]}}
    location = run_nearest(service, inputs, LATER).headers["location"]
    finished(service, location)
    path = f"{location}/tiles/0/0/0.png"
    assert service.get(path).status_code == 200

    def is_mapped():
        fronts = (Path(f"/proc/{one.pid}/maps") for one in roles_of(service.process, "front"))
        return any(f"{Path(location).name}/map.index" in one.read_text() for one in fronts)

    assert is_mapped()
    service.delete(location).raise_for_status()
    assert service.get(path).status_code == 410
    # What a process has mapped takes the disk until it lets go.
    wait_until(lambda: not is_mapped())
