"""All within a distance, by workers: pairs by ranges of result rows.

No worker holds more than some row groups of these, however many pairs one observation has.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from georesolve.workers.carried import carried
from georesolve.workers.datasets import recut
from georesolve.workers.jobs import Job
from georesolve.workers.parts import part_name
from georesolve.workers.plan import Chunk, cut_by, rows_a_group
from georesolve.workers.result import opened
from georesolve.workers.search import WrongAnswer, batch_of
from georesolve.workers.within import MADE_PAIRS, Within


def pairs_of(job: Job, chunk: Chunk, within: Within) -> Iterator[pa.Table]:
    """The rows of a chunk of result rows, with what they carry, by the row groups of the result."""
    size = rows_a_group(job)
    most = min(size, MADE_PAIRS)

    def carrying() -> Iterator[pa.Table]:
        for own, rows in _rows(job, chunk, within, most):
            for first in range(0, max(1, rows.num_rows), most):
                with carried(job, own, rows.slice(first, most)) as table:
                    yield table

    return recut(carrying(), size)


def _rows(job: Job, chunk: Chunk, within: Within, most: int) -> Iterator[tuple[Chunk, pa.Table]]:
    """Observations, and those of their rows that are in a chunk of result rows."""
    starts, before = job.counted
    if chunk.start == chunk.stop:
        yield chunk, within.found(batch_of(job, chunk)[0])[0]
    first = int(np.searchsorted(before, chunk.start, "right")) - 1
    last = int(np.searchsorted(before, chunk.stop))
    for number in (first + np.flatnonzero(np.diff(before[first : last + 1]))).tolist():
        counted = Chunk(starts[number], starts[number + 1])
        with job.counting().place.open(part_name(*counted)) as file:
            each = opened(file).read(columns=["count"])["count"].fill_null(0).to_numpy()
        rows = np.maximum(each, 1) if job.options.how == "left" else each
        edges = before[number] + np.concatenate([[0], np.cumsum(rows)])
        # Those with rows in the chunk, from the first to the last.
        low = max(0, int(np.searchsorted(edges, chunk.start, "right")) - 1)
        high = min(each.size, int(np.searchsorted(edges, chunk.stop)))
        own = Chunk(counted.start + low, counted.start + high)
        batch, _ = batch_of(job, own)
        for part in cut_by(np.maximum(each[low:high], 1), most):
            table, _ = within.found(batch.rows(*part))
            start, stop = (int(edges[low + row]) for row in part)
            if table.num_rows != stop - start:
                raise WrongAnswer(f"{stop - start} rows were counted, and {table.num_rows} found")
            skipped = max(0, chunk.start - start)
            table = table.slice(skipped, min(stop, chunk.stop) - start - skipped)
            yield Chunk(own.start + part[0], own.start + part[1]), table
