"""`nearest`: checks, looks the algorithm and the device up in a table, calls."""

import math
from typing import Literal, NamedTuple, get_args

from kernels.devices import Array, Step, coordinate_pair, implementation
from kernels.index import ReferenceIndex

Algorithm = Literal["auto", "brute"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
_SEARCH: dict[Algorithm, Step] = {"auto": "brute", "brute": "brute"}


class Answer(NamedTuple):
    """The nearest reference of every observation, on the device of the observations.

    Attributes
    ----------
    reference : int64 array, shape (n_observations,)
        Row of the nearest reference, the lowest row of equally near ones; -1 where there is none.
    distance_m : float64 array, shape (n_observations,)
        Great-circle distance in metres on a sphere of radius 6 371 008.8 m; NaN where there is none.
    """

    reference: Array
    distance_m: Array


def nearest(
    index: ReferenceIndex,
    lat_deg: Array,
    lon_deg: Array,
    *,
    max_distance_m: float | None = None,
    algorithm: Algorithm = "auto",
) -> Answer:
    """Find the nearest reference of every observation, exactly.

    The nearest is the reference with the smallest float64 squared chord between unit vectors;
    among equals it is the one of the lowest row. The same input gives the same bits on a CPU and
    on a GPU, with any algorithm and any split of the observations.

    Parameters
    ----------
    index : ReferenceIndex
        References, from `kernels.build_index`.
    lat_deg, lon_deg : float64 array of numpy or CuPy, shape (n_observations,)
        Degrees, WGS 84, on the device of the index. Rows that are not valid match nothing.
    max_distance_m : float, optional
        References farther than this many metres do not match; a distance equal to it does.
    algorithm : {"auto", "brute"}
        How to search. The answer is the same.

    Raises
    ------
    TypeError
        When the coordinates are not arrays with real numbers on the device of the index.
    ValueError
        When shapes differ, `max_distance_m` is negative or NaN, or the algorithm does not exist.
    """
    lat_deg, lon_deg, device = coordinate_pair(lat_deg, lon_deg)
    if device != index.device:
        raise TypeError(f"observations are on {device} but the index on {index.device}: move one")
    if algorithm not in _SEARCH:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if max_distance_m is not None and not max_distance_m >= 0.0:
        raise ValueError(f"max_distance_m must be 0 or more, got {max_distance_m}")

    observations = implementation(device, "coordinates").unit_vectors(lat_deg, lon_deg)
    reference, distance_m = implementation(device, _SEARCH[algorithm]).search(index, observations)
    if max_distance_m is not None:
        too_far = distance_m > max_distance_m
        reference[too_far] = -1
        distance_m[too_far] = math.nan
    return Answer(reference, distance_m)
