"""The nearest references of observations, whatever the device of a worker can hold at a time."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import kernels
from workers.datasets import Dataset
from workers.frames import backend
from workers.jobs import MatchOptions
from workers.references import pieces, resident_column, resident_index

logger = logging.getLogger(__name__)


def search(
    references: Dataset, lat_deg: Any, lon_deg: Any, options: MatchOptions, first_row: int = 0
) -> kernels.Answer:
    """The nearest references of observations, as `kernels.nearest` finds them, on their device.

    References of which a device does not hold all are searched piece by piece: it does not show in
    the answer.

    Parameters
    ----------
    lat_deg, lon_deg : float64 array of numpy or CuPy, shape (n,)
        The observations, on the device of the worker.
    first_row
        Row of the first observation, for ``exclude_self``.

    Raises
    ------
    MemoryError
        When memory does not suffice for so many observations.
    """
    ranges = pieces(references)
    if len(ranges) == 1:
        return kernels.nearest(
            resident_index(references, ranges[0]),
            lat_deg,
            lon_deg,
            k=options.k,
            max_distance_m=options.max_distance_m,
            exclude_self=options.exclude_self,
            first_row=first_row,
            algorithm=options.algorithm,
        )
    found: kernels.Found | None = None
    for start, stop in ranges:
        index = resident_index(references, (start, stop))
        part = kernels.find(
            index,
            lat_deg,
            lon_deg,
            k=options.k,
            exclude_self=options.exclude_self,
            first_row=first_row - start,
            algorithm=options.algorithm,
        )
        # Merged as they come: no more than two answers are held.
        found = kernels.merge([(part, start)] if found is None else [(found, 0), (part, start)])
    assert found is not None, "there is a piece, if an empty one"
    return _measure(references, found, lat_deg, lon_deg, options)


def _measure(
    references: Dataset, found: kernels.Found, lat_deg: Any, lon_deg: Any, options: MatchOptions
) -> kernels.Answer:
    """Distances to references whose pieces are not all there: from those that were found alone."""
    rows = backend().to_host(found.reference).reshape(-1)
    columns = (resident_column(references, name) for name in (references.lat, references.lon))
    degrees = [
        backend().to_device(column.take(np.maximum(rows, 0)).to_numpy()) for column in columns
    ]
    numbered = np.where(rows < 0, -1, np.arange(rows.size)).reshape(found.reference.shape)
    answer = kernels.measure(
        kernels.Found(backend().to_device(numbered), found.chord2),
        lat_deg,
        lon_deg,
        *degrees,
        max_distance_m=options.max_distance_m,
    )
    reference = found.reference.reshape(answer.reference.shape)
    reference[answer.reference < 0] = -1
    return kernels.Answer(reference, answer.distance_m)


def load(references: Dataset) -> None:
    """Have a reference set ready, or as much of it as is searched at a time."""
    resident_index(references, pieces(references)[0])


@contextmanager
def device_in_use() -> Iterator[None]:
    """End the process when an error comes from a device that is lost.

    After an illegal access or a hardware fault every further call to the device fails, or worse,
    answers. Only a new process has a new context; Dask's nanny starts one, which has to pass its
    check, and what this one had in hand is tried again.
    """
    try:
        yield
    except Exception:
        if not backend().is_alive():
            logger.critical("the device is lost: the worker ends, another takes its place")
            logging.shutdown()
            # Not sys.exit: what runs at exit would call the device.
            os._exit(1)
        raise
