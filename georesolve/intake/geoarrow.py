"""Native encodings of GeoArrow, made WKB: lines and polygons, and points that are transformed."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from georesolve.intake.errors import wrong_geometry

_NAME, _ABOUT = b"ARROW:extension:name", b"ARROW:extension:metadata"
_BY_DEPTH = (
    ("point",),
    ("linestring", "multipoint"),
    ("polygon", "multilinestring"),
    ("multipolygon",),
)
"""By the lists around their coordinates; the first where neither the type nor GeoParquet says."""


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
    told = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(_NAME, b"")
    name = (told if isinstance(told, str) else told.decode()).removeprefix("geoarrow.") or encoding
    return name if name in allowed else allowed[0]


def said_of(field: pa.Field) -> dict[str, Any]:
    """What the metadata of the type say: its CRS and edges, as in GeoParquet."""
    try:
        about = json.loads((field.metadata or {}).get(_ABOUT) or b"{}")
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def as_wkb(
    batches: Iterator[pa.RecordBatch], column: str, kind: str, file: str
) -> Iterator[pa.RecordBatch]:
    """The same batches with WKB in a column."""
    rows = 0
    for batch in batches:
        at, array = batch.schema.get_field_index(column), batch[column]
        try:
            shapes = _shapes_of(array, kind)
        except (shapely.errors.GEOSException, ValueError):
            shapes = np.concatenate(
                [_one(array.slice(i, 1), kind, column, rows + i, file) for i in range(len(array))]
            )
        rows += batch.num_rows
        field = pa.field(column, pa.binary())
        yield batch.set_column(at, field, pa.array(shapely.to_wkb(shapes), pa.binary()))


def _one(array: pa.Array, kind: str, column: str, row: int, file: str) -> np.ndarray:
    try:
        return _shapes_of(array, kind)
    except (shapely.errors.GEOSException, ValueError) as error:
        raise wrong_geometry(file, column, f"row {row} holds no {kind}: {error}", row) from None


def _shapes_of(array: pa.Array, kind: str) -> np.ndarray:
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
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


def _stored(type: pa.DataType) -> pa.DataType:
    return type.storage_type if isinstance(type, pa.BaseExtensionType) else type


def _is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))
