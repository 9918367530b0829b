"""One reader a format: a file becomes a schema and batches, or a refusal that says where it is bad.

They do not check coordinates, and they count rows only where a file declares them.

Large files are cut into ranges that several processes read at the same time; each begins where a
row group of a dataset does, so that they can be joined. Where a reader sees that its range does not
hold the rows that it should, the file is read in one go.
"""

import gzip
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from georesolve.io.columns import needed_columns
from georesolve.io.csv import lines_before_rows, read_csv
from georesolve.io.datasets import ROW_GROUP, streamed
from georesolve.io.errors import InvalidInput, Refused, TooLarge
from georesolve.io.formats import BATCH_ROWS, InputFormat, Range, Source, Table
from georesolve.io.geojson import read_geojson
from georesolve.io.geometry import geometries_of, with_logical_types
from georesolve.io.layers import close_journal, read_layer, refuse_layer
from georesolve.io.points import Bounds

_ERROR_LENGTH = 500
_PIECE_BYTES = 1 << 20
# Errors of pyarrow, GEOS and Python for malformed files.
_OF_THE_FILE = (
    *(pa.ArrowException, shapely.errors.GEOSException),
    *(UnicodeError, OverflowError, RecursionError),
)
_FEWEST_ROWS = 2 * ROW_GROUP
_GROUP_BYTES = 1 << 26
"""About so many of a row group, encoded: several lie in memory where several are decoded."""
_BLOCK_BYTES = 1 << 18
"""Stays in a processor's cache while its line ends are counted."""
_LINE_END = ord("\n")


def open_source(source: Source, bounds: Bounds) -> Table:
    """Open a file with the reader of its format, after unpacking it if it is packed."""
    if source.unpacked is not None:
        source = _unpack(source, source.unpacked, bounds)
    if source.path.stat().st_size == 0:
        raise InvalidInput(f"{source.file}: the file is empty", [{"file": source.file}])
    if source.format != "layer":
        refuse_layer(source.reading, source.file)
    if source.format == "geojson":
        return read_geojson(source, bounds)
    return _READERS[source.format](source)


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
    if source.format == "layer":
        close_journal(unpacked)
    return source._replace(path=unpacked, unpacked=None)


@contextmanager
def decoding(source: Source) -> Iterator[None]:
    """Translate errors of the libraries that read a file, where the file is at fault."""
    try:
        yield
    except (Refused, MemoryError):
        raise
    except Exception as error:
        refusal = refusal_of(error, source)
        if refusal is None:
            raise
        raise refusal from error


def refusal_of(error: Exception, source: Source) -> InvalidInput | None:
    """Make the refusal of a file that a reader failed at, None if the file is not at fault."""
    # pyarrow raises OSError for files that are malformed, too; then it has no error number.
    is_unnumbered = isinstance(error, OSError) and getattr(error, "errno", None) is None
    if not isinstance(error, _OF_THE_FILE) and not is_unnumbered:
        return None
    text = str(error)
    for path in filter(None, (source.path, source.unpacked)):
        text = text.replace(str(path), source.file)
    text = text.strip()[:_ERROR_LENGTH]
    return InvalidInput(f"{source.file}: not a readable {source.format} file: {text}")


def _read_parquet(source: Source) -> Table:
    file = streamed(source.path)
    rows = file.metadata.num_rows
    if source.range is None:
        schema = with_logical_types(file)
        primary = next(iter(geometries_of(schema)), None)
        names = needed_columns(schema.names, source.reading, primary)
        if names is not None:
            fields = [field for field in schema if field.name in names]
            schema = pa.schema(fields, schema.metadata)
        return Table(schema, _validated(_batches(source, file, names)), rows)
    start, stop = source.range[:2]
    counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    begins = [0, *accumulate(counts)]
    first = bisect_right(begins, start) - 1
    groups = range(first, bisect_left(begins, stop))
    batches = file.iter_batches(BATCH_ROWS, row_groups=list(groups))
    own = _rows_of(batches, start - begins[first], stop - begins[first])
    return Table(with_logical_types(file), _validated(own), stop - start)


