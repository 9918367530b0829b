"""How many references an observation is compared with, by a sample: a search takes as long."""

import numpy as np

from georesolve import kernels
from georesolve.kernels.comparisons_cpu import comparisons
from georesolve.workers.datasets import ROW_GROUP, Dataset, read_rows
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.rates import usually_compared

_GROUPS, _GROUPS_ELSEWHERE = 4, 2
"""Row groups that are read of a set at most: two cores index 2^18 references in 25 ms."""


def load() -> None:
    """Load what a sample takes: its machine code, for some tenths of a second."""
    comparisons(kernels.build_index(np.zeros(2), np.zeros(2)), np.zeros(1), np.zeros(1))


def compared(observations: Dataset, references: Dataset, options: MatchOptions) -> float:
    """What `rows_a_second` wants to know of two sets, by some row groups of each.

    What is more than usual grows with the number of references, of which the index holds some.
    """
    if options.algorithm == "brute" or not observations.rows or not references.rows:
        return 0.0
    index = kernels.build_index(*_degrees(references))
    lat_deg, lon_deg = _degrees(observations)
    mean = comparisons(index, lat_deg, lon_deg, options.k + options.exclude_self)
    more = max(0.0, mean - usually_compared(options.k))
    return mean + more * (references.rows / index.n_references - 1)


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
