"""Lines and polygons as references, by every door of Python and the command."""

import json
import pickle

import geopandas
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

import georesolve
from georesolve import cli
from georesolve.engine.questions import WithinShapes
from tests import oracle
from tests.conftest import ROOT

SHAPES = [
    shapely.box(0, 0, 1, 1).difference(shapely.box(0.4, 0.4, 0.6, 0.6)),
    shapely.MultiPolygon([shapely.box(2, 0, 3, 1), shapely.box(179, -1, 180, 1)]),
    shapely.LineString([(5, 5), (6, 6), (7, 5)]),
    shapely.Point(8, 8),
    shapely.MultiLineString([[(-3, 0), (-2, 0)], [(-3, 1), (-2, 1)]]),
    shapely.MultiPoint([(-10, -10), (-10, -12)]),
]
NAMES = list("abcdef")
HERE = {
    "lat": np.array([0.5, 0.2, 0.5, 5.5, 8.0, 0.5, -11.1, 0.0, 60.0]),
    "lon": np.array([0.5, 0.2, 1.4, 5.5, 8.0, -2.5, -10.0, 181.0, -40.0]),
    "w": np.arange(9) + 0.25,
}
REFERENCE = [0, 0, 0, 2, 3, 4, 5, 1, 3]
NAMED = [NAMES[row] for row in REFERENCE]


def frame():
    return geopandas.GeoDataFrame({"name": NAMES, "id": range(10, 16)}, geometry=SHAPES, crs=4326)


def metres_to_box(lat, lon, west, south, east, north):
    """To a box of some degrees by many points on its edges."""
    share = np.linspace(0, 1, 20001)
    lats, lons = (
        np.concatenate([a + (b - a) * share for a, b in pairs])
        for pairs in (
            [(south, south), (south, north), (north, north), (north, south)],
            [(west, east), (east, east), (east, west), (west, west)],
        )
    )
    return oracle.haversine_m(lat, lon, lats, lons).min()


def tables():
    wkb = pa.array(shapely.to_wkb(np.array(SHAPES)), pa.binary())
    plain = {"name": NAMES, "id": range(10, 16)}
    arrow = pa.table({**{k: list(v) for k, v in plain.items()}, "geom": wkb})
    return {
        "GeoDataFrame": (frame(), {}),
        "GeoSeries": (frame().geometry, {}),
        "WKB in pandas": (arrow.to_pandas(), {"reference_geometry": "geom"}),
        "WKB in Arrow": (arrow, {"reference_geometry": "geom"}),
        "WKB in polars": (polars.from_arrow(arrow), {"reference_geometry": "geom"}),
        "an index": (georesolve.Index(frame()), {}),
    }


@pytest.mark.parametrize("kind", tables())
def test_every_table_of_shapes_gives_the_same(kind):
    references, options = tables()[kind]
    found = georesolve.nearest(HERE, references, near=True, **options)
    assert found["reference"].tolist() == REFERENCE
    assert found["distance_m"][[1, 4]].tolist() == [0, 0]
    near = georesolve.nearest(HERE, frame(), near=True)
    for column in ("distance_m", "near_lat", "near_lon", "bearing_deg"):
        assert found[column].tobytes() == near[column].tobytes()
    hole = metres_to_box(0.5, 0.5, 0.4, 0.4, 0.6, 0.6)
    assert abs(found["distance_m"][0] - hole) < 1
    assert abs(found["distance_m"][2] - metres_to_box(0.5, 1.4, 0, 0, 1, 1)) < 1
    apart = oracle.haversine_m(HERE["lat"], HERE["lon"], found["near_lat"], found["near_lon"])
    assert np.abs(apart - found["distance_m"]).max() < 1e-3
    # In a polygon, and on a point.
    assert np.isnan(found["bearing_deg"][[1, 4]]).all()
    assert (found["near_lat"][1], found["near_lon"][1]) == (0.2, 0.2)


