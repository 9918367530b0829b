"""Results with geometry columns: GeoParquet 1.1, by its rules and by what shapely reads of them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from tests.conftest import sphere
from tests.service.test_results import finished_job, resolve

CRS = {
    "type": "GeographicCRS",
    "name": "WGS 84",
    "datum": {
        "type": "GeodeticReferenceFrame",
        "name": "World Geodetic System 1984",
        "ellipsoid": {
            "name": "WGS 84",
            "semi_major_axis": 6378137,
            "inverse_flattening": 298.257223563,
        },
    },
    "coordinate_system": {
        "subtype": "ellipsoidal",
        "axis": [
            {"name": "Latitude", "abbreviation": "lat", "direction": "north", "unit": "degree"},
            {"name": "Longitude", "abbreviation": "lon", "direction": "east", "unit": "degree"},
        ],
    },
    "id": {"authority": "EPSG", "code": 4326},
}
N = 500
LAT, LON = sphere(N, 51)
POINTS = shapely.points(LON, LAT)
BOXES = shapely.box(LON - 1, LAT - 1, LON + 1, LAT + 1)
POINT = {"encoding": "WKB", "geometry_types": ["Point"], "crs": CRS}


def table(primary="geometry", columns=None, **further):
    columns = columns or {"geometry": shapely.to_wkb(POINTS)}
    about = {"geometry": POINT, **further}
    geo = {"version": "1.0.0", "primary_column": primary, "columns": about}
    written = pa.table({"id": np.arange(N), **columns})
    return written.replace_schema_metadata({"geo": json.dumps(geo), "pandas": "{}"})


def read(content):
    """A file and what it says of its geometry columns, after a look at the rules of the format."""
    found = pq.read_table(io.BytesIO(content))
    geo = json.loads(found.schema.metadata[b"geo"])
    assert geo["version"] == "1.1.0"
    assert geo["primary_column"] in geo["columns"]
    for name, about in geo["columns"].items():
        assert name in found.column_names
        assert about["encoding"] in ("WKB", "point")
        assert isinstance(about["geometry_types"], list)
    return found, geo


@pytest.mark.parametrize("way", ["at hand", "a job"])
def test_carried_geometries(service, way):
    further = {
        "area": {
            "encoding": "WKB",
            "edges": "spherical",
            "bbox": [-180, -90, 180, 90],
            "covering": {"bbox": {"xmin": ["bbox", "xmin"]}},
        },
        "gone": {"encoding": "WKB", "geometry_types": []},
    }
    references = table(
        columns={"geometry": shapely.to_wkb(POINTS), "area": shapely.to_wkb(BOXES)}, **further
    )
    observations = table().slice(0, 200)
    options = {
        "columns": ["id", "area", "geometry"],
        "observation_columns": "geometry",
        "k": 2,
    }
    if way == "at hand":
        content = resolve(service, observations, references, **options).content
    else:
        content = service.get(
            finished_job(service, observations, references, **options) + "/results"
        ).content
    found, geo = read(content)
    assert geo["primary_column"] == "observation_geometry"
    assert geo["columns"] == {
        "observation_geometry": POINT,
        "reference_geometry": POINT,
        "reference_area": {"encoding": "WKB", "edges": "spherical", "geometry_types": []},
    }
    own, other = found["observation"].to_numpy(), found["reference"].to_numpy()
    assert shapely.equals(shapely.from_wkb(found["observation_geometry"]), POINTS[own]).all()
    assert shapely.equals(shapely.from_wkb(found["reference_geometry"]), POINTS[other]).all()
    assert shapely.equals(shapely.from_wkb(found["reference_area"]), BOXES[other]).all()


def test_the_way_does_not_show(service):
    arguments = (service, table(), table())
    job = finished_job(*arguments, columns="geometry")
    content = service.get(f"{job}/results").content
    assert resolve(*arguments, columns="geometry").content == content


def test_geoarrow_points_and_a_dataset(service):
    axes = [pa.field(axis, pa.float64(), nullable=False) for axis in "xy"]
    points = pa.StructArray.from_arrays([LON, LAT], fields=axes)
    about = {"encoding": "point", "geometry_types": ["Point"]}
    given = table(columns={"geometry": points}, geometry=about)
    found, geo = read(resolve(service, given, given, columns="geometry").content)
    assert geo["columns"] == {"reference_geometry": about}
    assert found["reference_geometry"].to_pylist() == points.to_pylist()
    sink = io.BytesIO()
    pq.write_table(given, sink)
    registered = service.post("/datasets", files={"file": ("p.parquet", sink.getvalue())})
    url = registered.headers["location"]
    _, geo = read(service.get(f"{url}/data.parquet").content)
    assert geo["columns"] == {"geometry": about}
    assert service.delete(url).status_code == 204


@pytest.mark.parametrize(
    "geo",
    [
        '{"columns": {"geometry": {}}}',
        '{"columns": [["geometry", 1]]}',
        "[]",
        "{",
        '{"columns": 1}',
    ],
)
def test_nothing_is_said_without_a_geometry(service, geo):
    plain = resolve(service, table(), table()).content
    assert b"geo" not in pq.read_schema(io.BytesIO(plain)).metadata
    lat, lon = {"lat": LAT, "lon": LON}.items()
    bad = table(columns=dict([lat, lon, ("geometry", shapely.to_wkb(POINTS))]))
    bad = bad.replace_schema_metadata({"geo": geo})
    carried = resolve(service, bad, bad, columns="geometry", lat="lat", lon="lon")
    assert carried.status_code == 200, carried.text
    found = pq.read_table(io.BytesIO(carried.content))
    assert b"geo" not in found.schema.metadata
    assert found["reference_geometry"].to_pylist() == bad["geometry"].to_pylist()
