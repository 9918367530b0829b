"""Files from strangers to canonical datasets, in a child process with limits on memory and time.

A file can declare little and decode to much, or crash the decoder: what happens to the child does
not happen to the service. The child gives back a dataset or a problem, nothing else.
"""

import multiprocessing
import re
import resource
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from service.columns import ColumnNames, Columns, find_columns
from service.errors import InvalidInput, Problem, TooLarge
from service.formats import InputFormat
from workers.datasets import Dataset, write_dataset

_BATCH_ROWS = 65_536


class Limits(NamedTuple):
    """What decoding one file may take."""

    memory_bytes: int
    seconds: float
    rows: int
    columns: int


class Source(NamedTuple):
    """A file to decode: where it lies, its format, the columns named, what to call it in errors."""

    path: Path
    format: InputFormat
    names: ColumnNames
    file: str


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
    except (pa.ArrowException, OSError, UnicodeError, ValueError, OverflowError) as error:
        answer = InvalidInput(f"{source.file}: not a readable {source.format} file: {error}")
    sender.send(answer)


def decode(source: Source, target: Path, limits: Limits) -> Dataset:
    """Decode a file to a canonical dataset, in this process."""
    if source.path.stat().st_size == 0:
        raise InvalidInput(f"{source.file}: the file is empty", [{"file": source.file}])
    schema, batches = _READERS[source.format](source, limits)
    return canonicalise(schema, batches, source.names, source.file, target, limits)


def canonicalise(
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    names: ColumnNames,
    file: str,
    target: Path,
    limits: Limits,
) -> Dataset:
    """Check batches of a table and write them as a canonical dataset.

    Raises
    ------
    InvalidInput
        When the coordinate columns are missing, ambiguous or hold no numbers.
    TooLarge
        When there are more rows or columns than the limits allow.
    """
    if len(schema.names) > limits.columns:
        raise TooLarge(
            f"{file}: {len(schema.names)} columns are more than the limit of {limits.columns}"
        )
    columns = find_columns(schema.names, names, file)
    for name in (columns.lat, columns.lon):
        _check_numeric(schema.field(name), file)
    schema = pa.schema(
        [
            pa.field(field.name, pa.float64() if field.name in columns[:2] else field.type)
            for field in schema
        ]
    )
    return write_dataset(
        schema,
        _checked(schema, batches, columns, file, limits),
        target,
        lat=columns.lat,
        lon=columns.lon,
        id=columns.id,
    )


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
    columns: Columns,
    file: str,
    limits: Limits,
) -> Iterator[pa.RecordBatch]:
    """Pass batches on with float64 coordinates, counting their rows."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > limits.rows:
            raise TooLarge(f"{file}: more rows than the limit of {limits.rows}")
        yield pa.RecordBatch.from_arrays(
            [
                pc.cast(array, pa.float64(), safe=False) if name in columns[:2] else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ],
            schema=schema,
        )


def _read_parquet(source: Source, limits: Limits) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    file = pq.ParquetFile(source.path)
    if file.metadata.num_rows > limits.rows:
        raise TooLarge(
            f"{source.file}: {file.metadata.num_rows} rows are more than the limit of {limits.rows}"
        )
    return file.schema_arrow, file.iter_batches(_BATCH_ROWS)


def _read_csv(source: Source, limits: Limits) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    # Only for the names of the columns; rows that are wrong are found when all are read.
    skip_ragged = pa.csv.ParseOptions(invalid_row_handler=lambda row: "skip")
    with pa.csv.open_csv(source.path, parse_options=skip_ragged) as reader:
        header = reader.schema.names
    columns = find_columns(header, source.names, source.file)
    types = {columns.lat: pa.float64(), columns.lon: pa.float64()}
    convert = pa.csv.ConvertOptions(column_types=types)
    try:
        table = pa.csv.read_csv(source.path, convert_options=convert)
    except pa.ArrowInvalid:
        table = _read_csv_again(source, header, convert)
    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise _bad_cell(source, field.name, None, "holds text that is not UTF-8")
    types = {f.name: pa.string() for f in table.schema if pa.types.is_null(f.type)}
    schema = pa.schema([(f.name, types.get(f.name, f.type)) for f in table.schema])
    return schema, iter(table.cast(schema).to_batches(_BATCH_ROWS))


def _read_csv_again(source: Source, header: list[str], convert: pa.csv.ConvertOptions) -> pa.Table:
    """Read with one thread: only then the errors of pyarrow tell the row."""
    ragged: list[Any] = []

    def refuse(row: Any) -> str:
        ragged.append(row)
        return "error"

    try:
        return pa.csv.read_csv(
            source.path,
            read_options=pa.csv.ReadOptions(use_threads=False),
            parse_options=pa.csv.ParseOptions(invalid_row_handler=refuse),
            convert_options=convert,
        )
    except pa.ArrowInvalid as error:
        if ragged:
            row = ragged[0]
            raise _bad_cell(
                source,
                None,
                row.number - 2,
                f"has {row.actual_columns} fields where the header has {row.expected_columns}",
            ) from None
        place = re.search(r"column #(\d+): Row #(\d+): .*(invalid value '.*')", str(error))
        if place is None:
            raise
        column, row_number, value = header[int(place[1])], int(place[2]) - 2, place[3]
        raise _bad_cell(source, column, row_number, f"{value}: not a number") from None


def _bad_cell(source: Source, column: str | None, row: int | None, detail: str) -> Problem:
    place = {"column": column, "row": row}
    known = {name: value for name, value in place.items() if value is not None}
    where = ", ".join(f"{name} {value!r}" for name, value in known.items())
    return InvalidInput(
        f"{source.file}: {where} {detail} (rows are counted from 0, without the header)",
        [{"file": source.file, **known, "detail": detail}],
    )


_READERS = {"parquet": _read_parquet, "csv": _read_csv}