@pytest.mark.parametrize("suffix", ["parquet", "geojson", "gpkg", "fgb", "shp"])
def test_every_file_of_shapes_gives_the_same(tmp_path, suffix):
    shapes = frame()
    options = {"SPATIAL_INDEX": "NO"} if suffix == "fgb" else {}
    if suffix == "shp":
        # It has one kind of geometry.
        shapes, path = shapes.iloc[:2], tmp_path / "shapes.shp"
        expected = georesolve.nearest(HERE, shapes, k=2)
    else:
        path = tmp_path / f"shapes.{suffix}"
        expected = georesolve.nearest(HERE, shapes, k=2)
    if suffix == "parquet":
        shapes.to_parquet(path)
    else:
        shapes.to_file(path, **options)
    pd.DataFrame(HERE).to_csv(tmp_path / "here.csv", index=False)

    found = georesolve.nearest(HERE, path, k=2)
    assert found["reference"].tolist() == expected["reference"].tolist()
    assert np.allclose(found["distance_m"], expected["distance_m"], rtol=0, atol=1e-6)
    out = tmp_path / "out.parquet"
    line = ["nearest", tmp_path / "here.csv", path, "-o", out, "-k", "2", "--quiet"]
    assert cli.main([*map(str, line), "--columns", "name", "--near"]) == 0
    table = pq.read_table(out)
    assert table["reference"].to_pylist() == found["reference"].tolist()
    assert table["distance_m"].to_pylist() == found["distance_m"].tolist()
    names = [NAMES[row] for row in found["reference"]]
    assert table["reference_name"].to_pylist() == names


def test_pairs_and_summaries_of_both_sides(tmp_path):
    pairs = georesolve.within(HERE, frame(), 100_000, columns=["name"])
    distances = georesolve.nearest(HERE, frame(), k=6)
    near = distances["distance_m"] <= 100_000
    assert pairs["distance_m"].tolist() == distances["distance_m"][near].tolist()
    assert pairs["reference"].tolist() == distances["reference"][near].tolist()
    each = {"count": True, "w": ["sum", "max"]}
    by_shape = georesolve.within(HERE, frame(), 100_000, summary=each, summary_by="reference")
    for row in range(len(SHAPES)):
        own = HERE["w"][pairs["observation"][pairs["reference"] == row]]
        assert by_shape["count"][row] == own.size
        assert by_shape["w_sum"][row] == own.sum()
        assert np.array_equal(
            by_shape["w_max"][row], own.max(initial=-1) if own.size else np.nan, equal_nan=True
        )
    by_point = georesolve.within(HERE, frame(), 100_000, summary={"count": True})
    assert by_point["count"].tolist() == near.reshape(-1, 6).sum(axis=1).tolist()
    k = georesolve.nearest(HERE, frame(), k=2, max_distance_m=100_000, summary={"count": True})
    assert k["count"].tolist() == np.minimum(by_point["count"], 2).tolist()

    frame().to_parquet(tmp_path / "shapes.parquet")
    pd.DataFrame(HERE).to_parquet(tmp_path / "here.parquet")
    sets = tmp_path / "here.parquet", tmp_path / "shapes.parquet"
    line = ["within", *sets, "-o", tmp_path / "out.parquet", "-d", "100km", "--quiet", "--count"]
    line += ["--summary", "w:sum,max", "--summary-by", "reference"]
    assert cli.main([*map(str, line)]) == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["reference_id"].to_pylist() == list(range(10, 16))
    for name in ("count", "w_sum", "w_max"):
        assert np.array_equal(table[name].to_numpy(), by_shape[name], equal_nan=True)


def test_joins_with_shapes():
    points = geopandas.points_from_xy(HERE["lon"], HERE["lat"], crs=4326)
    left = geopandas.GeoDataFrame({"w": HERE["w"]}, geometry=points)
    joined = georesolve.sjoin_nearest(left, frame(), distance_col="metres")
    assert joined["name"].tolist() == NAMED
    inside = georesolve.sjoin(left, frame(), predicate="intersects")
    theirs = geopandas.sjoin(left, frame(), predicate="intersects")
    assert inside["name"].tolist() == theirs["name"].tolist() == ["a", "c", "d"]
    near = georesolve.sjoin(left, frame(), distance=100_000)
    assert len(near) == len(georesolve.within(HERE, frame(), 100_000)["reference"])
    with pytest.raises(ValueError, match="exclusive with how='right' is for points"):
        georesolve.sjoin_nearest(left, frame(), how="right", exclusive=True)
    inside, theirs = (
        library.sjoin(left, frame(), predicate="intersects", how="right")
        for library in (georesolve, geopandas)
    )
    assert inside["w"].fillna(-1).tolist() == theirs["w"].fillna(-1).tolist()
    assert inside["w"].notna().sum() == 3
    with pytest.raises(ValueError, match="predicate must be 'dwithin' or 'intersects'"):
        georesolve.sjoin(left, frame(), predicate="touches")
    with pytest.raises(ValueError, match="'intersects' has none"):
        georesolve.sjoin(left, frame(), predicate="intersects", distance=3)


