"""GeoJSON: a FeatureCollection of points becomes a table of their coordinates and properties."""

import json
from typing import Any

import pyarrow as pa

from service.datasets.sources import BATCH_ROWS, Source, Table, bad_cell
from service.errors import InvalidInput, TooLarge


def read_geojson(source: Source, most_columns: int) -> Table:
    """Read a FeatureCollection of points.

    Raises
    ------
    InvalidInput
        When it is something else.
    TooLarge
        When its features have too many properties.
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
            "longitude and latitude on WGS 84 (RFC 7946), urn:ogc:def:crs:OGC:1.3:CRS84: transform "
            "the points, or leave the member out if that is what they are"
        )
    rows = [_row_of(feature, row, source) for row, feature in enumerate(features)]
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["lon", "lat"]
    if len(names) > most_columns:
        # Here, before all of them have a value for every row.
        raise TooLarge(
            f"{source.file}: {len(names)} columns are more than the limit of {most_columns}"
        )
    table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    types = {f.name: pa.string() for f in table.schema if pa.types.is_null(f.type)}
    types |= {name: pa.float64() for name in ("lon", "lat")}
    schema = pa.schema([(f.name, types.get(f.name, f.type)) for f in table.schema])
    return Table(schema, iter(table.cast(schema).to_batches(BATCH_ROWS)), len(rows), "geometry")


def _crs_name(crs: Any) -> str:
    """The name of a CRS as GeoJSON had it before RFC 7946, or whatever stands there."""
    try:
        return str(crs["properties"]["name"])[:80]
    except (TypeError, KeyError):
        return json.dumps(crs)[:80]


def _row_of(feature: Any, row: int, source: Source) -> dict[str, Any]:
    """A feature as a row: the coordinates of its point, its id, its properties."""
    if not isinstance(feature, dict) or not isinstance(feature.get("properties") or {}, dict):
        raise bad_cell(source, None, row, "not a GeoJSON feature")
    geometry = feature.get("geometry")
    lon = lat = None
    if geometry is not None:
        point = geometry.get("coordinates") if isinstance(geometry, dict) else None
        if not isinstance(point, list) or geometry.get("type") != "Point" or len(point) < 2:
            raise bad_cell(source, "geometry", row, "not a point")
        lon, lat = point[:2]
        for value in point:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise bad_cell(source, "geometry", row, f"{value!r} is not a number")
        lon, lat = float(lon), float(lat)
    id = {"id": feature["id"]} if "id" in feature else {}
    return {"lon": lon, "lat": lat, **id} | {
        name: value
        for name, value in (feature.get("properties") or {}).items()
        if name not in ("lon", "lat")
    }
