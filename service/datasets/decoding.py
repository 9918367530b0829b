"""Files from strangers to canonical datasets, in a child process with limits on memory and time.

A file can declare little and decode to much, or crash the decoder: what happens to the child does
not happen to the service. The child gives back a dataset or a problem, nothing else.
"""

import contextlib
import errno
import io
import math
import os
import resource
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.datasets.children import Children
from service.datasets.columns import Columns, Origin, Reading, find_columns
from service.datasets.geometry import add_coordinates, geometries_of, geometry_of
from service.datasets.plausibility import Evidence
from service.datasets.readers import read
from service.datasets.sources import Source, Table
from service.datasets.validity import refuse_invalid
from service.errors import (
    InvalidInput,
    Problem,
    StorageFull,
    TooLarge,
    disk_full,
    is_disk_full,
    stopping,
)
from workers.datasets import Dataset, write_dataset

_ERROR_LENGTH = 500
_NAME_LENGTH = 500


class Limits(NamedTuple):
    """What decoding one file may take; it may write so many bytes."""

    memory_bytes: int
    seconds: float
    rows: int
    columns: int
    written_bytes: int = resource.RLIM_INFINITY


def decode_in_child(
    source: Source, target: Path, limits: Limits, stop: Connection | None = None
) -> Dataset:
    """Decode a file to the canonical dataset `target`, in a child process; blocks.

    Parameters
    ----------
    stop
        Once its other end is closed, this ends, and the child with it.

    Raises
    ------
    NotReady
        When it was stopped.
    InvalidInput
        When the file is not what it says, or breaks the decoder.
    TooLarge
        When it takes more memory, time, rows or columns than the limits allow.
    StorageFull
        When the dataset would be larger than they allow, or than the disk has room for.
    """
    with _children.child() as child:
        try:
            child.connection.send((source, target, limits))
            ends = [child.connection] if stop is None else [child.connection, stop]
            ready = wait(ends, limits.seconds)
            if stop in ready:
                raise stopping()
            if not ready:
                raise TooLarge(
                    f"{source.file}: decoding took longer than the limit of {limits.seconds:g} s"
                )
            answer = child.connection.recv()
        except (EOFError, ConnectionError):
            raise InvalidInput(
                f"{source.file}: the file broke the decoder (exit code "
                f"{_children.exit_code(child)}); write it again with a current library"
            ) from None
    if isinstance(answer, Problem):
        raise answer
    dataset: Dataset = answer
    return dataset


def start_decoder() -> None:
    """Have a child ready, so that the first upload need not wait for one."""
    _children.make_ready()


def _child(connection: Connection) -> None:
    # The other pools hold a gigabyte of address space from the start, and give it out unlimited.
    pa.set_memory_pool(pa.system_memory_pool())
    _warm_up()
    try:
        source, target, limits = connection.recv()
    except EOFError:
        return
    # Address space, not resident memory: only that is enforced at the allocation itself.
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + limits.memory_bytes,) * 2)
    # A few bytes may decode to much more than whoever received them has seen.
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.written_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer: Dataset | Problem
    try:
        answer = decode(source, target, limits)
    except Problem as problem:
        answer = problem
    except MemoryError:
        answer = TooLarge(
            f"{source.file}: decoding takes more than the limit of "
            f"{limits.memory_bytes / 2**20:.0f} MiB of memory; send it in smaller pieces"
        )
    except (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
        answer = _problem_of(error, source, limits)
    # The service may have been killed meanwhile.
    with contextlib.suppress(BrokenPipeError):
        connection.send(answer)


def _warm_up() -> None:
    """Touch what decoding needs while nobody waits for it."""
    table = pa.table({"lat": [0.5], "lon": [0.5]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    read = Table(table.schema, pq.ParquetFile(sink).iter_batches(), 1)
    canonicalise(read, Reading(), "", None, Limits(0, 0, 1, 2))


# pyarrow loads pandas, where there is one, with the first array that it makes: 1 s for each child.
_children = Children(_child, preload=["service.datasets.decoding", "pandas"])


def _problem_of(error: Exception, source: Source, limits: Limits) -> Problem:
    if is_disk_full(error):
        return disk_full()
    # pyarrow raises OSError for files that are malformed, too; then it has no error number.
    number = getattr(error, "errno", None)
    if number == errno.EFBIG:
        return StorageFull(
            f"{source.file}: its points take more than {limits.written_bytes} bytes, which is its "
            "share of the room on the disk of the service: remove datasets and results that are no "
            "longer needed, or send it in smaller pieces",
            headers={"Retry-After": "60"},
        )
    if number is not None:
        return Problem(f"{source.file}: the service could not store it: {os.strerror(number)}")
    text = str(error).replace(str(source.path), source.file).strip()[:_ERROR_LENGTH]
    return InvalidInput(f"{source.file}: not a readable {source.format} file: {text}")


def decode(source: Source, target: Path, limits: Limits) -> Dataset:
    """Decode a file to a canonical dataset, in this process."""
    if source.path.stat().st_size == 0:
        raise InvalidInput(f"{source.file}: the file is empty", [{"file": source.file}])
    return canonicalise(read(source, limits.columns), source.reading, source.file, target, limits)


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
    if reading.lat is None and reading.lon is None:
        geometry = geometry_of(schema, reading.geometry, file)
        if geometry is not None:
            batches = add_coordinates(batches, geometry, file)
            for name in (geometry.lon, geometry.lat):
                schema = schema.append(pa.field(name, pa.float64()))
            reading = reading._replace(lat=geometry.lat, lon=geometry.lon, geometry=None)
            points = geometry.column
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
    )
    if declared_rows not in (None, dataset.rows):
        raise InvalidInput(
            f"{file}: the file says that it has {declared_rows} rows, and has {dataset.rows}"
        )
    origin = Origin(columns, points)
    evidence.refuse(origin, reading, file)
    how_to_swap = origin.how_to_swap(reading.prefix) if evidence.are_valid_swapped else None
    refuse_invalid(dataset, file, reading.on_invalid, points=points, how_to_swap=how_to_swap)
    # What cannot be read again (too deep a nesting, say) must not become a dataset. Not mapped, as
    # workers do: a large file would take the address space that is for decoding.
    pq.ParquetFile(dataset.file).read_row_groups([], columns=[])
    return dataset


def _check_names(names: list[str], file: str) -> None:
    for name in names:
        if "\0" in name or len(name) > _NAME_LENGTH:
            raise InvalidInput(
                f"{file}: the column name {name[:80]!r} has {len(name)} characters: up to "
                f"{_NAME_LENGTH} are allowed, and no NUL among them",
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
