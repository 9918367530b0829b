"""Results as GeoJSON: the rows of the result, and the geometries that shapely makes of inputs."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from tests.conftest import finished, look_up, points, run_nearest, wait_until
from tests.service.test_geoparquet import BOXES, POINTS, table
from tests.service.test_jobs import files_of
from tests.service.test_results import finished_job, resolve

GEOJSON = "application/geo+json"
LATER = {"Prefer": "respond-async"}
# Where lines are cut or just not, and what has no point.
SEEN = [
    (10.0, 179.0),
    (10.0, 180.0),
    (10.0, -180.0),
    (-10.0, -179.5),
    (0.1 + 0.2, 359.9),
    (-89.9, 190.0),
    (5e-324, -1e-7),
    (1 / 3, 180.00000000000003),
    (float("nan"), 3.0),
    (60.0, 3.0),
    (88.5, -180.0),
]
PLACES = [(11.0, -179.0), (-11.0, 178.25), (-11.5, 181.0), (0.0, 0.0), (88.0, 180.0)]


def as_table(pairs):
    lat, lon = np.array(pairs).T
    return pa.table({"id": [f"{i:03}" for i in range(len(pairs))], "lat": lat, "lon": lon})


def wrapped(lon):
    return lon - 360 if lon > 180 else lon


def line(start, end):
    """The line from one (lat, lon) to another as shapely cuts it, by boxes of a world each."""
    (lat, lon), (to_lat, to_lon) = start, end
    lon, to_lon = wrapped(lon), wrapped(to_lon)
    to_lon = min((to_lon, to_lon - 360, to_lon + 360), key=lambda one: abs(one - lon))
    whole = shapely.LineString([(lon, lat), (to_lon, to_lat)])
    worlds = {by: shapely.box(by - 180, -90, by + 180, 90) for by in (0, -360, 360)}
    around = [by for by, world in worlds.items() if world.covers(whole)][:1]
    return [
        shapely.transform(piece, lambda at, by=by: at - [by, 0])
        for by in around or worlds
        if (piece := shapely.intersection(whole, worlds[by])).length
    ]


def check_line(geometry, start, end):
    """Compare with shapely's; the ends must be the same to the last bit."""
    kind, coordinates = geometry["type"], geometry["coordinates"]
    pieces = [coordinates] if kind == "LineString" else coordinates
    assert (kind == "LineString") == (len(pieces) == 1)
    for (lat, lon), found in ((start, pieces[0][0]), (end, pieces[-1][-1])):
        assert found[1] == lat
        assert found[0] == wrapped(lon) or {abs(found[0]), abs(lon)} == {180}
    expected = line(start, end)
    assert len(pieces) == max(1, len(expected))
    for piece, other in zip(pieces, expected, strict=False):
        assert shapely.bounds(shapely.LineString(piece))[[0, 2]].max() <= 180
        piece, other = np.array(piece), shapely.get_coordinates(other)
        if (np.abs(piece[:, 0]) == 180).all():
            # Along the antimeridian, which has two names.
            piece, other = np.abs(piece), np.abs(other)
        np.testing.assert_allclose(piece, other, atol=1e-9)


def check(collection, result, observations, references, geometry):
    assert collection["type"] == "FeatureCollection"
    rows = result.to_pylist()
    assert [one["properties"] for one in collection["features"]] == rows
    own, other = (
        list(zip(*(t[name].to_pylist() for name in ("lat", "lon")), strict=True))
        for t in (observations, references)
    )
    for feature, row in zip(collection["features"], rows, strict=True):
        assert feature.keys() == {"type", "geometry", "properties"}
        seen, found = own[row["observation"]], row["reference"]
        if np.isnan(seen).any() or (geometry == "line" and found is None):
            assert feature["geometry"] is None
        elif geometry == "line":
            check_line(feature["geometry"], seen, other[found])
        else:
            expected = [wrapped(seen[1]), seen[0]]
            assert feature["geometry"] == {"type": "Point", "coordinates": expected}


