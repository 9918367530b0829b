"""Tables that a user gives, and how their matches are given back: as the same kind of table."""

import math
import os
import tempfile
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from georesolve.engine.backends import Frame
from georesolve.engine.in_memory import (
    RESULT_ROWS,
    Progress,
    Search,
    deserves_all_gpus,
)
from georesolve.engine.plan import Chunk
from georesolve.engine.questions import Batch
from georesolve.engine.result_rows import STATUSES
from georesolve.io import tables
from georesolve.io.columns import Reading, Role, find_columns
from georesolve.io.crs import degrees_from
from georesolve.io.errors import level_of_user, wrong
from georesolve.io.formats import Table
from georesolve.io.geometry import Geometry, coordinate_names, coordinates_of
from georesolve.io.layers import refuse_layer
from georesolve.io.opener import UNBOUNDED, open_table
from georesolve.io.outlines import ShapeReader
from georesolve.io.points import Points, PointTable, gather
from georesolve.io.storage import files_at
from georesolve.io.validation import DOZEN, looks_swapped, of_extents, of_file
from georesolve.query import MatchOptions, with_id
from georesolve.workers.own_cluster import resolve_on_all_gpus

_Part = tuple[Table, Reading, Sequence[str] | None]
"""The columns of a table that are needed, and how to read them; the names of all, if more."""


class Given:
    """A table that a user gave, by the Arrow C stream interface if by no other.

    `role` is what to call it in errors, `first_row` the row of its first one if it is a part.
    """

    def __init__(self, given: Any, role: Role, first_row: int | None = None) -> None:
        self._given, self._role = given, role
        self._is_part, self._first_row = first_row is not None, first_row or 0

    def points(self, reading: Reading, keep: Collection[str] | None) -> Points:
        """Its rows, checked; `keep` names the columns that a result may carry, None for all."""
        points = self._gather(reading, keep)
        if reading.coordinates == "check":
            for remark in of_file(points, self._role):
                warnings.warn(remark, stacklevel=level_of_user())
        return points

    def _gather(self, reading: Reading, keep: Collection[str] | None) -> Points:
        refuse_layer(reading, self._role)
        try:
            part, found, columns = self._part(reading, keep)
        except tables.NoColumn as error:
            told, place = str(error), {"column": error.column, "row": error.row}
            raise wrong(self._role, error.detail, told, **place) from None
        return gather(PointTable(part, found, self._role, UNBOUNDED), keep, columns)

    def _part(self, reading: Reading, keep: Collection[str] | None) -> _Part:
        try:
            arrow = self._given if isinstance(self._given, pa.Table) else pa.table(self._given)
        except pa.ArrowInvalid as error:
            # A single column has an Arrow C stream, too.
            raise _no_table(self._given, self._role) from error
        return _as_table(arrow), reading, None

    def on_host(self, points: Points, names: Collection[str]) -> Points:
        """Its rows, which `points` gave, with columns that these were to keep, if left on a GPU."""
        return points

    def resolve(
        self, points: Points, search: Search, options: MatchOptions, progress: Progress | None
    ) -> Any:
        """The matches of its rows, which `points` gave, as the kind that it is."""
        references = search.references
        is_alone = search.device == "cuda" and not self._is_part
        if is_alone and deserves_all_gpus(points.rows, references.rows, options):
            return self._give_back(resolve_on_all_gpus(points, references, options, progress))
        return self._give_back(search.resolve(points, options, progress, self._first_row))

    def _give_back(self, matches: pa.Table) -> Any:
        """A result as the kind of the table; an Arrow table where there is none."""
        return tables.like(matches, self._given, self._first_row)


