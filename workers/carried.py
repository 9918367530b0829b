"""The columns that a result carries of both sets, and the memory that they take spelled out.

A few wide values among the references are as many as there are observations near them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pyarrow as pa

from georesolve.workers.datasets import read_rows
from georesolve.workers.jobs import CarriedTooLong, Job
from georesolve.workers.matches import with_carried
from georesolve.workers.plan import Chunk, carried_bytes
from georesolve.workers.references import resident_column
from georesolve.workers.widths import Carried

_LARGE_BYTES = 2**26
"""Row groups that carry more than that are made one after the other."""
_making_large = threading.Lock()


@contextmanager
def carried(
    job: Job, chunk: Chunk, rows: pa.Table, most_bytes: int | None = None
) -> Iterator[pa.Table]:
    """The rows of a result for some observations, with the columns that they carry.

    They are to be let go of within: where they take much memory, others wait until then.

    Parameters
    ----------
    chunk
        The observations, of one row group.
    rows
        What `matches` gave for them; those without a reference are left out of an inner result.
    most_bytes
        Memory that the columns may take, None for as much as a row group of a job may.

    Raises
    ------
    CarriedTooLong
        When they would take more, or a column of the references does.
    """
    of_observations, of_references = job.carried()
    size = _bytes(job, chunk, rows)
    if most_bytes is not None and size > most_bytes:
        raise CarriedTooLong(f"{rows.num_rows} rows would carry {size} bytes, not {most_bytes}")
    with _making_large if size > _LARGE_BYTES else nullcontext():
        own = (
            read_rows(job.observations.file, *chunk, of_observations)
            if of_observations
            else pa.table({})
        )
        references = (
            (name, resident_column(job.references, name).values) for name in of_references
        )
        yield with_carried(rows, job.options, own, references)


def _bytes(job: Job, chunk: Chunk, rows: pa.Table) -> int:
    """Memory that the carried columns take: of the references just so much, of others at most."""
    of_observations = Carried(observations=job.widths().observations)
    size = carried_bytes(chunk.stop - chunk.start, job.options.k, of_observations)
    taken = rows["reference"].drop_null().to_numpy()
    for name in job.carried()[1]:
        widths = resident_column(job.references, name).widths
        size += widths * taken.size if isinstance(widths, int) else int(widths[taken].sum())
    return size
