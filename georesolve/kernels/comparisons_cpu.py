"""How many references a walk compares an observation with: few where points are spread.

Of references that are equally far an observation is compared with each.
"""

import numpy as np

from georesolve.kernels.boxes_cpu import NO_LIMIT
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.singles_cpu import search_singles

_STEPS = 8
"""Steps that a walk by itself takes for a comparison."""
_SAMPLE, _SMALLEST_SAMPLE = 64, 8
"""Observations that are looked at, fewer where there are many references."""
_SAMPLE_STEPS = 1 << 26
"""What the walks of more than the fewest may take: 40 ms."""
_LEAST_STEPS = 1 << 14
"""Steps that a walk of a sample has at least: more than those of points that are spread take."""
_SHARE = 1 / 16
"""Of the tree; what opens more counts as compared with all, as brute force takes it over."""


def comparisons(
    index: ReferenceIndex, lat_deg: np.ndarray, lon_deg: np.ndarray, k: int = 1
) -> float:
    """Comparisons that an observation takes on average, by the walks of a sample on the CPU."""
    standing = index.tree.rows.size
    most = max(_LEAST_STEPS, int(_SHARE * _STEPS * standing))
    n = min(lat_deg.size, max(_SMALLEST_SAMPLE, min(_SAMPLE, _SAMPLE_STEPS // most)))
    at = np.linspace(0, lat_deg.size - 1, n).astype(np.int64)
    vectors = unit_vectors(lat_deg[at], lon_deg[at])
    order = np.flatnonzero(~np.isnan(vectors[:, 0]))
    if not standing or not order.size:
        return 0.0
    limits, tally = np.array([most, NO_LIMIT]), np.empty((1, 2), np.int64)
    found = np.empty((n, k), np.int64), np.empty((n, k))
    at_all = (index.tree, vectors, order, order.size, limits, tally)
    search_singles(0, 1, *at_all, *found, False, 0)
    steps, hard = tally[0].tolist()
    return float(min(standing, (steps / _STEPS + hard * standing) / order.size))
