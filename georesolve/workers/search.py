"""What a job asks of its references, whatever the device of a worker can hold at a time.

A sample of every answer is searched again; a device that is lost or wrong ends its process.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dask
import pyarrow as pa

from georesolve import kernels
from georesolve.kernels.query import is_valid
from georesolve.workers.datasets import read_rows
from georesolve.workers.evidence import Evidence
from georesolve.workers.filters import Narrowed, check_filters
from georesolve.workers.frames import backend, read_points
from georesolve.workers.jobs import Job, MatchOptions
from georesolve.workers.matches import answered, matches
from georesolve.workers.plan import Chunk, way_of
from georesolve.workers.references import (
    pieces,
    resident_column,
    resident_index,
    resident_keys,
    shape_index,
    take_piece,
    whole_index,
)
from georesolve.workers.refusals import InvalidInput
from georesolve.workers.within import MADE_PAIRS, Batch, Within, WithinShapes

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


@dataclass(frozen=True)
class Nearest:
    """The nearest references of the observations of a job.

    References of which a device does not hold all are searched piece by piece: it does not show in
    the answer. MemoryError says that memory does not suffice for so many observations, StepsSpent
    that a piece took more than `most_steps`.
    """

    job: Job
    options: MatchOptions
    most_steps: int | None = None

    def answer(self, batch: Batch) -> kernels.Answer:
        """What is found for some observations, as `kernels.nearest` has it, on their device."""
        lat_deg, lon_deg, first_row, _, narrowed = batch
        references, options = self.job.references, self.options
        left = pieces(references)
        is_one, limit = len(left) == 1, options.max_distance_m
        if narrowed is not None and narrowed.filters.by_time and not is_one:
            raise InvalidInput(
                f"references: {references.rows} are more than a worker searches at once, as "
                "rank_by='time' needs: give workers more memory, or split the references"
            )
        found: kernels.Found | None = None
        while left:
            start, stop = take_piece(self.job, left, narrowed)
            index = resident_index(self.job, (start, stop), narrowed)
            asked: dict[str, Any] = {
                "k": options.k,
                "exclude_self": options.exclude_self,
                "first_row": first_row - start,
                "algorithm": options.algorithm,
                "most_steps": self.most_steps,
                "filters": narrowed and narrowed.on(index),
            }
            if is_one:
                return kernels.nearest(index, lat_deg, lon_deg, max_distance_m=limit, **asked)
            part = kernels.find(index, lat_deg, lon_deg, **asked)
            # Merged as they come: no more than two answers are held.
            found = kernels.merge([(part, start)] if found is None else [(found, 0), (part, start)])
        assert found is not None, "there is a piece, if an empty one"
        return kernels.measure(found, max_distance_m=limit, earth=options.earth)

    def found(self, batch: Batch) -> tuple[pa.Table, dict[str, int]]:
        """The rows of a result for some observations, and how many there are by status."""
        lat_deg, lon_deg, first_row, _, narrowed = batch
        valid, n_valid = is_valid(lat_deg, lon_deg), self.job.references.valid_rows
        found = answered(self.answer(batch), valid, n_valid, self.options)
        to_host, chunk = backend().to_kept, Chunk(first_row, first_row + lat_deg.size)
        on_host = {name: to_host(column) for name, column in found.items()}
        return matches(self.options.k, chunk, on_host, narrowed)


def batch_of(job: Job, chunk: Chunk) -> tuple[Batch, Evidence | None]:
    """Some observations of a job, and what they say of files that nobody has looked at before."""
    points, name = job.observations, job.options.distance_m
    degrees, evidence = read_points(points, *chunk)
    filters, keys = job.options.filters, resident_keys(job.references, job.options.filters)
    names = [name] if isinstance(name, str) else []
    names = list(dict.fromkeys([*names, *(filters.of_observations if filters else ())]))
    columns = read_rows(points.file, *chunk, names) if names else pa.table({})
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
        resident_index(job, take_piece(job, pieces(references), narrowed), narrowed)
        return Nearest(job, options, most_steps)

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
    index = whole_index(job, "pairs and summaries", narrowed, copies=copies)
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


def rehearsing() -> AbstractContextManager[None]:
    """Raise for a while what would end the process: there is no work in hand to be tried again."""
    rehearsing: AbstractContextManager[None] = dask.config.set({_REHEARSING: True})
    return rehearsing
