"""Files of points, checked row by row and written as canonical datasets."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.io.column_sizes import Width
from georesolve.io.columns import Columns, Reading
from georesolve.io.datasets import Dataset, held_dataset, write_dataset
from georesolve.io.evidence import Evidence
from georesolve.io.formats import Source
from georesolve.io.numbers import degrees
from georesolve.io.opener import open_file
from georesolve.io.points import Bounds, PointTable, check_names
from georesolve.io.validation import Findings


class Decoded(NamedTuple):
    """A dataset that was made of rows of a file, and what these showed."""

    dataset: Dataset
    findings: Findings


def decode(source: Source, target: Path, bounds: Bounds) -> Decoded:
    """Decode a file, or a range of it, to a canonical dataset, in this process.

    Of a range nothing is refused that all rows together have to show. `refusal_of` knows for which
    of what the readers raise the file is to blame.
    """
    points = open_file(source, bounds)
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


def canonicalise(batch: pa.RecordBatch, columns: Columns, reading: Reading, file: str) -> Dataset:
    """Check rows in memory, whose coordinates are float64, and keep them as a dataset there."""
    names = batch.schema.names
    check_names(names, file)
    warnings: Sequence[str] = ()
    if reading.crs is not None:
        from georesolve.io.crs import with_degrees

        moved, columns, warnings = with_degrees(iter([batch]), names, columns, reading, file)
        [batch] = moved
    lat, lon, id = columns
    axes = degrees(batch[lat]), degrees(batch[lon])
    seen = Evidence.of_valid(*axes) or Evidence.of(*axes)
    seen.warn(warnings)
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
