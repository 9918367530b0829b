"""Point geometries as coordinates: WKB and GeoArrow columns of GeoParquet."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import shapely

from georesolve.io.columns import has_coordinates, unlike
from georesolve.io.errors import InvalidInput, wrong, wrong_geometry

if TYPE_CHECKING:
    # What reads points does without kernels.
    from georesolve.io.formats import Table
    from georesolve.io.outlines import ShapeReader

_WGS_84 = {("OGC", "CRS84"), ("OGC", "CRS84h"), ("EPSG", "4326"), ("EPSG", "4979")}
_POINT_TYPES = {"Point", "Point Z"}
_POINT = 0
_WKB_POINT = np.dtype([("order", "u1"), ("kind", "<u4"), ("x", "<f8"), ("y", "<f8")])
_SAID_AGAIN = ("encoding", "geometry_types", "crs", "edges", "densify_m", "orientation", "epoch")
"""What stays true of a geometry column when rows are left out, and other columns."""


class Geometry(NamedTuple):
    """A point column, or a member of GeoJSON's features, and what its coordinates are called."""

    column: str
    lat: str
    lon: str


def _geo(schema: pa.Schema) -> Any:
    content = (schema.metadata or {}).get(b"geo")
    return json.loads(content) if content is not None else {}


_LOGICAL = re.compile(r"(Geometry|Geography)\(crs=(.*?)(?:, algorithm=(\w+))?\)", re.DOTALL)


def with_logical_types(file: pq.ParquetFile) -> pa.Schema:
    """Schema of a Parquet file with its GEOMETRY and GEOGRAPHY columns as GeoParquet says them.

    The metadata of GeoParquet take precedence.
    """
    schema: pa.Schema = file.schema_arrow
    logical = {}
    for i in range(len(file.schema)):
        column = file.schema.column(i)
        # pyarrow gives the parameters of the type as text alone.
        match = _LOGICAL.fullmatch(str(column.logical_type))
        if match and column.path in schema.names:
            kind, crs, algorithm = match.groups()
            logical[column.path] = {
                "encoding": "WKB",
                "geometry_types": [],
                "edges": "planar" if kind == "Geometry" else algorithm or "spherical",
                "crs": _crs_of_parquet(crs, schema),
            }
    if not logical:
        return schema
    try:
        geo = _geo(schema)
        columns = geo.get("columns", {})
        merged = {name: about | columns.get(name, {}) for name, about in logical.items()}
        geo = {"columns": columns | merged, "primary_column": geo.get("primary_column")}
    except (ValueError, AttributeError, TypeError):
        # Refused by `geometry_of`.
        return schema
    if geo["primary_column"] is None and len(logical) == 1:
        geo["primary_column"] = next(iter(logical))
    return schema.with_metadata({**(schema.metadata or {}), b"geo": json.dumps(geo)})


def _crs_of_parquet(crs: str, schema: pa.Schema) -> Any:
    """The CRS of a logical type of Parquet as GeoParquet writes it: PROJJSON, or a code."""
    kind, _, name = crs.partition(":")
    if kind == "srid" or crs.isdigit():
        crs = f"EPSG:{name or crs}"
    if crs == "EPSG:0":
        return None
    if crs in ("", "EPSG:4326"):
        return "OGC:CRS84"
    if kind == "projjson":
        crs = (schema.metadata or {}).get(name.encode(), crs.encode()).decode()
    try:
        return json.loads(crs)
    except ValueError:
        return crs


