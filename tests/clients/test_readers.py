"""Clients that read a result by its address: the code of `docs/clients.md`, run as it stands."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files

import duckdb
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from tests.conftest import ROOT, points, running_service, sphere
from tests.oracle import haversine_m, nearest
from tests.service.test_geoparquet import POINT
from tests.service.test_keys import as_holder, new_key
from tests.service.test_results import finished_job

PAGE = (ROOT / "docs" / "clients.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
ALL = [code for language, code in BLOCKS if language == "python"]
GEOJSON = [code for code in ALL if "geojson" in code]
(OWSLIB,) = [code for code in ALL if "owslib" in code]
GEOPANDAS = [code for code in ALL if "geopandas" in code and code not in GEOJSON]
(NEAREST,) = [code for code in ALL if "/nearest" in code]
PYTHON = [code for code in ALL if code not in (*GEOJSON, OWSLIB, *GEOPANDAS, NEAREST)]
SHELL = [code for language, code in BLOCKS if language == "sh"]
TITLES = [" ".join(re.findall(r"^import (\S+)", code, re.MULTILINE)) for code in PYTHON]
# What the code on the page leaves is written down, to be looked at here.
EPILOGUE = """
import pandas, pyarrow, pyarrow.parquet
if isinstance(matches, pandas.DataFrame):
    matches = pyarrow.Table.from_pandas(matches)
