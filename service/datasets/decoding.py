"""Files from strangers to canonical datasets; it runs in a process of `service.datasets.decoders`.

A file can declare little and decode to much, or make the decoder do what its author wants: the
process has limits on memory, and a sandbox.
"""

import contextlib
import errno
import gzip
import io
import json
import math
import os
import resource
import traceback
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georesolve.service.datasets.columns import LONGEST_NAME, Columns, Origin, Reading, find_columns
from georesolve.service.datasets.geometry import add_coordinates, geometries_of, geometry_of
from georesolve.service.datasets.plausibility import Evidence
from georesolve.service.datasets.readers import read
from georesolve.service.datasets.sandbox import confine, libraries
from georesolve.service.datasets.sources import Source, Table
from georesolve.service.datasets.validity import refuse_invalid
from georesolve.service.errors import (
    InvalidInput,
    Problem,
    StorageFull,
    TooLarge,
    disk_full,
    is_disk_full,
)
from georesolve.workers.datasets import Dataset, streamed, write_dataset

_ERROR_LENGTH = 500
_PIECE_BYTES = 1 << 20
_MEMORY = Path("/proc/self/statm")
# What pyarrow and Python raise for files that are malformed.
_OF_THE_FILE = (pa.ArrowException, UnicodeError, OverflowError, RecursionError)


class Limits(NamedTuple):
    """What decoding one file may take; it may write so many bytes, and unpack to so many."""

    memory_bytes: int
    seconds: float
    rows: int
    columns: int
    written_bytes: int = resource.RLIM_INFINITY
    unpacked_bytes: int = 8 << 30


def serve(connection: Connection) -> None:
    """Decode the file that comes over a pipe, and answer as JSON."""
    # The other pools hold a gigabyte of address space from the start, and give it out unlimited.
    pa.set_memory_pool(pa.system_memory_pool())
    small = _warm_up()
    try:
        source, target, limits = connection.recv()
    except EOFError:
        return
    writable = [target] if source.unpacked is None else [target, source.unpacked]
    confine([source.path, _MEMORY], writable, connection.fileno())
    _start_threads(small)
    _limit(limits)
    answer = f"\n{json.dumps(_answer(source, target, limits))}".encode()
    # The service may have been killed meanwhile.
    with (
        contextlib.suppress(BrokenPipeError),
        os.fdopen(connection.fileno(), "wb", closefd=False) as pipe,
    ):
        pipe.write(answer)
    # Nothing is written behind the answer, to standard error, say.
    os._exit(0)


