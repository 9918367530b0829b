"""GeoPackage, FlatGeobuf and zipped shapefiles over HTTP, read in the sandbox, in whatever CRS."""

import gzip
import io
import json
import sqlite3
import struct
import zipfile

import geopandas
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyogrio.raw
import pytest
import shapely

from tests import oracle
from tests.conftest import finished, sphere

# Within the reach of UTM 32.
LAT, LON = 50 + sphere(60, 5)[0] / 30, 9 + sphere(60, 6)[1] / 90
SITES_LAT, SITES_LON = 50 + sphere(40, 7)[0] / 30, 9 + sphere(40, 8)[1] / 90
OF_ONE = {"layer": "sites", "crs": "EPSG:25832"}
SUFFIXES = ("gpkg", "fgb", "zip")
NAMES = {"gpkg": "GPKG", "fgb": "FlatGeobuf", "zip": "ESRI Shapefile"}


def frame(lat, lon, crs):
    points = shapely.points(lon, lat)
    named = {"name": [f"n{i}" for i in range(lat.size)]}
    return geopandas.GeoDataFrame(named, geometry=points, crs="OGC:CRS84").to_crs(crs)


def written(frame, folder, name, **layer):
    """The bytes of a file of this name; those of a shapefile in a folder of an archive."""
    stem, suffix = name.split(".")
    path = folder / f"{stem}.{'shp' if suffix == 'zip' else suffix}"
    # A spatial index would change the order of rows.
    options = {"SPATIAL_INDEX": "NO"} if suffix == "fgb" else {}
    frame.to_file(path, driver=NAMES[suffix], **options, **layer)
    if suffix != "zip":
        return path.read_bytes()
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("read me.txt", "sites")
        for part in folder.glob(f"{stem}.*"):
            archive.write(part, f"the sites/{part.name}")
    return sink.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Observations in UTM 32, and the same references in three formats and CRSs."""
    folder = tmp_path_factory.mktemp("layers")
    found = {"observations.gpkg": written(frame(LAT, LON, 25832), folder, "observations.gpkg")}
    for suffix, crs in zip(SUFFIXES, (3857, 27700, 4326), strict=True):
        name = f"sites.{suffix}"
        found[name] = written(frame(SITES_LAT, SITES_LON, crs), folder, name)
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_layers_of_any_crs_are_matched(service, files, suffix):
    sent = {
        "observations": ("observations.gpkg", files["observations.gpkg"]),
        "references": (f"sites.{suffix}", files[f"sites.{suffix}"]),
    }
    accept = {"Accept": "application/vnd.apache.arrow.stream"}
    answer = service.post("/resolve", files=sent, data={"columns": "name"}, headers=accept)
    found = pa.ipc.open_stream(answer.raise_for_status().content).read_all()
    rows, metres = oracle.nearest(LAT, LON, SITES_LAT, SITES_LON)
    assert found["reference"].to_pylist() == rows.tolist()
    assert found["reference_name"].to_pylist() == [f"n{row}" for row in rows]
    # Transformed there and back: a millimetre, but for the datum of Great Britain.
    within = 10 if suffix == "fgb" else 1e-3
    np.testing.assert_allclose(found["distance_m"], metres, atol=within)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_layer_is_registered_as_a_whole_body(service, files, suffix):
    made = service.post("/datasets", content=files[f"sites.{suffix}"], params={"name": suffix})
    made = made.raise_for_status().json()
    assert (made["rows"], made["name"]) == (40, suffix)
    west, south, east, north = made["bbox"]
    # Great Britain's CRS does not reach that far with precision.
    expected = SITES_LON.min(), SITES_LAT.min(), SITES_LON.max(), SITES_LAT.max()
    np.testing.assert_allclose((west, south, east, north), expected, atol=1e-3)
    rows = service.get(f"/datasets/{made['id']}/rows", params={"most": 3}).json()
    assert [row["name"] for row in rows] == ["n0", "n1", "n2"]
    service.delete(f"/datasets/{made['id']}")


def test_a_csv_names_its_crs(service):
    moved = frame(LAT, LON, 25832).geometry
    lines = [f"p{i},{one.y!r},{one.x!r}" for i, one in enumerate(moved)]
    content = "\n".join(["id,northing,easting", *lines]).encode()
    refused = service.post("/datasets", files={"file": ("utm.csv", content)})
    assert refused.status_code == 400
    assert "metres" in refused.json()["detail"]
    refused = service.post("/datasets", files={"file": ("u.csv", content)}, data={"crs": "utm 32"})
    assert "PROJ knows no way from the CRS 'utm 32'" in refused.json()["detail"]
    options = {"crs": "25832"}
    made = service.post("/datasets", files={"file": ("utm.csv", content)}, data=options)
    made = made.raise_for_status().json()
    assert made["columns"] == ["id", "northing", "easting", "lon", "lat"]
    rows = service.get(f"/datasets/{made['id']}/rows", params={"most": 60}).json()
    np.testing.assert_allclose([row["lat"] for row in rows], LAT, atol=1e-9)
    np.testing.assert_allclose([row["lon"] for row in rows], LON, atol=1e-9)
    service.delete(f"/datasets/{made['id']}")


def test_of_several_layers_one_is_named(service, tmp_path):
    first = frame(LAT, LON, 25832)
    written(first, tmp_path, "two.gpkg", layer="seen")
    content = written(frame(SITES_LAT, SITES_LON, 3857), tmp_path, "two.gpkg", layer="sites")
    refused = service.post("/datasets", files={"file": ("two.gpkg", content)})
    assert refused.status_code == 400
    assert "it has several layers: 'seen', 'sites': name one" in refused.json()["detail"]
    # The page makes a choice of these.
    assert [one["layer"] for one in refused.json()["errors"]] == ["seen", "sites"]
    refused = service.post("/datasets", files={"file": ("two.gpkg", content)}, data={"layer": "s"})
    assert refused.status_code == 400
    assert "it has no layer 's'" in refused.json()["detail"]
    assert [one["layer"] for one in refused.json()["errors"]] == ["seen", "sites"]
    sent = dict.fromkeys(("observations", "references"), ("two.gpkg", content))
    layers = {"observation_layer": "seen", "reference_layer": "sites"}
    accept = {"Accept": "application/json"}
    found = service.post("/resolve", files=sent, data=layers, headers=accept).json()
    for layer in layers.values():
        file = {"file": ("two.gpkg", content)}
        made = service.post("/datasets", files=file, data={"layer": layer}).raise_for_status()
        assert made.json()["name"] == f"two.gpkg ({layer})"
        service.delete(f"/datasets/{made.json()['id']}")
    rows, _ = oracle.nearest(LAT, LON, SITES_LAT, SITES_LON)
    assert [one["reference"] for one in found] == rows.tolist()


def in_wal(folder):
    """A GeoPackage in a mode of SQLite that wants a file beside it."""
    written(frame(LAT, LON, 4326), folder, "wal.gpkg")
    connection = sqlite3.connect(folder / "wal.gpkg")
    connection.execute("PRAGMA journal_mode = wal")
    connection.close()
    return (folder / "wal.gpkg").read_bytes()


def test_a_geopackage_that_was_being_written_is_read(service, tmp_path):
    content = in_wal(tmp_path)
    for name, sent in (("wal.gpkg", content), ("wal.gpkg.gz", gzip.compress(content))):
        made = service.post("/datasets", files={"file": (name, sent)}).raise_for_status().json()
        assert made["rows"] == 60
        service.delete(f"/datasets/{made['id']}")


def test_what_is_named_of_a_registered_dataset_is_refused(service, files):
    made = service.post("/datasets", content=files["sites.fgb"]).raise_for_status().json()
    both = {role: {"dataset": made["id"]} for role in ("observations", "references")}
    for name in (f"{role}_{one}" for role in ("observation", "reference") for one in OF_ONE):
        refused = service.post("/nearest", json={**both, name: OF_ONE[name.partition("_")[2]]})
        assert refused.status_code == 400
        told = refused.json()["detail"]
        assert told.startswith(f"/{name}: a dataset keeps what it was registered with"), told
    service.delete(f"/datasets/{made['id']}")


def archive(*members):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as made:
        for name, content in members:
            made.writestr(name, content)
    return sink.getvalue()


VRT = """<OGRVRTDataSource><OGRVRTLayer name="p"><SrcDataSource>/etc/passwd</SrcDataSource>
</OGRVRTLayer></OGRVRTDataSource>"""


def test_polygons_are_references(service, tmp_path):
    squares = frame(SITES_LAT, SITES_LON, 4326)
    squares.geometry = shapely.box(SITES_LON, SITES_LAT, SITES_LON + 0.01, SITES_LAT + 0.01)
    content = written(squares.to_crs(25832), tmp_path, "squares.gpkg")
    inside = f"lat,lon\n{SITES_LAT[7] + 0.005},{SITES_LON[7] + 0.005}\n".encode()
    sent = {"observations": ("a.csv", inside), "references": ("squares.gpkg", content)}
    accept = {"Accept": "application/json"}
    [found] = service.post("/resolve", files=sent, headers=accept).raise_for_status().json()
    assert (found["reference"], found["distance_m"]) == (7, 0)


def test_what_is_refused(service, files):
    shapefile = zipfile.ZipFile(io.BytesIO(files["sites.zip"])).read("the sites/sites.shp")
    for name, content, status, words in (
        ("cut.gpkg", files["observations.gpkg"][:5000], 400, "file: not a readable layer"),
        ("points.zip", archive(("points.csv", "lat,lon")), 415, "holds no shapefile"),
        ("other.zip", archive(("a.shp", VRT)), 415, "holds no shapefile"),
        ("cut.zip", files["sites.zip"][:2000], 400, "not a readable ZIP archive"),
        ("sites.shp", shapefile, 400, "give them as one ZIP archive"),
    ):
        refused = service.post("/datasets", content=content)
        assert refused.status_code == status, (name, refused.text)
        assert words.replace("file:", "the body:") in refused.json()["detail"], name
    for crs, words in (("EPSG:1", "PROJ knows no way"), ("/etc/passwd", "should match")):
        sent = {"file": ("a.csv", b"x,y\n1,2\n")}
        refused = service.post("/datasets", files=sent, data={"crs": crs})
        assert refused.status_code == 400
        assert words in refused.json()["detail"]
    refused = service.post("/datasets", files=sent, data={"layer": "a"})
    assert "it has no layers" in refused.json()["detail"]


def test_geoparquet_of_any_crs_is_registered(service):
    for crs in (25832, 3857):
        sink = io.BytesIO()
        frame(LAT, LON, crs).to_parquet(sink)
        made = service.post("/datasets", files={"file": ("utm.parquet", sink.getvalue())})
        made = made.raise_for_status().json()
        rows = service.get(f"/datasets/{made['id']}/rows", params={"most": 60}).json()
        np.testing.assert_allclose([row["geometry_lat"] for row in rows], LAT, atol=1e-9)
        np.testing.assert_allclose([row["geometry_lon"] for row in rows], LON, atol=1e-9)
        service.delete(f"/datasets/{made['id']}")


ARC = struct.pack("<BII", 1, 8, 3) + struct.pack("<6d", 9, 50, 9, 51, 10, 50)
CUT_OFF = shapely.to_wkb(shapely.box(9, 50, 10, 51))[:-3]


def as_geoparquet(wkb, folder):
    geo = {"primary_column": "g", "columns": {"g": {"encoding": "WKB", "geometry_types": []}}}
    table = pa.table({"g": pa.array(wkb, pa.binary())})
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), folder / "x.parquet")
    return folder / "x.parquet"


def as_layer(wkb, folder, suffix):
    table = pa.table({"geom": pa.array(wkb, pa.binary())})
    named = {"geometry_name": "geom", "geometry_type": "Unknown", "crs": "EPSG:4326"}
    driver, options = NAMES[suffix], {"SPATIAL_INDEX": "NO"} if suffix == "fgb" else {}
    pyogrio.raw.write_arrow(table, folder / f"x.{suffix}", driver=driver, **named, **options)
    return folder / f"x.{suffix}"


@pytest.mark.parametrize("flawed", [ARC, CUT_OFF], ids=["curve", "cut off"])
@pytest.mark.parametrize("suffix", ["parquet", "gpkg", "fgb"])
@pytest.mark.parametrize("role", ["observations", "references"])
def test_a_row_without_a_geometry_is_refused_or_kept(service, tmp_path, role, suffix, flawed):
    if flawed == CUT_OFF and suffix != "parquet":
        pytest.skip("GDAL writes no such layer")
    wkb = [shapely.to_wkb(shapely.Point(9, 50)), flawed]
    path = as_geoparquet(wkb, tmp_path) if suffix == "parquet" else as_layer(wkb, tmp_path, suffix)
    other = {"observations": "references", "references": "observations"}[role]
    uploads = {role: (path.name, path.read_bytes()), other: ("x.csv", b"lat,lon\n50,9\n")}
    refused = service.post("/resolve", files=uploads)
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["row"] == 1
    answer = service.post("/resolve", files=uploads, data={"on_invalid": "null", "columns": "*"})
    rows = pq.read_table(io.BytesIO(answer.raise_for_status().content)).to_pylist()
    assert (rows[0]["status"], rows[0]["distance_m"]) == ("matched", 0)
    assert [row["status"] for row in rows[1:]] in ([], ["invalid_coordinate"])


def test_a_job_reports_warnings_of_its_files(service, tmp_path):
    zone = shapely.Polygon([(172, -33), (-179, -37), (-174, -44), (170, -53)])
    path = as_layer([shapely.to_wkb(zone)], tmp_path, "fgb")
    prj = (
        'GEOGCS["Old",DATUM["Old datum",SPHEROID["Airy 1830",6377563.396,299.3249646]],'
        'PRIMEM["Greenwich",0],UNIT["Degree",0.0174532925199433]]'
    )
    frame(LAT, LON, 4326).set_crs(prj, allow_override=True).to_file(tmp_path / "o.gpkg")
    quoted = b'lat,lon,text\n-41,174,"a\n-41,174,b"\n'
    for observations, words in (
        ((tmp_path / "o.gpkg").read_bytes(), "ballpark"),
        (quoted, "They start in line 2"),
    ):
        uploads = {
            "observations": ("o.gpkg" if words == "ballpark" else "o.csv", observations),
            "references": ("x.fgb", path.read_bytes()),
        }
        headers = {"Prefer": "respond-async"}
        location = service.post("/resolve", files=uploads, headers=headers).headers["Location"]
        assert finished(service, location)["status"] == "successful"
        text = " ".join(service.get(f"{location}/report").json()["remarks"])
        assert words in text
        assert "references: 1 rows have an edge of more than 180 degrees" in text


def test_text_that_is_not_utf_8_is_refused(service, tmp_path):
    layer = frame(LAT, LON, 4326).assign(name="Köln")
    layer.to_file(tmp_path / "x.shp", encoding="cp1252")
    for cpg in ("UTF-8", None):
        (tmp_path / "x.cpg").unlink(missing_ok=True)
        if cpg:
            (tmp_path / "x.cpg").write_text(cpg)
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            for part in tmp_path.iterdir():
                archive.write(part, part.name)
        uploads = {name: ("x.zip", sink.getvalue()) for name in ("observations", "references")}
        answer = service.post("/resolve", files=uploads, data={"columns": "name"})
        if cpg:
            assert answer.status_code == 400
            place = answer.json()["errors"][0]
            assert (place["column"], place["row"]) == ("name", 0)
        else:
            table = pq.read_table(io.BytesIO(answer.raise_for_status().content))
            assert set(table["reference_name"].to_pylist()) == {"Köln"}
