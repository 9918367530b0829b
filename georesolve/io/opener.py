"""One table of one or several files: each file is decoded by itself, then all are joined by name.

CRS, edges, orientation, encoding and time zone are those of each file. Before the first row is
given, the schemas of all files are known: of Parquet and Arrow by their footers, of text by
decoding each file once, to the scratch folder.
"""

import threading
import warnings
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.io.columns import Reading, Role
from georesolve.io.datasets import Geometries
from georesolve.io.errors import InvalidInput, level_of_user, wrong
from georesolve.io.evidence import Evidence
from georesolve.io.formats import InputFormat, Source, Table, format_of
from georesolve.io.joined_columns import (
    ColumnType,
    FileColumns,
    JoinedColumns,
    Partitions,
    refuse_pair,
)
from georesolve.io.points import Bounds, PointTable
from georesolve.io.readers import decoding, open_source
from georesolve.io.storage import PARQUET_SUFFIXES, File, Listed, RemoteFile
from georesolve.io.validation import Findings

if TYPE_CHECKING:
    from georesolve.io.outlines import JoinedShapes, ShapeReader

UNBOUNDED = Bounds()
"""Bounds of the user's own files: none."""
_FOOTERS: set[InputFormat] = {"parquet", "arrow"}
"""Formats that declare the types of their columns apart from the rows."""
_INFERRED: set[InputFormat] = {"csv", "geojson"}
"""Formats whose integers were written as text, which the integers restore."""


def open_file(
    source: Source, bounds: Bounds, partitions: Partitions | None = None, number: int = 0
) -> PointTable:
    """Open one file as a table of points or shapes in degrees.

    `partitions` has in the row `number` the columns that the folders of the file are named by.
    """
    with decoding(source):
        return _table_of(open_source(source, bounds), source, bounds, partitions, number)


def _table_of(
    table: Table, source: Source, bounds: Bounds, partitions: Partitions | None, number: int
) -> PointTable:
    names = frozenset(table.schema.names)
    if partitions is not None:
        table = _with_partition(table, partitions, number)
    points = PointTable(table, source.reading, source.file, bounds, partial(decoding, source))
    points.names_in_file = names
    return points


@contextmanager
def open_table(
    files: Sequence[Listed], reading: Reading, role: Role, scratch: Path
) -> Iterator[PointTable]:
    """Open files as one table; fetched, unpacked and decoded files lie in the folder `scratch`.

    Columns that folders are named by (`day=2026-11-22`) are columns of the table. Of several files
    the table has the columns of `reading.kept`, coordinates and id only, if these are named.
    """
    sources = _Sources(files, reading, role, scratch)
    if len(files) == 1:
        with closing(sources.fetched([0])) as paths:
            yield sources.open(sources.source(0, next(paths), reading.kept), 0)
        return
    table = JoinedTable(sources)
    try:
        yield table
    except InvalidInput as error:
        first = error.errors[0] if error.errors else {}
        row = first.get("row")
        # Refusals of one file count the rows of that file.
        if row is None or first["file"] != role or not table.first_rows:
            raise
        number = bisect_right(table.first_rows, row) - 1
        where = f"row {row} is row {row - table.first_rows[number]} of {files[number].name}"
        raise InvalidInput(f"{error}; {where}", error.errors) from None
    finally:
        table.close()


class _Sources:
    """Files of one table, opened one by one."""

    def __init__(
        self, files: Sequence[Listed], reading: Reading, role: Role, scratch: Path
    ) -> None:
        self.files, self.reading, self.role, self._scratch = files, reading, role, scratch
        self._partitions = Partitions([each.below for each in files], reading)

    def open(self, source: Source, number: int) -> PointTable:
        """Open one of the files."""
        return open_file(source, UNBOUNDED, self._partitions, number)

    def open_footer(self, number: int, file: RemoteFile) -> PointTable:
        """Open the footer of a Parquet file that is not fetched: a table without rows."""
        reading = self.reading._replace(kept=None)
        source = Source(Path(file.name), "parquet", reading, self._name(number))
        with decoding(source), file.open() as handle:
            table = Table(pq.read_schema(handle), iter(()))
            return _table_of(table, source, UNBOUNDED, self._partitions, number)

    def source(self, number: int, path: Path, columns: tuple[str, ...] | None) -> Source:
        """Recognise the format of a file, which lies at a path now."""
        name, reading = self._name(number), self.reading._replace(kept=columns)
        format, is_packed = format_of(path, None, path.name, name)
        unpacked = self._scratch / f"{self.role}-{number}.unpacked" if is_packed else None
        return Source(path, format, reading, name, unpacked=unpacked, side_by_side=True)

    def _name(self, number: int) -> str:
        # A single file is called as the service calls an upload.
        alone = len(self.files) == 1
        return self.role if alone else f"{self.role} ({self.files[number].name})"

    def spool(self, number: int) -> Path:
        """Path that a file is decoded to."""
        return self._scratch / f"{self.role}-{number}.arrows"

    def fetched(self, numbers: Sequence[int]) -> Generator[Path]:
        """Yield the paths of files, each of which is there until the next one is taken.

        A remote file is fetched while the file before is read.
        """
        is_over, folder = threading.Event(), self._scratch / self.role
        with ThreadPoolExecutor(1) as threads:

            def begin(place: int) -> Future[Path] | None:
                if place == len(numbers):
                    return None
                file: File = self.files[numbers[place]].file
                if isinstance(file, Path):
                    return None
                folder.mkdir(exist_ok=True)
                path = folder / f"{numbers[place]}-{file.name}"
                return threads.submit(file.fetch, path, is_over)

            coming = begin(0)
            try:
                for place, number in enumerate(numbers):
                    path = coming.result() if coming else Path(str(self.files[number].file))
                    is_copy, coming = coming is not None, begin(place + 1)
                    try:
                        yield path
                    finally:
                        if is_copy:
                            path.unlink()
            finally:
                is_over.set()


