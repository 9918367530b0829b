"""The rows of a result, as the user sees them: types, and statuses."""

import numpy as np
import pyarrow as pa

from georesolve.kernels.devices import Array
from georesolve.workers.jobs import Job
from georesolve.workers.plan import Chunk

STATUSES = ("matched", "beyond_max_distance", "invalid_coordinate", "no_reference")
_MATCHED, _BEYOND, _INVALID, _NO_REFERENCE = range(len(STATUSES))


def matches(job: Job, chunk: Chunk, answer: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """What was found for a chunk as rows of a result, and how many there are of each status.

    Parameters
    ----------
    answer
        What `workers.partitions.resolve` found, k rows an observation.
    """
    k = job.options.k
    reference, status = answer["reference"].to_numpy(), answer["status"].to_numpy()
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
        "distance_m": pa.array(answer["distance_m"].to_numpy(), mask=unmatched),
        "status": pa.DictionaryArray.from_arrays(pa.array(status), list(STATUSES)),
    }
    return pa.table(columns), counts


def statuses(reference: Array, valid: Array, n_valid: int, *, exclude_self: bool) -> Array:
    """Why each rank of each observation has the reference that it has, or has none.

    One source for arrays of numpy and CuPy.

    Parameters
    ----------
    reference : int64 array, shape (n, k)
        Rows found; -1 where there is none.
    valid : bool array, shape (n,)
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
    status = (reference < 0).astype("int8") * _BEYOND
    status[:, max(0, n_valid - exclude_self) :] *= _NO_REFERENCE // _BEYOND
    answered = valid.astype("int8")[:, None]
    return status * answered + (1 - answered) * _INVALID
