"""What a search is asked and what it finds: the contract between callers and every search.

Every search module, for a CPU or a GPU, has ``search(index, degrees, query, measure)``. It gives a
`Found`, or with `measure` an `Answer` of the same shape. The modules of `within` have
``count(index, degrees, within, by)`` and ``pairs(index, degrees, within, by)``.
"""

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from georesolve.kernels.devices import Array

MAX_K = 64
Earth = Literal["sphere", "wgs84"]
EARTHS: tuple[Earth, ...] = get_args(Earth)
"""What distances are measured on: a sphere, or the ellipsoid of WGS 84."""
LATITUDE_DEG = (-90.0, 90.0)
LONGITUDE_DEG = (-180.0, 360.0)


class StepsSpent(RuntimeError):
    """A search would take more than the `most_steps` that it was given."""


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
    """What is asked of a search.

    Attributes
    ----------
    k : int
        How many of the nearest references are wanted, 1 to `MAX_K`.
    exclude_self : bool
        Whether observation i never matches reference ``first_row + i``: both sets are the same.
    first_row : int
        Reference row of the first observation, for `exclude_self` on a part of a larger set. It is
        negative where the references are a piece that starts behind the observations.
    most_steps : int, optional
        Work that the search may take on one core, `StepsSpent` beyond it; on a CPU alone.
    """

    k: int = 1
    exclude_self: bool = False
    first_row: int = 0
    most_steps: int | None = None


class Within(NamedTuple):
    """What is asked of a search for all references within a distance.

    Attributes
    ----------
    chord2 : float64 array of numpy, shape (1,) or (n_observations,)
        Greatest squared chord that counts, one for all or one each, from `chord2_within`. On the
        ellipsoid they are metres.
    exclude_self : bool
        Whether row ``first_row + i`` is left out of observation i.
    once : bool
        Whether only rows greater than ``first_row + i`` count for observation i.
    first_row : int
        As in a `Query`.
    """

    chord2: np.ndarray
    exclude_self: bool = False
    once: bool = False
    first_row: int = 0


class Found(NamedTuple):
    """The k nearest references of every observation, nearest first, equals by ascending row.

    Attributes
    ----------
    reference : int64 array, shape (n_observations, k)
        Row of the reference; -1 where there is none.
    key : float64 array, shape (n_observations, k)
        What answers are ordered by before the row: the squared chord of the unit vectors, or on the
        ellipsoid metres; infinity where there is none.
    """

    reference: Array
    key: Array


class Answer(NamedTuple):
    """The nearest references of every observation, on the device of the observations.

    Attributes
    ----------
    reference : int64 array, shape (n_observations,) or (n_observations, k) for k > 1
        Row of the nearest reference, the lowest of equally near ones; -1 where there is none.
    distance_m : float64 array, of the same shape
        Great-circle metres on a sphere of radius 6 371 008.8 m, or metres of geodesics on the
        ellipsoid; NaN where there is none.
    """

    reference: Array
    distance_m: Array


class Pairs(NamedTuple):
    """All references within a distance of every observation, on the device of the observations.

    Attributes
    ----------
    starts : int64 array, shape (n_observations + 1,)
        The pairs of observation i stand at ``starts[i]:starts[i + 1]``.
    reference : int64 array, shape (n_pairs,)
        Row of the reference; of an observation nearest first, equal ones by row.
    distance_m : float64 array, shape (n_pairs,)
        Metres, as in an `Answer`.
    """

    starts: Array
    reference: Array
    distance_m: Array