def given(table: Any, role: Role, first_row: int | None = None) -> Given:
    """Recognise what a user gave, see `Given`; raises TypeError when it is no table."""
    if not tables.kinds_of(table).isdisjoint({"polars.DataFrame", "polars.LazyFrame"}):
        return _Polars(table, role, first_row)
    table = tables.as_frame(table)
    kinds = tables.kinds_of(table)
    for kind, adapter in _ADAPTERS.items():
        if kind in kinds:
            return adapter(table, role, first_row)
    if isinstance(table, str | os.PathLike):
        return _Files(table, role, first_row)
    if hasattr(table, "__arrow_c_stream__"):
        return Given(table, role, first_row)
    if isinstance(table, dict) or (isinstance(table, tuple) and len(table) == 2):
        return _Arrays(table, role, first_row)
    if tables.are_records(table):
        return _Records(table, role, first_row)
    raise _no_table(table, role)


def _no_table(table: Any, role: Role) -> TypeError:
    return TypeError(
        f"{role}: {type(table).__name__} is no table of points: give a DataFrame of pandas, "
        "GeoPandas, polars or cuDF, an Arrow table, the path of a file, a pair of arrays "
        f"(latitudes, longitudes), or {tables.OTHERS}"
    )


def _as_table(arrow: pa.Table, points: Geometry | None = None) -> Table:
    batches = arrow.to_batches()
    if not batches and all(column.num_chunks for column in arrow.columns):
        # Of no rows the categories are known, too.
        batches = [
            pa.RecordBatch.from_arrays([one.chunk(0) for one in arrow.columns], schema=arrow.schema)
        ]
    return Table(arrow.schema, iter(batches), arrow.num_rows, points)


class _Files(Given):
    """The path or the address of a file, a folder or a glob."""

    def _gather(self, reading: Reading, keep: Collection[str] | None) -> Points:
        files = files_at(self._given, self._role)
        if keep is not None:
            reading = reading._replace(kept=tuple(keep))
        with (
            tempfile.TemporaryDirectory(prefix="georesolve-") as scratch,
            open_table(files, reading, self._role, Path(scratch)) as table,
        ):
            return gather(table, keep)


class _Columns(Given):
    """A table whose columns are converted one by one: only those that are needed."""

    def _part(self, reading: Reading, selected: Collection[str] | None) -> _Part:
        names = self._names()
        if reading.geometry is not None or selected is None:
            return _as_table(self._converted(names)), reading, names
        columns = find_columns(names, reading, self._role)
        found = reading._replace(**columns._asdict())
        return _as_table(self._converted({*columns, *selected})), found, names

    def _names(self) -> list[str]:
        return [str(name) for name in self._given.columns]

    def _converted(self, names: Collection[str | None]) -> pa.Table:
        raise NotImplementedError


class _Pandas(_Columns):
    """A DataFrame of pandas."""

    def _converted(self, names: Collection[str | None]) -> pa.Table:
        columns = enumerate(map(str, self._given.columns))
        return pa.table({name: self._column(i) for i, name in columns if name in names})

    def _column(self, place: int) -> pa.Array:
        return tables.as_column(self._given.iloc[:, place], str(self._given.columns[place]))


class _Polars(_Columns):
    """A DataFrame of polars, or a LazyFrame, of which no more columns are computed."""

    def _names(self) -> list[str]:
        names: list[str] = self._given.collect_schema().names()
        return names

    def _converted(self, names: Collection[str | None]) -> pa.Table:
        columns = [name for name in self._names() if name in names]
        self._computed = tables.as_frame(self._given.select(columns))
        return tables.polars_table(self._computed)

    def _give_back(self, matches: pa.Table) -> Any:
        return tables.like(matches, self._computed, self._first_row)


class _Arrays(_Columns):
    """Arrays by name, or a pair of them: latitudes and longitudes in degrees."""

    def _part(self, reading: Reading, selected: Collection[str] | None) -> _Part:
        self._columns = self._given
        if isinstance(self._given, tuple):
            self._columns = dict(zip(("lat", "lon"), self._given, strict=True))
            reading = reading._replace(lat="lat", lon="lon", id=None, geometry=None)
        elif isinstance(self._given, list):
            self._columns = tables.columns_of(self._given)
        return super()._part(reading, selected)

    def _names(self) -> list[str]:
        return [str(name) for name in self._columns]

    def _converted(self, names: Collection[str | None]) -> pa.Table:
        return tables.as_table(self._columns, self._role, names)

    def _give_back(self, matches: pa.Table) -> Any:
        rows, columns = matches.column(0).to_numpy() - self._first_row, [*self._columns.values()]

        def take(place: int) -> np.ndarray | None:
            column = columns[place]
            return column[rows] if isinstance(column, np.ndarray) else None

        return tables.to_arrays(matches, tables.attributes_of(matches, self._columns, take))