def _warm_up() -> io.BytesIO:
    """Touch what decoding needs while nobody waits for it; returns a small Parquet file.

    It starts no thread: the sandbox holds for those that start after it.
    """
    table = pa.table({"lat": [0.5], "lon": [0.5]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    batches = streamed(sink).read_row_group(0, use_threads=False).to_batches()
    read = Table(table.schema, iter(batches), 1)
    canonicalise(read, Reading(), "", None, Limits(0, 0, 1, 2))
    libraries()
    return sink


def _start_threads(small: io.BytesIO) -> None:
    # They take address space, which is not the file's.
    for _ in pq.ParquetFile(small).iter_batches():
        pass


def _limit(limits: Limits) -> None:
    # Address space, not resident memory: only that is enforced at the allocation itself.
    own = int(_MEMORY.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + limits.memory_bytes,) * 2)
    # A few bytes may decode to much more than whoever received them has seen.
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.written_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(source: Source, target: Path, limits: Limits) -> dict[str, Any]:
    try:
        dataset = decode(source, target, limits)
    except Exception as error:
        problem = error if isinstance(error, Problem) else _problem_of(error, source, limits)
        if problem is None:
            return {"stack": traceback.format_exc()}
        return {
            "problem": type(problem).__name__,
            "detail": problem.detail,
            "errors": problem.errors,
        }
    known = vars(dataset)
    return {name: known[name] for name in known if name not in ("file", "sha256")}


def _problem_of(error: Exception, source: Source, limits: Limits) -> Problem | None:
    """What a file has done, None where the error is a defect of ours."""
    if isinstance(error, MemoryError):
        return TooLarge(
            f"{source.file}: decoding takes more than the limit of "
            f"{limits.memory_bytes / 2**20:.0f} MiB of memory; send it in smaller pieces"
        )
    if is_disk_full(error):
        return disk_full()
    # pyarrow raises OSError for files that are malformed, too; then it has no error number.
    number = getattr(error, "errno", None)
    if number == errno.EFBIG:
        return StorageFull(
            f"{source.file}: its points take more than {limits.written_bytes} bytes, which is its "
            "share of the room on the disk of the service: remove datasets and results that are no "
            "longer needed, or send it in smaller pieces"
        )
    if isinstance(error, _OF_THE_FILE) or (isinstance(error, OSError) and number is None):
        text = str(error)
        for path in filter(None, (source.path, source.unpacked)):
            text = text.replace(str(path), source.file)
        text = text.strip()[:_ERROR_LENGTH]
        return InvalidInput(f"{source.file}: not a readable {source.format} file: {text}")
    return None


def decode(source: Source, target: Path, limits: Limits) -> Dataset:
    """Decode a file to a canonical dataset, in this process."""
    if source.unpacked is not None:
        source = _unpack(source, source.unpacked, limits)
    if source.path.stat().st_size == 0:
        raise InvalidInput(f"{source.file}: the file is empty", [{"file": source.file}])
    return canonicalise(read(source, limits.columns), source.reading, source.file, target, limits)


def _unpack(source: Source, unpacked: Path, limits: Limits) -> Source:
    size = 0
    try:
        with gzip.open(source.path) as packed, unpacked.open("wb") as file:
            while piece := packed.read(_PIECE_BYTES):
                size += len(piece)
                if size > limits.unpacked_bytes:
                    raise TooLarge(
                        f"{source.file}: it unpacks to more than the limit of "
                        f"{limits.unpacked_bytes} bytes: send it in smaller pieces"
                    )
                file.write(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(f"{source.file}: it cannot be unpacked with gzip: {error}") from None
    return source._replace(path=unpacked, unpacked=None)


def canonicalise(
    table: Table, reading: Reading, file: str, target: Path | None, limits: Limits
) -> Dataset:
    """Check a table and write it as a canonical dataset, in memory if there is no `target`.

    Raises
    ------
    InvalidInput
        When the coordinates are missing, ambiguous, no numbers or not in WGS 84 degrees; and when
        some are invalid, unless these are to be kept.
    TooLarge
        When there are more rows or columns than the limits allow.
    """
    schema, batches, declared_rows, points = table
    if len(schema.names) > limits.columns:
        raise TooLarge(
            f"{file}: {len(schema.names)} columns are more than the limit of {limits.columns}"
        )
    if declared_rows is not None and declared_rows > limits.rows:
        raise TooLarge(f"{file}: {declared_rows} rows are more than the limit of {limits.rows}")
    geometries = geometries_of(schema)
    if reading.lat is not None or reading.lon is not None:
        points = None
    else:
        geometry = geometry_of(schema, reading.geometry, file)
        if geometry is not None:
            batches = add_coordinates(batches, geometry, file)
            for name in (geometry.lon, geometry.lat):
                schema = schema.append(pa.field(name, pa.float64()))
            points = geometry
        if points is not None:
            reading = reading._replace(lat=points.lat, lon=points.lon, geometry=None)
    _check_names(schema.names, file)
    columns = find_columns(schema.names, reading, file)
    for name in (columns.lat, columns.lon):
        _check_numeric(schema.field(name), file)
    coordinates = dict.fromkeys(columns[:2], pa.float64())
    schema = pa.schema([(f.name, coordinates.get(f.name) or _plain_type(f.type)) for f in schema])
    evidence = Evidence()
    checked = _checked(schema, batches, file, limits, columns, evidence)
    dataset = write_dataset(
        schema,
        checked,
        target,
        lat=columns.lat,
        lon=columns.lon,
        id=columns.id,
        geometries=geometries,
        with_digest=target is None,
    )
    if declared_rows not in (None, dataset.rows):
        raise InvalidInput(
            f"{file}: the file says that it has {declared_rows} rows, and has {dataset.rows}"
        )
    made_of = points and points.column
    origin = Origin(columns, made_of)
    evidence.refuse(origin, reading, file)
    how_to_swap = origin.how_to_swap(reading.prefix) if evidence.are_valid_swapped else None
    refuse_invalid(dataset, file, reading.on_invalid, points=made_of, how_to_swap=how_to_swap)
    # What cannot be read again (too deep a nesting, say) must not become a dataset. Not mapped, as
    # workers do: a large file would take the address space that is for decoding.
    pq.ParquetFile(dataset.file).read_row_groups([], columns=[], use_threads=False)
    return dataset


def _check_names(names: list[str], file: str) -> None:
    for name in names:
        if "\0" in name or len(name) > LONGEST_NAME:
            raise InvalidInput(
                f"{file}: the column name {name[:80]!r} has {len(name)} characters: up to "
                f"{LONGEST_NAME} are allowed, and no NUL among them",
                [{"file": file, "column": name[:80], "detail": "not allowed as a name"}],
            )


def _plain_type(type: pa.DataType) -> pa.DataType:
    # Views have no kernel that takes rows of them.
    if pa.types.is_string_view(type):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type) else type


def _check_numeric(field: pa.Field, file: str) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise InvalidInput(
            f"{file}: the column {field.name!r} holds {kind}, not numbers: give degrees as numbers",
            [{"file": file, "column": field.name, "row": 0, "detail": f"holds {kind}"}],
        )


def _checked(
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    file: str,
    limits: Limits,
    columns: Columns,
    evidence: Evidence,
) -> Iterator[pa.RecordBatch]:
    """Pass batches on in the types of a schema, counting their rows and looking at their points."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > limits.rows:
            raise TooLarge(f"{file}: more rows than the limit of {limits.rows}")
        arrays = [
            array if array.type == field.type else pc.cast(array, field.type, safe=False)
            for array, field in zip(batch.columns, schema, strict=True)
        ]
        checked = pa.RecordBatch.from_arrays(arrays, schema=schema)
        lat, lon = (checked[name].fill_null(math.nan).to_numpy() for name in columns[:2])
        evidence.add(lat, lon)
        yield checked
