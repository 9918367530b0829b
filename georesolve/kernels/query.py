"""What a search is asked and what it finds: the contract between callers and every search.

Every search module, for a CPU or a GPU, has ``search(index, degrees, query, measure)``. It gives a
`Found`, or with `measure` an `Answer` of the same shape. The modules of `within` have
``count(index, degrees, within, by)`` and ``pairs(index, degrees, within, by)``.
"""

from typing import Any, NamedTuple

import numpy as np

from georesolve.kernels.devices import Array

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius of the Earth (2a + b) / 3 of the GRS 80 ellipsoid, in metres (Moritz 2000)."""
LATITUDE_DEG = (-90.0, 90.0)
LONGITUDE_DEG = (-180.0, 360.0)


class StepsSpent(RuntimeError):
    """A search would take more than the `most_steps` that it was given."""


def steps_left(steps: int, taken: Any, most: int | None) -> int:
    """What is left of some steps after those that each thread has taken."""
    left = steps - int(taken.max())
    if left < 0:
        raise StepsSpent(f"the search takes more than {most} steps")
    return left


class Degrees(NamedTuple):
    """Observations as they came: float64 arrays of shape (n,), checked by `nearest`.

    Searches make unit vectors of them where they need them.
    """

    lat_deg: Array
    lon_deg: Array


def is_valid(lat_deg: Any, lon_deg: Any) -> Any:
    """Whether coordinates lie on the globe: latitude -90 to 90, longitude -180 to 360, both finite.

    One source for a pair of numbers in compiled code and for whole arrays of numpy or CuPy: NaN
    and the infinities fail the comparisons.
    """
    return (
        (lat_deg >= LATITUDE_DEG[0])
        & (lat_deg <= LATITUDE_DEG[1])
        & (lon_deg >= LONGITUDE_DEG[0])
        & (lon_deg <= LONGITUDE_DEG[1])
    )


class Query(NamedTuple):
    """What is asked of a search: the `k` nearest, 1 to `MAX_K`.

    With `exclude_self` observation i never matches reference ``first_row + i``: both sets are the
    same. `first_row` is negative where the references are a piece that starts behind the
    observations. `most_steps` is the work that a search on a CPU may take on one core, `StepsSpent`
    beyond it.
    """

    k: int = 1
    exclude_self: bool = False
    first_row: int = 0
    most_steps: int | None = None


class Within(NamedTuple):
    """What is asked of a search for all references within a distance.

    `chord2`, float64 of shape (1,) or (n_observations,), is the greatest squared chord that counts,
    from `chord2_within`; on the ellipsoid it is metres. Row ``first_row + i`` is left out of
    observation i with `exclude_self`; with `once` only greater rows count.
    """

    chord2: np.ndarray
    exclude_self: bool = False
    once: bool = False
    first_row: int = 0


class Found(NamedTuple):
    """The k nearest references of every observation, nearest first, equals by ascending row.

    Both of shape (n_observations, k): rows, int64, -1 where there is none; and keys, float64, by
    which answers are ordered before the row: squared chords of the unit vectors, or on the
    ellipsoid metres; infinity where there is none.
    """

    reference: Array
    key: Array


class Answer(NamedTuple):
    """The nearest references of every observation, on the device of the observations.

    Both of shape (n_observations,), or (n_observations, k) for k > 1: rows, int64, the lowest of
    equally near ones, -1 where there is none; and metres, float64, on a sphere of radius
    6 371 008.8 m or of geodesics on the ellipsoid, NaN where there is none.
    """

    reference: Array
    distance_m: Array


class Pairs(NamedTuple):
    """All references within a distance of every observation, on the device of the observations.

    Those of observation i stand at ``starts[i]:starts[i + 1]``, nearest first, equals by row.
    """

    starts: Array
    reference: Array
    distance_m: Array
