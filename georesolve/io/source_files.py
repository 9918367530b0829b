"""Point sets in files that their owner keeps: read where they lie, as they were when accepted.

They are Parquet below a prefix that the operator has listed (`io.urls`), decoded by pyarrow.
"""

import os
from base64 import b64decode
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, islice
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georesolve.io.evidence import Evidence, are_degrees
from georesolve.io.storage import HttpsFile, ObjectFile
from georesolve.kernels.query import is_valid

Scheme = Literal["file", "s3", "https"]
_READ_BYTES = 1 << 18


class SourceFailed(ValueError):
    """A file of a source cannot be read, has changed, or has rows that are no points."""


class SourceFile(NamedTuple):
    """A file as it was when it was accepted."""

    path: str
    """As its file system knows it: of an object, bucket and key."""
    rows: int
    size_bytes: int
    version: str
    """What changes with its content."""
    partition: tuple[str | int | None, ...] = ()
    """Values of the columns that its folders are named by."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Names of columns of the set, and what the file calls them, where that is another name."""
    missing: tuple[str, ...] = ()
    """Columns of the set that the file itself does not have."""


class Stretch(NamedTuple):
    """Some rows of a file, `stop` not included, and the row groups that hold them."""

    file: SourceFile
    start: int
    stop: int
    groups: list[int]
    first: int
    """The row that the first of these begins with."""
    rows: int
    """What these have together."""
    doubles: frozenset[str]
    """Names of the columns of float64."""


