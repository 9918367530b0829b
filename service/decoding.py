"""Files from strangers to canonical datasets, in a child process with limits on memory and time.

A file can declare little and decode to much, or crash the decoder: what happens to the child does
not happen to the service. The child gives back a dataset or a problem, nothing else.
"""

import contextlib
import math
import multiprocessing
import os
import resource
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from service.columns import Columns, Reading, find_columns
from service.errors import InvalidInput, Problem, TooLarge, disk_full, is_disk_full
from service.geometry import add_coordinates, geometry_of
from service.plausibility import Evidence
from service.readers import Source, Table, read
from workers.datasets import Dataset, read_rows, write_dataset

_ERROR_LENGTH = 500


class Limits(NamedTuple):
    """What decoding one file may take."""

    memory_bytes: int
    seconds: float
    rows: int
    columns: int


# The server process of this context is started once and has pyarrow loaded: a child costs a fork.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["service.decoding"])


def start_decoder() -> None:
    """Start the server process of the decoders now, so that the first upload need not wait."""
    forkserver.ensure_running()


def decode_in_child(source: Source, target: Path, limits: Limits) -> Dataset:
    """Decode a file to the canonical dataset `target`, in a child process; blocks.

    Raises
    ------
    InvalidInput
        When the file is not what it says, or breaks the decoder.
    TooLarge
        When it takes more memory, time, rows or columns than the limits allow.
    """
    receiver, sender = _context.Pipe(duplex=False)
    child = _context.Process(
        target=_child, args=(sender, source, target, limits), name="decode", daemon=True
    )
    child.start()
    sender.close()
    try:
        if not receiver.poll(limits.seconds):
            raise TooLarge(
                f"{source.file}: decoding took longer than the limit of {limits.seconds:g} s"
            )
        answer = receiver.recv()
    except EOFError:
        child.join()
        raise InvalidInput(
            f"{source.file}: the file broke the decoder (exit code {child.exitcode}); "
            "write it again with a current library"
        ) from None
    finally:
        receiver.close()
        child.kill()
        child.join()
    if isinstance(answer, Problem):
        raise answer
    dataset: Dataset = answer
    return dataset


def _child(sender: Connection, source: Source, target: Path, limits: Limits) -> None:
    # Address space, not resident memory: only that is enforced at the allocation itself.
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + limits.memory_bytes,) * 2)
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
        answer = _problem_of(error, source)
    # The service may have been killed meanwhile.
    with contextlib.suppress(BrokenPipeError):
        sender.send(answer)


def _problem_of(error: Exception, source: Source) -> Problem:
    if is_disk_full(error):
        return disk_full()
    # pyarrow raises OSError for files that are malformed, too; then it has no error number.
    number = getattr(error, "errno", None)
    if number is not None:
        return Problem(f"{source.file}: the service could not store it: {os.strerror(number)}")
    text = str(error).replace(str(source.path), source.file)[:_ERROR_LENGTH]
    return InvalidInput(f"{source.file}: not a readable {source.format} file: {text}")


def decode(source: Source, target: Path, limits: Limits) -> Dataset:
    """Decode a file to a canonical dataset, in this process."""
    if source.path.stat().st_size == 0:
        raise InvalidInput(f"{source.file}: the file is empty", [{"file": source.file}])
    return canonicalise(read(source), source.reading, source.file, target, limits)


def canonicalise(
    table: Table, reading: Reading, file: str, target: Path | None, limits: Limits
) -> Dataset:
    """Check a table and write it as a canonical dataset, in memory if there is no `target`.

    Raises
    ------
    InvalidInput
        When the coordinates are missing, ambiguous, no numbers or not in WGS 84 degrees.
    TooLarge
        When there are more rows or columns than the limits allow.
    """
    schema, batches, declared_rows = table
    if len(schema.names) > limits.columns:
        raise TooLarge(
            f"{file}: {len(schema.names)} columns are more than the limit of {limits.columns}"
        )
    if declared_rows is not None and declared_rows > limits.rows:
        raise TooLarge(f"{file}: {declared_rows} rows are more than the limit of {limits.rows}")
    if reading.lat is None and reading.lon is None:
        geometry = geometry_of(schema, reading.geometry, file)
        if geometry is not None:
            batches = add_coordinates(batches, geometry, file)
            for name in (geometry.lon, geometry.lat):
                schema = schema.append(pa.field(name, pa.float64()))
            reading = reading._replace(lat=geometry.lat, lon=geometry.lon)
    columns = find_columns(schema.names, reading, file)
    for name in (columns.lat, columns.lon):
        _check_numeric(schema.field(name), file)
    coordinates = dict.fromkeys(columns[:2], pa.float64())
    schema = pa.schema([(f.name, coordinates.get(f.name) or _plain_type(f.type)) for f in schema])
    evidence = Evidence()
    checked = _checked(schema, batches, file, limits, columns, evidence)
    dataset = write_dataset(
        schema, checked, target, lat=columns.lat, lon=columns.lon, id=columns.id
    )
    evidence.refuse(columns, reading, file)
    # What cannot be read again (too deep a nesting, say) must not become a dataset.
    read_rows(dataset.file, 0, 0, [])
    return dataset


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
