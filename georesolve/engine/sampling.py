"""How many references an observation is compared with, by a sample: a search takes as long."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from georesolve import kernels
from georesolve.engine.cost_model import (
    QUICKLY_INDEXED,
    shapes_compared,
    usually_compared,
)
from georesolve.engine.filter_encoding import Keys
from georesolve.engine.questions import Batch, Within
from georesolve.engine.resident import shape_index
from georesolve.io.datasets import ROW_GROUP, Dataset, read_rows
from georesolve.kernels.comparisons_cpu import comparisons
from georesolve.kernels.query import Degrees
from georesolve.query import MatchOptions

_GROUPS, _GROUPS_ELSEWHERE = 4, 2
"""Row groups that are read of a set at most: two cores index 2^18 references in 25 ms."""
_COMPARED_A_PAIR = 100
"""Comparisons that take as long as it takes to make a pair: 40 ns of a core."""


def load() -> None:
    """Load what a sample takes: its machine code, for some tenths of a second."""
    comparisons(kernels.build_index(np.zeros(2), np.zeros(2)), np.zeros(1), np.zeros(1))


def compared(observations: Dataset, references: Dataset, options: MatchOptions) -> float:
    """What `rows_a_second` wants to know of two sets, by some row groups of each.

    What is more than usual grows with the number of references, of which the index holds some.
    """
    if options.algorithm == "brute" or not observations.rows or not references.rows:
        return 0.0
    if references.outlines is not None or observations.outlines is not None:
        return shapes_compared(references, options.k)
    index = kernels.build_index(*_degrees(references))
    lat_deg, lon_deg = _degrees(observations)
    mean = comparisons(index, lat_deg, lon_deg, options.k + options.exclude_self)
    more = max(0.0, mean - usually_compared(options.k))
    return mean + more * (references.rows / index.n_references - 1)


class Sample(NamedTuple):
    """What a sample says of a job: see `compared`, or how many rows a result of pairs will have.

    `spread` are two standard errors of them, and the sample has `least` itself.
    """

    compared: float = 0.0
    rows: int | None = None
    spread: int | None = None
    least: int | None = None


def sampled(observations: Dataset, references: Dataset, options: MatchOptions) -> Sample:
    """Look at some row groups of each set; raises InvalidInput of a bad distance."""
    if not options.has_pairs:
        return Sample(compared(observations, references, options))
    if not observations.rows or not references.rows:
        return Sample(0.0, 0, 0, 0)
    index: kernels.ReferenceIndex | kernels.ShapeIndex
    filters, keys = options.filters, None
    table = _sampled(observations, options.asked_of_observations)
    if filters is not None:
        there = _sampled(references, filters.of_references)
        keys = Keys(filters, there, np.ones(there.num_rows, bool))
    lat_deg, lon_deg = (table[name].to_numpy() for name in (observations.lat, observations.lon))
    batch = Batch.of(lat_deg, lon_deg, 0, table, options, keys)
    if batch.narrowed is not None:
        index = batch.narrowed.built(Degrees(*_degrees(references)), "cpu")
    elif references.outlines is None:
        index = kernels.build_index(*_degrees(references), copies=True)
    else:
        few = QUICKLY_INDEXED * references.rows // max(1, references.as_points)
        index = shape_index(references, 0, min(references.rows, ROW_GROUP, max(1, few)))
    # Rows of a sample are others than those of the set: each has itself beside it.
    apart = replace(options, exclude_self=False, once=False)
    each = Within(index, apart, 0, table.column).counts(batch)
    each = np.maximum(0, each - (options.exclude_self or options.once)) / (1 + options.once)
    scale = observations.rows * references.rows / index.n_references
    rows, spread = each.mean() * scale, 2 * each.std() * scale / each.size**0.5
    least = observations.rows if options.how == "left" else 0
    work = usually_compared(1) + _COMPARED_A_PAIR * rows / observations.rows
    return Sample(work, max(least, int(rows)), int(spread), max(least, int(each.sum())))


def _degrees(dataset: Dataset) -> list[np.ndarray]:
    table = _sampled(dataset)
    return [table[name].to_numpy() for name in (dataset.lat, dataset.lon)]


def _sampled(dataset: Dataset, more: Iterable[str] = ()) -> pa.Table:
    """Coordinates and other columns by their names, of row groups that are spread over a set."""
    starts = range(0, dataset.rows, ROW_GROUP)
    most = _GROUPS_ELSEWHERE if dataset.lies_elsewhere else _GROUPS
    columns = list(dict.fromkeys([dataset.lat, dataset.lon, *more]))
    return pa.concat_tables(
        read_rows(dataset.file, start, min(start + ROW_GROUP, dataset.rows), columns)
        for start in starts[:: -(-len(starts) // most)]
    )
