"""Geometry columns: logical types of Parquet, and what cannot be read as a geometry."""

import itertools
import json
import struct

import geopandas
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

import georesolve
from georesolve.io.geometry import decode_wkb

CANADA = shapely.box(-124, 49, -96, 60)
HERE = {"lat": np.array([49.5, 49.5, 10.0]), "lon": np.array([-110.0, -120.0, 20.0])}
ARC = struct.pack("<BII", 1, 8, 3) + struct.pack("<6d", 0, 0, 1, 1, 2, 0)
SURFACE = struct.pack("<BIIBII", 1, 10, 1, 1, 8, 3) + struct.pack("<6d", 0, 0, 1, 1, 0, 0)
OPEN_RING = struct.pack("<BIII", 1, 3, 1, 4) + struct.pack("<8d", 0, 0, 1, 0, 1, 1, 0, 1)
TRIANGLE = struct.pack("<BIII", 1, 17, 1, 4) + struct.pack("<8d", 0, 0, 1, 0, 1, 1, 0, 0)
FLAWED = {
    "curve": (ARC, "it is a curve"),
    "curve of several": (SURFACE, "it is a curve"),
    "open ring": (OPEN_RING, "do not form a closed linestring"),
    "cut off": (shapely.to_wkb(CANADA)[:-3], "smaller than requested"),
    "triangle": (TRIANGLE, "Unknown WKB type 17"),
    "empty": (b"", "Unexpected EOF"),
}


class Wkb(pa.ExtensionType):
    """Type of GeoArrow that pyarrow writes as GEOMETRY, or as GEOGRAPHY of spherical edges."""

    def __init__(self, about="{}"):
        self._about = about
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self):
        return self._about.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, about):
        return cls(about.decode())


def of_logical_type(shapes, **about):
    storage = pa.array(shapely.to_wkb(shapes), pa.binary())
    return pa.ExtensionArray.from_storage(Wkb(json.dumps(about)), storage)


def distances(references, **options):
    return georesolve.nearest(HERE, references, **options)["distance_m"]


@pytest.mark.parametrize("stored", [True, False], ids=["with an Arrow schema", "without"])
@pytest.mark.parametrize("edges", ["planar", "spherical"])
def test_logical_types_of_parquet_keep_their_edges(tmp_path, edges, stored):
    about = {"edges": "spherical"} if edges == "spherical" else {}
    shapes = of_logical_type([CANADA], **about)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"region": shapes, "name": ["west"]}), path, store_schema=stored)
    kind = {"planar": "Geometry", "spherical": "Geography"}[edges]
    assert kind in str(pq.read_metadata(path).schema.column(0).logical_type)
    wkb = pa.table({"g": shapes.storage})
    expected = distances(wkb, reference_geometry="g", edges=edges)
    assert distances(path).tobytes() == expected.tobytes()
    other = {"planar": "spherical", "spherical": "planar"}[edges]
    assert distances(path, edges=other)[0] != expected[0]
    # Programs may have registered the type.
    pa.register_extension_type(Wkb())
    try:
        assert distances(path).tobytes() == expected.tobytes()
    finally:
        pa.unregister_extension_type("geoarrow.wkb")


@pytest.mark.parametrize("crs", ["EPSG:25832", "25832", "projjson", "OGC:CRS84", "EPSG:4326", "0"])
def test_logical_types_of_parquet_keep_their_crs(tmp_path, crs):
    points = geopandas.GeoSeries(shapely.points([[9.0, 50.0], [10.0, 51.0]]), crs=4326)
    projected = points if crs in ("OGC:CRS84", "EPSG:4326", "0") else points.to_crs(25832)
    shown = projected.crs.to_json_dict() if crs == "projjson" else crs
    path = tmp_path / "x.parquet"
    column = of_logical_type(projected.to_numpy(), crs=shown)
    pq.write_table(pa.table({"n": [1, 2], "where": column}), path, store_schema=False)
    if crs == "0":
        with pytest.raises(georesolve.InvalidInput, match="its CRS is unknown"):
            georesolve.nearest(path, path)
        return
    for sets in ((path, {"lat": [50.0, 51.0], "lon": [9.0, 10.0]}), (HERE, path)):
        result = georesolve.nearest(*sets)
        expected = georesolve.nearest(
            *({"lat": points.y, "lon": points.x} if one is path else one for one in sets)
        )
        np.testing.assert_allclose(result["distance_m"], expected["distance_m"], atol=1e-3)


def test_of_several_geometry_columns_one_is_named(tmp_path):
    path = tmp_path / "x.parquet"
    column = of_logical_type(shapely.points([[9.0, 50.0]]))
    pq.write_table(pa.table({"a": column, "b": column}), path)
    with pytest.raises(georesolve.InvalidInput, match=r"several geometry columns .'a', 'b'."):
        georesolve.nearest(HERE, path)
    assert len(distances(path, reference_geometry="b")) == 3


def test_what_geoparquet_says_counts_before_the_logical_type(tmp_path):
    path = tmp_path / "x.parquet"
    geo = {"primary_column": "g", "columns": {"g": {"encoding": "WKB", "edges": "planar"}}}
    table = pa.table({"g": of_logical_type([CANADA], edges="spherical")})
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path)
    wkb = pa.table({"g": table["g"].chunk(0).storage})
    expected = distances(wkb, reference_geometry="g", edges="planar")
    assert distances(path).tobytes() == expected.tobytes()