class _Records(_Arrays):
    """A list of dicts, one a row."""

    def _give_back(self, matches: pa.Table) -> Any:
        return matches.to_pylist()


class _GeoPandas(_Pandas):
    """A GeoDataFrame, whose points are its active geometry unless the user names columns.

    They are transformed to longitude and latitude by its CRS.
    """

    def _part(self, reading: Reading, keep: Collection[str] | None) -> _Part:
        column = reading.geometry or self._given._geometry_column_name
        if (
            reading.lat is not None
            or reading.lon is not None
            or not tables.is_geometry(self._given, column)
        ):
            return super()._part(reading, keep)
        series = self._given[column]
        crs, geometries = series.crs or reading.crs, series.to_numpy()
        of_crs: Sequence[str] = ()
        if crs is None:
            warnings.warn(
                f"{self._role}: the geometry column {column!r} has no CRS: it is taken for "
                "longitude and latitude on WGS 84; declare its CRS with set_crs",
                stacklevel=level_of_user(),
            )
        elif (transformer := degrees_from(crs, self._role)) is not None:
            geometries = shapely.transform(geometries, transformer.transform, interleaved=False)
            of_crs = transformer.warnings
        shapes = ShapeReader({}, reading, column, self._role) if reading.takes_shapes else None
        lon, lat = coordinates_of(geometries, column, 0, self._role, shapes)
        lat_name, lon_name = coordinate_names(self._names(), column)
        names = [*self._names(), lon_name, lat_name]
        named = reading._replace(geometry=None, lat=lat_name, lon=lon_name)
        columns = find_columns(names, named, self._role)
        attributes = self._converted(self._names() if keep is None else {columns.id, *keep})
        # A table of no columns has no rows.
        arrays = dict(zip(attributes.column_names, attributes.columns, strict=True))
        arrow = pa.table({**arrays, columns.lon: lon, columns.lat: lat})
        points = Geometry(column, columns.lat, columns.lon)
        # Not the names: they are none that the user gave.
        found = reading._replace(geometry=None, id=columns.id)
        table = _as_table(arrow, points)._replace(shapes=shapes, warnings=of_crs)
        return table, found, names

    def _column(self, place: int) -> pa.Array:
        column = self._given.iloc[:, place]
        if column.dtype.name == "geometry":
            return pa.array(column.to_wkb())
        return super()._column(place)


def warn_of_extents(observations: Points, references: Points, *, is_part: bool = False) -> None:
    """Warn where the extents of two sets show swapped axes, or that the sets lie far apart."""
    # A part of a set may well lie apart from what the whole lies among.
    few = min(observations.valid_rows, references.valid_rows) < DOZEN
    compare = looks_swapped if is_part or few else of_extents
    for remark in compare(observations.bbox, references.bbox):
        warnings.warn(remark, stacklevel=level_of_user())


