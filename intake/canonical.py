"""Tables of points, checked row by row and written as canonical datasets."""

import gzip
import math
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georesolve.intake.columns import LONGEST_NAME, Columns, Origin, Reading, find_columns
from georesolve.intake.errors import InvalidInput, TooLarge
from georesolve.intake.geometry import add_coordinates, geometries_of, geometry_of
from georesolve.intake.plausibility import Evidence
from georesolve.intake.readers import read
from georesolve.intake.sources import Source, Table
from georesolve.intake.validity import refuse_invalid
from georesolve.workers.datasets import Dataset, write_dataset

_ERROR_LENGTH = 500
_PIECE_BYTES = 1 << 20
# What pyarrow and Python raise for files that are malformed.
_OF_THE_FILE = (pa.ArrowException, UnicodeError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How many rows and columns a table may have, and to how many bytes a file may unpack."""

    rows: int = sys.maxsize
    columns: int = sys.maxsize
    unpacked_bytes: int = sys.maxsize


def decode(source: Source, target: Path, bounds: Bounds) -> Dataset:
    """Decode a file to a canonical dataset, in this process.

    Raises
    ------
    InvalidInput, TooLarge
        As `canonicalise` does, and when the file is empty or cannot be unpacked.
    Exception
        What the readers raise; `refusal_of` knows which of these the file is to blame for.
    """
    if source.unpacked is not None:
        source = _unpack(source, source.unpacked, bounds)
    if source.path.stat().st_size == 0:
        raise InvalidInput(f"{source.file}: the file is empty", [{"file": source.file}])
    return canonicalise(read(source, bounds.columns), source.reading, source.file, target, bounds)


def refusal_of(error: Exception, source: Source) -> InvalidInput | None:
    """What is wrong with a file that a reader failed at, None where the file is not to blame."""
    # pyarrow raises OSError for files that are malformed, too; then it has no error number.
    is_unnumbered = isinstance(error, OSError) and getattr(error, "errno", None) is None
    if not isinstance(error, _OF_THE_FILE) and not is_unnumbered:
        return None
    text = str(error)
    for path in filter(None, (source.path, source.unpacked)):
        text = text.replace(str(path), source.file)
    text = text.strip()[:_ERROR_LENGTH]
    return InvalidInput(f"{source.file}: not a readable {source.format} file: {text}")


def _unpack(source: Source, unpacked: Path, bounds: Bounds) -> Source:
    size = 0
    try:
        with gzip.open(source.path) as packed, unpacked.open("wb") as file:
            while piece := packed.read(_PIECE_BYTES):
                size += len(piece)
                if size > bounds.unpacked_bytes:
                    raise TooLarge(
                        f"{source.file}: it unpacks to more than the limit of "
                        f"{bounds.unpacked_bytes} bytes: send it in smaller pieces"
                    )
                file.write(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(f"{source.file}: it cannot be unpacked with gzip: {error}") from None
    return source._replace(path=unpacked, unpacked=None)


def canonicalise(
    table: Table, reading: Reading, file: str, target: Path | None, bounds: Bounds
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
    if len(schema.names) > bounds.columns:
        raise TooLarge(
            f"{file}: {len(schema.names)} columns are more than the limit of {bounds.columns}"
        )
    if declared_rows is not None and declared_rows > bounds.rows:
        raise TooLarge(f"{file}: {declared_rows} rows are more than the limit of {bounds.rows}")
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
    checked = _checked(schema, batches, file, bounds, columns, evidence)
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
    bounds: Bounds,
    columns: Columns,
    evidence: Evidence,
) -> Iterator[pa.RecordBatch]:
    """Pass batches on in the types of a schema, counting their rows and looking at their points."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > bounds.rows:
            raise TooLarge(f"{file}: more rows than the limit of {bounds.rows}")
        arrays = [
            array if array.type == field.type else pc.cast(array, field.type, safe=False)
            for array, field in zip(batch.columns, schema, strict=True)
        ]
        checked = pa.RecordBatch.from_arrays(arrays, schema=schema)
        lat, lon = (checked[name].fill_null(math.nan).to_numpy() for name in columns[:2])
        evidence.add(lat, lon)
        yield checked
