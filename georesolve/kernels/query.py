"""What a search is asked and what it finds: the contract between `nearest` and every search.

Every search module, for a CPU or a GPU, has ``search(index, degrees, query, measure)``. It gives a
`Found`, or with `measure` an `Answer` of the same shape.
"""

from typing import NamedTuple

from georesolve.kernels.devices import Array

MAX_K = 64


class StepsSpent(RuntimeError):
    """A search would take more than the `most_steps` that it was given."""


class Degrees(NamedTuple):
    """Observations as they came: float64 arrays of shape (n,), checked by `nearest`.

    Searches make unit vectors of them where they need them.
    """

    lat_deg: Array
    lon_deg: Array


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


class Found(NamedTuple):
    """The k nearest references of every observation, nearest first, equals by ascending row.

    Attributes
    ----------
    reference : int64 array, shape (n_observations, k)
        Row of the reference; -1 where there is none.
    key : float64 array, shape (n_observations, k)
        What answers are ordered by before the row: the squared chord of the unit vectors; infinity
        where there is none.
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
        Great-circle metres on a sphere of radius 6 371 008.8 m; NaN where there is none.
    """

    reference: Array
    distance_m: Array