@dataclass(frozen=True)
class SourceFiles:
    """The files of a point set, in the order of their rows."""

    href: str
    """What names them all."""
    scheme: Scheme
    files: tuple[SourceFile, ...]
    lat: str
    lon: str
    partitions: tuple[str, ...]
    """Names of the columns that folders are named by."""
    keeps_invalid: bool
    """Whether rows with invalid coordinates are kept, or fail who reads them."""
    sizes: tuple[tuple[str, int, int], ...]
    """Bytes of each column in the files, and before they are compressed."""
    is_trusted: bool = False
    """Whether the coordinates are degrees whatever they look like."""
    casts: str = ""
    """Arrow schema, in base 64, of the columns that some files have in another type or lack."""
    refusals: tuple[tuple[str, str], ...] = ()
    """Columns that have no common type in all files, and why."""

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(file.rows for file in self.files)]

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        if not self.casts:
            return {}
        schema = pa.ipc.read_schema(pa.py_buffer(b64decode(self.casts)))
        return dict(zip(schema.names, schema.types, strict=True))

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    def read(self, start: int, stop: int, columns: list[str], *, few: bool = False) -> pa.Table:
        """Read some columns of the rows from `start` up to, not including, `stop`.

        Coordinates are float64, NaN where there is no number. SourceFailed names the file, and
        where it is bad the row group and the row. Of a `few` what lies behind them is not decoded.
        """
        stretches = self.stretches(start, stop)
        return pa.concat_tables(self._read(one, columns, few=few) for one in stretches)

    def stretches(self, start: int, stop: int) -> Iterator[Stretch]:
        """Where these rows lie, one file at least; raises SourceFailed."""
        first = min(max(0, bisect_right(self._starts, start) - 1), len(self.files) - 1)
        last = max(first + 1, bisect_left(self._starts, stop))
        for file, begin in zip(self.files[first:last], self._starts[first:last], strict=False):
            _, begins, doubles = _known(self.scheme, file)
            own = max(start - begin, 0), min(stop - begin, file.rows)
            one = max(0, bisect_right(begins, own[0]) - 1)
            groups = range(one, bisect_left(begins, own[1])) if own[0] < own[1] else range(0)
            rows = begins[groups.stop] - begins[one] if groups else 0
            yield Stretch(file, *own, [*groups], begins[one], rows, doubles)

    def _read(self, stretch: Stretch, columns: list[str], *, few: bool) -> pa.Table:
        file, start, stop, groups, first, rows, _ = stretch
        for name, refusal in self.refusals:
            if name in columns:
                raise SourceFailed(refusal)
        renamed, missing = dict(file.renamed), set(file.missing)
        names = [name for name in columns if name not in missing]
        in_file = [renamed.get(name, name) for name in names]
        with opened(self.scheme, file, whole=not few) as parquet:
            table = parquet.read_row_groups([] if few else groups, columns=in_file)
            if few and groups:
                rows = stop - first
                # A batch may end where a row group does.
                batches = islice(parquet.iter_batches(rows, groups, in_file), len(groups))
                table = pa.Table.from_batches(batches, table.schema).slice(0, rows)
        if table.num_rows != rows:
            raise _failed(self.scheme, file, "it has not as many rows as its footer says")
        table = table.slice(start - first, stop - start)
        table = self._in_types(table.select(in_file).rename_columns(names), file)
        values = dict(zip(self.partitions, file.partition, strict=True))
        for name in columns:
            if name in missing:
                scalar = _scalar(values.get(name))
                array = pa.repeat(scalar, stop - start).cast(self._types[name])
                table = table.append_column(name, array)
        for name in {self.lat, self.lon}.intersection(columns):
            place = table.schema.names.index(name)
            numbers = pc.cast(table[name], pa.float64(), safe=False)
            if numbers.null_count:
                numbers = numbers.fill_null(np.nan)
            table = table.set_column(place, name, numbers)
        # Files differ in metadata, and in whether a column may have nulls.
        table = pa.Table.from_arrays(table.select(columns).columns, columns)
        if not self.keeps_invalid and {self.lat, self.lon} <= set(columns):
            self._refuse_invalid(file, start, table)
        return table

    def _in_types(self, table: pa.Table, file: SourceFile) -> pa.Table:
        for place, field in enumerate(table.schema):
            type = self._types.get(field.name, field.type)
            # Coordinates become float64 in `_read`.
            if type == field.type or field.name in (self.lat, self.lon):
                continue
            try:
                table = table.set_column(place, field.name, table[field.name].cast(type))
            except pa.ArrowInvalid as error:
                why = f"the column {field.name!r} does not fit {type}: {str(error)[:300]}"
                raise _failed(self.scheme, file, why) from None
        return table

    def _refuse_invalid(self, file: SourceFile, start: int, table: pa.Table) -> None:
        lat, lon = table[self.lat].to_numpy(), table[self.lon].to_numpy()
        if are_degrees(lat, lon):
            return
        before, bad = self._starts[self.files.index(file)], np.flatnonzero(~is_valid(lat, lon))
        self.refuse_implausible(self.evidence(table), before + start)
        row, begins = start + int(bad[0]), _known(self.scheme, file).begins
        group = bisect_right(begins, row) - 1
        raise _failed(
            self.scheme,
            file,
            f"row group {group}, row {row - begins[group]} of it (row {row} of the file) has "
            f"{self.lat}={lat[bad[0]]}, {self.lon}={lon[bad[0]]}: allowed are latitudes from -90 "
            "to 90 and longitudes from -180 to 360; mend them, or keep such rows with the option "
            "on_invalid=null",
        )

    def evidence(self, points: pa.Table) -> Evidence:
        """What coordinates say that were read: the rows were looked at by nobody before."""
        found = Evidence()
        found.add(points[self.lat].to_numpy(), points[self.lon].to_numpy())
        return found

    def refuse_implausible(self, evidence: Evidence, start: int = 0) -> None:
        """Refuse rows from `start` on that prove not to be degrees: SourceFailed names one."""
        if self.is_trusted:
            return
        names = self.lat, self.lon
        swap = f"name {self.lon!r} as the latitudes and {self.lat!r} as the longitudes"
        found = evidence.verdict(names, swap, keeps_invalid=self.keeps_invalid)
        if found is None:
            return

        def where(row: int) -> str:
            number = bisect_right(self._starts, start + row) - 1
            file = href_of(self.scheme, self.files[number].path)
            return f"row {start + row - self._starts[number]} of {file}"

        raise SourceFailed(f"{self.href}: {found.told(names, where)}")


