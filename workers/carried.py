"""The columns that a result carries of both sets, and the memory that they take spelled out.

A few long texts among the references are as many as there are observations near them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workers.datasets import read_rows
from workers.jobs import Job
from workers.plan import Chunk
from workers.references import resident_column, resident_lengths

_MOST_BYTES = 2**30
"""Of all texts in a row group: 8 KB a row. Arrow has no more than twice that in one array."""
_LARGE_BYTES = 2**26
"""Row groups with more text than that are made one after the other."""
_making_large = threading.Lock()


class CarriedTooLong(ValueError):
    """The texts that some rows of a result would carry take too much memory."""


@contextmanager
def carried(job: Job, chunk: Chunk, rows: pa.Table) -> Iterator[pa.Table]:
    """The rows of a result for some observations, with the columns that they carry.

    They are to be let go of within: where they take much memory, others wait until then.

    Parameters
    ----------
    chunk
        The observations, of one row group.
    rows
        What `matches` gave for them; those without a reference are left out of an inner result.

    Raises
    ------
    CarriedTooLong
        Before it takes that memory.
    """
    k = job.options.k
    of_observations, of_references = job.carried()
    own = read_rows(job.observations.file, *chunk, of_observations) if of_observations else None
    with _making_large if _text_bytes(job, chunk, rows, own) > _LARGE_BYTES else nullcontext():
        if own is not None:
            repeated = np.repeat(np.arange(chunk.stop - chunk.start), k)
            for name in of_observations:
                column = own[name] if k == 1 else own[name].take(repeated)
                rows = rows.append_column(f"observation_{name}", column)
        for name in of_references:
            column = resident_column(job.references, name).take(rows["reference"])
            rows = rows.append_column(f"reference_{name}", column)
        inner = job.options.how == "inner"
        yield rows.filter(rows["reference"].is_valid()) if inner else rows


def _text_bytes(job: Job, chunk: Chunk, rows: pa.Table, own: pa.Table | None) -> int:
    """Bytes of the texts that the rows carry."""
    sizes: dict[str, int] = {}
    if own is not None:
        for name in own.column_names:
            sizes[f"observation_{name}"] = own[name].nbytes * job.options.k
    for name in job.carried()[1]:
        lengths = resident_lengths(job.references, name)
        if lengths is not None:
            sizes[f"reference_{name}"] = pc.sum(lengths.take(rows["reference"])).as_py() or 0
    total = sum(sizes.values())
    if total > _MOST_BYTES:
        longest = max(sizes, key=lambda name: sizes[name])
        raise CarriedTooLong(
            f"observations {chunk.start} to {chunk.stop - 1} would carry {total} bytes, "
            f"{sizes[longest]} of them as {longest!r}, and the {rows.num_rows} rows of a row group "
            f"carry {_MOST_BYTES} at most: carry an id, and join the long texts to it"
        )
    return total
