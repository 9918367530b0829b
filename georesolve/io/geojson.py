"""GeoJSON: a FeatureCollection becomes a table of its geometries and properties.

Points become two columns of coordinates, lines and polygons one of WKB.
"""

import json
from typing import Any, NamedTuple

import pyarrow as pa
import shapely

from georesolve.io.columns import unlike
from georesolve.io.errors import InvalidInput
from georesolve.io.formats import BATCH_ROWS, BadCell, Source, Table, bad_cells
from georesolve.io.geometry import Geometry
from georesolve.io.points import Bounds


class _Row(NamedTuple):
    """A feature: its point, its member `id` under that name if it has one, its properties.

    Of lines and polygons it has the `geometry` as text.
    """

    lon: float | None
    lat: float | None
    id: dict[str, Any]
    properties: dict[str, Any]
    geometry: str | None = None


def read_geojson(source: Source, bounds: Bounds) -> Table:
    """Read a FeatureCollection of points, or of lines and polygons where these are taken.

    Every property is a column. Where one is called ``lat``, ``lon`` or ``id``, coordinates are
    ``geometry_lat`` and ``geometry_lon``, and the ids of features ``feature_id``.
    """
    try:
        document = json.loads(source.path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{source.file}: not readable as JSON: {error}") from None
    features = document.get("features") if isinstance(document, dict) else None
    if not isinstance(features, list) or document.get("type") != "FeatureCollection":
        raise InvalidInput(
            f"{source.file}: not a GeoJSON FeatureCollection, the one JSON that a file may be; "
            "arrays by column name are sent as the body of a request, application/json"
        )
    if "crs" in document and "CRS84" not in json.dumps(document["crs"]):
        raise InvalidInput(
            f"{source.file}: its member 'crs' says {_crs_name(document['crs'])!r}, and GeoJSON is "
            "longitude and latitude on WGS 84 (RFC 7946), urn:ogc:def:crs:OGC:1.3:CRS84: save it "
            "so (EPSG:4326 in QGIS, to_crs(4326) in GeoPandas), or as a GeoPackage, which has any "
            "CRS, or leave the member out if these are degrees"
        )
    has_shapes = source.reading.takes_shapes and any(map(_is_shape, features))
    found = [_row_of(feature, row, has_shapes) for row, feature in enumerate(features)]
    bad = [one for one in found if isinstance(one, BadCell)]
    if bad:
        raise bad_cells(source, bad, len(bad))
    rows = [one for one in found if isinstance(one, _Row)]
    properties = list(dict.fromkeys(name for row in rows for name in row.properties))
    lat, lon = unlike(properties, ("lat", "lon"), "geometry_")
    ids = unlike(properties, ("id",), "feature_") if any(row.id for row in rows) else ()
    names = [lon, lat, *ids, *properties]
    # Here, before all of them have a value for every row.
    bounds.refuse_beyond(len(names), 0, source.file)
    arrays = [pa.array([row.lon for row in rows]), pa.array([row.lat for row in rows])]
    arrays += [pa.array([row.id.get("id") for row in rows]) for _ in ids]
    arrays += [pa.array([row.properties.get(name) for row in rows]) for name in properties]
    if has_shapes:
        return _shapes_of(source, rows, dict(zip(names[2:], arrays[2:], strict=True)))
    points = Geometry("geometry", lat, lon)
    return _typed(pa.table(arrays, names), {lon: pa.float64(), lat: pa.float64()}, points=points)


def _typed(table: pa.Table, types: dict[str, pa.DataType], **more: Any) -> Table:
    """A table of columns that have a type, that of texts where they have no value."""
    types = {f.name: pa.string() for f in table.schema if pa.types.is_null(f.type)} | types
    fields = [(f.name, types.get(f.name, f.type)) for f in table.schema]
    schema = pa.schema(fields, table.schema.metadata)
    return Table(schema, iter(table.cast(schema).to_batches(BATCH_ROWS)), len(table), **more)


def _shapes_of(source: Source, rows: list[_Row], columns: dict[str, pa.Array]) -> Table:
    """A table with a geometry column, as GeoParquet has it."""
    given = [row.geometry for row in rows]
    geometries = shapely.from_geojson(given, on_invalid="ignore")
    bad = [
        BadCell("geometry", i, "not a geometry that GeoJSON has: a ring is closed, a line has ends")
        for i, geometry in enumerate(geometries)
        if geometry is None and given[i] is not None
    ]
    if bad:
        raise bad_cells(source, bad, len(bad))
    (name,) = unlike(columns, ("geometry",), "feature_")
    geo = {"primary_column": name, "columns": {name: {"encoding": "WKB", "geometry_types": []}}}
    table = pa.table({**columns, name: pa.array(shapely.to_wkb(geometries), pa.binary())})
    return _typed(table.replace_schema_metadata({"geo": json.dumps(geo)}), {})


def _is_shape(feature: Any) -> bool:
    geometry = feature.get("geometry") if isinstance(feature, dict) else None
    return isinstance(geometry, dict) and geometry.get("type") != "Point"


def _crs_name(crs: Any) -> str:
    """The name of a CRS as GeoJSON had it before RFC 7946, or whatever stands there."""
    try:
        return str(crs["properties"]["name"])[:80]
    except (TypeError, KeyError):
        return json.dumps(crs)[:80]


def _row_of(feature: Any, row: int, has_shapes: bool) -> _Row | BadCell:
    if not isinstance(feature, dict) or not isinstance(feature.get("properties") or {}, dict):
        return BadCell(None, row, "not a GeoJSON feature")
    geometry = feature.get("geometry")
    id = {"id": feature["id"]} if "id" in feature else {}
    properties = feature.get("properties") or {}
    if has_shapes:
        text = None if geometry is None else json.dumps(geometry)
        return _Row(None, None, id, properties, text)
    lon = lat = None
    if geometry is not None:
        point = geometry.get("coordinates") if isinstance(geometry, dict) else None
        if not isinstance(point, list) or geometry.get("type") != "Point" or len(point) < 2:
            return BadCell("geometry", row, "not a point")
        lon, lat = point[:2]
        for value in point:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return BadCell("geometry", row, f"{repr(value)[:80]} is not a number")
        lon, lat = float(lon), float(lat)
    return _Row(lon, lat, id, properties)
