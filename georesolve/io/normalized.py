"""Files of points, checked row by row and written as canonical datasets."""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from georesolve.io.column_sizes import Width
from georesolve.io.columns import Columns, Reading
from georesolve.io.datasets import Dataset, held_dataset, write_dataset
from georesolve.io.errors import InvalidInput, TooLarge
from georesolve.io.evidence import Evidence
from georesolve.io.formats import Source, Table
from georesolve.io.layers import close_journal
from georesolve.io.numbers import degrees
from georesolve.io.points import Bounds, PointTable, check_names
from georesolve.io.readers import read
from georesolve.io.validation import Findings

_ERROR_LENGTH = 500
_PIECE_BYTES = 1 << 20
# What pyarrow, GEOS and Python raise for files that are malformed.
_OF_THE_FILE = (
    *(pa.ArrowException, shapely.errors.GEOSException),
    *(UnicodeError, OverflowError, RecursionError),
)


class Decoded(NamedTuple):
    """A dataset that was made of rows of a file, and what these showed."""

    dataset: Dataset
    findings: Findings


def decode(source: Source, target: Path, bounds: Bounds) -> Decoded:
    """Decode a file, or a range of it, to a canonical dataset, in this process.

    Of a range nothing is refused that all rows together have to show. `refusal_of` knows for which
    of what the readers raise the file is to blame.
    """
    points = PointTable(opened(source, bounds), source.reading, source.file, bounds)
    if points.shapes is not None:
        points.shapes.keeps = False
    return written(points, target, is_whole=source.range is None)


def joined(ranges: Sequence[Decoded], target: Path) -> Decoded:
    """What was made of the ranges of one file, in their order, as if it had been read in one go.

    Their files are joined as `target` elsewhere.
    """
    dataset, findings = ranges[0]
    for other in ranges[1:]:
        findings.evidence.extend(other.findings.evidence)
    each = zip(*(one.dataset.widths for one in ranges), strict=True)
    widths = tuple(reduce(Width.followed, column) for column in each)
    outlines = None
    if some := [one.dataset.outlines for one in ranges if one.dataset.outlines is not None]:
        # Where all rows are points, each is an arc.
        points = sum(one.dataset.rows for one in ranges if one.dataset.outlines is None)
        outlines = some[0]._replace(arcs=points + sum(one.arcs for one in some))
    facts = {**findings.evidence.facts, "outlines": outlines}
    dataset = replace(dataset, file=target, widths=widths, **facts)
    return Decoded(dataset, findings)


def opened(source: Source, bounds: Bounds) -> Table:
    """Open a file with the reader of its format, unpacked first where it is packed."""
    if source.unpacked is not None:
        source = _unpack(source, source.unpacked, bounds)
    if source.path.stat().st_size == 0:
        raise InvalidInput(f"{source.file}: the file is empty", [{"file": source.file}])
    return read(source, bounds)


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
    if source.format == "layer":
        close_journal(unpacked)
    return source._replace(path=unpacked, unpacked=None)


def canonicalise(batch: pa.RecordBatch, columns: Columns, reading: Reading, file: str) -> Dataset:
    """Check rows in memory, whose coordinates are float64, and keep them as a dataset there."""
    names = batch.schema.names
    check_names(names, file)
    if reading.crs is not None:
        from georesolve.io.crs import with_degrees

        moved, columns = with_degrees(iter([batch]), names, columns, reading, file)
        [batch] = moved
    lat, lon, id = columns
    axes = degrees(batch[lat]), degrees(batch[lon])
    seen = Evidence.of_valid(*axes) or Evidence.of(*axes)
    dataset = held_dataset(batch, {"id": id, "lat": lat, "lon": lon}, seen)
    Findings(columns, None, seen).refuse(dataset, reading, file)
    return dataset


def written(points: PointTable, target: Path, *, is_whole: bool = True) -> Decoded:
    """Write a table whose columns are found as a canonical dataset, once its rows are checked."""
    dataset = write_dataset(
        points.schema,
        points.batches(),
        target,
        **points.columns._asdict(),
        geometries=points.geometries,
        with_digest=False,
        evidence=points.findings.evidence,
    )
    if points.shapes is not None:
        dataset = replace(dataset, outlines=points.shapes.outlines(dataset.rows))
    # What cannot be read again (too deep a nesting, say) must not become a dataset. Not mapped,
    # as workers do: a large file would take the address space that is for decoding.
    pq.ParquetFile(target).read_row_groups([], columns=[], use_threads=False)
    if is_whole:
        points.refuse_invalid(dataset)
    return Decoded(dataset, points.findings)
