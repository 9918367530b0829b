"""The rows of a result, as the user sees them: types, statuses, and columns that they carry."""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from georesolve.kernels import Answer
from georesolve.kernels.devices import Array
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.plan import Chunk

STATUSES = ("matched", "beyond_max_distance", "invalid_coordinate", "no_reference")
_NAMED = pa.array(STATUSES)
_MATCHED, _BEYOND, _INVALID, _NO_REFERENCE = range(len(STATUSES))


def matches(
    k: int, chunk: Chunk, answer: pa.Table | Mapping[str, np.ndarray]
) -> tuple[pa.Table, dict[str, int]]:
    """What was found for a chunk as rows of a result, and how many there are of each status.

    The answer has k rows an observation: see `answered`.
    """
    reference, distance_m, status = (
        np.asarray(answer[name]) for name in ("reference", "distance_m", "status")
    )
    # `bincount` would make integers of 64 bits of them first.
    counts = {name: int(np.count_nonzero(status == i)) for i, name in enumerate(STATUSES)}
    # A mask that hides nothing would be made into bits, and read again.
    unmatched = status != _MATCHED if counts["matched"] < status.size else None
    of = np.arange(*chunk)
    columns: dict[str, pa.Array] = {"observation": pa.array(of if k == 1 else of.repeat(k))}
    if k > 1:
        ranks = np.arange(1, k + 1, dtype=np.int32)
        columns["rank"] = pa.array(np.tile(ranks, chunk.stop - chunk.start))
    columns |= {
        "reference": pa.array(reference, mask=unmatched),
        "distance_m": pa.array(distance_m, mask=unmatched),
        "status": pa.DictionaryArray.from_arrays(pa.array(status), _NAMED),
    }
    return pa.table(columns), counts


def answered(answer: Answer, valid: Array, n_valid: int, options: MatchOptions) -> dict[str, Array]:
    """What a search found, with the status of each row: see `statuses`."""
    reference = answer.reference.reshape(-1, options.k)
    status = statuses(reference, valid, n_valid, exclude_self=options.exclude_self)
    columns = {**answer._asdict(), "status": status}
    return {name: column.reshape(-1) for name, column in columns.items()}


def with_carried(
    rows: pa.Table,
    options: MatchOptions,
    observations: pa.Table,
    references: Iterable[tuple[str, pa.ChunkedArray]],
) -> pa.Table:
    """The rows of a result, from `matches`, with the columns that they carry.

    Those without a reference are left out of an inner result. `observations` has what is carried of
    the observations of these rows, `references` names and columns of the references.
    """
    if options.k > 1 and observations.num_columns:
        observations = observations.take(np.repeat(np.arange(observations.num_rows), options.k))
    for name in observations.column_names:
        rows = rows.append_column(f"observation_{name}", observations[name])
    for name, column in references:
        rows = rows.append_column(f"reference_{name}", column.take(rows["reference"]))
    return rows.filter(rows["reference"].is_valid()) if options.how == "inner" else rows


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
