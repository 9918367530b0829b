"""Canonical Parquet: how a dataset is stored once it is ours, and how its rows are read again.

Coordinates are float64, NaN where there was no number; all other columns keep their types, and
those that hold geometries what GeoParquet says of them. The bytes depend on the content alone, so
their SHA-256 names it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.io.column_sizes import Width, value_bytes
from georesolve.io.evidence import Evidence, InvalidRow, RowSample
from georesolve.io.local_files import Look, look_at, sha256_of
from georesolve.io.source_files import SourceFiles
from georesolve.io.storage import Object, StoreFailed
from georesolve.kernels.query import is_valid

ROW_GROUP = 65_536
"""Rows of a row group, and so the grain in which a dataset is read."""
_READ_BYTES = 1 << 18
_LOOK_BYTES = 8 << 20
"""Memory that rows take which are looked at, if it is not a single one."""
_GEOPARQUET = "1.1.0"
_POINTS_AN_ARC = 6
"""An arc takes as much memory, and to be indexed and compared as long, as so many points."""

Geometries = dict[str, dict[str, Any]]
"""What GeoParquet says of the columns that hold geometries, by name; the primary one is first."""


class InMemory:
    """The rows of a dataset that lives as long as one request, in row groups.

    Its file is made when it is asked for: most requests are answered without.
    """

    def __init__(self, groups: Sequence[pa.Table]) -> None:
        self.groups = groups

    @property
    def schema(self) -> pa.Schema:
        """That of the file."""
        return self.groups[0].schema

    @cached_property
    def file(self) -> pa.Buffer:
        """Canonical Parquet."""
        memory = pa.BufferOutputStream()
        with _writer(memory, self.schema) as writer:
            for group in self.groups:
                writer.write_table(group, ROW_GROUP)
        return memory.getvalue()

    @cached_property
    def sha256(self) -> str:
        """Of the file."""
        return sha256_of(self.file)

    def read(self, start: int, stop: int, columns: list[str]) -> pa.Table:
        """Some columns of the rows from `start` up to, not including, `stop`."""
        [first, *others] = self.groups
        table = pa.concat_tables(self.groups) if others else first
        return table.select(columns).slice(start, stop - start)


Content: TypeAlias = Path | Object | InMemory | SourceFiles
"""Where the rows of a dataset are."""


class Edging(NamedTuple):
    """How the edges of lines and polygons run: `planar` ones are followed within so many metres.

    Rings that are `oriented` have what they bound on their left.
    """

    edges: str = "planar"
    densify_m: float = 1.0
    oriented: bool = False

    @property
    def told(self) -> dict[str, Any]:
        """What GeoParquet is to say of their column, so that they are read alike."""
        said = {"encoding": "WKB", "geometry_types": []} | self._asdict()
        said.pop("oriented")
        return said | ({"orientation": "counterclockwise"} if self.oriented else {})


class Outlines(NamedTuple):
    """The lines and polygons of a set: their column, and how many arcs all rows are made of."""

    column: str
    edging: Edging
    arcs: int


class ColumnSize(NamedTuple):
    """How many bytes a column takes in a file, and how many it is before they are compressed."""

    stored: int
    encoded: int


@dataclass(frozen=True, kw_only=True)
class PointSet:
    """What is known of points whose rows have been counted, wherever these lie."""

    rows: int
    invalid_rows: int
    """Those whose coordinates are not valid."""
    lat: str
    lon: str
    id: str | None
    """The column of ids, if there is one."""
    columns: tuple[str, ...]
    """Names of all columns, in their order."""
    bbox: tuple[float, float, float, float] | None = None
    """West, south, east and north in degrees over the valid rows; None when there are none."""
    first_invalid: tuple[InvalidRow, ...]
    """The first few rows with invalid coordinates."""
    null_island: RowSample = field(default_factory=RowSample)
    """Rows at exactly (0, 0); none where they were not counted."""
    wide_edges: RowSample = field(default_factory=RowSample)
    """Rows with a planar edge of more than 180 degrees of longitude."""
    warnings: tuple[str, ...] = ()
    """Warnings about the file, in words."""
    outlines: Outlines | None = None
    """Of a set with lines or polygons, whose coordinates say where each begins."""

    @property
    def sha256(self) -> str:
        """Of the content: equal sets have an equal one."""
        raise NotImplementedError

    @property
    def as_points(self) -> int:
        """How many points take as much memory and time, as references."""
        return self.rows if self.outlines is None else _POINTS_AN_ARC * self.outlines.arcs

    @property
    def valid_rows(self) -> int:
        """Number of rows whose coordinates are valid."""
        return self.rows - self.invalid_rows


@dataclass(frozen=True, kw_only=True)
class Facts(PointSet):
    """What is known of a point set in canonical Parquet: numbers and names."""

    widths: tuple[Width, ...]
    """What each column takes in memory, in the order of `columns`."""


@dataclass(frozen=True, kw_only=True)
class Dataset(Facts):
    """A point set in canonical Parquet, or in files of its owner.

    Of these nothing is known but what their footers say: no row is counted as invalid, and `bbox`
    is None.
    """

    file: Content
    """Where every worker sees it, or in passing its rows."""
    digest: str | None
    """Its `sha256` where that is known."""

    @property
    def sha256(self) -> str:
        """Of the file, or of names and versions of its owner's: equal content has an equal one."""
        if self.digest is None:
            assert isinstance(self.file, InMemory), "it has been counted"
            return self.file.sha256
        return self.digest

    @property
    def lies_elsewhere(self) -> bool:
        """Whether an object store or a server is asked for its rows."""
        file = self.file
        return isinstance(file, Object) or (isinstance(file, SourceFiles) and file.scheme != "file")

    @property
    def size_bytes(self) -> int:
        """Of its file on this machine; 0 where that is not written here."""
        if isinstance(self.file, InMemory):
            return int(self.file.file.size)
        return self.file.stat().st_size if isinstance(self.file, Path) else 0

    def width(self, names: Iterable[str]) -> Width:
        """What some columns take in memory together."""
        widths = dict(zip(self.columns, self.widths, strict=True))
        return reduce(Width.beside, (widths[name] for name in names), Width())


