"""GeoPackage, FlatGeobuf and shapefiles, in and out, as GeoPandas writes and reads them."""

import shutil
import sys

import geopandas
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import shapely

import georesolve
from georesolve import cli, files
from georesolve.io.extras import MissingExtra
from georesolve.options import Options, WithinOptions
from tests.conftest import points

OBSERVATIONS = points(300, 1, name=[f"o{i}" for i in range(300)])
REFERENCES = points(80, 2, name=[f"Straße {i}" for i in range(80)])
SUFFIXES = ["gpkg", "fgb", "shp"]
CARRIED = {"columns": ["name"], "observation_columns": ["name"]}


def frame(table, crs=4326):
    rows = table.to_pandas()
    geometry = geopandas.points_from_xy(rows.pop("lon"), rows.pop("lat"), crs=4326)
    return geopandas.GeoDataFrame(rows, geometry=geometry).to_crs(crs)


def write(table, path, **options):
    made = table if isinstance(table, geopandas.GeoDataFrame) else frame(table)
    # The order of rows in a FlatGeobuf is that of its index, if it has one.
    own = {"SPATIAL_INDEX": "NO"} if path.suffix == ".fgb" else {}
    made.to_file(path, engine="pyogrio", **own, **options)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_layers_are_read_as_tables(tmp_path, suffix):
    observations = write(OBSERVATIONS, tmp_path / f"o.{suffix}")
    references = write(REFERENCES, tmp_path / f"r.{suffix}")
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES, k=2, **CARRIED)
    assert georesolve.nearest(observations, references, k=2, **CARRIED).equals(expected)
    command = ["nearest", observations, references, "-k", 2, "--columns", "name", "--quiet"]
    command += ["--observation-columns", "name", "-o", tmp_path / "out.parquet"]
    assert cli.main([str(word) for word in command]) == 0
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_results_are_written_as_layers(tmp_path, suffix):
    sets = write(OBSERVATIONS, tmp_path / "o.fgb"), write(REFERENCES, tmp_path / "r.fgb")
    before = set(tmp_path.iterdir())
    out = tmp_path / f"near.{suffix}"
    options = Options(max_distance_m=6e5, columns=["name"])
    files.resolve(*sets, out, options)
    made = {path.name for path in set(tmp_path.iterdir()) - before}
    whole = {f"near.{one}" for one in ("shp", "shx", "dbf", "prj", "cpg")}
    assert made == (whole if suffix == "shp" else {out.name})
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES, max_distance_m=6e5, columns=["name"])
    expected = expected.to_pandas()
    found = geopandas.read_file(out)
    assert found.crs == "EPSG:4326"
    assert shapely.equals(found.geometry, frame(OBSERVATIONS).geometry).all()
    names = [*expected]
    if suffix == "shp":
        names = ["obs", "ref", "distance_m", "status", "obs_id", "ref_id", "ref_name"]
    assert [*found] == [*names, "geometry"]
    for name, other in zip(names, expected, strict=True):
        mine, theirs = found[name].to_numpy(object), expected[other].to_numpy(object)
        missing = expected[other].isna()
        assert (found[name].isna() == missing).all()
        assert (mine[~missing] == theirs[~missing]).all(), name
    assert 0 < expected["reference"].isna().sum() < 300


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_row_a_polygon_has_the_polygon(tmp_path, suffix):
    zones = frame(REFERENCES).cx[-170:170, -80:80].reset_index(drop=True)
    zones.geometry = shapely.buffer(zones.geometry, 9)
    sets = write(OBSERVATIONS, tmp_path / "o.fgb"), write(zones, tmp_path / "zones.gpkg")
    options = WithinOptions(
        distance_m=0, summary={"count": True}, summary_by="reference", columns="*"
    )
    files.resolve(*sets, tmp_path / f"counts.{suffix}", options)
    found = geopandas.read_file(tmp_path / f"counts.{suffix}")
    assert found.crs == "EPSG:4326"
    assert shapely.equals(found.geometry, zones.geometry).all()
    assert not [name for name in found if name.endswith("geom")]
    held = frame(OBSERVATIONS).sjoin(found[["geometry"]])["index_right"].value_counts()
    assert held.reindex(found.index, fill_value=0).tolist() == found["count"].tolist()
    assert 0 < found["count"].sum() < 300 * len(found)