def test_edges_run_as_the_file_or_the_user_says(tmp_path):
    canada = geopandas.GeoDataFrame(geometry=[shapely.box(-124, 49, -96, 60)], crs=4326)
    here = {"lat": np.array([49.5]), "lon": np.array([-110.0])}
    assert georesolve.nearest(here, canada)["distance_m"] == 0
    [spherical] = georesolve.nearest(here, canada, edges="spherical")["distance_m"]
    assert 3e4 < spherical < 5e4
    # Followed within so many metres.
    south = {"lat": np.array([48.0]), "lon": np.array([-110.0])}
    exact = oracle.RADIUS_M * np.radians(1)
    for densify_m in (1.0, 1e4):
        [metres] = georesolve.nearest(south, canada, densify_m=densify_m)["distance_m"]
        assert 0 <= metres - exact <= densify_m
    canada.to_parquet(tmp_path / "planar.parquet")
    table = pq.read_table(tmp_path / "planar.parquet")
    geo = json.loads(table.schema.metadata[b"geo"])
    geo["columns"]["geometry"]["edges"] = "spherical"
    metadata = {**table.schema.metadata, b"geo": json.dumps(geo).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "spherical.parquet")
    assert georesolve.nearest(here, tmp_path / "planar.parquet")["distance_m"] == 0
    assert georesolve.nearest(here, tmp_path / "spherical.parquet")["distance_m"] == spherical
    planar = georesolve.nearest(here, tmp_path / "spherical.parquet", edges="planar")
    assert planar["distance_m"] == 0
    # The smaller side, unless rings say which.
    geo["columns"]["geometry"]["orientation"] = "counterclockwise"
    clockwise = shapely.to_wkb(shapely.box(-124, 49, -96, 60, ccw=False))
    metadata[b"geo"] = json.dumps(geo).encode()
    rest = pa.table({"geometry": pa.array([clockwise])}).replace_schema_metadata(metadata)
    pq.write_table(rest, tmp_path / "rest.parquet")
    assert georesolve.nearest(here, tmp_path / "rest.parquet")["distance_m"] == 0
    assert (
        georesolve.nearest({"lat": [55], "lon": [-110]}, tmp_path / "rest.parquet")["distance_m"]
        > 1e5
    )
    # And so they are kept.
    index = georesolve.Index(tmp_path / "rest.parquet", densify_m=5)
    index.save(tmp_path / "saved.parquet")
    again = georesolve.Index.open(tmp_path / "saved.parquet")
    for one in (again, pickle.loads(pickle.dumps(index))):
        assert one.nearest(HERE)["distance_m"].tobytes() == (
            index.nearest(HERE)["distance_m"].tobytes()
        )


FLAWED = {
    "it is empty": shapely.Polygon(),
    "it is a GeometryCollection": shapely.GeometryCollection([shapely.Point(0, 0)]),
    "a point at longitude 400.0 and latitude 0.0": shapely.LineString([(0, 0), (400, 0)]),
    "wider than 360 degrees": shapely.LineString([(-180, 0), (300, 0)]),
}


@pytest.mark.parametrize("why", FLAWED)
def test_what_is_no_shape_is_refused_by_its_row_or_left_out(why):
    shapes = geopandas.GeoSeries([SHAPES[0], FLAWED[why], SHAPES[1]], crs=4326)
    with pytest.raises(georesolve.InvalidInput, match=f"row 1 holds no shape: .*{why}"):
        georesolve.nearest(HERE, shapes)
    found = georesolve.nearest(HERE, shapes, on_invalid="null", k=3)
    assert set(found["reference"]) == {0, 2, -1}