def _scalar(value: str | int | None) -> pa.Scalar:
    return pa.scalar(value, pa.string() if value is None else None)


def href_of(scheme: Scheme, path: str) -> str:
    """What names a file."""
    return f"{scheme}://{path}"


@contextmanager
def opened(scheme: Scheme, file: SourceFile, *, whole: bool = True) -> Iterator[pq.ParquetFile]:
    """Open a file that has to be as it was when it was accepted, until all has been read of it.

    Of one that is not read `whole`, only what is read is fetched. It raises SourceFailed when it
    has changed, is gone, or cannot be read.
    """
    with _handle(scheme, file) as handle:
        footer, buffered = _known(scheme, file).footer, 0 if whole else _READ_BYTES
        yield pq.ParquetFile(handle, metadata=footer, pre_buffer=whole, buffer_size=buffered)


class _Known(NamedTuple):
    """The footer of a file, rows that its row groups begin with, and its columns of float64."""

    footer: pq.FileMetaData
    begins: list[int]
    doubles: frozenset[str]


@lru_cache(maxsize=256)
def _known(scheme: Scheme, file: SourceFile) -> _Known:
    with _handle(scheme, file) as handle:
        footer = pq.read_metadata(handle)
        schema = footer.schema.to_arrow_schema()
    groups = (footer.row_group(i).num_rows for i in range(footer.num_row_groups))
    doubles = frozenset(field.name for field in schema if field.type == pa.float64())
    return _Known(footer, [0, *accumulate(groups)], doubles)


@contextmanager
def _handle(scheme: Scheme, file: SourceFile) -> Iterator[pa.NativeFile]:
    try:
        with handle_of(scheme, file.path) as (handle, version):
            _refuse_change(scheme, file, version)
            yield handle
    except FileNotFoundError:
        raise _failed(scheme, file, "it was there when it was accepted, and is gone") from None
    except (OSError, pa.ArrowException) as error:
        raise _failed(scheme, file, f"it cannot be read: {str(error)[:300]}") from None


def _refuse_change(scheme: Scheme, file: SourceFile, version: str) -> None:
    if version != file.version:
        why = "it has changed since it was accepted: send the request again"
        raise _failed(scheme, file, why)


def _failed(scheme: Scheme, file: SourceFile, why: str) -> SourceFailed:
    return SourceFailed(f"{href_of(scheme, file.path)}: {why}")


@contextmanager
def path_of(file: SourceFile) -> Iterator[str]:
    """A path of a file on a disk here, as it was when it was accepted; raises OSError."""
    with _named_by_descriptor(file.path) as (path, version):
        _refuse_change("file", file, version)
        yield path


@contextmanager
def handle_of(scheme: Scheme, path: str) -> Iterator[tuple[pa.NativeFile, str]]:
    """Open a file; gives its version, too, of which all is that is read; raises OSError."""
    if scheme != "file":
        elsewhere = ObjectFile(path) if scheme == "s3" else HttpsFile(path)
        with elsewhere, pa.PythonFile(elsewhere, "r") as handle:
            yield handle, elsewhere.version
        return
    with _named_by_descriptor(path) as (own, version), pa.OSFile(own) as handle:
        yield handle, version


@contextmanager
def _named_by_descriptor(path: str) -> Iterator[tuple[str, str]]:
    """A name of a file that stays its own, as another may take its path, and its version."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        version = _version(descriptor)
        yield f"/proc/self/fd/{descriptor}", version
        if _version(descriptor) != version:
            raise OSError("it has changed meanwhile")
    finally:
        os.close(descriptor)


def _version(descriptor: int) -> str:
    found = os.fstat(descriptor)
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"
