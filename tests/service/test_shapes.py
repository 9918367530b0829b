"""Lines and polygons as references over HTTP: the bytes of Python's call, by every door."""

import io
import json
from dataclasses import replace

import geopandas
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

import georesolve
from georesolve import cli, files
from georesolve.io.datasets import Edging, Outlines
from georesolve.options import Options, WithinOptions
from georesolve.workers.tiles.map_shapes import shapes_in
from tests import oracle
from tests.conftest import finished, points, store_points, wait_until
from tests.service.test_jobs import parquet
from tests.service.test_within import texts

PARQUET = "application/vnd.apache.parquet"
ASYNC = {"Prefer": "respond-async"}
rng = np.random.default_rng(7)


def some_shapes(n):
    """Discs with a hole, lines and points over the globe, and a Multi form across 180 degrees."""
    lon, lat = rng.uniform(-175, 175, n), rng.uniform(-80, 80, n)
    shapes = shapely.buffer(shapely.points(lon, lat), rng.uniform(0.2, 4, n), quad_segs=3)
    holes = shapely.buffer(shapely.points(lon, lat), 0.1)
    shapes = shapely.difference(shapes, holes)
    lines = np.stack([lon, lat, lon + 3, lat + 2], axis=1).reshape(-1, 2, 2)
    shapes[::5] = shapely.linestrings(lines)[::5]
    shapes[::7] = shapely.points(lon, lat)[::7]
    shapes[3] = shapely.MultiPolygon([shapely.box(178, 0, 180, 3), shapely.box(-180, 0, -178, 3)])
    return shapes


