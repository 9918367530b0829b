"""The nearest references of observations, whatever the device of a worker can hold at a time.

A sample of every answer is searched again; a device that is lost or wrong ends its process.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import dask

from georesolve import kernels
from georesolve.workers.datasets import Dataset
from georesolve.workers.filters import Narrowed
from georesolve.workers.frames import backend
from georesolve.workers.jobs import Job, MatchOptions
from georesolve.workers.plan import way_of
from georesolve.workers.references import pieces, resident_index, take_piece
from georesolve.workers.refusals import InvalidInput

logger = logging.getLogger(__name__)

_VERIFIED = 8
"""Observations of a chunk that are searched again, or fewer where there are many references."""
_VERIFIED_PAIRS = 2**22
"""Pairs that are compared for it at most, if it is not a single observation: 30 ms of a core."""


_REHEARSING = "georesolve.rehearsing"


class WrongAnswer(RuntimeError):
    """Two algorithms, which must agree to the last bit, did not."""


def search(
    references: Dataset,
    lat_deg: Any,
    lon_deg: Any,
    options: MatchOptions,
    first_row: int = 0,
    most_steps: int | None = None,
    narrowed: Narrowed | None = None,
) -> kernels.Answer:
    """The nearest references of observations, as `kernels.nearest` finds them, on their device.

    References of which a device does not hold all are searched piece by piece: it does not show in
    the answer. MemoryError says that memory does not suffice for so many observations, StepsSpent
    that a piece took more than `most_steps`.
    """
    left, earth = pieces(references), options.earth
    is_one, how = len(left) == 1, earth if narrowed is None else narrowed.how
    if narrowed is not None and narrowed.filters.by_time and not is_one:
        raise InvalidInput(
            f"references: {references.rows} are more than a worker searches at once, as "
            "rank_by='time' needs: give workers more memory, or split the references"
        )
    found: kernels.Found | None = None
    while left:
        start, stop = take_piece(references, left, how)
        index = resident_index(references, (start, stop), earth=earth, narrowed=narrowed)
        asked: dict[str, Any] = {
            "k": options.k,
            "exclude_self": options.exclude_self,
            "first_row": first_row - start,
            "algorithm": options.algorithm,
            "most_steps": most_steps,
            "filters": narrowed and narrowed.on(index),
        }
        if is_one:
            limit = options.max_distance_m
            return kernels.nearest(index, lat_deg, lon_deg, max_distance_m=limit, **asked)
        part = kernels.find(index, lat_deg, lon_deg, **asked)
        # Merged as they come: no more than two answers are held.
        found = kernels.merge([(part, start)] if found is None else [(found, 0), (part, start)])
    assert found is not None, "there is a piece, if an empty one"
    return kernels.measure(found, max_distance_m=options.max_distance_m, earth=options.earth)


def verify(
    references: Dataset,
    lat_deg: Any,
    lon_deg: Any,
    options: MatchOptions,
    first_row: int,
    answer: kernels.Answer,
    narrowed: Narrowed | None = None,
) -> int:
    """Search some observations from the middle again, by another algorithm; returns how many.

    Memory that has lost a bit raises no error: it answers, and WrongAnswer is raised here.
    References in pieces are not verified: all would have to be read once more.
    """
    if len(lat_deg) == 0 or len(pieces(references)) > 1:
        return 0
    middle, took, other = another_search(len(lat_deg), references, options)
    n = int(middle.stop - middle.start)
    narrowed = narrowed and narrowed.rows(middle.start, middle.stop)
    asked = lat_deg[middle], lon_deg[middle], other, first_row + int(middle.start)
    again = search(references, *asked, narrowed=narrowed)
    for name, given, found in zip(answer._fields, answer, again, strict=True):
        own, others = (backend().to_host(array) for array in (given[middle], found))
        if own.tobytes() != others.tobytes():
            raise WrongAnswer(
                f"of observation {first_row + middle.start} and the {n - 1} after it {name} is "
                f"{own.tolist()} by {took!r} and {others.tolist()} by "
                f"{other.algorithm!r}"
            )
    return n


def another_search(
    n_observations: int, references: Dataset, options: MatchOptions
) -> tuple[slice, str, MatchOptions]:
    """Observations that are searched again, which search they took, and what takes another one."""
    n = min(n_observations, _VERIFIED, max(1, _VERIFIED_PAIRS // max(1, references.as_points)))
    start = (n_observations - n) // 2
    took = way_of(n_observations, references, options, backend().device).search
    other = replace(options, algorithm="tree" if took == "brute" else "brute")
    return slice(start, start + n), took, other


def load(job: Job, narrowed: Narrowed | None = None) -> None:
    """Have the reference set of a job ready, or as much of it as is searched at a time."""
    references, earth = job.references, job.options.earth
    piece = take_piece(references, pieces(references), narrowed.how if narrowed else earth)
    resident_index(references, piece, job.indexes, earth=earth, narrowed=narrowed)


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
