"""The rows of a result, as the user sees them: statuses, types and carried columns."""

import numpy as np
import pyarrow as pa

from workers.datasets import read_rows
from workers.jobs import Job
from workers.plan import Chunk
from workers.references import resident_column

STATUSES = ("matched", "beyond_max_distance", "invalid_coordinate", "no_reference")
_MATCHED, _BEYOND, _INVALID, _NO_REFERENCE = range(len(STATUSES))


def matches(job: Job, chunk: Chunk, answer: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """The result rows of a chunk and how many there are of each status.

    Parameters
    ----------
    answer
        What `workers.partitions.resolve` found, k rows an observation.

    Returns
    -------
    table, counts
        The counts are of all rows, also of those that ``how="inner"`` leaves out of the table.
    """
    k = job.options.k
    reference = answer["reference"].to_numpy().reshape(-1, k)
    status = statuses(
        reference,
        answer["valid"].to_numpy()[::k],
        job.references.valid_rows,
        exclude_self=job.options.exclude_self,
    ).reshape(-1)
    counts = np.bincount(status, minlength=len(STATUSES)).tolist()
    unmatched = status != _MATCHED
    rows = pa.array(reference.reshape(-1), mask=unmatched)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "observation": pa.array(np.arange(*chunk).repeat(k))
    }
    if k > 1:
        ranks = np.arange(1, k + 1, dtype=np.int32)
        columns["rank"] = pa.array(np.tile(ranks, chunk.stop - chunk.start))
    columns |= {
        "reference": rows,
        "distance_m": pa.array(answer["distance_m"].to_numpy(), mask=unmatched),
        "status": pa.DictionaryArray.from_arrays(pa.array(status), list(STATUSES)),
    }
    of_observations, of_references = job.carried()
    if of_observations:
        carried = read_rows(job.observations.file, *chunk, of_observations)
        own = np.repeat(np.arange(chunk.stop - chunk.start), k)
        for name in of_observations:
            columns[f"observation_{name}"] = carried[name] if k == 1 else carried[name].take(own)
    for name in of_references:
        columns[f"reference_{name}"] = resident_column(job.references, name).take(rows)
    table = pa.table(columns)
    if job.options.how == "inner":
        table = table.filter(pa.array(status == _MATCHED))
    return table, dict(zip(STATUSES, counts, strict=True))


def statuses(
    reference: np.ndarray, valid: np.ndarray, n_valid: int, *, exclude_self: bool
) -> np.ndarray:
    """Why each rank of each observation has the reference that it has, or has none.

    Parameters
    ----------
    reference : int64 array, shape (n, k)
        Rows found; -1 where there is none.
    valid : array, shape (n,)
        Whether the coordinates of an observation are valid.
    n_valid
        Number of references with valid coordinates.
    exclude_self
        Whether each observation had one candidate fewer: itself.

    Returns
    -------
    status : int8 array, shape (n, k)
        Index into `STATUSES`.
    """
    # A rank that has no reference although there are enough of them: they are too far away.
    ranks = np.arange(1, reference.shape[1] + 1)
    missing = np.where(ranks > n_valid - int(exclude_self), _NO_REFERENCE, _BEYOND)
    status = np.where(reference >= 0, _MATCHED, missing)
    status[valid == 0] = _INVALID
    return status.astype(np.int8)
