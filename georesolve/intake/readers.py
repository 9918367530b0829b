"""One reader a format: a file becomes a schema and batches, or a refusal that says where it is bad.

They do not check coordinates, and they count rows only where a file declares them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

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
    rows = file.metadata.num_rows
    if source.range is None:
        return Table(file.schema_arrow, _validated(file.iter_batches(BATCH_ROWS)), rows)
    start, stop = source.range[:2]
    counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    begins = [0, *accumulate(counts)]
    first = bisect_right(begins, start) - 1
    groups = range(first, bisect_left(begins, stop))
    batches = file.iter_batches(BATCH_ROWS, row_groups=list(groups))
    own = _rows_of(batches, start - begins[first], stop - begins[first])
    return Table(file.schema_arrow, _validated(own), stop - start)


def _read_arrow(source: Source) -> Table:
    schema, batches = record_batches(source.path)
    if source.range is None:
        return Table(schema, _validated(batches))
    start, stop = source.range[:2]
    return Table(schema, _validated(_rows_of(batches, start, stop)), stop - start)


def record_batches(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the batches of an Arrow file or stream; they have not been validated."""
    with path.open("rb") as handle:
        is_file = handle.read(6) == b"ARROW1"
    handle = pa.OSFile(str(path))
    if is_file:
        reader = pa.ipc.open_file(handle)
        return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
    reader = pa.ipc.open_stream(handle)
    return reader.schema, iter(reader)


def _rows_of(batches: Iterator[pa.RecordBatch], start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """The rows from `start` up to, not including, `stop`; behind them nothing is read."""
    seen = 0
    for batch in batches:
        first, last = max(start - seen, 0), min(stop - seen, batch.num_rows)
        seen += batch.num_rows
        if first < last:
            yield batch.slice(first, last - first)
        if seen >= stop:
            return


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