def test_names_of_a_shapefile_are_short_and_differ(tmp_path):
    long = REFERENCES.rename_columns(["id", "lat", "lon", "name of the street"])
    long = long.append_column("name of the city", long["name of the street"])
    pq.write_table(long, tmp_path / "r.parquet")
    options = Options(columns=["name of the street", "name of the city"])
    files.resolve(tmp_path / "r.parquet", tmp_path / "r.parquet", tmp_path / "o.shp", options)
    named = geopandas.read_file(tmp_path / "o.shp")
    assert [*named][-3:-1] == ["ref_name o", "ref_name_1"]
    assert (named["ref_name o"] == named["ref_name_1"]).all()


def test_another_crs_is_transformed(tmp_path):
    """As GeoPandas transforms it, and carried so."""
    references = frame(REFERENCES.slice(0, 40), 3857)
    path = write(references, tmp_path / "r.gpkg")
    options = {"columns": ["geom"], "reference_geometry": "geom"}
    found = georesolve.nearest(OBSERVATIONS, path, **options)
    expected = georesolve.nearest(OBSERVATIONS, references.to_crs("OGC:CRS84"))
    assert found["reference"].equals(pa.chunked_array([expected["reference"].combine_chunks()]))
    np.testing.assert_array_equal(found["distance_m"], expected["distance_m"])
    carried = shapely.from_wkb(found["reference_geom"].to_pylist())
    moved = references.to_crs("OGC:CRS84").geometry.to_numpy()[found["reference"].to_numpy()]
    assert shapely.equals(carried, moved).all()


def test_columns_name_their_crs(tmp_path):
    moved = frame(OBSERVATIONS.slice(0, 40), 3857)
    table = pa.table({"x": moved.geometry.x, "y": moved.geometry.y, "lon": moved["name"]})
    own = {"observation_crs": "EPSG:3857", "observation_lat": "y", "observation_lon": "x"}
    expected = georesolve.nearest(OBSERVATIONS.slice(0, 40), REFERENCES)
    found = georesolve.nearest(table, REFERENCES, **own)
    assert found["reference"].equals(expected["reference"])
    np.testing.assert_allclose(found["distance_m"], expected["distance_m"], atol=1e-6)
    index = georesolve.Index(table, crs="EPSG:3857", lat="y", lon="x")
    same = index.nearest(OBSERVATIONS.slice(0, 40))
    np.testing.assert_allclose(same["distance_m"], 0, atol=1e-6)
    carried = georesolve.nearest(table, REFERENCES, **own, observation_columns="*")
    # What the table has keeps its name.
    assert carried["observation_lon"].to_pylist() == moved["name"].tolist()
    np.testing.assert_allclose(
        carried["observation_degrees_lat"], OBSERVATIONS["lat"][:40], atol=1e-9
    )
    pa.csv.write_csv(table, tmp_path / "o.csv")
    pq.write_table(REFERENCES, tmp_path / "r.parquet")
    command = ["nearest", tmp_path / "o.csv", tmp_path / "r.parquet", "--quiet"]
    command += ["--observation-crs", "EPSG:3857", "--observation-lat", "y"]
    command += ["--observation-lon", "x", "-o", tmp_path / "out.parquet"]
    assert cli.main([str(word) for word in command]) == 0
    assert pq.read_table(tmp_path / "out.parquet")["reference"].equals(expected["reference"])
    with pytest.raises(georesolve.InvalidOption, match="PROJ knows no way from the CRS 'EPSG:1'"):
        georesolve.nearest(table, REFERENCES, **{**own, "observation_crs": "EPSG:1"})
    # Of a table that has degrees: they would lie beside the origin of the CRS.
    with pytest.raises(georesolve.InvalidInput, match=r"references: all of .* look like degrees"):
        georesolve.nearest(table, REFERENCES, **{**own, "reference_crs": "EPSG:3857"})
    endless = {"lat": [np.inf, 1e5], "lon": [-np.inf, 1e5]}
    asked = {"observation_crs": "EPSG:3857", "on_invalid": "null"}
    statuses = georesolve.nearest(endless, REFERENCES, **asked)["status"]
    assert list(statuses) == ["invalid_coordinate", "matched"]
    trusted = {"crs": "EPSG:3857", "coordinates": "trust"}
    assert set(georesolve.nearest(REFERENCES, REFERENCES, **trusted)["distance_m"].to_pylist()) == {
        0
    }