class _Cudf(_Columns):
    """A DataFrame of cuDF. Coordinates are checked on the host; the result is made on the GPU.

    It is searched on the GPU that it lies on, however many there are.
    """

    def _part(self, reading: Reading, keep: Collection[str] | None) -> _Part:
        # What is carried of observations stays on the GPU.
        return super()._part(reading, keep if self._role == "references" else ())

    def _converted(self, names: Collection[str | None]) -> pa.Table:
        selected = [name for name in self._given.columns if name in names]
        return self._given[selected].to_arrow(preserve_index=False)

    def on_host(self, points: Points, names: Collection[str]) -> Points:
        return replace(points, kept=self._converted(names))

    def resolve(
        self, points: Points, search: Search, options: MatchOptions, progress: Progress | None
    ) -> Any:
        named = [*options.of_observations(points), *options.asked_of_observations]
        if (
            search.device == "cuda"
            and points.lat in self._given.columns
            and not (options.of_pairs or options.near or options.filters)
        ):
            return _on_gpu(self._given, points, search, options, progress, self._first_row)
        return super().resolve(self.on_host(points, named), search, options, progress)

    def _give_back(self, matches: pa.Table) -> Any:
        import cudf

        status = pc.cast(matches["status"], pa.string())
        place = matches.column_names.index("status")
        frame = cudf.DataFrame.from_arrow(matches.set_column(place, "status", status))
        frame.index = self._given.index.take(matches.column(0).to_numpy() - self._first_row)
        return frame


# The first that fits: a GeoDataFrame is a DataFrame, and each of them has an Arrow C stream.
_ADAPTERS: dict[str, type[Given]] = {
    "geopandas.GeoDataFrame": _GeoPandas,
    "pandas.DataFrame": _Pandas,
    "cudf.DataFrame": _Cudf,
}


def _on_gpu(
    frame: Frame,
    points: Points,
    search: Search,
    options: MatchOptions,
    progress: Progress | None,
    first_row: int,
) -> Frame:
    """The matches of a frame of cuDF, searched, made and carried on the GPU that it lies on."""
    import cudf

    # NaN where there is no number.
    lat_deg, lon_deg = (
        frame[name].astype("float64").to_cupy(na_value=math.nan)
        for name in (points.lat, points.lon)
    )
    of_references = search.references.kept.select(with_id(search.references, options.columns))
    references = cudf.DataFrame.from_arrow(of_references.replace_schema_metadata())
    step = RESULT_ROWS // options.k
    pieces = []
    # No observations are one empty piece: their result has columns, too.
    for chunk in Chunk(0, points.rows).pieces(step):
        part = slice(*chunk)
        degrees = lat_deg[part], lon_deg[part]
        pieces.append(_gpu_rows(search, *degrees, first_row + chunk.start, references, options))
        if progress is not None:
            progress(chunk.stop, points.rows)
    matches = cudf.concat(pieces, ignore_index=True)
    rows = matches["observation"].to_cupy() - first_row
    # Not before: their columns stand between those of the answer and those of the references.
    place = list(matches.columns).index("status") + 1
    for name in reversed(with_id(points, options.observation_columns)):
        matches.insert(place, f"observation_{name}", _taken(frame[name], rows))
    matches.index = frame.index.take(rows)
    return matches


def _gpu_rows(
    search: Search,
    lat_deg: Any,
    lon_deg: Any,
    first_row: int,
    references: Frame,
    options: MatchOptions,
) -> Frame:
    """The rows of a result for some observations, without what is carried of these."""
    import cudf
    import cupy

    k = options.k
    asked = Batch(lat_deg, lon_deg, first_row, 0.0)
    reference, distance_m, status = search.nearest(options).answered(asked)
    unmatched = reference < 0
    columns = {"observation": cupy.arange(first_row, first_row + lat_deg.size).repeat(k)}
    if k > 1:
        columns["rank"] = cupy.tile(cupy.arange(1, k + 1, dtype=np.int32), lat_deg.size)
    rows = cudf.DataFrame(columns)
    rows["reference"] = cudf.Series(reference).mask(unmatched)
    # cuDF takes the NaN of an array for missing.
    rows["distance_m"] = cudf.Series(distance_m)
    rows["status"] = _taken(cudf.Series(list(STATUSES)), status.astype("int32"))
    at = cupy.where(unmatched, 0, reference)
    for name in references.columns:
        rows[f"reference_{name}"] = _taken(references[name], at).mask(unmatched)
    return rows[rows["reference"].notna()] if options.how == "inner" else rows


def _taken(column: Any, rows: Any) -> Any:
    return column.take(rows).reset_index(drop=True)
