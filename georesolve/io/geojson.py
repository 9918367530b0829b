"""GeoJSON: a FeatureCollection or a sequence of features as a table of geometries and properties.

Points become two columns of coordinates, lines and polygons one of WKB.
"""

import json
import re
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any, NamedTuple

import pyarrow as pa
import shapely

from georesolve.io.columns import unlike
from georesolve.io.errors import InvalidInput
from georesolve.io.formats import BATCH_ROWS, BadCell, Source, Table, bad_cells
from georesolve.io.geometry import Geometry
from georesolve.io.points import Bounds

_RECORD_SEPARATORS = re.compile(r"[\s\x1e]*")
_WGS_84 = re.compile(r"CRS84|\bEPSG[:/](?:[\d.]*[:/])?4326\b", re.IGNORECASE)
"""Names of longitude and latitude on WGS 84; GeoJSON has the longitude first with any of them."""


class _Row(NamedTuple):
    """A feature: its point, its member `id` under that name if it has one, its properties.

    A line or polygon is in `geometry`, as text. `flaw` says why a feature has no point.
    """

    lon: float | None
    lat: float | None
    id: dict[str, Any]
    properties: dict[str, Any]
    geometry: str | None = None
    flaw: str = ""


def read_geojson(source: Source, bounds: Bounds) -> Table:
    """Read features of points, or of lines and polygons where these are taken.

    Every property is a column. Where one is called ``lat``, ``lon`` or ``id``, coordinates are
    ``geometry_lat`` and ``geometry_lon``, and the ids of features ``feature_id``.
    """
    features = _features_of(source)
    has_shapes = source.reading.takes_shapes and any(map(_is_shape, features))
    found = [_row_of(feature, row, has_shapes) for row, feature in enumerate(features)]
    bad = [one for one in found if isinstance(one, BadCell)]
    rows = [one for one in found if isinstance(one, _Row)]
    if source.reading.on_invalid != "null":
        bad += [BadCell("geometry", i, row.flaw) for i, row in enumerate(rows) if row.flaw]
    if bad:
        raise bad_cells(source, bad, len(bad))
    properties = list(dict.fromkeys(name for row in rows for name in row.properties))
    lat, lon = unlike(properties, ("lat", "lon"), "geometry_")
    ids = unlike(properties, ("id",), "feature_") if any(row.id for row in rows) else ()
    names = [lon, lat, *ids, *properties]
    # Here, before all of them have a value for every row.
    bounds.refuse_beyond(len(names), 0, source.file)
    arrays = [pa.array([row.lon for row in rows]), pa.array([row.lat for row in rows])]
    arrays += [_column(source, name, [row.id.get("id") for row in rows]) for name in ids]
    arrays += [
        _column(source, name, [row.properties.get(name) for row in rows]) for name in properties
    ]
    if has_shapes:
        return _shapes_of(source, rows, dict(zip(names[2:], arrays[2:], strict=True)))
    points = Geometry("geometry", lat, lon)
    return _typed(pa.table(arrays, names), {lon: pa.float64(), lat: pa.float64()}, points=points)


def _features_of(source: Source) -> list[Any]:
    """Features of a FeatureCollection, or of a sequence of them: a line each, or RFC 8142."""
    documents: list[Any] = []
    try:
        content = source.path.read_bytes()
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        documents.extend(_documents(text))
    except (ValueError, RecursionError) as error:
        where = f" behind feature {len(documents) - 1}" if documents else ""
        raise InvalidInput(f"{source.file}: not readable as JSON{where}: {error}") from None
    are_features = all(_type_of(document) == "Feature" for document in documents)
    if documents and are_features and "features" not in documents[0]:
        return documents
    document = documents[0] if len(documents) == 1 else {}
    features = document.get("features") if _type_of(document) == "FeatureCollection" else None
    if not isinstance(features, list):
        raise InvalidInput(
            f"{source.file}: not a GeoJSON FeatureCollection, nor a sequence of features, the JSON "
            "that a file may be; arrays by column name are sent as the body of a request, "
            "application/json"
        )
    crs = document.get("crs")
    if crs is not None and not _WGS_84.search(json.dumps(crs)):
        raise InvalidInput(
            f"{source.file}: its member 'crs' says {_crs_name(crs)!r}, and GeoJSON is "
            "longitude and latitude on WGS 84 (RFC 7946), urn:ogc:def:crs:OGC:1.3:CRS84: save it "
            "so (EPSG:4326 in QGIS, to_crs(4326) in GeoPandas), or as a GeoPackage, which has any "
            "CRS, or leave the member out if these are degrees"
        )
    return features