@pytest.mark.parametrize("suffix", ["fgb", "gpkg"])
def test_a_layer_says_its_crs_before_the_option(tmp_path, suffix):
    observations = frame(OBSERVATIONS.slice(0, 40), 3857)
    own = write(observations, tmp_path / f"own.{suffix}")
    expected = georesolve.nearest(own, REFERENCES)
    found = georesolve.nearest(own, REFERENCES, observation_crs="EPSG:25832")
    assert found.equals(expected)


def test_what_says_no_crs_has_that_of_the_option(tmp_path):
    observations = frame(OBSERVATIONS.slice(0, 40), 3857)
    expected = georesolve.nearest(observations, REFERENCES)
    without = observations.set_crs(None, allow_override=True)
    with pytest.warns(UserWarning, match="'crs' was not provided"):
        write(without, tmp_path / "without.fgb")
    for given in (without, tmp_path / "without.fgb"):
        found = georesolve.nearest(given, REFERENCES, observation_crs="EPSG:3857")
        np.testing.assert_array_equal(found["reference"], expected["reference"])
        np.testing.assert_allclose(found["distance_m"], expected["distance_m"], atol=1e-6)
    found = georesolve.nearest(observations, REFERENCES, observation_crs="EPSG:25832")
    assert found.equals(expected)
    with pytest.raises(georesolve.InvalidOption, match="PROJ knows no way from the CRS 'EPSG:1'"):
        georesolve.nearest(without, REFERENCES, observation_crs="EPSG:1")


def test_shapefiles_in_several_folders_of_an_archive_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "parts" / name).mkdir(parents=True)
        write(OBSERVATIONS, tmp_path / "parts" / name / "o.shp")
    shutil.make_archive(tmp_path / "o", "zip", tmp_path / "parts")
    with pytest.raises(georesolve.InvalidInput, match=r"several folders \('a/o.shp', 'b/o.shp'\)"):
        georesolve.nearest(tmp_path / "o.zip", REFERENCES)


def test_a_shapefile_in_an_archive(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    write(OBSERVATIONS, folder / "o.shp")
    shutil.make_archive(tmp_path / "o", "zip", folder)
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES)
    assert georesolve.nearest(tmp_path / "o.zip", REFERENCES).equals(expected)
    (folder / "o.shx").unlink()
    with pytest.raises(georesolve.InvalidInput, match="give them as one ZIP archive"):
        georesolve.nearest(folder / "o.shp", REFERENCES)