def _width_of(column: pa.ChunkedArray) -> Width:
    """What a column of one row group takes in memory."""
    total = widest = 0
    for values in column.chunks:
        each = value_bytes(values)
        if isinstance(each, int):
            total, most = total + each * len(values), each if len(values) else 0
        else:
            total, most = total + int(each.sum()), int(each.max(initial=0))
        widest = max(widest, most)
    return Width(total, total, widest)


def held_dataset(batch: pa.RecordBatch, own: Mapping[str, Any], seen: Evidence) -> Dataset:
    """Keep rows, which showed what is `seen`, in memory; `own` names `id`, `lat` and `lon`."""
    schema = _schema(batch.schema, own)
    whole, starts = _canonical(batch, schema), range(0, max(1, batch.num_rows), ROW_GROUP)
    file = InMemory([whole.slice(start, ROW_GROUP) for start in starts])
    pieces = zip(*(group.columns for group in file.groups), strict=True)
    widths = tuple(reduce(Width.followed, map(_width_of, column)) for column in pieces)
    known = {"columns": tuple(schema.names), "widths": widths, **own, **seen.facts}
    return Dataset(file=file, digest=None, **known)


def _schema(
    schema: pa.Schema, own: Mapping[str, Any], geometries: Geometries | None = None
) -> pa.Schema:
    """That of a canonical dataset; `own` is what its metadata say of it."""
    degrees = own["lat"], own["lon"]
    return pa.schema(
        [pa.field(field.name, field.type, nullable=field.name not in degrees) for field in schema],
        metadata={"georesolve": json.dumps(own), **geo(geometries or {})},
    )