@pytest.mark.parametrize("geometry", ["point", "line"])
@pytest.mark.parametrize(
    "options",
    [{}, {"k": 3, "columns": ["lat"]}, {"how": "inner", "max_distance_m": 5_000_000}],
    ids=["all rows", "several neighbours", "matched rows alone"],
)
@pytest.mark.parametrize("way", ["at once", "a job"])
def test_geometries_at_the_edge_of_the_world(service, way, geometry, options):
    tables = as_table(SEEN), as_table(PLACES)
    options = {"on_invalid": "null", **options}
    result = pq.read_table(io.BytesIO(resolve(service, *tables, **options).content))
    if way == "a job":
        location = finished_job(service, *tables, **options)
        query = {"geometry": "line"} if geometry == "line" else {}
        answer = service.get(f"{location}/results/matches.geojson", params=query)
        headers = {"Accept": f"{GEOJSON};geometry={geometry}"}
        chosen = service.get(f"{location}/results", headers=headers)
        assert chosen.content == answer.content
        assert chosen.headers["content-location"].endswith(f"matches.geojson?geometry={geometry}")
        service.delete(location).raise_for_status()
    else:
        headers = {"Accept": f"{GEOJSON}; geometry={geometry}"}
        answer = resolve(service, *tables, headers=headers, **options)
        assert "content-location" not in answer.headers, "a small one leaves no job"
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == GEOJSON
    check(answer.json(), result, *tables, geometry)


def test_the_rows_of_many_row_groups(service):
    observations, references = points(132_000, 71), points(132_000, 72)
    # Few are near: to cut a line as shapely does takes longer than all the rest of its row.
    location = finished_job(service, observations, references, max_distance_m=5_000)
    result = pq.read_table(io.BytesIO(service.get(f"{location}/results").content))
    for geometry in ("point", "line"):
        address = f"{location}/results/matches.geojson"
        found = service.get(address, params={"geometry": geometry})
        check(found.json(), result, observations, references, geometry)
    again = service.get(address, params={"geometry": geometry})
    assert again.content == found.content
    service.delete(location).raise_for_status()


def test_a_dataset_that_was_removed_meanwhile(service):
    upload = {"content": b"lat,lon\n1,2\n", "headers": {"Content-Type": "text/csv"}}
    dataset = service.post("/datasets", **upload).json()["id"]
    body = {"observations": f"dataset:{dataset}", "references": {"lat": [0], "lon": [0]}}
    answer = run_nearest(service, body, LATER)
    location = answer.headers["location"]
    assert finished(service, location)["status"] == "successful"
    address = f"{location}/results/matches.geojson"
    assert service.get(address).status_code == 200
    service.delete(f"/datasets/{dataset}").raise_for_status()
    gone = service.get(address, params={"geometry": "line"})
    assert (gone.status_code, gone.json()["type"]) == (410, "urn:georesolve:problem:sets-gone")
    assert gone.headers["content-type"] == "application/problem+json"
    assert "observations of the job" in gone.json()["detail"]
    assert "registered datasets" in gone.json()["detail"]
    assert service.get(f"{location}/results/matches.csv").status_code == 200
    bad = service.get(address, params={"geometry": "polygon"})
    assert (bad.status_code, "/query/geometry" in bad.json()["detail"]) == (400, True)
    service.delete(location).raise_for_status()


@pytest.mark.parametrize("accept", [None, GEOJSON])
def test_large_sets_of_a_request_are_kept_for_a_map_alone(service, accept):
    before = files_of(service)
    many = points(1_200_000, 73)
    headers = LATER | ({"Accept": accept} if accept else {})
    location = resolve(service, many, points(10, 74), headers=headers).headers["location"]
    assert finished(service, location)["status"] == "successful"

    def sets():
        return {path for path in files_of(service) - before if path.parent.name == "datasets"}

    if accept is None:
        wait_until(lambda: not sets())
        assert service.get(f"{location}/results/matches.geojson").status_code == 410
    else:
        assert len(sets()) == 2
        answer = service.get(f"{location}/results/matches.geojson", headers={"Range": "bytes=0-99"})
        assert answer.content.startswith(b'{"type":"FeatureCollection","features":[\n{"type"')
    service.delete(location).raise_for_status()
    wait_until(lambda: files_of(service) <= before)