def _batches(
    source: Source, file: pq.ParquetFile, names: list[str] | None
) -> Iterator[pa.RecordBatch]:
    """All rows; small row groups are decoded several at a time if the source says so."""
    known, groups = file.metadata, range(file.num_row_groups)
    largest = max((known.row_group(i).total_byte_size for i in groups), default=0)
    columns = len(file.schema_arrow if names is None else names)
    is_small = largest * columns <= _GROUP_BYTES * len(file.schema_arrow)
    if not (source.side_by_side and is_small and len(groups) > 1):
        yield from file.iter_batches(BATCH_ROWS, columns=names)
        return
    # What decodes files of strangers loads no compiler.
    from georesolve.io.threads import side_by_side

    def decoded(group: int) -> list[pa.RecordBatch]:
        # One file is not to be read by several threads.
        own = streamed(source.path, known)
        return list(own.iter_batches(BATCH_ROWS, row_groups=[group], columns=names))

    for batches in side_by_side(decoded, groups):
        yield from batches


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
    "layer": read_layer,
}


def ranges_of(source: Source, most: int) -> list[Range]:
    """Ranges to read a file in, in their order: at most so many, none where it has no cuts."""
    find = _FINDERS.get(source.format)
    return [] if find is None else find(source, most)


def _of_parquet(source: Source, most: int) -> list[Range]:
    file = streamed(source.path)
    if _has_dictionaries(file.schema_arrow.types):
        return []
    groups = (file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
    ends = np.cumsum([0, *groups])
    # Near the end of a row group of the file: one in which a range ends is decoded for two.
    edges = [ends[np.argmin(np.abs(ends - edge))] for edge in _edges(int(ends[-1]), most)]
    return _ranges(edges)


def _of_arrow(source: Source, most: int) -> list[Range]:
    schema, batches = record_batches(source.path)
    if _has_dictionaries(schema.types):
        return []
    return _ranges(_edges(sum(batch.num_rows for batch in batches), most))


def _of_csv(source: Source, most: int) -> list[Range]:
    above = lines_before_rows(source)
    if above is None:
        return []
    block = np.empty(_BLOCK_BYTES, np.uint8)
    with source.path.open("rb") as file:
        counts = [
            np.count_nonzero(block[:read] == _LINE_END)
            for read in iter(partial(file.readinto, block.data), 0)
        ]
        ends = np.cumsum([0, *counts])
        size = file.seek(-1, 2) + 1
        # A last line without its end is a row all the same.
        is_open = file.read() != b"\n"
        ranges = _ranges(_edges(int(ends[-1]) + is_open - above, most))
        begins = [0]
        for one in ranges[1:]:
            # Behind the line end that is the so-manieth of the file.
            nth = above + one.start - 1
            at = int(np.searchsorted(ends, nth, "right")) - 1
            file.seek(at * _BLOCK_BYTES)
            read = file.readinto(block.data)
            within = np.flatnonzero(block[:read] == _LINE_END)[nth - ends[at]]
            begins.append(at * _BLOCK_BYTES + int(within) + 1)
    return [
        one._replace(begin=begin, end=end)
        for one, (begin, end) in zip(ranges, pairwise([*begins, size]), strict=True)
    ]


def _edges(rows: int, most: int) -> list[int]:
    """Where ranges of about as many rows each begin and end."""
    number = max(1, min(most, rows // _FEWEST_ROWS))
    return [rows * i // number for i in range(number + 1)]


def _ranges(edges: Iterable[int]) -> list[Range]:
    """Ranges between edges that are moved on to where a row group of a dataset begins."""
    *inner, rows = map(int, edges)
    starts = sorted({-(-edge // ROW_GROUP) * ROW_GROUP for edge in inner})
    return [Range(*pair) for pair in pairwise([*(start for start in starts if start < rows), rows])]


def _has_dictionaries(types: Iterable[pa.DataType]) -> bool:
    """Whether some values are written as dictionaries: the bytes show which batch they came in."""
    return any(
        pa.types.is_dictionary(type)
        or _has_dictionaries(type.field(i).type for i in range(type.num_fields))
        for type in types
    )


_FINDERS: dict[InputFormat, Callable[[Source, int], list[Range]]] = {
    "parquet": _of_parquet,
    "arrow": _of_arrow,
    "csv": _of_csv,
}
