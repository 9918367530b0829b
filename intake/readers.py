"""One reader a format: a file becomes a schema and batches, or a refusal that says where it is bad.

They do not check coordinates, and they count rows only where a file declares them.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

from georesolve.intake.delimited import read_csv
from georesolve.intake.features import read_geojson
from georesolve.intake.formats import InputFormat
from georesolve.intake.sources import BATCH_ROWS, Source, Table
from georesolve.workers.datasets import streamed


def read(source: Source, most_columns: int) -> Table:
    """Open a file with the reader of its format."""
    if source.format == "geojson":
        return read_geojson(source, most_columns)
    return _READERS[source.format](source)


def _read_parquet(source: Source) -> Table:
    file = streamed(source.path)
    batches = _validated(file.iter_batches(BATCH_ROWS))
    return Table(file.schema_arrow, batches, file.metadata.num_rows)


def _read_arrow(source: Source) -> Table:
    with source.path.open("rb") as handle:
        is_file = handle.read(6) == b"ARROW1"
    handle = pa.OSFile(str(source.path))
    if is_file:
        reader = pa.ipc.open_file(handle)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        reader = pa.ipc.open_stream(handle)
        batches = iter(reader)
    return Table(reader.schema, _validated(batches))


def _validated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Memory laid out by a stranger, and text of bytes: nothing may be followed unchecked.
    for batch in batches:
        batch.validate(full=True)
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


_READERS: dict[InputFormat, Callable[[Source], Table]] = {
    "parquet": _read_parquet,
    "arrow": _read_arrow,
    "csv": read_csv,
}
