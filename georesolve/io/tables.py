"""Tables of users as Arrow, and matches as tables of their kind: by a service, too.

A library of frames is imported when one of its frames is there, or asked for.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from georesolve.io.extras import needed

if TYPE_CHECKING:
    import geopandas
    import pandas as pd
    import polars

OTHERS = (
    "a dict of columns such as {'lat': ..., 'lon': ...}, or records such as "
    "[{'lat': ..., 'lon': ...}]; an array of shape (n, 2) is {'lat': a[:, 0], 'lon': a[:, 1]}"
)
"""What is said to users of a table that is none."""
_NEVER_MISSING = ("observation", "rank")
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


def as_table(columns: Mapping[str, Any], table: str) -> pa.Table:
    """Arrays and lists by name; what is masked is missing; ValueError where lengths differ."""
    arrays = {str(name): _as_array(values) for name, values in columns.items()}
    shapes = [array.shape for array in arrays.values()]
    if any(len(shape) != 1 or shape != shapes[0] for shape in shapes):
        raise ValueError(
            f"{table}: {' and '.join(arrays)} must have one shape (n,), got "
            f"{' and '.join(map(str, shapes))}"
        )
    return pa.table({name: as_column(array, name) for name, array in arrays.items()})


def _as_array(values: Any) -> np.ndarray:
    # An array of CuPy is copied by no other call.
    values = values.get() if type(values).__module__.startswith("cupy") else values
    try:
        array = np.asanyarray(values)
    except ValueError:
        # Lists of several lengths.
        return np.array(values, object)
    # numpy makes a text of each of several objects, if one is.
    is_made = array.dtype.kind == "U" and isinstance(values, list | tuple)
    return np.array(values, object) if is_made else array


def as_column(values: Any, name: str) -> pa.Array:
    """An array, or a column of pandas, as Arrow: what is masked is missing; raises NoColumn."""
    try:
        if not isinstance(values.dtype, np.dtype):
            return pa.Array.from_pandas(values)
        array = values if isinstance(values, np.ndarray) else values.to_numpy()
        numbers = array.astype(array.dtype.newbyteorder("="), copy=False)
        mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
        # NaN stays one in numbers: coordinates need no mask.
        is_number = array.dtype.kind in "fiu"
        return pa.array(np.ma.getdata(numbers), mask=mask, from_pandas=not is_number)
    except _NO_COLUMN:
        # The first row with which those up to it are no column.
        row = bisect_left(range(len(values) - 1), True, key=lambda i: not _fit(values[: i + 1]))
        raise NoColumn(name, row, next(iter(np.asarray(values)[row:]), None)) from None


def _fit(values: Any) -> bool:
    try:
        pa.array(np.asarray(values), from_pandas=True)
    except _NO_COLUMN:
        return False
    return True


def like(matches: pa.Table, given: Any, first_row: int = 0) -> Any:
    """Matches as a frame of the library that the observations came in, else as they are.

    A frame of pandas has the index of the observations, each as often as it has rows in the result;
    one of GeoPandas their geometry, too. `first_row` is what the result calls the first of them.
    """
    kinds = kinds_of(given)
    if kinds & {"polars.DataFrame", "polars.LazyFrame"}:
        return to_polars(matches)
    if "geopandas.GeoSeries" in kinds:
        return like(matches, as_frame(given), first_row)
    if "pandas.DataFrame" not in kinds:
        return matches
    frame = to_pandas(matches)
    rows = matches.column(0).to_numpy() - first_row
    # With a row for each observation it is as it was, a range included.
    is_same = len(rows) == len(given.index) and (rows == np.arange(len(rows))).all()
    frame.index = given.index if is_same else given.index.take(rows)
    if "geopandas.GeoDataFrame" in kinds and is_geometry(
        given, name := given._geometry_column_name
    ):
        import geopandas

        return geopandas.GeoDataFrame(frame, geometry=given[name].array.take(rows))
    return frame


def is_geometry(frame: Any, name: Any) -> bool:
    """Whether a frame of GeoPandas has a column of geometries of that name."""
    return name in frame and frame[name].dtype.name == "geometry"


def to_polars(matches: pa.Table) -> "polars.DataFrame":
    """Matches as a frame of polars."""
    import polars

    frame = polars.from_arrow(matches)
    assert isinstance(frame, polars.DataFrame), "a table makes a frame"
    return frame


def to_pandas(matches: pa.Table) -> "pd.DataFrame":
    """Matches as a frame of pandas, which may be written to.

    What an unmatched row has none of stays a whole number in the others (`Int64`), whether there is
    one or not: no float could hold each id, and parts of a result have one type.
    """
    import pandas as pd
    from pandas.api.internals import (  # type: ignore[import-not-found]
        create_dataframe_from_blocks,
    )

    whole = _masked_types()
    columns: list[Any] = []
    names = matches.column_names
    for name, column in zip(names, matches.columns, strict=True):
        # What is carried of the observations may lie in the memory of their user.
        is_own = not name.startswith("observation_")
        masked = whole.get(column.type) if is_own and name not in _NEVER_MISSING else None
        values: Any = _taken_over(column, copies=not is_own)
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
            # What is taken over from Arrow as it is cannot be written to. Of no rows, whatever maps
            # types makes objects of text.
            mapper = masked and (lambda _, to=masked: to)
            series = column.to_pandas(types_mapper=mapper)
            is_numpy = isinstance(series.dtype, np.dtype)
            values = series.to_numpy(copy=True)[np.newaxis] if is_numpy else series.array.copy()
        columns.append(values)
    # The constructor looks at each column for what it may be, which takes a small answer's time.
    frame: pd.DataFrame = create_dataframe_from_blocks(
        [(column, np.array([i])) for i, column in enumerate(columns)],
        pd.RangeIndex(len(matches)),
        # A view: a user may give the labels of a frame a name.
        _labels(tuple(names)).view(),
    )
    return frame


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
