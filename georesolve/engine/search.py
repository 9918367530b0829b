"""Search of a chunk of observations in references that may exceed the memory of a device.

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

from georesolve.engine.backends import backend, read_points
from georesolve.engine.filter_encoding import Narrowed, check_filters
from georesolve.engine.match_sets import MatchSets
from georesolve.engine.plan import Chunk, way_of
from georesolve.engine.questions import (
    MADE_PAIRS,
    Batch,
    Nearest,
    Within,
    WithinShapes,
)
from georesolve.engine.resident import (
    indexes,
    pieces,
    resident_column,
    resident_keys,
    shape_index,
    whole_index,
)
from georesolve.io.datasets import read_rows
from georesolve.io.evidence import Evidence

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


def batch_of(sets: MatchSets, chunk: Chunk) -> tuple[Batch, Evidence | None]:
    """Observations of a chunk, and the coordinate statistics of files that were not checked yet."""
    points, names = sets.observations, sets.options.asked_of_observations
    degrees, evidence = read_points(points, *chunk)
    keys = resident_keys(sets.references, sets.options.filters)
    columns = read_rows(points.file, *chunk, names)
    return Batch.of(*degrees, chunk.start, columns, sets.options, keys), evidence


def question_of(
    sets: MatchSets, chunk: Chunk, narrowed: Narrowed | None = None, most_steps: int | None = None
) -> Nearest | Within:
    """Search for the rows of a chunk; the references are indexed on first need."""
    references, options = sets.references, sets.options
    if narrowed is None and (keys := resident_keys(references, options.filters)) is not None:
        # What none of the observations may match, by which the index is known.
        narrowed = check_filters(sets.observations, references, options)._replace(keys=keys)
    if not options.of_pairs:
        if narrowed is not None and narrowed.filters.by_time:
            whole_index(sets, "rank_by='time' needs", narrowed)
        own = pieces(references)
        known_index = partial(indexes, references, options, own, folder=sets.indexes)
        next(known_index(narrowed))
        asked = known_index, options, references.valid_rows, backend().to_kept
        return Nearest(*asked, len(own), most_steps)

    def column(name: str) -> pa.ChunkedArray:
        return resident_column(references, name).values

    def points() -> Iterator[tuple[Any, Any]]:
        for one in Chunk(0, references.rows).pieces(MADE_PAIRS):
            yield read_points(references, *one)[0]

    known = options, references.valid_rows, column
    if sets.observations.outlines is not None:
        index = shape_index(sets.observations, *chunk)
        return WithinShapes(*known, index=index, points=points, first_row=chunk.start)
    copies = options.question == "within"
    index = whole_index(sets, "pairs and summaries need", narrowed, copies=copies)
    return Within(index, *known, most_steps)


def verify(sets: MatchSets, question: Nearest | Within, batch: Batch, rows: pa.Table) -> int:
    """Search some observations from the middle again, by another algorithm; returns how many.

    Memory that has lost a bit raises no error: it answers, and WrongAnswer is raised here.
    References in pieces are not verified: all would have to be read once more.
    """
    references, options, size = sets.references, sets.options, len(batch.lat_deg)
    if size == 0 or len(pieces(references)) > 1:
        return 0
    n = min(size, _VERIFIED, max(1, _VERIFIED_PAIRS // max(1, references.as_points)))
    start = (size - n) // 2
    own = batch.rows(start, start + n)
    took = way_of(size, references, options, backend().device).search
    other = replace(options, algorithm="tree" if took == "brute" else "brute")
    if isinstance(question, WithinShapes):
        each = sets.observations.as_points // sets.observations.rows
        if each * references.rows > _VERIFIED_OF_SHAPES:
            return 0
        took, other = "shapes", replace(options, algorithm="brute")
        question = question_of(sets, Chunk(own.first_row, own.first_row + n))
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