def as_parquet(wkb, folder):
    geo = {"primary_column": "g", "columns": {"g": {"encoding": "WKB", "geometry_types": []}}}
    table = pa.table({"g": pa.array(wkb, pa.binary())})
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), folder / "x.parquet")
    return folder / "x.parquet", {}


def as_column(wkb, folder):
    return pa.table({"g": pa.array(wkb, pa.binary_view())}), {"geometry": "g"}


def as_projected(wkb, folder):
    return as_column(wkb, folder)[0], {"geometry": "g", "crs": "EPSG:3857"}


def as_arrow(wkb, folder):
    pyarrow.feather.write_feather(pa.table({"g": pa.array(wkb, pa.large_binary())}), folder / "x")
    return (folder / "x").rename(folder / "x.arrow"), {"geometry": "g"}


@pytest.mark.parametrize("flaw", FLAWED)
@pytest.mark.parametrize("table_of", [as_parquet, as_column, as_projected, as_arrow])
@pytest.mark.parametrize("role", ["observation", "reference"])
def test_a_row_without_a_geometry_is_named_or_kept(tmp_path, role, table_of, flaw):
    broken, why = FLAWED[flaw]
    good = shapely.to_wkb(shapely.points([[20.0, 10.0], [21.0, 10.0]])).tolist()
    table, options = table_of([good[0], None, broken, good[1], broken], tmp_path)
    options = {f"{role}_{name}": value for name, value in options.items()}
    sets = (table, HERE) if role == "observation" else (HERE, table)
    with pytest.raises(georesolve.InvalidInput, match=f"row 2.*{why}") as refused:
        georesolve.nearest(*sets, **options)
    assert refused.value.errors[0]["row"] == 2
    result = georesolve.nearest(*sets, on_invalid="null", **options)
    if role == "observation":
        status = result["status"].to_pylist() if isinstance(result, pa.Table) else result["status"]
        assert [one == "matched" for one in status] == [True, False, False, True, False]
    else:
        assert set(result["reference"]) <= {0, 3}


@given(st.lists(st.sampled_from([None, *range(len(FLAWED)), "point", "box"]), max_size=30))
def test_flaws_are_those_of_each_row_alone(rows):
    good = {"point": shapely.Point(1, 2), "box": CANADA, None: None}
    broken = [wkb for wkb, _ in FLAWED.values()]
    values = np.empty(len(rows), object)
    values[:] = [broken[row] if isinstance(row, int) else shapely.to_wkb(good[row]) for row in rows]
    shapes, flaws = decode_wkb(values)
    assert [*flaws] == [i for i, row in enumerate(rows) if isinstance(row, int)]
    expected = [None if isinstance(row, int) else good[row] for row in rows]
    assert all(shape == other for shape, other in zip(shapes, expected, strict=True))


def test_vertices_that_are_not_numbers_are_refused_without_other_warnings():
    """Warnings are errors in all tests."""
    line = struct.pack("<BII", 1, 2, 2) + struct.pack("<4d", 0, 0, np.nan, 1)
    table = pa.table({"g": pa.array([shapely.to_wkb(shapely.Point(9, 9)), line], pa.binary())})
    with pytest.raises(georesolve.InvalidInput, match=r"row 1 holds no shape.*longitude nan"):
        georesolve.nearest(HERE, table, reference_geometry="g")
    result = georesolve.nearest(HERE, table, reference_geometry="g", on_invalid="null")
    assert set(result["reference"]) == {0}


@pytest.mark.parametrize("on_invalid", ["error", "null"])
def test_native_geoarrow_with_a_ring_of_one_edge(on_invalid):
    rings = [
        [[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]],
        [[[0.0, 0.0], [1.0, 0.0]]],
    ]
    column = pa.array(rings, pa.list_(pa.list_(pa.list_(pa.float64(), 2))))
    options = {"reference_geometry": "g", "on_invalid": on_invalid}
    if on_invalid == "null":
        assert set(georesolve.nearest(HERE, pa.table({"g": column}), **options)["reference"]) == {0}
        return
    with pytest.raises(georesolve.InvalidInput, match="row 1 holds no shape: it is no polygon"):
        georesolve.nearest(HERE, pa.table({"g": column}), **options)


@given(st.lists(st.tuples(st.integers(-180, 359), st.integers(-89, 89)), min_size=2, max_size=9))
def test_wide_edges_give_a_warning(vertices):
    line = shapely.LineString(vertices)
    spans = [abs(b[0] - a[0]) for a, b in itertools.pairwise(vertices)]
    # No axes look swapped from here.
    here = {"lat": [0.5], "lon": [0.5]}
    is_narrow = max(x for x, _ in vertices) - min(x for x, _ in vertices) <= 360
    table = pa.table({"g": pa.array(shapely.to_wkb([shapely.Point(9, 9), line]), pa.binary())})
    options = {"reference_geometry": "g", "coordinates": "check"}
    if not is_narrow:
        return
    if any(180 < span < 360 for span in spans):
        with pytest.warns(UserWarning, match="1 rows have an edge of more than 180.*from 0: 1\\. "):
            georesolve.nearest(here, table, **options)
    else:
        georesolve.nearest(here, table, **options)
    georesolve.nearest(here, table, **options | {"coordinates": "trust"})
