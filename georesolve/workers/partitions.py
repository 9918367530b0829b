"""What runs on one partition: read each chunk of a run, resolve it, write its part file."""

import logging
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numba
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from distributed import get_worker

from georesolve.engine.attributes import Reader, carried, reader
from georesolve.engine.backends import backend
from georesolve.engine.plan import (
    Chunk,
    Run,
    cut_by,
    groups_at_once,
    rows_a_group,
)
from georesolve.engine.provenance import provenance
from georesolve.engine.questions import MADE_PAIRS, Within
from georesolve.engine.result_rows import FILTERED, STATUSES
from georesolve.engine.search import (
    WrongAnswer,
    batch_of,
    device_in_use,
    question_of,
    verify,
)
from georesolve.io.datasets import recut
from georesolve.io.evidence import Evidence
from georesolve.io.result_files import opened
from georesolve.io.storage import StoreFailed
from georesolve.io.threads import encoders, side_by_side
from georesolve.kernels.cache import compiled_seconds, note_compiled
from georesolve.version import __version__
from georesolve.workers.job import Job
from georesolve.workers.results.parts import (
    Part,
    is_whole,
    part_name,
    read_record,
    record_name,
    write_record,
)
from georesolve.workers.results.splice import Encoded, Splice, encode

logger = logging.getLogger(__name__)

RUN = pd.DataFrame({"start": pd.Series(dtype="i8"), "stop": pd.Series(dtype="i8")})
"""Empty frame like those of `bounds` and `resolve_run`, for Dask's `meta`."""


@dataclass
class Told:
    """What was found for a chunk, and what its record tells of that."""

    tables: list[pa.Table] = field(default_factory=list)
    """Rows of the result: of pairs by row groups of it; other rows carry nothing yet."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many rows there are of each status."""
    pairs: int = 0
    """How many a summary counts."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""
    verified: int = 0
    """Observations that were searched a second time."""
    evidence: Evidence | None = None
    """What the coordinates say, where nobody has looked at them before."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Use the device for a stage, and note how long it took, what was compiled apart."""
        with device_in_use():
            start, compiled = time.perf_counter(), compiled_seconds()
            yield
            backend().synchronize()
            took = time.perf_counter() - start
            # Another thread of this process may compile meanwhile, for longer than this stage.
            if compiling := min(took, compiled_seconds() - compiled):
                self.seconds["compile"] = self.seconds.get("compile", 0.0) + compiling
            self.seconds[name] = took - compiling


Resolve = Callable[[Chunk, Job], Told]


def bounds(run: Run) -> pd.DataFrame:
    """The chunks of a run as a partition, a row each."""
    return pd.DataFrame(run, columns=RUN.columns, dtype="i8")


def resolve_run(run: pd.DataFrame, job: Job, resolve: Resolve) -> pd.DataFrame:
    """Read, resolve and write the chunks of a partition in turn; returns those that were written.

    It stops when the job is over, without an error: Dask would log one for each run.
    """
    written = []
    for at, chunk in enumerate(map(Chunk._make, run.itertuples(index=False))):
        # Of the first a record would be news; a bucket takes some time to be asked for one.
        if job.is_cancelled() or (at and not job.records.is_made()):
            break
        if at and job.records.has(record_name(*chunk)):
            continue  # A copy of the run has done it, or this one before its worker died.
        try:
            told = resolve(chunk, job)
        except MemoryError as error:
            # Dask keeps it, and its frames what they hold of the device.
            traceback.clear_frames(error.__traceback__)
            raise
        if job.is_cancelled():
            break
        if write_part(chunk, told, job):
            written.append(chunk)
            note_compiled(job.kind)
    return bounds(tuple(written))


def resolve(chunk: Chunk, job: Job) -> Told:
    """Find the nearest references of every observation of a chunk, or all within a distance."""
    told, options = Told(), job.options
    if options.has_pairs:
        return _of_pairs(chunk, job, told)
    with told.stage("read"):
        batch, told.evidence = batch_of(job, chunk)
    with told.stage("index"):
        question = question_of(job, chunk, batch.narrowed)
    with told.stage("resolve"):
        rows, told.counts = question.found(batch)
    with told.stage("verify"):
        told.verified = verify(job, question, batch, rows)
    if "count" in options.made:
        told.pairs = pc.sum(rows["count"]).as_py() or 0
    told.tables = [rows]
    return told