def _documents(text: str) -> Iterator[Any]:
    """JSON texts one after the other, with white space or record separators between them."""
    decoder, position = json.JSONDecoder(), 0
    while True:
        separators = _RECORD_SEPARATORS.match(text, position)
        position = separators.end() if separators else position
        if position == len(text):
            return
        document, position = decoder.raw_decode(text, position)
        yield document


def _type_of(document: Any) -> Any:
    return document.get("type") if isinstance(document, dict) else None


def json_column(values: Sequence[Any]) -> pa.Array:
    """Values of JSON as the one type that holds them all, else as text.

    Texts stay unchanged; all other values become JSON. Raises UnicodeEncodeError where
    `has_no_text` finds a value.
    """
    # pyarrow cuts off fractions where a type is given.
    are_integers = {*map(type, values)} <= {int, NoneType}
    for kind in (None, pa.uint64())[: 1 + are_integers]:
        try:
            array = pa.array(values, kind)
        except UnicodeEncodeError:
            raise
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
        # Parquet has no structs without members.
        if _keeps_bools(values, array.type) and "struct<>" not in str(array.type):
            return array
    texts = (
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in values
    )
    return pa.array(texts, pa.string())


def has_no_text(value: Any) -> bool:
    """Whether a value holds half of a surrogate pair, which UTF-8 has no bytes for."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _keeps_bools(values: Sequence[Any], type: pa.DataType) -> bool:
    """Whether no true became 1.0, as pyarrow allows behind a number with a fraction."""
    present = [value for value in values if value is not None]
    if pa.types.is_struct(type):
        return all(
            _keeps_bools([value.get(field.name) for value in present], field.type) for field in type
        )
    if pa.types.is_list(type):
        return _keeps_bools([item for value in present for item in value], type.value_type)
    return not (pa.types.is_floating(type) and any(isinstance(value, bool) for value in present))


def _column(source: Source, name: str, values: list[Any]) -> pa.Array:
    lone = "half of a surrogate pair, which is no character: mend the text"
    if has_no_text(name):
        shown = name.encode(errors="replace").decode()
        raise bad_cells(source, [BadCell(shown, None, f"its name holds {lone}")], 1)
    try:
        return json_column(values)
    except UnicodeEncodeError:
        bad = [
            BadCell(name, i, f"it holds {lone}")
            for i, value in enumerate(values)
            if has_no_text(value)
        ]
        raise bad_cells(source, bad, len(bad)) from None


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
    if bad and source.reading.on_invalid != "null":
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
    if geometry is None:
        return _Row(None, None, id, properties)
    if _type_of(geometry) != "Point":
        return BadCell("geometry", row, "not a point")
    point = geometry.get("coordinates")
    if not isinstance(point, list) or len(point) < 2:
        return _Row(None, None, id, properties, flaw="not a point")
    for value in point:
        if isinstance(value, bool) or not isinstance(value, int | float):
            flaw = f"{repr(value)[:80]} is not a number"
            return _Row(None, None, id, properties, flaw=flaw)
    try:
        lon, lat = map(float, point[:2])
    except OverflowError:
        return _Row(None, None, id, properties, flaw="a number beyond what 64 bits hold")
    return _Row(lon, lat, id, properties)
