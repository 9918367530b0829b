"""`nearest`: checks, asks for the way, looks it and the device up in a table, calls."""

import math
from typing import Any

import numpy as np

from georesolve.kernels.devices import (
    Array,
    Device,
    Step,
    coordinate_pair,
    device_of,
    implementation,
)
from georesolve.kernels.filters import FilteredIndex, Filters
from georesolve.kernels.index import ReferenceIndex
from georesolve.kernels.query import Answer, Degrees, Found, Query
from georesolve.kernels.shapes import ShapeIndex
from georesolve.kernels.ways import way
from georesolve.query import ALGORITHMS, MAX_K, Algorithm, Earth


def nearest(
    index: ReferenceIndex | ShapeIndex,
    lat_deg: Array,
    lon_deg: Array,
    *,
    k: int = 1,
    max_distance_m: float | None = None,
    exclude_self: bool = False,
    first_row: int = 0,
    algorithm: Algorithm = "auto",
    most_steps: int | None = None,
    filters: Filters | None = None,
) -> Answer:
    """Find the nearest references of every observation, exactly.

    The nearest is the reference with the smallest float64 squared chord between unit vectors;
    among equals it is the one of the lowest row. The same input gives the same bits on a CPU and
    on a GPU, with any algorithm and any split of the observations.

    On the ellipsoid of WGS 84, if the index is on that, it is the one with the shortest geodesic in
    float64, of whose length metres are within 1 um. Of shapes it is the one whose nearest point is
    nearest; a polygon is 0 m from what it holds.

    On the sphere metres are made of the squared chord alone: a later rank never has fewer, and what
    `max_distance_m` leaves out is the tail. They are right to 1 mm or 1e-12, whichever is larger,
    but for references within 150 m of the observation's antipode: there few chords differ in
    float64, and metres are right to 0.4 m.

    Parameters
    ----------
    index : ReferenceIndex or ShapeIndex
        From `kernels.build_index`; or shapes.
    lat_deg, lon_deg : float64 array of numpy or CuPy, shape (n_observations,)
        Degrees, WGS 84, on the device of the index. Rows that are not valid match nothing.
    k : int
        1 to 64. Where there are fewer references, the tail is -1 and NaN.
    max_distance_m : float, optional
        A distance equal to it still matches.
    exclude_self, first_row
        Both sets are the same: observation i does not match reference ``first_row + i``.
    algorithm : {"auto", "tree", "brute"}
        How to search. The answer is the same.
    most_steps : int, optional
        The most work for each core, on a CPU only, `StepsSpent` beyond it. A step takes half a
        nanosecond of one core at most as a rule, and brute force one for an observation and a
        reference. Where references are all equally far, each observation is compared with all.
    filters : Filters, optional
        Groups and times of the observations, for a `FilteredIndex` alone.

    Raises
    ------
    TypeError, ValueError
        When the coordinates are not arrays with real numbers of one shape on the device of the
        index; when `k`, `max_distance_m` or the algorithm is none of those allowed.
    """
    _check_limit(max_distance_m)
    query = Query(k, exclude_self, first_row, most_steps)
    asked = (query, algorithm, filters, max_distance_m)
    answer: Answer = _search(index, lat_deg, lon_deg, *asked, measure=True)
    return _within(answer, max_distance_m)


def find(
    index: ReferenceIndex | ShapeIndex,
    lat_deg: Array,
    lon_deg: Array,
    *,
    k: int = 1,
    exclude_self: bool = False,
    first_row: int = 0,
    algorithm: Algorithm = "auto",
    most_steps: int | None = None,
    filters: Filters | None = None,
) -> Found:
    """Rows and keys of the nearest references: `nearest` without the metres.

    For a reference set in pieces: `find` in each piece, `kernels.merge`, then `measure`. With
    `exclude_self`, `first_row` counts from the piece's first reference and may be negative.
    Parameters and errors are those of `nearest`.
    """
    query = Query(k, exclude_self, first_row, most_steps)
    asked = (query, algorithm, filters, None)
    found: Found = _search(index, lat_deg, lon_deg, *asked, measure=False)
    return found