pyarrow.parquet.write_table(matches, "read.parquet")
"""
N = 150_000
# What readers like to take for numbers, or for nothing at all.
OBSERVATION_IDS = ["NA", "null", "1e5", *(f"{i:08}" for i in range(3, N))]
# Beyond 2^53: in float64 all of them would be one or two.
FIRST_REFERENCE = 617_700_169_958_293_503


# GeoPandas writes its own GeoParquet: that the CRS and the geometries are the same, and ids.
GEO_EPILOGUE = """
matches["reference_id"] = matches["reference_id"].astype("Int64")
assert matches.crs == "EPSG:4326", matches.crs
matches.drop(columns="status").rename_geometry("place").to_parquet("read.parquet")
"""
GEOJSON_EPILOGUE = """
read = lines if "lines" in globals() else points
assert read.crs == "EPSG:4326", read.crs
read.astype({"reference": "Int64", "reference_id": "Int64"}).to_parquet("read.parquet")
"""
OWSLIB_EPILOGUE = """
import json
print(json.dumps(features))
outputs = {"matches": {"format": {"mediaType": "application/json"}}}
print(json.dumps(processes.execute("nearest", INPUTS, outputs)))
print(json.dumps(processes.execute("nearest", INPUTS)))
print(json.dumps(processes.execute("nearest", INPUTS, outputs, response="raw")))
""".replace(
    "INPUTS",
    "{'observations': {'value': {'lat': [52.52], 'lon': [13.4]}},"
    " 'references': {'value': {'lat': [0, 47.37], 'lon': [0, 8.54]}}}",
)


def with_ids(table, ids):
    return table.set_column(table.schema.get_field_index("id"), "id", pa.array(ids))


@pytest.fixture(scope="module")
def reader(tmp_path_factory, shared_cluster):
    """A service that wants a key: a client that has it, and the key."""
    data_dir = tmp_path_factory.mktemp("clients") / "data"
    key = new_key(data_dir, "reader")
    with (
        running_service(data_dir, *shared_cluster) as anyone,
        as_holder(anyone, key) as client,
    ):
        yield client, key


def resolved(client, *sets, **options):
    """The address of a result, and the result."""
    job = finished_job(client, *sets, **options)
    table = pq.read_table(pa.BufferReader(client.get(f"{job}/results").content))
    assert table["reference"].null_count, "there are rows without a reference"
    return f"{client.base_url}".rstrip("/") + job, table


@pytest.fixture(scope="module")
def result(reader):
    """The address of a result that needs a key, the key, and the result."""
    client, key = reader
    observations = with_ids(points(N, 31), OBSERVATION_IDS)
    references = with_ids(points(500, 32), np.arange(500) + FIRST_REFERENCE)
    address, table = resolved(client, observations, references, max_distance_m=600_000)
    assert table["observation_id"].to_pylist() == OBSERVATION_IDS
    ids = [None if i is None else FIRST_REFERENCE + i for i in table["reference"].to_pylist()]
    assert table["reference_id"].to_pylist() == ids
    return address, key, table


@pytest.fixture(scope="module")
def places(reader):
    """A result that carries coordinates, and points of GeoParquet; its address and a key."""
    client, key = reader
    lat, lon = sphere(500, 33)
    references = pa.table(
        {
            "id": np.arange(500) + FIRST_REFERENCE,
            "lat": lat,
            "lon": lon,
            "geometry": shapely.to_wkb(shapely.points(lon, lat)),
        }
    )
    geo = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": POINT}}
    references = references.replace_schema_metadata({"geo": json.dumps(geo)})
    carried = {"columns": ["lat", "lon", "geometry"], "max_distance_m": 600_000}
    address, table = resolved(client, points(1_000, 34), references, **carried)
    return address, key, table


@pytest.fixture
def environment(tmp_path):
    """The environment of somebody who has run `INSTALL httpfs` once."""
    version = f"v{duckdb.__version__}"
    (platform,) = duckdb.execute("PRAGMA platform").fetchone()
    extensions = tmp_path / ".duckdb" / "extensions" / version / platform
    extensions.mkdir(parents=True)
    file = files("duckdb_extension_httpfs") / "extensions" / version / "httpfs.duckdb_extension"
    shutil.copy(str(file), extensions)
    return {**os.environ, "HOME": str(tmp_path)}


def here(code, address, key):
    """Code of the page with the address and the key of this service in it."""
    assert re.search("http://localhost:8000/(jobs/ID|nearest)", code)
    assert "KEY" in code
    service = address.partition("/jobs/")[0]
    code = code.replace("http://localhost:8000/jobs/ID", address).replace("KEY", key)
    return code.replace("http://localhost:8000", service)


@pytest.mark.parametrize("code", PYTHON, ids=TITLES)
def test_python(code, result, environment, tmp_path):
    address, key, expected = result
    command = [sys.executable, "-c", here(code, address, key) + EPILOGUE]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    read = pq.read_table(tmp_path / "read.parquet")
    assert {"observation_id", "reference_id", "distance_m"} <= set(read.column_names)
    for name in read.column_names:
        assert read[name].to_pylist() == expected[name].to_pylist(), name


def test_nearest(result):
    address, key, _ = result
    command = [sys.executable, "-c", here(NEAREST, address, key)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert f"# {done.stdout.strip()}\n" in NEAREST


def read_by(code, epilogue, places, folder):
    """What a snippet reads of a result, as a table, and the result as it is."""
    address, key, expected = places
    command = [sys.executable, "-c", here(code, address, key) + epilogue]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return pq.read_table(folder / "read.parquet"), expected


@pytest.mark.skipif(importlib.util.find_spec("geopandas") is None, reason="no GeoPandas here")
@pytest.mark.parametrize("code", GEOPANDAS, ids=["carried coordinates", "carried points"])
def test_geopandas(code, places, tmp_path):
    read, expected = read_by(code, GEO_EPILOGUE, places, tmp_path)
    if "dropna" in code:
        expected = expected.filter(expected["reference"].is_valid())
    for name in ("observation", "reference_id", "distance_m"):
        assert read[name].to_pylist() == expected[name].to_pylist(), name
    assert read["place"].to_pylist() == expected["reference_geometry"].to_pylist()


@pytest.mark.parametrize("code", GEOJSON, ids=["geopandas", "pyogrio"])
def test_geojson(code, places, tmp_path):
    read, expected = read_by(code, GEOJSON_EPILOGUE, places, tmp_path)
    own = {"observation", "reference", "distance_m", "status", "observation_id", "reference_id"}
    assert own <= set(read.column_names)
    for name in own:
        assert read[name].to_pylist() == expected[name].to_pylist(), name
    # The oracle: the inputs, and the nearest of them by haversine on all pairs.
    (lat, lon), (lats, lons) = sphere(1_000, 34), sphere(500, 33)
    rows, metres = nearest(lat, lon, lats, lons)
    shapes = shapely.from_wkb(read["geometry"].to_pylist())
    if "geometry=line" not in code:
        assert shapely.equals_exact(shapes, shapely.points(lon, lat), 0).all()
        return
    is_near = metres <= 600_000
    assert (shapely.is_missing(shapes) == ~is_near).all()
    crosses = np.abs(lons[rows] - lon) > 180
    assert crosses[is_near].any()
    kinds = np.where(crosses, "MultiLineString", "LineString")[is_near]
    assert [one.geom_type for one in shapes[is_near]] == kinds.tolist()
    for i in np.flatnonzero(is_near):
        found = shapely.get_coordinates(shapes[i])
        assert found[0].tolist() == [lon[i], lat[i]]
        assert found[-1].tolist() == [lons[rows[i]], lats[rows[i]]]
        assert (np.abs(found[1:-1, 0]) == 180).all()
        assert (np.abs(np.diff(found[:, 0]))[[0, -1]] < 180).all()


def test_owslib(places):
    address, key, _ = places
    service = address.partition("/jobs/")[0]
    code = OWSLIB.replace("KEY", key).replace("http://localhost:8000", service) + OWSLIB_EPILOGUE
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (feature,), *documents, raw = map(json.loads, done.stdout.splitlines())
    assert feature["geometry"] == {"type": "Point", "coordinates": [13.4, 52.52]}
    assert feature["properties"]["reference_id"] == "Zurich"
    expected = haversine_m(52.52, 13.4, 47.37, 8.54)
    for document in documents:
        assert document["matches"]["mediaType"] == "application/json"
        assert document["matches"]["value"] == raw
    (row,) = raw
    assert (row["observation"], row["reference"], row["status"]) == (0, 1, "matched")
    assert row["distance_m"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_goes_on_where_it_stopped(result, tmp_path):
    address, key, _ = result
    whole = httpx.get(
        f"{address}/results/matches.parquet",
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    assert whole.status_code == 200
    download = tmp_path / "matches.parquet"
    download.write_bytes(whole.content[: len(whole.content) // 3])
    (code,) = SHELL
    code = here(code, address, key)
    subprocess.run(["/bin/sh", "-ec", code], cwd=tmp_path, check=True, timeout=100)
    assert download.read_bytes() == whole.content


def test_every_client_sends_its_key(result):
    address, _, _ = result
    assert httpx.get(f"{address}/results/matches.parquet", timeout=60).status_code == 401
