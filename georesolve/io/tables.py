"""Tables of users as Arrow, and matches as tables of their kind: by a service, too.

A library of frames is imported when one of its frames is there, or asked for.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from georesolve.io.errors import InvalidInput
from georesolve.io.extras import needed

if TYPE_CHECKING:
    import geopandas
    import pandas as pd
    import polars

T = TypeVar("T")

OTHERS = (
    "a dict of columns such as {'lat': ..., 'lon': ...}, or records such as "
    "[{'lat': ..., 'lon': ...}]; an array of shape (n, 2) is {'lat': a[:, 0], 'lon': a[:, 1]}"
)
"""What is said to users of a table that is none."""
_NEVER_MISSING = ("observation", "rank")
_ALL_BITS = pa.scalar(-1, pa.int64())
_NO_COLUMN = (pa.ArrowException, OverflowError, TypeError, ValueError)


class NoColumn(ValueError):
    """Values that Arrow has no column for; `column`, `row` and `detail` say which."""

    def __init__(self, column: str | None, row: int, value: Any) -> None:
        self.column, self.row = column, row
        self.detail = f"holds {value!r:.80} ({type(value).__name__})"
        super().__init__(
            f"the column {column!r} cannot be read: row {row} {self.detail}, which fits no column "
            "with the rows before it: give all rows one type, such as text, or numbers of up to "
            "64 bits"
        )


class NoRecord(NoColumn):
    """A record that has not the keys of the others; `column` is the key, None without one."""

    def __init__(self, column: str | None, row: int, detail: str) -> None:
        self.column, self.row, self.detail = column, row, detail
        ValueError.__init__(self, f"record {row} {detail}")


def are_records(table: Any) -> bool:
    """Whether a table is a list of dicts, a row each."""
    return isinstance(table, list) and bool(table) and isinstance(table[0], dict)


def columns_of(records: list[Any]) -> dict[str, list[Any]]:
    """The values of records by key; raises NoRecord where one has other keys than the first."""
    keys = records[0].keys()
    for row, one in enumerate(records):
        if not isinstance(one, dict):
            raise NoRecord(None, row, f"is {one!r:.80}: give an object with the keys of record 0")
        if one.keys() != keys:
            [key, *_] = [key for key in (*keys, *one) if (key in one) != (key in keys)]
            which = "no" if key in keys else "a key"
            raise NoRecord(
                str(key),
                row,
                f"has {which} {str(key)[:80]!r}, unlike record 0: give all the same keys, and null "
                "where there is no value",
            )
    return {str(key): [one[key] for one in records] for key in keys}


def kinds_of(table: Any) -> set[str]:
    """What a table is, in the words of its library: `pandas.DataFrame`."""
    return {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(table).__mro__}


def as_frame(table: Any) -> Any:
    """A series of points as a frame, what is lazy as what it computes, all else as it is."""
    kinds = kinds_of(table)
    if "dask.DataFrame" in kinds:
        return table.compute()
    if "geopandas.GeoSeries" in kinds:
        return table.to_frame("geometry")
    return table.collect() if "polars.LazyFrame" in kinds else table


def as_table(
    columns: Mapping[str, Any], table: str, names: Collection[str | None] | None = None
) -> pa.Table:
    """Arrow table of arrays and lists, or of those with the given names.

    Masked values are missing. Raises ValueError where lengths differ.
    """
    arrays = {str(name): as_array(values) for name, values in columns.items()}
    shapes = [array.shape for array in arrays.values()]
    if any(len(shape) != 1 or shape != shapes[0] for shape in shapes):
        raise ValueError(
            f"{table}: {' and '.join(arrays)} must have one shape (n,), got "
            f"{' and '.join(map(str, shapes))}"
        )
    selected = arrays if names is None else arrays.keys() & {*names}
    return pa.table({name: as_column(arrays[name], name) for name in arrays if name in selected})


def as_array(values: Any) -> np.ndarray:
    """Array of numpy; a list becomes one of objects, as numpy rounds and casts mixed values."""
    if isinstance(values, list | tuple):
        # A list without values has the type that numpy gives an empty list.
        return np.fromiter(values, object, len(values)) if values else np.empty(0)
    # An array of CuPy is copied by no other call.
    return np.asanyarray(values.get() if type(values).__module__.startswith("cupy") else values)


def as_column(values: Any, name: str) -> pa.Array:
    """Arrow array of an array or a column of pandas; masked values are missing.

    Raises NoColumn.
    """
    try:
        return _as_column(values)
    except _NO_COLUMN:
        row = first_unfit(len(values), lambda rows: _as_column(values[:rows]))
        raise NoColumn(name, row, next(iter(np.asarray(values)[row:]), None)) from None


def _as_column(values: Any) -> pa.Array:
    if not isinstance(values.dtype, np.dtype):
        if not kinds_of(values.dtype).isdisjoint({"pandas.SparseDtype"}):
            return _as_column(np.asarray(values))
        column = pa.Array.from_pandas(values)
        # Arrow and pandas have no kernels for categories such as intervals.
        is_nested = pa.types.is_dictionary(column.type) and isinstance(
            column.type.value_type, pa.BaseExtensionType
        )
        return column.dictionary_decode() if is_nested else column
    array = values if isinstance(values, np.ndarray) else values.to_numpy()
    mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
    values = np.ma.getdata(array)
    if values.dtype.kind == "T":
        values = values.astype(object)
    elif values.dtype == np.longdouble:
        exact, values = values, values.astype(np.float64)
        if not np.array_equal(exact, values, equal_nan=True):
            raise ValueError("float64 does not hold each value exactly")
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    # NaN stays one in numbers: coordinates need no mask.
    is_number = values.dtype.kind in "fiu"
    try:
        return pa.array(values, mask=mask, from_pandas=not is_number)
    except OverflowError:
        # Arrow takes integers of Python for signed ones.
        return pa.array(values, pa.uint64(), mask=mask, from_pandas=True)


def first_unfit(rows: int, convert: Callable[[int], Any]) -> int:
    """First row with which the conversion of all rows up to it fails, if that of all rows does."""

    def fails(row: int) -> bool:
        try:
            convert(row + 1)
        except _NO_COLUMN:
            return True
        return False

    return bisect_left(range(rows - 1), True, key=fails)


def polars_table(frame: "polars.DataFrame") -> pa.Table:
    """Arrow table of a frame of polars; raises NoColumn."""
    return pa.table({series.name: _of_polars(series) for series in frame})


def _of_polars(series: "polars.Series") -> pa.Array:
    import polars as pl

    # Arrow has no integers of 128 bits; polars exports objects as memory addresses.
    wide = {pl.Int128, pl.UInt128} & {series.dtype}
    cast = series.cast(pl.Decimal(38, 0), strict=False) if wide else series
    lost = cast.is_null() & series.is_not_null()
    if series.dtype == pl.Object:
        lost = series.is_not_null()
    row = lost.arg_max() if lost.any() else None
    if row is None:
        try:
            return cast.to_arrow()
        except _NO_COLUMN:
            row = series.is_not_null().arg_max() or 0
    raise NoColumn(series.name, row, series[row]) from None


def like(matches: pa.Table, given: Any, first_row: int = 0) -> Any:
    """Matches as a frame of the library that the observations came in, else as they are.

    Attribute columns of the given table keep its types. A frame of pandas has the index of the
    observations, each label as often as the observation has rows in the result; a frame of
    GeoPandas has their geometry, too. `first_row` is the row number of the first observation.
    """
    kinds = kinds_of(given)
    if "geopandas.GeoSeries" in kinds:
        return like(matches, as_frame(given), first_row)
    if "polars.LazyFrame" in kinds:
        return to_polars(matches)
    if kinds.isdisjoint({"polars.DataFrame", "pandas.DataFrame"}):
        return matches
    rows = matches.column(0).to_numpy() - first_row
    # Take no rows where each observation has one: an index that is a range stays a range.
    is_same = len(rows) == len(given) and (rows == np.arange(len(rows))).all()
    if "polars.DataFrame" in kinds:

        def gather(place: int) -> Any:
            column = given.to_series(place)
            return column if is_same else column.gather(rows)

        return to_polars(matches, attributes_of(matches, given.columns, gather))

    def take(place: int) -> Any:
        column = given.iloc[:, place]
        # Geometries are WKB in results.
        if column.dtype.name == "geometry":
            return None
        values = column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array
        return values.copy() if is_same else values.take(rows)

    frame = to_pandas(matches, attributes_of(matches, given.columns, take))
    frame.index = given.index if is_same else given.index.take(rows)
    if "geopandas.GeoDataFrame" in kinds and is_geometry(
        given, name := given._geometry_column_name
    ):
        import geopandas

        return geopandas.GeoDataFrame(frame, geometry=given[name].array.take(rows))
    return frame


def attributes_of(
    matches: pa.Table, names: Iterable[Any], take: Callable[[int], T | None]
) -> dict[str, T]:
    """Attribute columns of the table that asks, by their names in the result.

    `names` are those of the columns of the table, `take` returns the rows of a column by its place,
    or None to keep the values of the matches.
    """
    columns = {}
    for place, name in enumerate(names):
        column_name = f"{matches.column_names[0]}_{name}"
        if column_name in matches.column_names and (column := take(place)) is not None:
            columns[column_name] = column
    return columns


def is_geometry(frame: Any, name: Any) -> bool:
    """Whether a frame of GeoPandas has a column of geometries of that name."""
    return name in frame and frame[name].dtype.name == "geometry"


def to_polars(
    matches: pa.Table, attributes: Mapping[str, "polars.Series"] = MappingProxyType({})
) -> "polars.DataFrame":
    """Matches as a frame of polars; `attributes` replace columns of the same names."""
    import polars

    columns = {}
    for name, column in zip(matches.column_names, matches.columns, strict=True):
        if name in attributes:
            columns[name] = attributes[name]
            continue
        try:
            columns[name] = polars.Series(name, column)
        except (polars.exceptions.PolarsError, polars.exceptions.PanicException, *_NO_COLUMN):
            raise _no_type(name, column.type, "polars") from None
    return polars.DataFrame(columns)


def _needs_mask(type: pa.DataType) -> bool:
    """Whether arrays of numpy need a mask for missing values of a type."""
    return bool(pa.types.is_integer(type) or pa.types.is_boolean(type))


def _no_type(name: str, type: pa.DataType, library: str) -> InvalidInput:
    return InvalidInput(
        f"{library} has no type for the column {name!r} of the result, which holds {type}: leave "
        "it out of the columns that are carried, or cast it to text",
        [{"column": name, "detail": f"holds {type}"}],
    )


def to_arrays(
    matches: pa.Table, attributes: Mapping[str, np.ndarray] = MappingProxyType({})
) -> dict[str, np.ndarray]:
    """Matches as arrays by name; `attributes` replace columns of the same names.

    Integers and booleans that may be missing are masked arrays, also where none is missing. The
    column `reference` is not: -1 is a missing reference.
    """
    columns: dict[str, np.ndarray] = {}
    for name, column in zip(matches.column_names, matches.columns, strict=True):
        if name in attributes:
            columns[name] = attributes[name]
        elif _needs_mask(column.type) and name not in _NEVER_MISSING:
            # Code that ignores the mask must not read a plausible id.
            none = True if pa.types.is_boolean(column.type) else _ALL_BITS.cast(column.type, False)
            numbers, mask = np.array(column.fill_null(none)), np.array(column.is_null())
            columns[name] = numbers if name == "reference" else np.ma.MaskedArray(numbers, mask)
        elif pa.types.is_dictionary(column.type):
            array = column.combine_chunks()
            words = np.array([*array.dictionary.to_pylist(), None], dtype=object)
            columns[name] = words[array.indices.cast(pa.int64()).fill_null(-1).to_numpy()]
        elif pa.types.is_nested(column.type):
            columns[name] = np.fromiter(column.to_pylist(), object, len(column))
        else:
            columns[name] = np.array(column)
    return columns


def to_pandas(
    matches: pa.Table, attributes: Mapping[str, Any] = MappingProxyType({})
) -> "pd.DataFrame":
    """Matches as a writable frame of pandas; `attributes` replace columns of the same names.

    Integers and booleans that may be missing have a nullable type (`Int64`, `boolean`), also where
    none is missing: no float holds each id, and partitions of a result have one type.
    """
    import pandas as pd
    from pandas.api.internals import (  # type: ignore[import-not-found]
        create_dataframe_from_blocks,
    )

    whole = _masked_types()
    columns: list[Any] = []
    names = matches.column_names
    for name, column in zip(names, matches.columns, strict=True):
        if name in attributes:
            values = attributes[name]
            columns.append(values[np.newaxis] if isinstance(values, np.ndarray) else values)
            continue
        masked = None if name in _NEVER_MISSING else whole.get(column.type)
        # Attribute columns may share the memory of the user's table.
        values = _taken_over(column, copies=name.startswith(f"{names[0]}_"))
        if values is not None and masked is not None:
            values = masked.construct_array_type()(values, column.is_null().to_numpy())
        elif values is not None and not column.null_count:
            values = values[np.newaxis]
        elif name == "status" and column.num_chunks == 1 and not column.null_count:
            codes = column.chunk(0)
            kind = _categories(tuple(codes.dictionary.to_pylist()))
            indices = codes.indices.to_numpy().copy()
            values = pd.Categorical.from_codes(indices, dtype=kind, validate=False)
        else:
            values = _converted(column, masked, name)
        columns.append(values)
    # The constructor looks at each column for what it may be, which takes a small answer's time.
    frame: pd.DataFrame = create_dataframe_from_blocks(
        [(column, np.array([i])) for i, column in enumerate(columns)],
        pd.RangeIndex(len(matches)),
        # A view: a user may give the labels of a frame a name.
        _labels(tuple(names)).view(),
    )
    return frame


def _converted(column: pa.ChunkedArray, masked: Any, name: str) -> Any:
    # Intervals of integers cannot be missing: pandas reads garbage for them.
    if getattr(column.type, "extension_name", None) == "pandas.interval" and pa.types.is_integer(
        column.type.subtype
    ):
        column = pa.chunked_array([one.storage for one in column.chunks], column.type.storage_type)
    # In a column without rows, any types_mapper turns text into objects.
    mapper = masked and (lambda _, to=masked: to)
    try:
        # By default, integers in structs and lists become floats if one is missing.
        series = column.to_pandas(types_mapper=mapper, integer_object_nulls=True)
    except _NO_COLUMN:
        raise _no_type(name, column.type, "pandas") from None
    # Memory of Arrow is read-only.
    is_numpy = isinstance(series.dtype, np.dtype)
    return series.to_numpy(copy=True)[np.newaxis] if is_numpy else series.array.copy()


@lru_cache(8)
def _labels(names: tuple[str, ...]) -> Any:
    """The labels of columns."""
    import pandas as pd

    return pd.Index(names)


@cache
def _masked_types() -> dict[pa.DataType, Any]:
    """The types that keep whole numbers and truths beside missing ones, by Arrow type."""
    import pandas as pd

    signed = (pd.Int8Dtype(), pd.Int16Dtype(), pd.Int32Dtype(), pd.Int64Dtype())
    unsigned = (pd.UInt8Dtype(), pd.UInt16Dtype(), pd.UInt32Dtype(), pd.UInt64Dtype())
    types: tuple[Any, ...] = (*signed, *unsigned, pd.BooleanDtype())
    return {pa.from_numpy_dtype(one.numpy_dtype): one for one in types}


@lru_cache(8)
def _categories(names: tuple[str, ...]) -> Any:
    """The type of a column of texts that are some of these few."""
    column = pa.array(names).dictionary_encode()
    return column.to_pandas().dtype


def _taken_over(column: pa.ChunkedArray, *, copies: bool) -> np.ndarray | None:
    """The numbers of a column, to be written to: where they lie, if that may be; None of others."""
    if column.num_chunks != 1 or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        return None
    chunk = column.chunk(0)
    memory = chunk.buffers()[1]
    if memory is None:
        return None
    values = np.frombuffer(memory, column.type.to_pandas_dtype())
    values = values[chunk.offset : chunk.offset + len(chunk)]
    return values if memory.is_mutable and not copies else values.copy()


def to_geopandas(matches: pa.Table) -> "geopandas.GeoDataFrame":
    """Matches as a frame of GeoPandas; raises ValueError where they carry no points.

    Its geometry is a geometry column that was carried into the result, else the points of carried
    coordinates: of the references, or of the observations.
    """
    geopandas = needed("geopandas", "gis", "a GeoPandas frame")
    frame = to_pandas(matches)
    geo = json.loads((matches.schema.metadata or {}).get(b"geo", b"{}"))
    names = [name for name in geo.get("columns", {}) if name in frame]
    if names:
        for name in names:
            frame[name] = geopandas.GeoSeries.from_wkb(frame[name], crs="OGC:CRS84")
        primary = geo.get("primary_column")
        return geopandas.GeoDataFrame(frame, geometry=primary if primary in names else names[0])
    for prefix in ("reference_", "observation_"):
        lat, lon = f"{prefix}lat", f"{prefix}lon"
        if lat in frame and lon in frame:
            points = geopandas.points_from_xy(frame[lon], frame[lat], crs="OGC:CRS84")
            return geopandas.GeoDataFrame(frame, geometry=points)
    raise ValueError(
        "the result carries neither a geometry nor columns 'lat' and 'lon': ask for it with "
        "columns=['geometry'], columns=['lat', 'lon'], or observation_columns likewise"
    )
