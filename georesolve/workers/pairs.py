"""All within a distance, by workers: summaries of observations, and pairs by ranges of result rows.

No worker holds more than some row groups of these, however many pairs one observation has.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from georesolve.workers.carried import carried
from georesolve.workers.datasets import read_rows, recut
from georesolve.workers.evidence import Evidence
from georesolve.workers.filters import Narrowed, check_filters
from georesolve.workers.frames import read_points
from georesolve.workers.jobs import Job
from georesolve.workers.parts import part_name
from georesolve.workers.plan import Chunk, cut_by, rows_a_group
from georesolve.workers.references import (
    resident_column,
    resident_keys,
    shape_index,
    whole_index,
)
from georesolve.workers.result import opened
from georesolve.workers.search import WrongAnswer, another_search
from georesolve.workers.within import MADE_PAIRS, Batch, Within, WithinShapes

_VERIFIED_PAIRS = 2**25
"""Pairs of all points and what a shape is of up to which some are searched again: all points look
for these."""


def batch_of(job: Job, chunk: Chunk) -> tuple[Batch, Evidence | None]:
    """Some observations of a job, and what they say of files that nobody has looked at before."""
    points, name = job.observations, job.options.distance_m
    degrees, evidence = read_points(points, *chunk)
    filters, keys = job.options.filters, resident_keys(job.references, job.options.filters)
    names = [name] if isinstance(name, str) else []
    names = list(dict.fromkeys([*names, *(filters.of_observations if filters else ())]))
    columns = read_rows(points.file, *chunk, names) if names else pa.table({})
    return Batch.of(*degrees, chunk.start, columns, job.options, keys), evidence


def of_none(job: Job) -> Narrowed | None:
    """What none of the observations of a job may match, by which its index is known."""
    if (keys := resident_keys(job.references, job.options.filters)) is None:
        return None
    return check_filters(job.observations, job.references, job.options)._replace(keys=keys)


def within_of(job: Job, chunk: Chunk) -> Within:
    """The references of a job, which are made ready on first need, for the rows of a chunk."""
    references, options = job.references, job.options
    column = partial(resident_column, references)
    known = options, references.valid_rows, lambda name: column(name).values
    if job.observations.outlines is not None:

        def points() -> Iterator[tuple[Any, Any]]:
            for one in Chunk(0, references.rows).pieces(MADE_PAIRS):
                yield read_points(references, *one)[0]

        index = shape_index(job.observations, *chunk)
        return WithinShapes(*known, index=index, points=points, first_row=chunk.start)
    how = job.indexes, options.question == "within", options.earth, of_none(job)
    index = whole_index(references, "pairs and summaries", *how)
    return Within(index, *known)


def verify_summary(job: Job, within: Within, batch: Batch, rows: pa.Table) -> int:
    """Search some of the observations again by another algorithm; returns how many."""
    if not rows.num_rows:
        return 0
    middle, took, other = another_search(rows.num_rows, job.references, job.options)
    own = batch.rows(middle.start, middle.stop)
    if isinstance(within, WithinShapes):
        each = job.observations.as_points // job.observations.rows
        if each * job.references.rows > _VERIFIED_PAIRS:
            return 0
        took, other = "shapes", replace(job.options, algorithm="brute")
        within = within_of(job, Chunk(own.first_row, own.first_row + own.lat_deg.size))
    again, _ = replace(within, options=other).found(own)
    if not again.equals(given := rows.slice(middle.start, again.num_rows)):
        raise WrongAnswer(
            f"the summary is {given.to_pylist()} by {took!r} and {again.to_pylist()} by "
            f"{other.algorithm!r}"
        )
    return int(again.num_rows)


def pairs_of(job: Job, chunk: Chunk) -> Iterator[pa.Table]:
    """The rows of a chunk of result rows, with what they carry, by the row groups of the result."""
    size = rows_a_group(job)
    most = min(size, MADE_PAIRS)

    def carrying() -> Iterator[pa.Table]:
        for own, rows in _rows(job, chunk, most):
            for first in range(0, max(1, rows.num_rows), most):
                with carried(job, own, rows.slice(first, most)) as table:
                    yield table

    return recut(carrying(), size)


def _rows(job: Job, chunk: Chunk, most: int) -> Iterator[tuple[Chunk, pa.Table]]:
    """Observations, and those of their rows that are in a chunk of result rows."""
    within, (starts, before) = within_of(job, chunk), job.counted
    if chunk.start == chunk.stop:
        yield chunk, within.found(batch_of(job, chunk)[0])[0]
    first = int(np.searchsorted(before, chunk.start, "right")) - 1
    last = int(np.searchsorted(before, chunk.stop))
    for number in (first + np.flatnonzero(np.diff(before[first : last + 1]))).tolist():
        counted = Chunk(starts[number], starts[number + 1])
        with job.counting().place.open(part_name(*counted)) as file:
            each = opened(file).read(columns=["count"])["count"].fill_null(0).to_numpy()
        rows = np.maximum(each, 1) if job.options.how == "left" else each
        edges = before[number] + np.concatenate([[0], np.cumsum(rows)])
        # Those with rows in the chunk, from the first to the last.
        low = max(0, int(np.searchsorted(edges, chunk.start, "right")) - 1)
        high = min(each.size, int(np.searchsorted(edges, chunk.stop)))
        own = Chunk(counted.start + low, counted.start + high)
        batch, _ = batch_of(job, own)
        for part in cut_by(np.maximum(each[low:high], 1), most):
            table, _ = within.found(batch.rows(*part))
            start, stop = (int(edges[low + row]) for row in part)
            if table.num_rows != stop - start:
                raise WrongAnswer(f"{stop - start} rows were counted, and {table.num_rows} found")
            skipped = max(0, chunk.start - start)
            table = table.slice(skipped, min(stop, chunk.stop) - start - skipped)
            yield Chunk(own.start + part[0], own.start + part[1]), table