def geometries_of(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """What a GeoParquet file says of its geometry columns, the primary one first.

    Metadata that nobody can read say nothing: they are refused by `geometry_of` where they count.
    """
    if not schema.metadata:
        return {}
    try:
        geo = _geo(schema)
        about = {name: dict(geo["columns"][name]) for name in geo.get("columns", {})}
        primary = geo.get("primary_column")
    except (ValueError, TypeError, AttributeError):
        return {}
    return {
        name: {
            "geometry_types": [],
            **{key: about[name][key] for key in _SAID_AGAIN if key in about[name]},
        }
        for name in sorted(about, key=lambda name: name != primary)
        if name in schema.names and isinstance(about[name].get("encoding"), str)
    }


def geometry_of(
    schema: pa.Schema,
    named: str | None,
    file: str,
    *,
    takes_shapes: bool = False,
    prefix: str = "",
) -> Geometry | None:
    """Geometry column of a table, or None.

    The named column, else the primary column of GeoParquet, else the only column of an extension
    type of GeoArrow (DuckDB's GEOMETRY) in a table without columns of coordinates.
    """
    try:
        geo = _geo(schema)
        columns, primary = geo.get("columns", {}), geo.get("primary_column")
        about_each = {name: dict(about) for name, about in columns.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidInput(f"{file}: its GeoParquet metadata cannot be read: {error}") from None
    column = named if named is not None else primary
    if column is None and not has_coordinates(schema.names):
        typed = [field.name for field in schema if extension_name(field) in _EXTENSIONS]
        candidates = [*columns] or typed
        if len(candidates) > 1:
            detail = (
                f"several geometry columns ({', '.join(map(repr, candidates))}): name one with "
                f"the option {prefix}geometry=..."
            )
            raise wrong(file, detail, column=candidates[0])
        column = candidates[0] if candidates else None
    if column is None:
        return None
    if column not in schema.names:
        raise wrong_geometry(file, column, "there is no such column")
    kinds = set(about_each.get(column, {}).get("geometry_types", ()))
    if not kinds <= _POINT_TYPES and not takes_shapes:
        raise wrong_geometry(
            file, column, f"it holds {', '.join(sorted(kinds))}: only points are supported"
        )
    return Geometry(column, *coordinate_names(schema.names, column))


def coordinate_names(names: Sequence[str], column: str) -> tuple[str, ...]:
    """Return the names for latitudes and longitudes of a geometry column, which no column has."""
    return unlike(names, (f"{column}_lat", f"{column}_lon"), "_")


def crs_of(told: dict[str, Any], named: str | None, field: pa.Field, file: str) -> Any:
    """The CRS of a geometry column that is not on WGS 84: what GeoParquet says, else the one named.

    None where it is on WGS 84. It raises InvalidInput where it is unknown.
    """
    # GeoParquet 1.1: no crs means longitude and latitude on WGS 84, null means that none is known.
    # A column of WKB of which no GeoParquet says anything is as a column of coordinates.
    crs = told.get("crs", "OGC:CRS84" if "encoding" in told else named or "OGC:CRS84")
    if crs is None and (crs := named) is None:
        detail = (
            "its CRS is unknown (null): name it with the option crs, or declare it, in GeoPandas "
            "with set_crs(4326) for longitude and latitude on WGS 84"
        )
        raise wrong_geometry(file, field.name, detail).mended_by(file, {"crs": None})
    if is_wgs_84(crs) or crs == "OGC:CRS84":
        return None
    authority, code = _code(crs)
    return f"{authority}:{code}" if authority else crs


def is_wkb(type: pa.DataType) -> bool:
    """Whether a column may be one of WKB."""
    return _stored(type) in (pa.binary(), pa.large_binary(), pa.binary_view())


def is_wgs_84(crs: Any) -> bool:
    """Whether a CRS as PROJJSON is longitude and latitude on WGS 84."""
    return _code(crs) in _WGS_84


def told_of(schema: pa.Schema, column: str) -> dict[str, Any]:
    """What GeoParquet says of a geometry column that `geometry_of` has found."""
    told: dict[str, Any] = _geo(schema).get("columns", {}).get(column, {})
    return told


def _code(crs: Any) -> tuple[str | None, str]:
    id = crs.get("id") if isinstance(crs, dict) else None
    id = id if isinstance(id, dict) else {}
    return id.get("authority"), str(id.get("code"))


def add_coordinates(
    batches: Iterator[pa.RecordBatch],
    geometry: Geometry,
    file: str,
    shapes: "ShapeReader | None" = None,
    *,
    keeps_invalid: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Append the coordinates of a point column to every batch; NaN where there is no point.

    Geometries that cannot be read are refused, or become null.
    """
    rows, column = 0, geometry.column
    for batch in batches:
        values = _storage(batch[column])
        if pa.types.is_binary_view(values.type):
            values = values.cast(pa.large_binary())
        if (axes := _stored_coordinates(values, column, file)) is None:
            decoded, flaws = decode_wkb(values.to_numpy(zero_copy_only=False))
            if flaws and not keeps_invalid:
                raise flawed(flaws, column, rows, file)
            if flaws:
                at, is_flawed = batch.schema.get_field_index(column), np.zeros(len(values), bool)
                is_flawed[[*flaws]] = True
                values = pc.if_else(pa.array(is_flawed), None, values)
                batch = batch.set_column(at, pa.field(column, values.type), values)
            axes = coordinates_of(decoded, column, rows, file, shapes)
        lon, lat = axes
        rows += batch.num_rows
        yield batch.append_column(geometry.lon, lon).append_column(geometry.lat, lat)


def decode_wkb(values: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
    """Geometries of WKB, and the reasons of rows without one, by ascending row."""
    flaws: dict[int, str] = {}

    def decoded(start: int, stop: int) -> np.ndarray:
        try:
            shapes: np.ndarray = shapely.from_wkb(values[start:stop])
            return shapes
        except NotImplementedError:
            flaw = (
                "it is a curve, which is not supported: write it as lines (ST_CurveToLine in "
                "PostGIS, ogr2ogr -nlt CONVERT_TO_LINEAR)"
            )
        except shapely.errors.GEOSException as error:
            flaw = f"it cannot be read as WKB: {str(error).rpartition('Exception: ')[2]}"
        if stop - start == 1:
            flaws[start] = flaw
            return np.array([None], object)
        middle = (start + stop) // 2
        return np.concatenate([decoded(start, middle), decoded(middle, stop)])

    # Coordinates that are NaN are looked for later.
    with np.errstate(invalid="ignore"):
        return decoded(0, len(values)), flaws


def flawed(flaws: dict[int, str], column: str, first_row: int, file: str) -> InvalidInput:
    """Refusal of rows without a geometry that can be read; `flaws` as of `decode_wkb`."""
    first, why = next(iter(flaws.items()))
    row, more = first_row + first, len(flaws) - 1
    and_more = f" (as do {more} more)" if more else ""
    detail = (
        f"row {row}{and_more} holds no shape: {why}; mend such rows, or keep them "
        "with the option on_invalid=null"
    )
    refused = wrong_geometry(file, column, detail, row)
    return refused.mended_by(file, {"on_invalid": "null"})


def _stored_coordinates(
    array: pa.Array, column: str, file: str
) -> tuple[pa.Array, pa.Array] | None:
    """Longitudes and latitudes of GeoArrow points or of WKB of one layout; None of other WKB."""
    if pa.types.is_struct(array.type) and {"x", "y"} <= {field.name for field in array.type}:
        # Not `array.field`: below a null point there may lie numbers all the same.
        x, y = (pc.struct_field(array, axis).cast(pa.float64()) for axis in "xy")
        return x, y
    if not is_wkb(array.type):
        raise wrong_geometry(
            file, column, f"it holds {array.type}, neither WKB nor GeoArrow points: write it as WKB"
        )
    return _points_of_wkb(array)


def _points_of_wkb(array: pa.Array) -> tuple[pa.Array, pa.Array] | None:
    """Longitudes and latitudes where all rows are points of WKB of one layout; None elsewhere."""
    _, offsets, data = array.buffers()
    if not len(array) or array.null_count or data is None:
        return None
    kind = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    at = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1]
    if (np.diff(at) != _WKB_POINT.itemsize).any():
        return None
    points = np.frombuffer(data, _WKB_POINT, len(array), int(at[0]))
    if not ((points["order"] == 1) & (points["kind"] == 1)).all():
        return None
    return pa.array(points["x"].copy()), pa.array(points["y"].copy())


def coordinates_of(
    geometries: Any,
    column: str,
    first_row: int,
    file: str,
    shapes: "ShapeReader | None" = None,
) -> tuple[pa.Array, pa.Array]:
    """Longitudes and latitudes of an array of shapely points, NaN where there is none.

    Where some are lines or polygons, `shapes` takes them all, if there is one.
    """
    kinds = shapely.get_type_id(geometries)
    others = np.flatnonzero((kinds != _POINT) & (kinds >= 0))
    if others.size and shapes is not None:
        return shapes.take(np.asarray(geometries, object), first_row)
    if others.size:
        shape = geometries[others[0]]
        row = first_row + int(others[0])
        raise wrong_geometry(file, column, f"row {row} holds a {shape.geom_type}, not a point", row)
    points = np.where(shapely.is_empty(geometries), None, geometries)
    return pa.array(shapely.get_x(points)), pa.array(shapely.get_y(points))


_NAME, _ABOUT = b"ARROW:extension:name", b"ARROW:extension:metadata"
_GEOARROW = "geoarrow."
_BY_DEPTH = (
    ("point",),
    ("linestring", "multipoint"),
    ("polygon", "multilinestring"),
    ("multipolygon",),
)
"""By the lists around their coordinates; the first where neither the type nor GeoParquet says."""
_EXTENSIONS = {"ogc.wkb", *(_GEOARROW + kind for kind in ("wkb", *chain(*_BY_DEPTH)))}
"""Names of the extension types of geometries that are read."""


def native_kind(field: pa.Field, encoding: str | None, *, also_apart: bool = False) -> str | None:
    """What a column holds natively; None of WKB and all else.

    Of points with x and y apart, which are read as they are, it is None unless they count `also`.
    """
    depth, type = 0, _stored(field.type)
    while _is_list(type):
        depth, type = depth + 1, type.value_type
    is_apart = pa.types.is_struct(type) and {"x", "y"} <= {one.name for one in type}
    is_told = pa.types.is_fixed_size_list(type) or (is_apart and (depth > 0 or also_apart))
    if depth >= len(_BY_DEPTH) or not is_told:
        return None
    allowed = _BY_DEPTH[depth]
    name = extension_name(field).removeprefix(_GEOARROW) or encoding
    return name if name in allowed else allowed[0]


def extension_name(field: pa.Field) -> str:
    """Name of the extension type of a column, whether pyarrow knows the type or not."""
    registered: str | None = getattr(field.type, "extension_name", None)
    return registered or (field.metadata or {}).get(_NAME, b"").decode(errors="replace")


def as_stored(table: "Table") -> "Table":
    """Table with the storage types of registered extension types of geometries, and metadata."""
    fields = [
        field.with_type(field.type.storage_type).with_metadata(
            {_NAME: extension_name(field), _ABOUT: field.type.__arrow_ext_serialize__()}
        )
        if isinstance(field.type, pa.BaseExtensionType) and extension_name(field) in _EXTENSIONS
        else field
        for field in table.schema
    ]
    schema = pa.schema(fields, table.schema.metadata)
    if schema.types == table.schema.types:
        return table
    batches = (_stored_as(batch, schema) for batch in table.batches)
    return table._replace(schema=schema, batches=batches)


def _stored_as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        array if array.type == field.type else array.storage
        for array, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def said_of(field: pa.Field) -> dict[str, Any]:
    """What the metadata of the type say: its CRS and edges, as in GeoParquet."""
    try:
        about = json.loads((field.metadata or {}).get(_ABOUT) or b"{}")
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def as_wkb(
    batches: Iterator[pa.RecordBatch],
    column: str,
    kind: str,
    file: str,
    *,
    keeps_invalid: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The same batches with WKB in a column; values of no geometry are refused, or become null."""
    rows = 0
    for batch in batches:
        at, array = batch.schema.get_field_index(column), batch[column]
        flaws: dict[int, str] = {}
        try:
            shapes = _shapes_of(array, kind)
        except (shapely.errors.GEOSException, ValueError):
            shapes = np.empty(len(array), object)
            for i in range(len(array)):
                try:
                    [shapes[i]] = _shapes_of(array.slice(i, 1), kind)
                except (shapely.errors.GEOSException, ValueError) as error:
                    flaws[i] = f"it is no {kind}: {str(error).rpartition('Exception: ')[2]}"
        if flaws and not keeps_invalid:
            raise flawed(flaws, column, rows, file)
        rows += batch.num_rows
        field = pa.field(column, pa.binary())
        yield batch.set_column(at, field, pa.array(shapely.to_wkb(shapes), pa.binary()))


def _shapes_of(array: pa.Array, kind: str) -> np.ndarray:
    array = _storage(array)
    is_missing = array.is_null().to_numpy(zero_copy_only=False)
    offsets: list[np.ndarray] = []
    while _is_list(array.type):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy()
        # The innermost come first.
        offsets.insert(0, np.append(0, np.cumsum(lengths)))
        array = array.flatten()
    if pa.types.is_struct(array.type):
        axes = [pc.struct_field(array, axis).cast(pa.float64()) for axis in "xy"]
        ends = np.stack([one.to_numpy(zero_copy_only=False) for one in axes], axis=1)
    else:
        size, values = array.type.list_size, array.values.cast(pa.float64())
        own = values.slice(array.offset * size, len(array) * size)
        ends = own.to_numpy(zero_copy_only=False).reshape(-1, size)[:, :2].copy()
        ends[array.is_null().to_numpy(zero_copy_only=False)] = np.nan
    of = shapely.GeometryType[kind.upper()]
    shapes: np.ndarray = shapely.from_ragged_array(of, ends, tuple(offsets) or None)
    shapes[is_missing] = None
    return shapes


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _stored(type: pa.DataType) -> pa.DataType:
    return type.storage_type if isinstance(type, pa.BaseExtensionType) else type


def _is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))