def _canonical(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    # NaN where there is no number.
    columns = [
        column if field.nullable or not column.null_count else column.fill_null(np.nan)
        for field, column in zip(schema, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def write_dataset(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    path: Path,
    *,
    lat: str,
    lon: str,
    id: str | None,
    geometries: Geometries | None = None,
    with_digest: bool = True,
    evidence: Evidence | None = None,
    told: Mapping[str, Any] | None = None,
) -> Dataset:
    """Write batches as a canonical dataset.

    The columns `lat` and `lon` are float64, nulls allowed. Who keeps the file makes it durable.
    `evidence` is what the rows have shown once all batches are taken; without it they are looked at
    here. What is `told` stands in the metadata, too.
    """
    seen, widths = evidence or Evidence(), dict.fromkeys(schema.names, Width())
    own = {"id": id, "lat": lat, "lon": lon}
    schema = _schema(schema, {**own, **(told or {})}, geometries)
    with _writer(path, schema) as writer:
        for group in _row_groups(schema, batches):
            table = _canonical(group, schema)
            if evidence is None:
                seen.add(table[lat].to_numpy(), table[lon].to_numpy())
            for name, column in zip(schema.names, table.columns, strict=True):
                widths[name] = widths[name].followed(_width_of(column))
            writer.write_table(table, ROW_GROUP)
    known = {"columns": tuple(widths), "widths": tuple(widths.values()), **own, **seen.facts}
    return Dataset(file=path, digest=sha256_of(path) if with_digest else None, **known)


def _writer(where: Path | pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    # Random float64 neither compress nor repeat; what users carry along (names, ids) does both.
    compression = {field.name: "zstd" if field.nullable else "none" for field in schema}
    dictionaries = in_dictionaries(schema) or False
    return pq.ParquetWriter(where, schema, compression=compression, use_dictionary=dictionaries)


def geo(geometries: Geometries) -> dict[str, str]:
    """The metadata that make a Parquet file with geometry columns GeoParquet; else none."""
    if not geometries:
        return {}
    primary = next(iter(geometries))
    content = {"version": _GEOPARQUET, "primary_column": primary, "columns": geometries}
    return {"geo": json.dumps(content)}


def geometries_of(file: Content) -> Geometries:
    """What a dataset says of its columns that hold geometries, the primary one first."""
    if isinstance(file, SourceFiles):
        return {}
    known = file.schema if isinstance(file, InMemory) else _footer(file, _look(file))
    content = (known.metadata or {}).get(b"geo")
    geometries: Geometries = json.loads(content)["columns"] if content else {}
    return geometries


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut batches of any size into tables of `ROW_GROUP` rows in one piece, the last one smaller.

    In one piece, because Parquet pages break where pieces do, and the bytes must not depend on how
    the input was cut. An input without rows gives one empty table.
    """
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    first = next(tables, None)
    whole = chain([schema.empty_table() if first is None else first], tables)
    for table in recut(whole, ROW_GROUP):
        yield table.combine_chunks()


def recut(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Cut tables of any size into others of `size` rows, the last one smaller; one at least."""
    waiting: list[pa.Table] = []
    rows, given = 0, False
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        while rows >= size:
            # Put together only now: there may be as many tables as rows.
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, size)
            waiting, rows, given = [whole.slice(size)], rows - size, True
    if rows or not given:
        yield pa.concat_tables(waiting) if len(waiting) > 1 else waiting[0]


def row_groups_of(start: int, stop: int) -> range:
    """The row groups that hold the rows from `start` up to, not including, `stop`."""
    return range(start // ROW_GROUP, -(-stop // ROW_GROUP))


def read_rows(file: Content, start: int, stop: int, columns: list[str]) -> pa.Table:
    """Read some columns of the rows from `start` up to, not including, `stop`."""
    if not columns:
        return pa.table({})
    if isinstance(file, InMemory | SourceFiles):
        return file.read(start, stop, columns)
    groups = row_groups_of(start, stop)
    # Waking threads takes longer than reading one row group.
    with file.place.asked(file.name) if isinstance(file, Object) else nullcontext():
        table = _opened(file).read_row_groups(
            list(groups), columns=columns, use_threads=len(groups) > 1
        )
    return table.slice(start - groups.start * ROW_GROUP, stop - start)


def first_rows(dataset: Dataset, most: int) -> Iterator[pa.RecordBatch]:
    """The first rows with all columns, of which there are some, a few at a time."""
    file, rows = dataset.file, min(most, dataset.rows)
    size = max(1, _LOOK_BYTES // max(1, dataset.width(dataset.columns).row))
    if isinstance(file, SourceFiles):
        yield from file.read(0, rows, [*dataset.columns], few=True).to_batches(size)
        return
    for batch in rows_of(dataset, [*dataset.columns], min(size, rows)):
        yield batch.slice(0, rows)
        if (rows := rows - batch.num_rows) <= 0:
            return


def rows_of(dataset: Dataset, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
    """Some columns of all rows of a dataset that does not lie elsewhere, `size` at a time."""
    file = dataset.file
    if isinstance(file, InMemory):
        for group in file.groups:
            yield from group.select(columns).to_batches(size)
        return
    assert not isinstance(file, SourceFiles), "it is one file"
    with file.place.asked(file.name) if isinstance(file, Object) else nullcontext():
        yield from streamed(file).iter_batches(size, columns=columns, use_threads=False)


class Coordinates:
    """Reads the coordinates of any rows of a dataset, a row group at a time.

    The file stays open: it can be read to the end when its name is removed meanwhile. One that is
    not there raises FileNotFoundError.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._rows = dataset.rows
        self._file: SourceFiles | InMemory | pq.ParquetFile
        file = dataset.file
        self._file = file if isinstance(file, SourceFiles | InMemory) else streamed(file)
        self._names = [dataset.lon, dataset.lat]

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Longitudes and latitudes of rows in any order, as an array of shape (2, n).

        Both are NaN where a row is negative, which is none, or one of them is invalid. Every row
        group that has one of the rows is decoded once: ask for many at a time.
        """
        found = np.full((2, rows.size), np.nan)
        order = np.argsort(rows, kind="stable")
        order = order[np.searchsorted(rows[order], 0) :]
        ordered = rows[order]
        groups = np.unique(ordered // ROW_GROUP, return_index=True, return_counts=True)
        for group, first, count in zip(*(column.tolist() for column in groups), strict=True):
            own = slice(first, first + count)
            start = group * ROW_GROUP
            if isinstance(self._file, pq.ParquetFile):
                table = self._file.read_row_group(group, columns=self._names, use_threads=False)
            else:
                table = self._file.read(start, min(start + ROW_GROUP, self._rows), self._names)
            within = ordered[own] - start
            for axis, name in zip(found, self._names, strict=True):
                axis[order[own]] = table[name].to_numpy()[within]
        found[:, ~is_valid(found[1], found[0])] = np.nan
        return found


def column_sizes(file: Content) -> dict[str, ColumnSize]:
    """How large each column of a dataset is in its file."""
    if isinstance(file, SourceFiles):
        return {name: ColumnSize(*both) for name, *both in file.sizes}
    opened = _opened(file)
    stored, encoded = stored_and_encoded(opened.metadata, opened.schema_arrow)
    return {name: ColumnSize(stored[name], encoded[name]) for name in opened.schema_arrow.names}


def stored_and_encoded(
    footer: pq.FileMetaData, schema: pa.Schema
) -> tuple[Counter[str], Counter[str]]:
    """Bytes of each column of a Parquet file, as they are and before they are compressed."""
    # Columns of nested types are many in the file, one after the other. Their paths do not tell to
    # which they belong: `a.b` is a part of `a`, or the column of that name.
    names = [field.name for field in schema for _ in range(_leaves(field.type))]
    stored, encoded = Counter[str](), Counter[str]()
    for row_group in map(footer.row_group, range(footer.num_row_groups)):
        for name, i in zip(names, range(footer.num_columns), strict=True):
            column = row_group.column(i)
            stored[name] += column.total_compressed_size
            encoded[name] += column.total_uncompressed_size
    return stored, encoded


def _leaves(type: pa.DataType) -> int:
    """How many columns of a Parquet file a type takes."""
    stored = type.storage_type if isinstance(type, pa.BaseExtensionType) else type
    return sum(_leaves(stored.field(i).type) for i in range(stored.num_fields)) or 1


def looks_whole(dataset: Dataset) -> bool:
    """Whether the file of a dataset is there and its footer tells of as many rows.

    A file that was cut off has no footer. What is damaged within shows when the file is counted.
    """
    if isinstance(dataset.file, InMemory | SourceFiles):
        return True
    try:
        if isinstance(dataset.file, Object):
            dataset.file.look()
        return bool(_footer(dataset.file, _look(dataset.file)).num_rows == dataset.rows)
    except StoreFailed:
        raise
    except (FileNotFoundError, pa.ArrowInvalid):
        return False
    except OSError as error:
        # With a number it is one of the system: the file itself may be well.
        if error.errno is not None:
            raise
        return False


def _look(file: Path | Object) -> Look | None:
    """What changes with a file; with an object nothing does, and to ask takes a request."""
    return look_at(file) if isinstance(file, Path) else None


@lru_cache(maxsize=32)
def _footer(file: Path | Object, look: Look | None) -> pq.FileMetaData:
    """The footer of a file as it is at a look: of many row groups it takes milliseconds to parse.

    Every chunk, every carried row group and every request reads a part of its file.
    """
    if isinstance(file, Path):
        return pq.read_metadata(file)
    with file.place.asked(file.name), file.open() as handle:
        return pq.read_metadata(handle)


def in_dictionaries(schema: pa.Schema) -> list[str]:
    """Names of the columns whose values are looked for among those before, and written once.

    Of texts that saves most of the time and of the bytes. Numbers are compressed as they are: to
    look for 145 000 different ones took four times as long, and more bytes.
    """
    return [field.name for field in schema if not pa.types.is_primitive(field.type)]


def streamed(
    file: Path | Object | BinaryIO | pa.NativeFile, metadata: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """A Parquet file to go through once, batch by batch.

    pyarrow by itself keeps what it has read of one: at the end, all of it. Of what is near it reads
    a little at a time, and not a whole column of a row group.
    """
    buffer_size = _READ_BYTES if isinstance(file, Path) else 0
    file = file.open() if isinstance(file, Object) else file
    return pq.ParquetFile(file, metadata=metadata, pre_buffer=False, buffer_size=buffer_size)


def _opened(file: Path | Object | InMemory) -> pq.ParquetFile:
    if isinstance(file, InMemory):
        return pq.ParquetFile(pa.BufferReader(file.file))
    if isinstance(file, Object):
        return pq.ParquetFile(file.open(), metadata=_footer(file, None), pre_buffer=True)
    return pq.ParquetFile(file, metadata=_footer(file, look_at(file)), memory_map=True)