def test_edges_of_180_degrees_and_missing_shapes_are_refused():
    shapes = geopandas.GeoSeries([SHAPES[0], shapely.LineString([(0, 1), (180, -1)])], crs=4326)
    georesolve.nearest(HERE, shapes)
    with pytest.raises(georesolve.InvalidInput, match="row 1 holds no shape: an edge of it is 180"):
        georesolve.nearest(HERE, shapes, edges="spherical")
    missing = geopandas.GeoSeries([SHAPES[0], None], crs=4326)
    with pytest.raises(georesolve.InvalidInput, match="1 of 2 rows have invalid coordinates"):
        georesolve.nearest(HERE, missing)
    assert georesolve.nearest(HERE, missing, on_invalid="null", k=2)["reference"].max() == 0


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"edges": "vincenty"}, "edges are 'vincenty': known are planar and spherical"),
        ({"densify_m": "x"}, "within 'x' metres"),
        ({"densify_m": -1}, "within -1 metres"),
        ({"densify_m": 1e-9}, "within 1e-09 metres"),
    ],
    ids=str,
)
def test_what_a_file_says_of_its_edges_is_checked(tmp_path, said, refused):
    frame().to_parquet(tmp_path / "shapes.parquet")
    table = pq.read_table(tmp_path / "shapes.parquet")
    geo = json.loads(table.schema.metadata[b"geo"])
    geo["columns"]["geometry"] |= said
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), tmp_path / "s.parquet")
    with pytest.raises(georesolve.InvalidInput, match=refused):
        georesolve.nearest(HERE, tmp_path / "s.parquet")


def test_a_geometry_that_geojson_has_not_is_named(tmp_path):
    ring = [[0, 0], [1, 0], [1, 1]]
    features = [
        {"type": "Feature", "properties": {}, "geometry": {"type": kind, "coordinates": one}}
        for kind, one in (("LineString", ring), ("Polygon", [ring]))
    ]
    path = tmp_path / "shapes.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    with pytest.raises(georesolve.InvalidInput, match=r"row 1.*not a geometry that GeoJSON has"):
        georesolve.nearest(HERE, path)


def test_what_shapes_cannot_do_is_refused():
    with pytest.raises(georesolve.InvalidInput, match="not a point"):
        georesolve.nearest(frame(), HERE)
    with pytest.raises(georesolve.InvalidOption, match="a set resolved against itself"):
        georesolve.nearest(HERE, frame(), exclude_self=True)
    with pytest.raises(georesolve.InvalidOption, match="densify_m says how references are read"):
        georesolve.Index(frame()).nearest(HERE, densify_m=3)
    for options in ({"edges": "flat"}, {"densify_m": 0}, {"densify_m": "1 m"}):
        with pytest.raises(georesolve.InvalidOption, match=next(iter(options))):
            georesolve.nearest(HERE, frame(), **options)


def test_a_plan_of_shapes_is_refused(tmp_path):
    frame().to_parquet(tmp_path / "shapes.parquet")
    pd.DataFrame(HERE).to_parquet(tmp_path / "here.parquet")
    with pytest.raises(georesolve.InvalidInput, match="a plan is made for points"):
        georesolve.plan(tmp_path / "here.parquet", tmp_path / "shapes.parquet")


def test_collections_of_dask_look_for_shapes():
    dask = pytest.importorskip("dask.dataframe")
    observations = dask.from_pandas(pd.DataFrame(HERE), npartitions=3)
    found = georesolve.nearest(observations, frame(), columns=["name"]).compute()
    assert found["reference"].tolist() == REFERENCE
    assert found["reference_name"].tolist() == NAMED


def test_points_and_shapes_in_batches_of_a_file(tmp_path):
    """Batches of points alone are read as points, and all are shapes in the end."""
    rng = np.random.default_rng(1)
    lon, lat = rng.uniform(-170, 170, 150_000), rng.uniform(-80, 80, 150_000)
    shapes = shapely.points(lon, lat)
    shapes[70_000] = shapely.box(40, 40, 42, 42)
    shapes[149_999] = shapely.LineString([(0, 0), (1, 1)])
    path = tmp_path / "mixed.parquet"
    geopandas.GeoSeries(shapes, crs=4326).to_frame("geometry").to_parquet(path)
    here = {"lat": np.append(lat[7::500], [41, 0.5]), "lon": np.append(lon[7::500], [41, 0.5])}
    expected = np.append(np.arange(150_000)[7::500], [70_000, 149_999])
    found = georesolve.nearest(here, path)
    fits = found["reference"] == expected
    fits[:-2] |= (found["reference"][:-2] == 70_000) & (found["distance_m"][:-2] == 0)
    assert fits.all()


