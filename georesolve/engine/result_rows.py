"""The rows of a result, as the user sees them: types, statuses, and columns that they carry."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from georesolve.engine.plan import Chunk
from georesolve.kernels import Pairs, ShapeIndex, nearest_points
from georesolve.kernels.bearing import bearings
from georesolve.kernels.devices import Array
from georesolve.kernels.memory_cpu import kept
from georesolve.kernels.query import Degrees
from georesolve.query import NEAR, Earth, How, MatchOptions

if TYPE_CHECKING:
    from georesolve.engine.filter_encoding import Narrowed

STATUSES = ("matched", "beyond_max_distance", "invalid_coordinate", "no_reference")
FILTERED = (*STATUSES, "missing_value", "beyond_limits")
"""Statuses of a result by group and in time."""
_NAMED = pa.array(STATUSES)
_MATCHED, _BEYOND, _INVALID, _NO_REFERENCE, _MISSING, _BEYOND_LIMITS = range(len(FILTERED))


def matches(
    k: int,
    chunk: Chunk,
    reference: np.ndarray,
    distance_m: np.ndarray,
    status: np.ndarray,
    narrowed: "Narrowed | None" = None,
) -> tuple[pa.Table, dict[str, int]]:
    """What was found for a chunk as rows of a result, and how many there are of each status."""
    if narrowed is not None:
        status = filtered(status, narrowed, k, chunk.start)
    # `bincount` would make integers of 64 bits of them first.
    counts = counted(status)
    # A mask that hides nothing would be made into bits, and read again.
    unmatched = status != _MATCHED if counts["matched"] < status.size else None
    of = kept(chunk.stop - chunk.start, k, dtype=np.int64)
    of[:] = np.arange(*chunk)[:, np.newaxis]
    columns: dict[str, pa.Array] = {"observation": pa.array(of.reshape(-1))}
    if k > 1:
        ranks = kept(*of.shape, dtype=np.int32)
        ranks[:] = np.arange(1, k + 1)
        columns["rank"] = pa.array(ranks.reshape(-1))
    rows = pa.table(columns | _found(reference, distance_m, status, unmatched))
    return (rows if narrowed is None else narrowed.with_apart(rows, chunk.start)), counts


def _found(
    reference: np.ndarray, distance_m: np.ndarray, status: np.ndarray, unmatched: np.ndarray | None
) -> dict[str, pa.Array]:
    return {
        "reference": pa.array(reference, mask=unmatched),
        "distance_m": pa.array(distance_m, mask=unmatched),
        "status": named(status),
    }


def pairs(chunk: Chunk, found: Pairs, status: np.ndarray, how: How) -> pa.Table:
    """The pairs of a chunk as rows; an observation without one has its own, unless it is inner."""
    each, reference, distance_m = np.diff(found.starts), found.reference, found.distance_m
    # Without rows for those that have no pair, all are matched.
    of_rows, unmatched = np.full(reference.size, _MATCHED, status.dtype), None
    if how == "left" and not each.all():
        places, each = found.starts[:-1][each == 0], np.maximum(each, 1)
        reference = np.insert(reference, places, -1)
        distance_m = np.insert(distance_m, places, np.nan)
        of_rows, unmatched = status.repeat(each), reference < 0
    columns = {"observation": pa.array(np.arange(*chunk).repeat(each))}
    return pa.table(columns | _found(reference, distance_m, of_rows, unmatched))


def named(status: np.ndarray) -> pa.Array:
    """The column of statuses, which are indices into `STATUSES`, or of int16 into `FILTERED`."""
    of_filtered = status.dtype == np.int16
    names = pa.array(FILTERED) if of_filtered else _NAMED
    return pa.DictionaryArray.from_arrays(pa.array(status.astype(np.int8, copy=False)), names)


def counted(status: np.ndarray) -> dict[str, int]:
    """How many there are of each status, of those that there may be: see `named`."""
    names = FILTERED if status.dtype == np.int16 else STATUSES
    return {name: int(np.count_nonzero(status == i)) for i, name in enumerate(names)}


def filtered(status: np.ndarray, narrowed: "Narrowed", k: int, first_row: int) -> np.ndarray:
    """Statuses by group and in time, of which `named` makes a column, from those without."""
    status = status.reshape(-1, k)
    none = (status == _BEYOND) | (status == _NO_REFERENCE)
    made = status.astype(np.int16)
    made[none] = _BEYOND if narrowed.filters.time is None else _BEYOND_LIMITS
    made[none & (np.arange(k) >= narrowed.candidates(first_row)[:, None])] = _NO_REFERENCE
    made[(narrowed.filters.group == -1)[:, None] & (status != _INVALID)] = _MISSING
    return made.reshape(-1)


def with_near(
    rows: pa.Table,
    observations: Degrees,
    references: ShapeIndex | Sequence[pa.Array | pa.ChunkedArray],
    first_row: int,
    earth: Earth,
) -> pa.Table:
    """The rows of a result with where their references lie, and the bearing to them.

    `observations` are those from `first_row` on, `references` the latitudes and longitudes of all,
    or shapes. There is no bearing where there is no distance.
    """
    at = rows["observation"].to_numpy() - first_row
    here = Degrees(*(axis[at] for axis in observations))
    if isinstance(references, ShapeIndex):
        reference = rows["reference"].fill_null(-1).to_numpy()
        found = nearest_points(references, here, reference, rows["distance_m"].to_numpy())
        lat, lon = (pa.chunked_array([pa.array(one, mask=reference < 0)]) for one in found)
    else:
        lat, lon = (axis.take(rows["reference"]) for axis in references)
    bearing = bearings(here, Degrees(lat.to_numpy(), lon.to_numpy()), earth)
    is_apart = rows["distance_m"].to_numpy() > 0
    made = zip(NEAR, (lat, lon, pa.array(bearing, mask=~is_apart)), strict=True)
    for place, column in enumerate(made, rows.column_names.index("status")):
        rows = rows.add_column(place, *column)
    return rows


def with_carried(
    rows: pa.Table,
    options: MatchOptions,
    observations: pa.Table,
    references: Iterable[tuple[str, pa.ChunkedArray]],
    first_row: int,
) -> pa.Table:
    """The rows of a result, from `matches` or `pairs`, with the columns that they carry.

    Those without a reference are left out of an inner result. `observations` has what is carried of
    the observations from `first_row` on, `references` names and columns of the references.
    """
    own = options.summary_by
    if observations.num_columns and (options.ranks > 1 or options.has_pairs):
        observations = observations.take(rows[own].to_numpy() - first_row)
    for name in observations.column_names:
        rows = rows.append_column(f"{own}_{name}", observations[name])
    for name, column in references:
        rows = rows.append_column(f"reference_{name}", column.take(rows["reference"]))
    if options.how == "inner" and rows["reference"].null_count:
        return rows.filter(rows["reference"].is_valid())
    return rows


def statuses(reference: Array, valid: Array, n_valid: int, *, exclude_self: bool) -> Array:
    """Why each rank of each observation has the reference that it has, or has none.

    An index into `STATUSES` for each of the references (-1 for none), which are of shape (n, k), as
    is what is returned. `valid` says whether an observation has valid coordinates, `n_valid` how
    many references have; with `exclude_self` each had one candidate fewer. One source for arrays of
    numpy and CuPy.
    """
    # A rank that has no reference although there are enough of them: they are too far away,
    # which is 1, as a comparison that is true.
    status = (reference < 0).view("int8")
    status[:, max(0, n_valid - exclude_self) :] *= _NO_REFERENCE
    status[~valid] = _INVALID
    return status
