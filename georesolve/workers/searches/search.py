"""What a job asks of its references, whatever the device of a worker can hold at a time.

A sample of every answer is searched again; a device that is lost or wrong ends its process.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import dask
import pyarrow as pa

from georesolve.workers.jobs import Job
from georesolve.workers.plan import Chunk, way_of
from georesolve.workers.searches.filters import Narrowed, check_filters
from georesolve.workers.searches.questions import MADE_PAIRS, Batch, Nearest, Within, WithinShapes
from georesolve.workers.searches.references import (
    indexes,
    pieces,
    resident_column,
    resident_keys,
    shape_index,
    whole_index,
)
from georesolve.workers.sets.datasets import read_rows
from georesolve.workers.sets.evidence import Evidence
from georesolve.workers.sets.frames import backend, read_points

logger = logging.getLogger(__name__)

_VERIFIED = 8
"""Observations of a chunk that are searched again, or fewer where there are many references."""
_VERIFIED_PAIRS = 2**22
"""Pairs that are compared for it at most, if it is not a single observation: 30 ms of a core."""
_VERIFIED_OF_SHAPES = 2**25
"""The same of all points and what a shape is of: all points look for some shapes again."""
_REHEARSING = "georesolve.rehearsing"


class WrongAnswer(RuntimeError):
    """Two algorithms, which must agree to the last bit, did not."""


def batch_of(job: Job, chunk: Chunk) -> tuple[Batch, Evidence | None]:
    """Some observations of a job, and what they say of files that nobody has looked at before."""
    points, names = job.observations, job.options.asked_of_observations
    degrees, evidence = read_points(points, *chunk)
    keys = resident_keys(job.references, job.options.filters)
    columns = read_rows(points.file, *chunk, names)
    return Batch.of(*degrees, chunk.start, columns, job.options, keys), evidence


def question_of(
    job: Job, chunk: Chunk, narrowed: Narrowed | None = None, most_steps: int | None = None
) -> Nearest | Within:
    """What answers a job for the rows of a chunk; its references are made ready on first need."""
    references, options = job.references, job.options
    if narrowed is None and (keys := resident_keys(references, options.filters)) is not None:
        # What none of the observations may match, by which the index is known.
        narrowed = check_filters(job.observations, references, options)._replace(keys=keys)
    if not options.of_pairs:
        if narrowed is not None and narrowed.filters.by_time:
            whole_index(job, "rank_by='time' needs", narrowed)
        own = pieces(references)
        next(indexes(job, own, narrowed))
        asked = partial(indexes, job, own), options, references.valid_rows, backend().to_kept
        return Nearest(*asked, len(own), most_steps)

    def column(name: str) -> pa.ChunkedArray:
        return resident_column(references, name).values

    def points() -> Iterator[tuple[Any, Any]]:
        for one in Chunk(0, references.rows).pieces(MADE_PAIRS):
            yield read_points(references, *one)[0]

    known = options, references.valid_rows, column
    if job.observations.outlines is not None:
        index = shape_index(job.observations, *chunk)
        return WithinShapes(*known, index=index, points=points, first_row=chunk.start)
    copies = options.question == "within"
    index = whole_index(job, "pairs and summaries need", narrowed, copies=copies)
    return Within(index, *known, most_steps)


def verify(job: Job, question: Nearest | Within, batch: Batch, rows: pa.Table) -> int:
    """Search some observations from the middle again, by another algorithm; returns how many.

    Memory that has lost a bit raises no error: it answers, and WrongAnswer is raised here.
    References in pieces are not verified: all would have to be read once more.
    """
    references, options, size = job.references, job.options, len(batch.lat_deg)
    if size == 0 or len(pieces(references)) > 1:
        return 0
    n = min(size, _VERIFIED, max(1, _VERIFIED_PAIRS // max(1, references.as_points)))
    start = (size - n) // 2
    own = batch.rows(start, start + n)
    took = way_of(size, references, options, backend().device).search
    other = replace(options, algorithm="tree" if took == "brute" else "brute")
    if isinstance(question, WithinShapes):
        each = job.observations.as_points // job.observations.rows
        if each * references.rows > _VERIFIED_OF_SHAPES:
            return 0
        took, other = "shapes", replace(options, algorithm="brute")
        question = question_of(job, Chunk(own.first_row, own.first_row + n))
    again, _ = replace(question, options=other).found(own)
    if not again.equals(given := rows.slice(start * options.ranks, again.num_rows)):
        raise WrongAnswer(
            f"of observation {own.first_row} and the {n - 1} after it the rows are "
            f"{given.to_pylist()} by {took!r} and {again.to_pylist()} by {other.algorithm!r}"
        )
    return n


@contextmanager
def device_in_use() -> Iterator[None]:
    """End the process when an error comes from a device that is lost, or that is wrong.

    After an illegal access every further call to the device fails, or worse, answers. Dask's nanny
    starts a new process, which has to pass its check.
    """
    try:
        yield
    except Exception as error:
        is_wrong = isinstance(error, WrongAnswer)
        if not dask.config.get(_REHEARSING, False) and (is_wrong or not backend().is_alive()):
            why = f"is wrong: {error}" if is_wrong else "is lost"
            logger.critical("the device %s: the worker ends, another takes its place", why)
            logging.shutdown()
            # Not sys.exit: what runs at exit would call the device.
            os._exit(1)
        raise


rehearsing = partial(dask.config.set, {_REHEARSING: True})
"""Raises for a while what would end the process: there is no work in hand to be tried again."""
