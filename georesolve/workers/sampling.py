"""How many references an observation is compared with, by a sample: a search takes as long."""

from typing import Any

import numpy as np

from georesolve import kernels
from georesolve.kernels.comparisons_cpu import comparisons
from georesolve.workers.datasets import ROW_GROUP, Dataset, read_rows
from georesolve.workers.frames import backend
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.plan import rows_at_once, usually_compared
from georesolve.workers.references import index_on_cpu

_GROUPS, _GROUPS_ELSEWHERE = 8, 2
"""Row groups that are read of a set at most: two cores index 2^19 references in 50 ms."""
_SAMPLE = 64


def compared(observations: Dataset, references: Dataset, options: MatchOptions) -> float:
    """What `rows_a_second` wants to know of two sets, by some row groups of each."""
    if options.algorithm == "brute" or not observations.rows or not references.rows:
        return 0.0
    index = kernels.build_index(*_degrees(references))
    return _compared(index, references.rows, options, *_degrees(observations))


def rows_to_take(
    index: kernels.ReferenceIndex,
    references: Dataset,
    lat_deg: Any,
    lon_deg: Any,
    options: MatchOptions,
) -> int:
    """So many of the first observations of a chunk, of those on its device, a worker takes."""
    n, n_references = len(lat_deg), references.rows
    if rows_at_once(n, n_references, options, index.device, n_references) == n:
        # Not even brute force takes long.
        return n
    step, to_host = max(1, n // _SAMPLE), backend().to_host
    sample = (to_host(degrees[::step]) for degrees in (lat_deg, lon_deg))
    seen = _compared(index_on_cpu(references, index), n_references, options, *sample)
    return rows_at_once(n, n_references, options, index.device, seen)


def _compared(
    index: kernels.ReferenceIndex,
    n_references: int,
    options: MatchOptions,
    lat_deg: np.ndarray,
    lon_deg: np.ndarray,
) -> float:
    """By an index of some of the references: what is more than usual grows with their number."""
    mean = comparisons(index, lat_deg, lon_deg, options.k + options.exclude_self)
    more = max(0.0, mean - usually_compared(options.k))
    return mean + more * (n_references / index.n_references - 1)


def _degrees(dataset: Dataset) -> list[np.ndarray]:
    """Coordinates of some row groups, spread over a set."""
    starts = range(0, dataset.rows, ROW_GROUP)
    most = _GROUPS_ELSEWHERE if dataset.lies_elsewhere else _GROUPS
    columns = [dataset.lat, dataset.lon]
    tables = [
        read_rows(dataset.file, start, min(start + ROW_GROUP, dataset.rows), columns)
        for start in starts[:: -(-len(starts) // most)]
    ]
    return [np.concatenate([table[name].to_numpy() for table in tables]) for name in columns]