def test_one_of_two_shapefiles_in_an_archive_is_named(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for name, table in (("o", OBSERVATIONS), ("r", REFERENCES)):
        write(table, folder / f"{name}.shp")
    shutil.make_archive(tmp_path / "both", "zip", folder)
    layers = {"observation_layer": "o", "reference_layer": "r"}
    found = georesolve.nearest(*[tmp_path / "both.zip"] * 2, **layers)
    assert found.equals(georesolve.nearest(OBSERVATIONS, REFERENCES))


def test_several_files_and_a_folder_of_shapefiles(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for start in (0, 100, 200):
        write(OBSERVATIONS.slice(start, 100), folder / f"{start:03}.shp")
    assert len(list(folder.iterdir())) > 3
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES)
    assert georesolve.nearest(folder, REFERENCES).to_pylist() == expected.to_pylist()


def test_columns_that_are_named_count_before_the_geometry(tmp_path):
    areas = frame(OBSERVATIONS).assign(north=OBSERVATIONS["lat"], east=OBSERVATIONS["lon"])
    areas.geometry = shapely.buffer(areas.geometry.to_numpy(), 0.1)
    path = write(areas.set_crs(4326), tmp_path / "areas.gpkg")
    with pytest.raises(georesolve.InvalidInput, match="'geom': it holds Polygon: only points are"):
        georesolve.nearest(path, REFERENCES)
    found = georesolve.nearest(path, REFERENCES, observation_lat="north", observation_lon="east")
    assert found.equals(georesolve.nearest(OBSERVATIONS, REFERENCES))


def test_a_layer_of_several_is_named(tmp_path):
    path = write(OBSERVATIONS, tmp_path / "all.gpkg", layer="shops")
    write(REFERENCES, path, layer="depots")
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES, k=2, **CARRIED)
    layers = {"observation_layer": "shops", "reference_layer": "depots"}
    assert georesolve.nearest(path, path, k=2, **CARRIED, **layers).equals(expected)
    index = georesolve.Index(path, layer="depots")
    assert index.nearest(path, k=2, layer="shops", **CARRIED).equals(expected)
    one = georesolve.nearest(path, path, layer="depots", exclude_self=True)
    assert one.equals(georesolve.nearest(REFERENCES, REFERENCES, exclude_self=True))
    command = ["nearest", path, path, "-k", 2, "--columns", "name", "--quiet"]
    command += ["--observation-layer", "shops", "--layer", "depots"]
    command += ["--observation-columns", "name", "-o", tmp_path / "out.parquet"]
    assert cli.main([str(word) for word in command]) == 0
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == expected.to_pylist()


def test_a_layer_that_is_none_is_told(tmp_path, capsys):
    path = write(OBSERVATIONS, tmp_path / "all.gpkg", layer="shops")
    write(REFERENCES, path, layer="depots")
    words = r"observations: it has no layer 'shop'; its layers are: 'shops', 'depots'"
    with pytest.raises(georesolve.InvalidOption, match=words):
        georesolve.nearest(path, REFERENCES, observation_layer="shop")
    words = "references: it has no layers, and 'shops' is named as its layer"
    with pytest.raises(georesolve.InvalidOption, match=words):
        georesolve.nearest(path, REFERENCES, layer="shops")
    pq.write_table(REFERENCES, tmp_path / "r.parquet")
    with pytest.raises(georesolve.InvalidOption, match=words):
        georesolve.nearest(path, tmp_path / "r.parquet", layer="shops")
    command = ["nearest", path, tmp_path / "r.parquet", "-o", tmp_path / "out.parquet"]
    assert cli.main([str(word) for word in command]) == 1
    assert "name one of them as observation_layer (--observation-layer" in capsys.readouterr().err


def test_what_is_refused(tmp_path):
    path = write(OBSERVATIONS, tmp_path / "two.gpkg", layer="a")
    write(OBSERVATIONS, path, layer="b")
    without = geopandas.GeoDataFrame(geometry=frame(OBSERVATIONS).geometry.to_numpy())
    with pytest.warns(UserWarning, match="'crs' was not provided"):
        write(without, tmp_path / "without.fgb")
    cut = tmp_path / "cut.gpkg"
    cut.write_bytes(path.read_bytes()[:5000])
    for name, words in {
        "two.gpkg": "observations: it has several layers: 'a', 'b': name one",
        "without.fgb": r"its CRS is unknown \(null\)",
        "cut.gpkg": "observations: not a readable layer",
    }.items():
        with pytest.raises(georesolve.InvalidInput, match=words):
            georesolve.nearest(tmp_path / name, REFERENCES)


def test_what_is_not_installed_is_told(tmp_path, monkeypatch, capsys):
    path = write(OBSERVATIONS, tmp_path / "o.gpkg")
    for name in ("pyogrio", "pyogrio.raw"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"pip install 'georesolve\[gis\]'"):
        georesolve.nearest(path, REFERENCES)
    references = tmp_path / "r.parquet"
    pq.write_table(REFERENCES, references)
    said = "a result as .fgb needs pyogrio, which is not installed: pip install 'georesolve[gis]'"
    out = str(tmp_path / "out.fgb")
    assert cli.main(["nearest", str(references), str(references), "-o", out]) == 3
    assert said in capsys.readouterr().err
