"""`within` and `count_within`: all references within a distance, exactly, or how many they are."""

from numbers import Real
from typing import Any

import numpy as np

from georesolve.kernels.devices import Array, Device, Step, device_of, implementation
from georesolve.kernels.filters import Filters
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.nearest import checked
from georesolve.kernels.query import Pairs, Within
from georesolve.kernels.shapes import ShapeIndex
from georesolve.kernels.ways import way
from georesolve.query import Algorithm


def within(
    index: ReferenceIndex | ShapeIndex,
    lat_deg: Array,
    lon_deg: Array,
    distance_m: float | Array,
    *,
    exclude_self: bool = False,
    once: bool = False,
    first_row: int = 0,
    algorithm: Algorithm = "auto",
    filters: Filters | None = None,
) -> Pairs:
    """Find all references within a distance of every observation, exactly.

    They are those that `nearest` finds with `max_distance_m`, however many: nearest first, equal
    ones by row. The same input gives the same bits on a CPU and on a GPU, with any algorithm and
    any split of the observations. What is not said here is as for `nearest`.

    Parameters
    ----------
    index : ReferenceIndex or ShapeIndex
        From `kernels.build_index` with ``copies=True``, ValueError without; or shapes.
    distance_m : float, or array of numpy or CuPy of shape (n_observations,)
        Metres, one distance for all observations or one each. What is that far is within it.
    once : bool
        Both sets are the same, and each pair counts once: observation i has pairs only with
        references of a row greater than ``first_row + i``.
    """
    query = (exclude_self, once, first_row)
    pairs: Pairs = _search("pairs", index, lat_deg, lon_deg, distance_m, query, algorithm, filters)
    return pairs


def count_within(
    index: ReferenceIndex | ShapeIndex,
    lat_deg: Array,
    lon_deg: Array,
    distance_m: float | Array,
    *,
    exclude_self: bool = False,
    once: bool = False,
    first_row: int = 0,
    algorithm: Algorithm = "auto",
    filters: Filters | None = None,
) -> Array:
    """Count the references within a distance of every observation, without finding them.

    An int64 array of shape (n_observations,), on the device of the observations: as many as
    `within` finds, 0 for an observation that is not valid. Parameters and errors are its own.
    """
    query = (exclude_self, once, first_row)
    return _search("count", index, lat_deg, lon_deg, distance_m, query, algorithm, filters)


def count_near(
    index: ShapeIndex,
    lat_deg: Array,
    lon_deg: Array,
    distance_m: float,
    *,
    algorithm: Algorithm = "auto",
) -> Array:
    """Count the observations within a distance of every shape: int64, shape (n_references,).

    They are those that `within` finds it for, whose parameters and errors are its own.
    """
    query = (False, False, 0)
    return _search("count_by_row", index, lat_deg, lon_deg, distance_m, query, algorithm)


def _search(
    what: str,
    index: ReferenceIndex | ShapeIndex,
    lat_deg: Array,
    lon_deg: Array,
    distance_m: Any,
    query: tuple[bool, bool, int],
    algorithm: Algorithm,
    filters: Filters | None = None,
) -> Any:
    index, degrees, filters, device = checked(index, lat_deg, lon_deg, algorithm, filters)
    n = degrees.lat_deg.size
    distances = _distances(distance_m, n, device)
    if not index.whole:
        raise ValueError(
            "the index leaves out equal references, which no answer of `nearest` can name: build "
            "it with build_index(lat_deg, lon_deg, copies=True)"
        )
    if index.earth == "sphere":
        distances = implementation("cpu", "coordinates").chord2_within(distances)
    asked = Within(distances, *query)
    if isinstance(index, ShapeIndex):
        if asked.exclude_self or asked.once:
            raise ValueError("exclude_self and once are for a set against itself, not for shapes")
        to: Algorithm = "brute" if algorithm == "brute" else "tree"
        return getattr(implementation(device, "shapes"), what)(index, degrees, asked, to)
    if filters is not None:
        search = getattr(implementation(device, "filtered"), what)
        return search(index, degrees, asked, filters, algorithm == "brute")
    chosen = way(device, n, index.n_references, asked, algorithm, earth=index.earth)
    step: Step = "within" if index.earth == "sphere" else "ellipsoid"
    return getattr(implementation(device, step), what)(index, degrees, asked, chosen.search)


def _distances(distance_m: Any, n: int, device: Device) -> np.ndarray:
    """The distances, checked, in the memory of the host."""
    if not getattr(distance_m, "ndim", 0):
        if not isinstance(distance_m, Real | np.ndarray):
            raise TypeError(f"distance_m must be metres or an array of them, got {distance_m!r}")
        distances = np.array([float(distance_m)])
    else:
        if device_of(distance_m) != device:
            raise TypeError(
                f"observations are on {device} but distance_m on {device_of(distance_m)}: move one"
            )
        if distance_m.shape != (n,):
            raise ValueError(
                f"distance_m must be a number or of shape ({n},), as the observations are, got "
                f"shape {distance_m.shape}"
            )
        if distance_m.dtype.kind not in "fiu":
            raise TypeError(f"distance_m must hold real numbers, got dtype {distance_m.dtype}")
        host = distance_m.get() if device == "cuda" else distance_m
        distances = host.astype(np.float64, order="C", copy=False)
    wrong = np.flatnonzero(~(distances >= 0.0))
    if wrong.size:
        where = f" in row {wrong[0]}" if getattr(distance_m, "ndim", 0) else ""
        raise ValueError(f"distance_m must be 0 or more, got {distances[wrong[0]]}{where}")
    return distances