def _with_partition(table: Table, partitions: Partitions, number: int) -> Table:
    """Append columns that have one value each, but those that the table has itself."""
    fields = [field for field in partitions.schema if field.name not in table.schema.names]
    if not fields:
        return table
    schema = pa.schema([*table.schema, *fields], table.schema.metadata)
    values = partitions.row(number)
    scalars = [pa.scalar(values[field.name], field.type) for field in fields]

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in table.batches:
            columns = (pa.repeat(scalar, batch.num_rows) for scalar in scalars)
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)

    return table._replace(schema=schema, batches=batches())


class _FileSchema(NamedTuple):
    """Schema of one file after decoding."""

    columns: FileColumns
    points: str | None
    """The geometry column, or member, that has the coordinates."""
    geometries: Geometries
    has_shapes: bool
    """Whether lines and polygons are read of the geometry column."""
    warnings: list[Sequence[str]]
    """Warnings about the file, complete once the rows have been read."""
    shapes: "ShapeReader | JoinedShapes | None" = None
    """Shapes of a file that has been decoded to the scratch folder."""
    is_spooled: bool = False
    names_in_file: frozenset[str] = frozenset()
    """Names of the columns that the file itself has."""


class JoinedTable(PointTable):
    """Table of the rows of several files, whose columns have the lossless common type of all.

    Columns are joined by name; coordinates, id and geometry have the names of the first file.
    """

    def __init__(self, sources: _Sources) -> None:
        self._sources = sources
        self._reading, self.file, self._bounds = sources.reading, sources.role, UNBOUNDED
        self._schemas: list[_FileSchema] = []
        try:
            self._schemas = self._read_schemas()
            self._join()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove decoded files from the scratch folder."""
        for number in range(len(self._sources.files)):
            self._sources.spool(number).unlink(missing_ok=True)

    def _read_schemas(self) -> list[_FileSchema]:
        files = [each.file for each in self._sources.files]
        # The footer is read without fetching the file, which is read later.
        ranged = [_has_remote_footer(file) for file in files]
        schemas = []
        fetched = [number for number, is_ranged in enumerate(ranged) if not is_ranged]
        with closing(self._sources.fetched(fetched)) as paths:
            for number, file in enumerate(files):
                if isinstance(file, RemoteFile) and ranged[number]:
                    table = self._sources.open_footer(number, file)
                    schemas.append(self._schema_of(number, table, "parquet"))
                    continue
                source = self._sources.source(number, next(paths), None)
                table = self._sources.open(source, number)
                if source.format in _FOOTERS and source.unpacked is None:
                    schemas.append(self._schema_of(number, table, source.format))
                else:
                    schemas.append(self._decode(number, table, source))
        return schemas

    def _schema_of(self, number: int, table: PointTable, format: InputFormat) -> _FileSchema:
        name = self._sources.files[number].name
        types = {}
        for field in table.schema:
            is_text = format in _INFERRED or field.name not in table.names_in_file
            is_text &= pa.types.is_int64(field.type)
            types[field.name] = ColumnType(field.type, name, is_text)
        points = table.findings.points
        return _FileSchema(
            FileColumns(name, table.columns, points if points in types else None, types),
            points,
            table.geometries,
            has_shapes=table.shapes is not None,
            warnings=table.warnings,
            names_in_file=table.names_in_file,
        )

    def _decode(self, number: int, table: PointTable, source: Source) -> _FileSchema:
        """Decode a file whose types are known once all rows are."""
        schema = self._schema_of(number, table, source.format)
        named = self._reading.kept
        types = dict(schema.columns.types)
        selected = {*(types if named is None else named), *schema.columns.roles}
        if not selected <= types.keys():
            # The table may call the geometry by the name of another file.
            selected.add(schema.columns.geometry)
        names = [name for name in table.schema.names if name in selected]
        empty = set(names)
        fields = pa.schema([table.schema.field(name) for name in names])
        path = self._sources.spool(number)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, fields) as writer:
            for batch in table.decoded():
                writer.write_batch(batch.select(names))
                empty = {name for name in empty if batch[name].null_count == batch.num_rows}
        if source.unpacked is not None:
            source.unpacked.unlink(missing_ok=True)
        # A column without values fits any type.
        for name in empty:
            types[name] = types[name]._replace(type=pa.null())
        columns = schema.columns._replace(types=types)
        return schema._replace(columns=columns, shapes=table.shapes, is_spooled=True)

    def _join(self) -> None:
        named = self._reading.kept
        self._joined = joined = JoinedColumns(
            [each.columns for each in self._schemas], named, self.file
        )
        for refusal in joined.refusals.values():
            raise refusal
        for name in named or ():
            lacking = joined.lacking(name)
            if lacking is not None and name in joined.columns:
                warnings.warn(
                    f"{self.file}: the column {name!r} is not in {lacking}: its rows have no "
                    "value there",
                    stacklevel=level_of_user(),
                )
        self.columns = joined.roles
        self.schema = pa.schema(joined.types.items())
        self.findings = Findings(self.columns, self._schemas[0].points, Evidence())
        self.geometries = self._joined_geometries()
        self.warnings: list[Sequence[str]] = []
        self._joined_shapes: JoinedShapes | None = None
        if joined.geometry is not None and any(each.has_shapes for each in self._schemas):
            # Points are read without kernels.
            from georesolve.io import outlines

            self._joined_shapes = outlines.JoinedShapes(joined.geometry)
        self.shapes = self._joined_shapes
        self.first_rows: list[int] = []

    def _joined_geometries(self) -> Geometries:
        joined: Geometries = {}
        files: dict[str, str] = {}
        mixed = set()
        for schema, names in zip(self._schemas, self._joined.names, strict=True):
            for name in self.schema.names:
                about = schema.geometries.get(names.get(name, ""))
                file = schema.columns.file
                if about is None:
                    continue
                about = about | {"geometry_types": []}
                if joined.setdefault(name, about) == about or name == self._joined.geometry:
                    mixed |= {name} if joined[name] != about else set()
                else:
                    raise wrong(
                        self.file,
                        f"{name!r} has two coordinate reference systems",
                        f"the geometry column {name!r} has another CRS or other edges in {file} "
                        f"than in {files[name]}: write both alike, or leave the column out of the "
                        "request",
                        column=name,
                    )
                files.setdefault(name, file)
        return {name: about for name, about in joined.items() if name not in mixed}

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files, in their order."""
        rows, joined_shapes = 0, self._joined_shapes
        later = [i for i, schema in enumerate(self._schemas) if not schema.is_spooled]
        with closing(self._sources.fetched(later)) as paths:
            for number, schema in enumerate(self._schemas):
                names = self._joined.names[number]
                self.first_rows.append(rows)
                shapes, warnings = schema.shapes, schema.warnings
                if schema.is_spooled:
                    batches = _spooled(self._sources.spool(number))
                else:
                    selected = {names[name] for name in self.schema.names if name in names}
                    columns = tuple(selected & schema.names_in_file)
                    table = self._sources.open(
                        self._sources.source(number, next(paths), columns), number
                    )
                    batches, shapes, warnings = table.decoded(), table.shapes, table.warnings
                for batch in batches:
                    rows += batch.num_rows
                    yield self._aligned(batch, names, number)
                self.warnings += warnings
                if schema.is_spooled:
                    self._sources.spool(number).unlink()
                if joined_shapes is not None:
                    joined_shapes.add(self.first_rows[-1], rows - self.first_rows[-1], shapes)

    def _aligned(self, batch: pa.RecordBatch, names: dict[str, str], number: int) -> pa.RecordBatch:
        arrays = []
        for field in self.schema:
            in_file = names.get(field.name, "")
            array = batch[in_file] if in_file in batch.schema.names else None
            if array is None or array.null_count == batch.num_rows:
                # A column without values fits any type, also those without a cast.
                array = pa.nulls(batch.num_rows, field.type)
            elif array.type != field.type:
                array = self._cast(array, field, self._schemas[number].columns.types[in_file])
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _cast(self, array: pa.Array, field: pa.Field, column: ColumnType) -> pa.Array:
        try:
            return array.cast(field.type)
        except pa.ArrowInvalid:
            columns = self._joined.columns[field.name]
            differing = next(each for each in columns if each.type != column.type)
            raise refuse_pair(field.name, column, differing, self.file) from None


def _has_remote_footer(file: File) -> bool:
    """Whether the footer of a remote file can be read alone: that of Parquet in a store."""
    if not isinstance(file, RemoteFile) or file.is_on_server:
        return False
    if not file.name.lower().endswith(PARQUET_SUFFIXES):
        return False
    with file.open() as handle:
        return handle.read(4) == b"PAR1"


def _spooled(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        yield from reader