def _of_pairs(chunk: Chunk, job: Job, told: Told) -> Told:
    with told.stage("index"):
        within = question_of(job, chunk)
        assert isinstance(within, Within), "it is asked for pairs"
    with told.stage("resolve"):
        told.tables = [*_pairs(job, chunk, within)]
    status = pa.concat_tables([table.select(["status"]) for table in told.tables])["status"]
    found = {one["values"]: one["counts"] for one in status.value_counts().to_pylist()}
    told.counts = dict.fromkeys(STATUSES if job.options.filters is None else FILTERED, 0) | found
    return told


def _pairs(job: Job, chunk: Chunk, within: Within) -> Iterator[pa.Table]:
    """The rows of a chunk of result rows, with what they carry, by the row groups of the result.

    No worker holds more than some of these, however many pairs one observation has.
    """
    size = rows_a_group(job)
    most = min(size, MADE_PAIRS)

    def carrying() -> Iterator[pa.Table]:
        for own, rows in _rows_of_pairs(job, chunk, within, most):
            for first in range(0, max(1, rows.num_rows), most):
                with carried(job, own, rows.slice(first, most)) as table:
                    yield table

    return recut(carrying(), size)


def _rows_of_pairs(
    job: Job, chunk: Chunk, within: Within, most: int
) -> Iterator[tuple[Chunk, pa.Table]]:
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


def write_part(chunk: Chunk, told: Told, job: Job) -> bool:
    """Write the part file of a resolved chunk, carried columns included, unless the job has ended.

    Its record is written last: once that stands, the chunk is done. It tells whether it was
    written: another worker may have been quicker.
    """
    start = time.perf_counter()
    name, record_as = part_name(*chunk), record_name(*chunk)
    if not job.records.is_made() or job.records.has(record_as):
        return False
    # Not synced here, where a GPU would wait for the disk: see `Assembly`.
    with job.place.new(name) as file:
        splice = Splice(file)
        if job.options.has_pairs:
            encoded = side_by_side(lambda table: encode([table]), told.tables, encoders())
        else:
            own = chunk.cut(rows_a_group(job))
            at_once = groups_at_once(job, numba.config.NUMBA_NUM_THREADS)
            parts = (own[at : at + at_once] for at in range(0, len(own), at_once))
            carrying = partial(_encode, job, chunk, told.tables[0], reader(job, chunk))
            encoded = side_by_side(carrying, parts, encoders())
        # Closed in any case: what encodes would go on, for nobody, while an error is held.
        with closing(encoded):
            for one in encoded:
                splice.add(one)
        schema = one.schema.with_metadata(provenance(job, told.counts))
        part, groups = splice.finish(schema, name)
    told.seconds["write"] = time.perf_counter() - start
    record = {
        "version": __version__,
        "rows": chunk.stop - chunk.start,
        "counts": told.counts,
        "pairs": told.pairs,
        "worker": str(get_worker().name),
        "seconds": told.seconds,
        "verified": told.verified,
        "evidence": told.evidence and told.evidence.as_json(),
        "part": part,
        "footer": [movable.as_json() for movable in groups],
    }
    write_record(job.records, record_as, record)
    logger.info(
        "job %s: rows %d to %d done",
        *(job.id, chunk.start, chunk.stop - 1),
        extra={"job": job.id, "seconds": told.seconds},
    )
    return True


def _encode(job: Job, chunk: Chunk, rows: pa.Table, read: Reader, groups: list[Chunk]) -> Encoded:
    ranks = job.options.ranks

    def carrying() -> Generator[pa.Table]:
        for start, stop in groups:
            own = rows.slice((start - chunk.start) * ranks, (stop - start) * ranks)
            with carried(job, Chunk(start, stop), own, read) as table:
                yield table

    # Closed in any case: others wait for what it holds, and an error may be kept.
    with closing(carrying()) as tables:
        return encode(tables)


def standing_record(job: Job, chunk: Chunk) -> dict[str, Any] | None:
    """The record of a chunk that an earlier run of the job has done; None when it has not.

    A part file that is damaged, or of another version, does not count.
    """
    try:
        record = read_record(job.records, record_name(*chunk))
        # Another version may encode it otherwise: a result is of one.
        if record["version"] == __version__:
            if not is_whole(job.place, Part.read(record["part"])):
                raise ValueError("it has not the bytes of its digests")
            return record
    except StoreFailed:
        # Nothing is known of it; the job waits for the store.
        raise
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError) as error:
        name = part_name(*chunk)
        logger.warning("job %s: the part file %s is damaged: %s", job.id, name, error)
    job.records.remove([record_name(*chunk)])
    return None