@pytest.mark.parametrize("suffix", ["csv", "json", "geojson"])
def test_carried_geometries_are_well_known_text(service, suffix):
    columns = {"geometry": shapely.to_wkb(POINTS), "area": shapely.to_wkb(BOXES)}
    references = table(columns=columns, area={"encoding": "WKB", "geometry_types": []})
    axes = [pa.field(axis, pa.float64(), nullable=False) for axis in "xy"]
    coordinates = shapely.get_coordinates(POINTS).T
    geoarrow = pa.StructArray.from_arrays(list(coordinates), fields=axes)
    observations = table(columns={"geometry": geoarrow}, geometry={"encoding": "point"})
    options = {"columns": ["geometry", "area"], "observation_columns": "geometry"}
    media_type = {"csv": "text/csv", "json": "application/json", "geojson": GEOJSON}[suffix]
    answer = resolve(service, observations, references, headers={"Accept": media_type}, **options)
    assert answer.status_code == 200, answer.text
    if suffix == "csv":
        rows = list(csv.DictReader(io.StringIO(answer.text)))
    else:
        rows = json.loads(answer.text)
        rows = [one["properties"] for one in rows["features"]] if suffix == "geojson" else rows
    own, other = ([int(row[name]) for row in rows] for name in ("observation", "reference"))
    for name, shapes in (
        ("observation_geometry", POINTS[own]),
        ("reference_geometry", POINTS[other]),
        ("reference_area", BOXES[other]),
    ):
        read = shapely.from_wkt([row[name] for row in rows])
        assert shapely.equals_exact(read, shapes, 0).all(), name


@pytest.mark.parametrize("values", [[12, "unknown"], [True, 1], [2**64, 1], [2**53 + 1, 0.5]])
def test_values_of_several_types_are_text(service, values):
    """In a file, and in the arrays and the records of a small request."""
    features = [
        {
            "type": "Feature",
            "properties": {"v": value},
            "geometry": {"type": "Point", "coordinates": [0, i]},
        }
        for i, value in enumerate(values)
    ]
    expected = [one if isinstance(one, str) else json.dumps(one) for one in values]
    lines = "".join(f"\x1e{json.dumps(feature)}\n" for feature in features).encode()
    for name, content in (("x.geojson", lines), ("x.geojsons", lines)):
        uploads = dict.fromkeys(("observations", "references"), (name, content))
        answer = service.post("/resolve", files=uploads, data={"columns": "v"})
        table = pq.read_table(io.BytesIO(answer.raise_for_status().content))
        assert table["reference_v"].to_pylist() == expected
    arrays = {"lat": [0, 1], "lon": [0, 0], "v": values}
    records = [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]
    for table in (arrays, records):
        body = {"observations": table, "references": table, "columns": ["v"]}
        answer = look_up(service, body).raise_for_status()
        table = pq.read_table(io.BytesIO(answer.content))
        assert table["reference_v"].to_pylist() == expected


def test_half_of_a_surrogate_pair_is_refused(service):
    point = {"type": "Point", "coordinates": [0, 0]}
    feature = {"type": "Feature", "properties": {"v": "\ud800"}, "geometry": point}
    document = {"type": "FeatureCollection", "features": [feature]}
    uploads = {"observations": ("x.geojson", json.dumps(document).encode())}
    uploads["references"] = ("x.csv", b"lat,lon\n0,0\n")
    answer = service.post("/resolve", files=uploads)
    assert answer.status_code == 400
    assert answer.json()["errors"][0] | {"column": "v", "row": 0} == answer.json()["errors"][0]
    arrays = {"lat": [0], "lon": [0], "v": ["\ud800"]}
    body = json.dumps({"observations": arrays, "references": {"lat": [0], "lon": [0]}})
    headers = {"Content-Type": "application/json"}
    assert service.post("/nearest", content=body, headers=headers).status_code in (400, 422)