def measure(
    found: Found, *, max_distance_m: float | None = None, earth: Earth = "sphere"
) -> Answer:
    """The answer of `nearest` from what `find` found and `kernels.merge` merged.

    The rows are those in the whole reference set, `earth` is that of the indexes.
    """
    _check_limit(max_distance_m)
    # A copy: the answer is written over it.
    own = Found(found.reference.copy(), found.key.copy())
    step: Step = "coordinates" if earth == "sphere" else "ellipsoid"
    answer = implementation(device_of(found.reference), step).answer_of(own)
    return _within(answer, max_distance_m)


def _check_limit(max_distance_m: float | None) -> None:
    if max_distance_m is not None and not max_distance_m >= 0.0:
        raise ValueError(f"max_distance_m must be 0 or more, got {max_distance_m}")


def _search(
    index: ReferenceIndex | ShapeIndex,
    lat_deg: Array,
    lon_deg: Array,
    query: Query,
    algorithm: Algorithm,
    filters: Filters | None,
    max_distance_m: float | None,
    *,
    measure: bool,
) -> Any:
    index, degrees, filters, device = checked(index, lat_deg, lon_deg, algorithm, filters)
    if query.most_steps is not None and device != "cpu":
        raise ValueError(f"most_steps is for a search on a CPU, but the index is on {device}")
    if not 1 <= query.k <= MAX_K:
        raise ValueError(f"k must be 1 to {MAX_K}, got {query.k}")
    if isinstance(index, ShapeIndex):
        if query.exclude_self:
            raise ValueError("exclude_self is for a set against itself: shapes are no observations")
        by: Algorithm = "brute" if algorithm == "brute" else "tree"
        return implementation(device, "shapes").search(index, degrees, query, by, measure=measure)
    if filters is not None:
        metres = np.array([math.inf if max_distance_m is None else max_distance_m])
        chord2 = float(implementation("cpu", "coordinates").chord2_within(metres)[0])
        found = implementation(device, "filtered").search(
            index, degrees, query, filters, chord2, brute=algorithm == "brute"
        )
        return implementation(device, "coordinates").answer_of(found) if measure else found
    sizes = degrees.lat_deg.size, index.n_references
    chosen = way(device, *sizes, query, algorithm, earth=index.earth)
    if index.earth == "wgs84":
        search = implementation(device, "ellipsoid").search
        return search(index, degrees, query, chosen.search, measure=measure)
    step: Step = "brute" if chosen.search == "brute" else "tree"
    search = implementation(device, step).search
    return search(index, degrees, query, measure=measure)


def checked(
    index: ReferenceIndex | ShapeIndex,
    lat_deg: Array,
    lon_deg: Array,
    algorithm: Algorithm,
    filters: Filters | None = None,
) -> tuple[Any, Degrees, Filters | None, Device]:
    """What is searched for which observations, by an algorithm that exists.

    Filters that leave no reference out are none: then it is the plain index that is searched.
    """
    lat_deg, lon_deg, device = coordinate_pair(lat_deg, lon_deg)
    if device != index.device:
        raise TypeError(f"observations are on {device} but the index on {index.device}: move one")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if isinstance(index, FilteredIndex) != (filters is not None):
        raise TypeError("filters are for an index of build_filtered_index, and it needs them")
    if isinstance(index, FilteredIndex) and filters is not None and not index.restricts(filters):
        lat_deg = implementation(device, "filtered").placed(lat_deg, filters.group)
        index, filters = index.plain, None
    return index, Degrees(lat_deg, lon_deg), filters, device


def _within(answer: Answer, max_distance_m: float | None) -> Answer:
    reference, distance_m = answer
    if max_distance_m is not None:
        too_far = distance_m > max_distance_m
        reference[too_far] = -1
        distance_m[too_far] = math.nan
    if reference.shape[1] == 1:
        return Answer(reference[:, 0], distance_m[:, 0])
    return answer