@pytest.mark.parametrize(
    "shape", [*SHAPES, shapely.box(-5, -5, -4, -4)], ids=lambda one: one.geom_type
)
def test_native_geoarrow_is_read_as_wkb_is(tmp_path, shape):
    shapes = geopandas.GeoDataFrame(
        {"a": range(3)},
        geometry=[shape, None, shapely.transform(shape, lambda xy: xy - 1)],
        crs=4326,
    )
    options = {"k": 2, "on_invalid": "null"}
    expected = georesolve.nearest(HERE, shapes, **options)
    shapes.to_parquet(tmp_path / "native.parquet", geometry_encoding="geoarrow")
    tables = [
        pa.table(shapes.to_arrow(geometry_encoding="geoarrow", interleaved=interleaved))
        for interleaved in (True, False)
    ]
    sliced = pa.concat_tables([tables[0].slice(2), tables[0]]).combine_chunks().slice(1)
    for references in (tmp_path / "native.parquet", *tables, sliced):
        found = georesolve.nearest(HERE, references, reference_geometry="geometry", **options)
        for column in ("reference", "distance_m"):
            assert found[column].tobytes() == expected[column].tobytes()


def test_native_geoarrow_that_is_no_shape_is_named():
    rings = pa.array([[[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]]] * 2)
    rings = rings.cast(pa.list_(pa.list_(pa.list_(pa.float64(), 2))))
    assert georesolve.nearest(HERE, pa.table({"g": rings}), reference_geometry="g")
    broken = pa.array([[[[0.0, 0.0], [1.0, 0.0]]]], rings.type)
    table = pa.table({"g": pa.chunked_array([rings, broken])}).combine_chunks()
    with pytest.raises(georesolve.InvalidInput, match="row 2 holds no shape: it is no polygon"):
        georesolve.nearest(HERE, table, reference_geometry="g")
    said = {"ARROW:extension:name": "geoarrow.polygon"}
    said["ARROW:extension:metadata"] = json.dumps({"edges": "spherical"})
    canada = [[[[-124.0, 49.0], [-96.0, 49.0], [-96.0, 60.0], [-124.0, 60.0], [-124.0, 49.0]]]]
    field = pa.field("g", rings.type, metadata=said)
    spherical = pa.table([pa.array(canada, rings.type)], schema=pa.schema([field]))
    here = {"lat": np.array([49.5]), "lon": np.array([-110.0])}
    assert georesolve.nearest(here, spherical, reference_geometry="g")["distance_m"] > 3e4


def test_the_country_of_each_airport():
    """As GeoPandas has it, on a plane: the samples' polygons are planar."""
    airports, countries = (ROOT / f"samples/{name}.parquet" for name in ("airports", "countries"))
    degrees = pd.read_parquet(airports)
    found = georesolve.within(degrees, countries, 0)
    points = geopandas.points_from_xy(degrees["lon"], degrees["lat"], crs=4326)
    frame = geopandas.GeoDataFrame(geometry=points)
    theirs = frame.sjoin(geopandas.read_parquet(countries), predicate="intersects")
    pairs = sorted(theirs["index_right"].items())
    assert [*zip(found["observation"], found["reference"], strict=True)] == pairs
    assert len(pairs) == 26830


def test_the_nearest_river_of_airports():
    """By all arcs of a twentieth of a degree, which lie within a third of a metre of the edges."""
    lines = geopandas.read_parquet(ROOT / "samples/rivers.parquet").geometry.segmentize(0.05)
    airports = pd.read_parquet(ROOT / "samples/airports.parquet")[::250]
    vectors = oracle.cartesian(airports["lat"], airports["lon"]).T
    metres = np.empty((len(lines), len(airports)))
    for row, line in enumerate(lines):
        chord2 = np.full(len(airports), 4.0)
        for part in shapely.get_parts(line):
            lon, lat = shapely.get_coordinates(part).T
            ends = oracle.cartesian(lat, lon).T
            own = oracle.arc_chord2(vectors, ends[:, :-1], ends[:, 1:]).min(axis=1)
            chord2 = np.minimum(chord2, own)
        metres[row] = 2 * oracle.RADIUS_M * np.arcsin(np.sqrt(chord2) / 2)
    found = georesolve.nearest(airports, ROOT / "samples/rivers.parquet")
    assert found["reference"].tolist() == metres.argmin(axis=0).tolist()
    assert np.allclose(found["distance_m"], metres.min(axis=0), rtol=0, atol=1.4)