SHAPES = some_shapes(60)
OBSERVATIONS = points(700, 11, size=np.arange(700) - 0.5)
REFERENCES = geopandas.GeoDataFrame(
    {"id": np.arange(60) + 100, "name": [f"shape {i}" for i in range(60)]},
    geometry=SHAPES,
    crs=4326,
)
ASKED = {
    "nearest": {"k": 2, "near": True, "columns": ["name"]},
    "pairs": {"distance_m": 3e5, "near": True, "how": "left", "columns": ["name"]},
    "counts": {"distance_m": 3e5, "summary": {"count": True}},
    "by shape": {
        "distance_m": 3e5,
        "summary": {"count": True, "size": ["sum", "max"]},
        "summary_by": "reference",
    },
    "great circles": {"edges": "spherical", "k": 3},
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    pq.write_table(OBSERVATIONS, folder / "observations.parquet")
    REFERENCES.to_parquet(folder / "references.parquet")
    return folder / "observations.parquet", folder / "references.parquet"


def expected(paths, options):
    out = paths[0].with_name("out.parquet")
    kind = WithinOptions if "distance_m" in options else Options
    files.resolve(*paths, out, kind(**options), device="cpu")
    return out.read_bytes()


def register(service, path, **parameters):
    headers = {"Content-Type": PARQUET}
    made = service.post("/datasets", content=path.read_bytes(), headers=headers, params=parameters)
    return made.raise_for_status().json()


@pytest.mark.parametrize("asked", ASKED)
def test_the_bytes_are_those_of_files_by_every_door(service, paths, asked):
    options = ASKED[asked]
    wanted = expected(paths, options)
    question = "within" if "distance_m" in options else "nearest"
    sent = {path.stem: path.read_bytes() for path in paths}
    form = {"question": question, **texts(options)}
    at_once = service.post("/resolve", files=sent, data=form)
    assert at_once.content == wanted, at_once.text
    in_form = service.post("/resolve", files=sent, data=form, headers=ASYNC)
    reading = {name: options[name] for name in ("edges",) if name in options}
    sets = [register(service, paths[0]), register(service, paths[1], **reading)]
    assert (sets[0]["geometry"], sets[1]["geometry"]) == (None, "geometry")
    inputs = {"observations": {"dataset": sets[0]["id"]}, "references": f"dataset:{sets[1]['id']}"}
    inputs |= {name: one for name, one in options.items() if name != "edges"}
    url = f"/processes/{question}/execution"
    execution = service.post(url, json={"inputs": inputs}, headers=ASYNC)
    for answer in (in_form, execution):
        location = answer.raise_for_status().headers["Location"]
        info = finished(service, location)
        assert info["status"] == "successful", service.get(f"{location}/results").text
        assert service.get(f"{location}/results/matches.parquet").content == wanted
        report = service.get(f"{location}/report").json()
        assert report["verification"]["observations"] > 0
        assert report["search"].startswith("shapes")
        assert report["geometry"] == "geometry"
    drawn = {"bbox": "-190,-20,190,80"}
    layer = service.get(f"{location}/tiles").json()
    view = service.get(layer["shapes"], params=drawn).json()
    assert view["shapes"] == len(view["features"])
    for one in view["features"]:
        shape = shapely.geometry.shape(one["geometry"])
        own = SHAPES[one["properties"]["reference"]]
        # At the edge of the view stand copies of what is beyond 180 degrees.
        assert abs((shape.centroid.x - own.centroid.x + 180) % 360 - 180) < 1 or own is SHAPES[3]
    seen = {one["properties"]["reference"] for one in view["features"]}
    in_view = shapely.STRtree(SHAPES).query(shapely.box(-180, -20, 180, 80))
    assert seen == {row for row in in_view if shapely.get_dimensions(SHAPES[row]) > 0}
    refused = service.get(f"{location}/shapes", params={"bbox": "4,4,3,5"})
    assert refused.status_code == 400
    small = service.post(f"/{question}", json=inputs, headers={"Accept": PARQUET})
    assert small.content == wanted, small.text
    told = service.post("/estimate", json={"inputs": inputs}).raise_for_status().json()
    assert told["fits"]
    assert told["seconds"] > 0

    def is_known():
        estimate = service.post("/estimate", json={"inputs": inputs}).raise_for_status().json()
        return estimate["seconds_compiling"] == 0

    # Jobs of the same kind were run: their code is there, as soon as the runner has told.
    wait_until(is_known)
    with georesolve.Client(str(service.base_url)) as client:
        asked_of = getattr(client, question)(*map(str, paths), **options)
    in_process = getattr(georesolve, question)(*map(str, paths), **options)
    assert asked_of.replace_schema_metadata().equals(in_process.replace_schema_metadata())


def test_the_rows_are_those_of_oracles(service, paths):
    """Inside by shapely; no vertex is nearer, and the point that is told lies on the shape."""
    sent = {path.stem: path.read_bytes() for path in paths}
    rows = pq.read_table(io.BytesIO(service.post("/resolve?near=true", files=sent).content))
    lat, lon = (OBSERVATIONS[axis].to_numpy() for axis in ("lat", "lon"))
    reference, metres = rows["reference"].to_numpy(), rows["distance_m"].to_numpy()
    near_lat, near_lon = (rows[name].to_numpy() for name in ("near_lat", "near_lon"))
    here, there = shapely.points(lon, lat), shapely.points(near_lon, near_lat)
    inside = shapely.intersects(here[:, None], SHAPES)
    assert ((metres == 0) == inside.any(axis=1)).all()
    assert (reference[metres == 0] == inside.argmax(axis=1)[metres == 0]).all()
    assert shapely.distance(there, SHAPES[reference]).max() < 1e-4
    apart = oracle.haversine_m(lat, lon, near_lat, near_lon)
    assert np.abs(apart - metres).max() < 1e-3
    vertices = shapely.get_coordinates(SHAPES)
    every = oracle.haversine_m(lat[:, None], lon[:, None], vertices[:, 1], vertices[:, 0])
    assert (metres <= every.min(axis=1) + 1e-3).all()


def test_lines_lead_to_the_nearest_points(service, paths):
    sent = {path.stem: path.read_bytes() for path in paths}
    lines = {"Accept": "application/geo+json;geometry=line"}
    answer = service.post("/resolve?near=true", files=sent, headers=lines).json()
    for one in answer["features"]:
        told = one["properties"]
        assert shapely.get_coordinates(shapely.geometry.shape(one["geometry"]))[-1].tolist() == [
            told["near_lon"],
            told["near_lat"],
        ]
    refused = service.post("/resolve", files=sent, headers=lines)
    assert refused.status_code == 406
    assert "ask for it with near=true" in refused.json()["detail"]


def test_geojson_of_a_row_a_shape_has_the_shapes(service, paths, tmp_path):
    sent = {path.stem: path.read_bytes() for path in paths}
    form = {"question": "within", **texts(ASKED["by shape"])}
    location = service.post("/resolve", files=sent, data=form, headers=ASYNC).headers["Location"]
    assert finished(service, location)["status"] == "successful"
    of_a_job = service.get(f"{location}/results/matches.geojson").raise_for_status().json()
    accept = {"Accept": "application/geo+json"}
    at_once = service.post("/resolve", files=sent, data=form, headers=accept)
    out = tmp_path / "out.geojson"
    files.resolve(*paths, out, WithinOptions(**ASKED["by shape"]), device="cpu")
    assert out.read_bytes() == at_once.content
    for told in (of_a_job, at_once.raise_for_status().json()):
        found = [shapely.geometry.shape(one["geometry"]) for one in told["features"]]
        assert shapely.equals_exact(found, SHAPES).all()
    lines = service.get(f"{location}/results/matches.geojson", params={"geometry": "line"})
    assert lines.status_code == 406
    assert "a summary has a row for each reference, and no lines" in lines.json()["detail"]


def test_geojson_has_no_shape_that_is_none(service, paths, tmp_path):
    broken = [SHAPES[2], shapely.Polygon(), shapely.box(1, 89, 2, 95)]
    geopandas.GeoDataFrame(geometry=broken, crs=4326).to_parquet(tmp_path / "b.parquet")
    sent = {
        "observations": paths[0].read_bytes(),
        "references": (tmp_path / "b.parquet").read_bytes(),
    }
    form = {"question": "within", **texts(ASKED["by shape"]), "on_invalid": "null"}
    accept = {"Accept": "application/geo+json"}
    told = service.post("/resolve", files=sent, data=form, headers=accept).raise_for_status().json()
    kinds = [one["geometry"] and one["geometry"]["type"] for one in told["features"]]
    assert kinds == ["Polygon", None, None]


def test_wkb_and_geojson_are_read_alike(service, paths):
    wanted = expected(paths, {"near": True})
    wanted = pq.read_table(io.BytesIO(wanted)).to_pylist()
    wkb = pa.table({"id": REFERENCES["id"], "shape": shapely.to_wkb(SHAPES)})
    collection = json.loads(REFERENCES.set_index("id").to_json())
    for one in collection["features"]:
        one["id"] = int(one["id"])
    file = json.dumps(collection).encode()
    sent = {"observations": paths[0].read_bytes()}
    answers = [
        service.post(
            "/resolve?near=true&reference_geometry=shape",
            files={**sent, "references": parquet(wkb)},
        ),
        service.post("/resolve?near=true", files={**sent, "references": ("r.geojson", file)}),
        service.post(
            "/nearest",
            json={
                "observations": OBSERVATIONS.to_pydict(),
                "references": collection,
                "near": True,
            },
            headers={"Accept": PARQUET},
        ),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert pq.read_table(io.BytesIO(answer.content)).to_pylist() == wanted


def test_a_dataset_of_native_geoarrow(service, paths, tmp_path):
    zones = REFERENCES[shapely.get_type_id(SHAPES) == shapely.GeometryType.POLYGON]
    zones.to_parquet(tmp_path / "native.parquet", geometry_encoding="geoarrow")
    made = register(service, tmp_path / "native.parquet", edges="spherical")
    assert (made["geometry"], made["rows"]) == ("geometry", len(zones))
    body = {"observations": OBSERVATIONS.to_pydict(), "references": f"dataset:{made['id']}"}
    rows = service.post("/nearest", json=body).raise_for_status().json()
    expected = georesolve.nearest(str(paths[0]), zones, edges="spherical")
    assert [one["distance_m"] for one in rows] == expected["distance_m"].to_pylist()


def test_what_is_refused(service, paths):
    flawed = REFERENCES.copy()
    flawed.loc[7, "geometry"] = shapely.LineString([(0, 0), (400, 0)])
    content = io.BytesIO()
    flawed.to_parquet(content)
    headers = {"Content-Type": PARQUET}
    refused = service.post("/datasets", content=content.getvalue(), headers=headers)
    assert refused.status_code == 400
    [error] = refused.json()["errors"]
    assert (error["column"], error["row"]) == ("geometry", 7)
    assert "row 7 holds no shape: it has a point at longitude 400.0" in refused.json()["detail"]
    kept = service.post(
        "/datasets", content=content.getvalue(), headers=headers, params={"on_invalid": "null"}
    )
    assert kept.json()["invalid_rows"] == 1

    # A megabyte could be as many arcs as no memory holds.
    long_edges = {"geometry": shapely.to_wkb([shapely.box(-170, 10, 170, 80)] * 2000)}
    content = parquet(pa.table(long_edges))
    fine = {"geometry": "geometry", "densify_m": 0.001}
    refused = service.post("/datasets", content=content, headers=headers, params=fine)
    assert refused.status_code == 413
    assert (
        "and the limit is 268435456: send fewer, or a larger densify_m" in refused.json()["detail"]
    )

    one, other = (register(service, path)["id"] for path in paths)
    as_observations = {"observations": {"dataset": other}, "references": {"dataset": other}}
    refused = service.post("/nearest", json=as_observations)
    assert (refused.status_code, refused.json()["detail"]) == (
        400,
        "observations: the column 'geometry' holds lines or polygons, and observations are "
        "points: give points, or these as the references",
    )
    sent = {"observations": paths[1].read_bytes(), "references": paths[1].read_bytes()}
    refused = service.post("/resolve", files=sent)
    assert refused.status_code == 400
    assert "only points are supported" in refused.json()["detail"]
    both = {"observations": {"dataset": one}, "references": {"dataset": other}}
    refused = service.post("/nearest", json={**both, "edges": "spherical"})
    assert refused.json()["detail"].startswith(
        "/edges: a dataset keeps what it was registered with"
    )
    for said in ({"crs": "EPSG:3857"}, {"layer": "a"}, {"lat": "y"}, {"observation_id": "id"}):
        refused = service.post("/nearest", json={**both, **said})
        [name] = said
        assert refused.json()["errors"][0]["pointer"] == f"/{name}"
    points_alone = dict.fromkeys(sent, paths[0].read_bytes())
    for option in ("edges=planar", "densify_m=2"):
        refused = service.post(f"/resolve?{option}", files=points_alone)
        assert refused.status_code == 400
        assert "edges and densify_m are for lines and polygons" in refused.json()["detail"]
    refused = service.post("/resolve?edges=flat", files=sent)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (400, "/query/edges")


def test_the_command_asks_a_service(service, paths, tmp_path):
    out = tmp_path / "out.parquet"
    line = ["nearest", *map(str, paths), "-o", str(out), "--quiet", "--edges", "spherical", "-k3"]
    assert cli.main([*line, "--server", str(service.base_url)]) == 0
    assert out.read_bytes() == expected(paths, ASKED["great circles"])


def test_of_too_many_none_are_drawn(tmp_path):
    for n, shown in ((2 << 20, None), (2, 1)):
        line = shapely.LineString(np.arange(2.0 * n).reshape(-1, 2) / n)
        table = pa.table({"geometry": [shapely.to_wkb(line)], "lat": [0.0], "lon": [0.0]})
        made = store_points(table, tmp_path / "a.parquet")
        made = replace(made, outlines=Outlines("geometry", Edging(), 1))
        assert shapes_in(made, (-9.0, -9.0, 9.0, 9.0))[0] == shown
