"""Points of a table: which columns hold what, whether its rows are degrees, and all in memory."""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georesolve.io.columns import LONGEST_NAME, Edges, Reading, find_columns
from georesolve.io.datasets import Dataset, PointSet, geo, write_dataset
from georesolve.io.errors import InvalidInput, InvalidOption, TooLarge, wrong
from georesolve.io.evidence import Evidence
from georesolve.io.formats import Table
from georesolve.io.geometry import (
    add_coordinates,
    as_stored,
    as_wkb,
    crs_of,
    geometries_of,
    geometry_of,
    is_wkb,
    native_kind,
    said_of,
    told_of,
)
from georesolve.io.numbers import check_numeric, degrees
from georesolve.io.validation import Findings

if TYPE_CHECKING:
    from georesolve.io.outlines import JoinedShapes, ShapeReader
    from georesolve.kernels import Shapes


def without_views(type: pa.DataType) -> pa.DataType:
    """Type of the same values that has kernels to take rows, without views of text or bytes."""
    if pa.types.is_string_view(type):
        return pa.string()
    if pa.types.is_binary_view(type):
        return pa.binary()
    if pa.types.is_run_end_encoded(type):
        return without_views(type.value_type)
    if pa.types.is_dictionary(type):
        return pa.dictionary(type.index_type, without_views(type.value_type), type.ordered)
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(without_views(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(*map(without_views, (type.key_type, type.item_type)), type.keys_sorted)
    if pa.types.is_fixed_size_list(type):
        return pa.list_(_field_without_views(type), type.list_size)
    if pa.types.is_list(type) or pa.types.is_list_view(type):
        return pa.list_(_field_without_views(type))
    if pa.types.is_large_list(type) or pa.types.is_large_list_view(type):
        return pa.large_list(_field_without_views(type))
    return type


def _cast(array: pa.Array, type: pa.DataType) -> pa.Array:
    if array.type == type:
        return array
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return pc.cast(array, type, safe=False)


def _check_carried(field: pa.Field, file: str) -> None:
    """Refuse a column whose type has no kernel to take rows; raises InvalidInput."""
    try:
        pa.nulls(0, field.type).take(pa.array([], pa.int64()))
    except pa.ArrowException:
        detail = f"holds {field.type}"
        report = f"the column {field.name!r} {detail}, which has no kernel to take rows: cast it"
        raise wrong(file, detail, report, column=field.name, row=0) from None


def _field_without_views(type: pa.DataType) -> pa.Field:
    return type.value_field.with_type(without_views(type.value_type))


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How many rows and columns a table may have, and to how many bytes a file may unpack."""

    rows: int = sys.maxsize
    columns: int = sys.maxsize
    unpacked_bytes: int = sys.maxsize

    def refuse_beyond(self, columns: int, rows: int, file: str) -> None:
        """Refuse a table of more columns or rows; raises TooLarge."""
        for n, what, most in ((columns, "columns", self.columns), (rows, "rows", self.rows)):
            if n > most:
                raise TooLarge(f"{file}: {n} {what} are more than the limit of {most}")


def check_names(names: Collection[str], file: str) -> None:
    """Refuse names of columns that are not kept."""
    for name in names:
        if "\0" in name or len(name) > LONGEST_NAME:
            long = (
                f"the column name {name[:80]!r} has {len(name)} characters: up to "
                f"{LONGEST_NAME} are allowed, and no NUL among them"
            )
            raise wrong(file, "not allowed as a name", long, column=name[:80])


class PointTable:
    """A table whose columns have their meaning, and whose rows are checked as they pass by.

    The `schema` is that of the batches: coordinates are float64, and those of a geometry column
    stand beside it. `columns` hold the coordinates and the id; `geometries` is what GeoParquet says
    of the others. `shapes` has taken the lines and polygons of the rows that have passed.
    """

    def __init__(
        self,
        table: Table,
        reading: Reading,
        file: str,
        bounds: Bounds,
        decoding: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        schema, self._batches, self._declared_rows, points, shapes, warnings = as_stored(table)
        self.warnings = [warnings]
        self.shapes: ShapeReader | JoinedShapes | None = shapes
        bounds.refuse_beyond(len(schema.names), self._declared_rows or 0, file)
        self.geometries = geometries_of(schema)
        if reading.lat is not None or reading.lon is not None:
            points = None
        else:
            takes, keeps_invalid = reading.takes_shapes, reading.on_invalid == "null"
            geometry = geometry_of(
                schema, reading.geometry, file, takes_shapes=takes, prefix=reading.prefix
            )
            if geometry is not None:
                field = schema.field(geometry.column)
                told = told_of(schema, geometry.column) or said_of(field)
                kind = native_kind(field, told.get("encoding"))
                if kind:
                    told = said_of(field) | told
                crs = crs_of(told, reading.crs, field, file)
                if crs is not None and not kind:
                    kind = native_kind(field, told.get("encoding"), also_apart=True)
                if kind:
                    self.geometries.get(geometry.column, {}).update(encoding="WKB")
                    self._batches = as_wkb(
                        self._batches, geometry.column, kind, file, keeps_invalid=keeps_invalid
                    )
                    field = pa.field(geometry.column, pa.binary())
                    schema = schema.set(schema.get_field_index(geometry.column), field)
                if crs is not None and is_wkb(field.type):
                    from georesolve.io.crs import degrees_from, in_degrees

                    if (transformer := degrees_from(crs, file)) is not None:
                        self.warnings.append(transformer.warnings)
                        self._batches = in_degrees(self._batches, geometry.column, transformer)
                if crs is not None or told.get("crs", "") is None:
                    self.geometries.get(geometry.column, {}).pop("crs", None)
                if takes:
                    from georesolve.io import outlines

                    reader = outlines.ShapeReader(told, reading, geometry.column, file)
                    self.shapes = shapes = reader
                    if kind or reading.edges or reading.densify_m:
                        # Read of a dataset, they are to be the same.
                        known = self.geometries.get(geometry.column, {})
                        self.geometries[geometry.column] = known | reader.edging.told
                self._batches = add_coordinates(
                    self._batches, geometry, file, shapes, keeps_invalid=keeps_invalid
                )
                for name in (geometry.lon, geometry.lat):
                    schema = schema.append(pa.field(name, pa.float64()))
                if reading.kept is not None and geometry.column not in reading.kept:
                    left_out = [geometry.column]
                    self._batches = (batch.drop_columns(left_out) for batch in self._batches)
                    schema = schema.remove(schema.get_field_index(geometry.column))
                    self.geometries.pop(geometry.column, None)
                points = geometry
            if points is not None:
                reading = reading._replace(lat=points.lat, lon=points.lon, geometry=None)
        check_names(schema.names, file)
        self.columns = find_columns(schema.names, reading, file)
        for name in self.columns[:2]:
            check_numeric(schema.field(name), file)
        if reading.crs is not None and points is None:
            from georesolve.io.crs import with_degrees

            given = self.columns
            self._batches, self.columns, of_crs = with_degrees(
                self._batches, schema.names, given, reading, file
            )
            self.warnings.append(of_crs)
            if self.columns != given:
                added = self.columns.lon, self.columns.lat
                schema = pa.schema([*schema, *(pa.field(one, pa.float64()) for one in added)])
        types = dict.fromkeys(self.columns[:2], pa.float64())
        self.schema = pa.schema(
            [(f.name, types.get(f.name) or without_views(f.type)) for f in schema]
        )
        self._reading, self.file, self._bounds = reading, file, bounds
        self._decoding = decoding
        self.names_in_file = frozenset(schema.names)
        """Names of the columns before coordinates and names of folders were added."""
        self.findings = Findings(self.columns, points and points.column, Evidence())
        """What the rows have shown that have been read."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows and collect what their coordinates show; coordinates may be null."""
        for batch in self.decoded():
            self.findings.evidence.add(*(degrees(batch[name]) for name in self.columns[:2]))
            yield batch
        if self.shapes is not None:
            self.findings.evidence.surround(self.shapes.ends)
            self.findings.evidence.wide_edges = self.shapes.wide_edges
        for warnings in self.warnings:
            self.findings.evidence.warn(warnings)

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows with coordinates in degrees, in the types of the schema, and count them.

        `decoding` translates errors of the libraries that read the file.
        """
        seen = 0
        with self._decoding():
            for batch in self._batches:
                seen += batch.num_rows
                if seen > self._bounds.rows:
                    raise TooLarge(f"{self.file}: more rows than the limit of {self._bounds.rows}")
                yield self._typed(batch)
        if self._declared_rows not in (None, seen):
            raise InvalidInput(
                f"{self.file}: the file says that it has {self._declared_rows} rows, and has {seen}"
            )

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema == self.schema:
            return batch
        arrays = [*map(_cast, batch.columns, self.schema.types)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def refuse_invalid(self, points: PointSet) -> None:
        """Refuse what the rows showed, once all have passed."""
        self.findings.refuse(points, self._reading, self.file)


@dataclass(frozen=True, kw_only=True)
class Points(PointSet):
    """A point set in memory.

    `lat_deg` and `lon_deg` are float64 arrays of shape (rows,), NaN where there is no number.
    `kept` has the columns that a result may carry, `columns` the names of all that the table had.
    Where some rows are lines or polygons, `shapes` are all of them.
    """

    lat_deg: np.ndarray
    lon_deg: np.ndarray
    kept: pa.Table
    shapes: "Shapes | None" = None

    @cached_property
    def sha256(self) -> str:
        """Of the coordinates: sets in memory are the same when these are."""
        digest = sha256()
        for array in (self.lat_deg, self.lon_deg, *(self.shapes or ())):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def part(self, first_row: int, rows: int) -> "Points":
        """Some of its rows, as points; what was counted is that of all."""
        some = slice(first_row, first_row + rows)
        kept = self.kept.slice(first_row, rows)
        lat_deg, lon_deg = self.lat_deg[some], self.lon_deg[some]
        return replace(
            self, lat_deg=lat_deg, lon_deg=lon_deg, kept=kept, shapes=None, outlines=None
        )


_DAY_MS = 86_400_000


def _refuse_times_of_day(table: pa.Table, file: str) -> None:
    """Refuse columns of date64 that have a time of day: a file would keep the day alone."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if column.type != pa.date64():
            continue
        ms = column.cast(pa.int64())
        days = pc.multiply(pc.divide(ms, _DAY_MS), _DAY_MS)
        row = pc.index(pc.equal(days, ms), False).as_py()
        if row >= 0:
            time = column[row].cast(pa.timestamp("ms")).cast(pa.string())
            detail = f"holds the date64 {time}, and a date has no time of day"
            message = f"the column {name!r} {detail}, in row {row}: cast it to timestamps or date32"
            raise wrong(file, detail, message, column=name, row=row)


def gather(
    table: PointTable, keep: Collection[str] | None, columns: Sequence[str] | None = None
) -> Points:
    """Take the rows of a table into memory.

    A result may carry the id, and the columns to `keep` as far as the table has them (None for
    all). `columns` are the names of all that the user gave, where the table is a part of these.
    """
    (lat, lon, id), file = table.columns, table.file
    names = [
        field.name
        for field in table.schema
        if keep is None or field.name == id or field.name in keep
    ]
    for name in names:
        _check_carried(table.schema.field(name), file)
    taken = list(dict.fromkeys([*names, lat, lon]))
    schema = pa.schema([table.schema.field(name) for name in taken])
    pieces = [batch.select(taken) for batch in table.batches()]
    whole = pa.Table.from_batches(pieces, schema).combine_chunks()
    _refuse_times_of_day(whole, file)
    lat_deg, lon_deg = (
        degrees(whole[name].chunk(0)) if pieces else np.empty(0) for name in (lat, lon)
    )
    points = Points(
        lat_deg=lat_deg,
        lon_deg=lon_deg,
        kept=whole.select(names),
        columns=tuple(columns or table.schema.names),
        lat=lat,
        lon=lon,
        id=id,
        shapes=None if table.shapes is None else table.shapes.shapes(lat_deg, lon_deg),
        outlines=None if table.shapes is None else table.shapes.outlines(lat_deg.size),
        **table.findings.evidence.facts,
    )
    table.refuse_invalid(points)
    return points


def write_shapes(points: Points, path: Path) -> None:
    """Write lines and polygons, and what is kept beside them, as GeoParquet."""
    assert points.outlines is not None, "they came from a column"
    column, edging, _ = points.outlines
    if edging.edges not in get_args(Edges):
        raise InvalidOption(
            f"the references come from files whose edges differ, and one column {column!r} cannot "
            "say so: save an Index of the files of each kind, or name the edges of all with the "
            "option edges"
        )
    kept = [name for name in points.kept.column_names if name not in (points.lat, points.lon)]
    own = {"id": points.id, "lat": None, "lon": None}
    metadata = {"georesolve": json.dumps(own), **geo({column: edging.told})}
    pq.write_table(points.kept.select(kept).replace_schema_metadata(metadata), path)


def write_points(points: Points, path: Path, told: dict[str, str] | None = None) -> Dataset:
    """Write points, and what is kept beside them, as a canonical dataset that tells more."""
    table = points.kept
    for name, column in ((points.lat, points.lat_deg), (points.lon, points.lon_deg)):
        if name in table.column_names:
            table = table.drop_columns(name)
        table = table.append_column(name, pa.array(column))
    lat, lon, id = points.lat, points.lon, points.id
    batches = table.to_batches()
    return write_dataset(table.schema, batches, path, lat=lat, lon=lon, id=id, told=told)