@pytest.mark.parametrize("densify_m", [None, 0.001])
def test_distances_to_straight_edges_are_right_to_densify_m(densify_m):
    rivers = geopandas.read_parquet(ROOT / "samples/rivers.parquet").geometry
    parts = [shapely.get_coordinates(part) for part in shapely.get_parts(rivers)]
    edges = np.concatenate([np.stack([part[:-1], part[1:]], axis=1) for part in parts])
    airports = pd.read_parquet(ROOT / "samples/airports.parquet")[::400]
    exact = oracle.planar_m(airports["lat"].to_numpy(), airports["lon"].to_numpy(), edges)
    matches = georesolve.nearest(airports, ROOT / "samples/rivers.parquet", densify_m=densify_m)
    off = np.abs(matches["distance_m"] - exact)
    assert off.max() <= (densify_m or 1.0)
    # The arcs of the default are too few for a millimetre: otherwise the promise could be closer.
    assert (off.max() <= 0.001) == (densify_m == 0.001)


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("most", [7, WithinShapes.made_pairs])
def test_the_nearest_points_of_every_shape(k, most, monkeypatch):
    """By all pairs of them: the k nearest, all that are as near as the last, in their order."""
    monkeypatch.setattr(WithinShapes, "made_pairs", most)
    rng = np.random.default_rng(5)
    lon, lat = rng.uniform(-15, 15, (2, 30))
    lon[10:14], lat[10:14] = lon[3], lat[3]
    left = geopandas.GeoDataFrame(
        {"w": range(30)}, geometry=geopandas.points_from_xy(lon, lat), crs=4326
    )
    right = geopandas.GeoDataFrame({"name": [*NAMES, "-"]}, geometry=[*SHAPES, None], crs=4326)
    found = georesolve.sjoin_nearest(left, right, how="right", k=k, distance_col="metres")
    every = georesolve.nearest({"lat": lat, "lon": lon}, right, k=6, on_invalid="null")
    metres = np.full((30, 6), np.nan)
    metres[np.arange(30).repeat(6), every["reference"]] = every["distance_m"]
    expected = []
    for row, name in enumerate(NAMES):
        order = np.lexsort((np.arange(30), metres[:, row]))
        own = order[metres[order, row] <= metres[order, row][min(k, 30) - 1]]
        expected += [(name, w, metres[w, row]) for w in own.tolist()]
    told = found[found["name"] != "-"]
    assert [*zip(told["name"], told["w"], told["metres"], strict=True)] == expected
    assert found["w"].isna().sum() == 1


def test_lines_and_polygons_are_refused_on_the_ellipsoid():
    square = geopandas.GeoDataFrame(geometry=[shapely.box(0, 0, 1, 1)], crs=4326)
    points = geopandas.GeoDataFrame(geometry=[shapely.Point(3, 3)], crs=4326)
    with pytest.raises(ValueError, match="earth='wgs84' is for points, but one set"):
        georesolve.nearest(points, square, earth="wgs84")
    with pytest.raises(ValueError, match="earth='wgs84' is for points, but right_df has lines"):
        georesolve.sjoin_nearest(points, square, earth="wgs84")
    index = georesolve.Index(points)
    with pytest.raises(ValueError, match="but the Index is of 'sphere'"):
        index.nearest(points, earth="wgs84")
    index = georesolve.Index(points, earth="wgs84")
    assert len(index.within(points, 0)) == len(index.within(points, 0, earth="wgs84")) == 1
    with pytest.raises(ValueError, match="earth is 'sphere', but the Index is of 'wgs84'"):
        index.nearest(points, earth="sphere")
    for option in ({"edges": "planar"}, {"densify_m": 3}):
        with pytest.raises(ValueError, match="edges and densify_m are for lines and polygons"):
            georesolve.nearest(points, points, **option)
