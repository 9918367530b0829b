"""How fast workers search, by order of magnitude, and what follows for a request.

It sets the size of chunks, and whether a request is answered at hand or as a job; never an answer.
"""

from georesolve.io.datasets import ROW_GROUP, PointSet
from georesolve.kernels.devices import Device
from georesolve.query import MatchOptions

# Of one core and of one GPU.
_TREE_ROWS_A_SECOND: dict[Device, float] = {"cpu": 8e6, "cuda": 1e8}
_BRUTE_PAIRS_A_SECOND: dict[Device, float] = {"cpu": 2.5e9, "cuda": 1e12}
_LISTED = 2.5
"""Times as long as for k = 1 a comparison takes where a list is kept."""
_CROWDED = 3.0
"""Times as long as of spread points a walk takes at most, comparisons beyond its own apart; and
by group and in time."""
_LONG_SECONDS = 4.0
"""How long a search takes at least that is worth the look at a sample."""
_SMALL_SECONDS = 0.05
QUICKLY_INDEXED = 2**20
"""References that two cores read and index in a tenth of a second: a request waits for no more."""


def quickly_indexed(options: MatchOptions) -> int:
    """References for whose index a request waits: by group and in time fewer, as it takes longer.

    Measured on two cores: 2^20 took three times as long by group, and ten times in time.
    """
    return QUICKLY_INDEXED // (1 if options.filters is None else 8)


def most_at_hand(references: PointSet, options: MatchOptions) -> int:
    """Observations up to which the process that is asked answers by itself.

    Their rows are one row group at most, and the search takes an estimated 50 ms of one core at
    most: no longer than a graph of tasks does.
    """
    compared = shapes_compared(references, options.k)
    rate = rows_a_second(references.as_points, options, "cpu", compared)
    return min(ROW_GROUP // options.k, int(_SMALL_SECONDS * rate))


def takes_long(
    n_observations: int, n_references: int, options: MatchOptions, device: Device
) -> bool:
    """Whether a search may take long: as brute force does, which no search takes longer than."""
    rate = rows_a_second(n_references, options, device, n_references)
    return n_observations > _LONG_SECONDS * rate


def rows_a_second(
    n_references: int, options: MatchOptions, device: Device, compared: float = 0.0
) -> float:
    """Order of magnitude of the observations that a worker resolves in a second.

    `compared` tells how many references a walk compares each with, by
    `engine.sampling`; without a sample points are taken to be spread.
    """
    k = options.k
    pair = (1.0 if k == 1 else _LISTED) / _BRUTE_PAIRS_A_SECOND[device]
    if options.algorithm == "brute":
        return 1 / ((k - 1) / _TREE_ROWS_A_SECOND[device] + max(1, n_references) * pair)
    usual = usually_compared(k)
    if options.filters is not None:
        compared = max(compared, _CROWDED * usual)
    crowd = min(max(1.0, compared / usual), _CROWDED)
    return 1 / (crowd * k / _TREE_ROWS_A_SECOND[device] + max(0.0, compared - usual) * pair)


def shapes_compared(references: PointSet, k: int) -> float:
    """What `rows_a_second` wants to know of lines and polygons; 0 of points.

    Buildings of five arcs took twice as long as points, and coasts of 40 000 ten times.
    """
    if references.outlines is None:
        return 0.0
    return _CROWDED * usually_compared(k) + references.as_points / references.rows / 100


def usually_compared(k: int) -> int:
    """References that a walk compares an observation with where points are spread.

    Measured: of 2^10 to 2^17 references half as many to twice as many.
    """
    return 30 + 3 * k
