"""What runs on one partition: read each chunk of a run, resolve it, write its part file."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
from distributed import get_worker

from georesolve import __version__
from georesolve.kernels.query import is_valid
from georesolve.workers.carried import Reader, carried, reader
from georesolve.workers.evidence import Evidence
from georesolve.workers.frames import Frame, backend, read_points
from georesolve.workers.jobs import Job
from georesolve.workers.matches import answered, matches
from georesolve.workers.parts import (
    Part,
    is_whole,
    part_name,
    read_record,
    record_name,
    write_record,
)
from georesolve.workers.places import StoreFailed
from georesolve.workers.plan import Chunk, Run
from georesolve.workers.result import provenance
from georesolve.workers.search import device_in_use, load, search, verify
from georesolve.workers.splice import Encoded, Splice, encode
from georesolve.workers.threads import side_by_side

logger = logging.getLogger(__name__)

RUN = pd.DataFrame({"start": pd.Series(dtype="i8"), "stop": pd.Series(dtype="i8")})
"""Empty frame like those of `bounds` and `resolve_run`, for Dask's `meta`."""


@dataclass
class Told:
    """What the record of a chunk tells besides its rows."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""
    verified: int = 0
    """Observations that were searched a second time."""
    evidence: Evidence | None = None
    """What the coordinates say, where nobody has looked at them before."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Use the device for a stage, and note how long it took."""
        with device_in_use():
            start = time.perf_counter()
            yield
            backend().synchronize()
            self.seconds[name] = time.perf_counter() - start


Resolve = Callable[[Chunk, Job], tuple[Frame, Told]]


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
        frame, told = resolve(chunk, job)
        if job.is_cancelled():
            break
        if write_part(chunk, frame, told, job):
            written.append(chunk)
    return bounds(tuple(written))


def resolve(chunk: Chunk, job: Job) -> tuple[Frame, Told]:
    """Find the nearest reference of every row of a chunk.

    The frame, of pandas or cudf, has k rows an observation: `reference` (int64 row, -1 where none),
    `distance_m` (float64, NaN where none) and `status` (int8, an index into `STATUSES`).
    """
    told, options = Told(), job.options
    with told.stage("read"):
        frame, told.evidence = read_points(job.observations, *chunk)
        lat_deg, lon_deg = (
            frame[name].values for name in (job.observations.lat, job.observations.lon)
        )
    with told.stage("index"):
        load(job.references, job.indexes)
    with told.stage("resolve"):
        answer = search(job.references, lat_deg, lon_deg, options, chunk.start)
        valid = is_valid(lat_deg, lon_deg)
        found = type(frame)(answered(answer, valid, job.references.valid_rows, options))
    with told.stage("verify"):
        told.verified = verify(job.references, lat_deg, lon_deg, options, chunk.start, answer)
    return found, told


def write_part(chunk: Chunk, frame: Frame, told: Told, job: Job) -> bool:
    """Write the part file of a resolved chunk, carried columns included, unless the job has ended.

    Its record is written last: once that stands, the chunk is done. It tells whether it was
    written: another worker may have been quicker.
    """
    start = time.perf_counter()
    with device_in_use():
        answer = backend().to_arrow(frame)
    # For all at once: threads that each do a little in Python wait for each other.
    rows, counts = matches(job.options.k, chunk, answer)
    name, record_as, carried_widths = part_name(*chunk), record_name(*chunk), job.widths()
    if not job.records.is_made() or job.records.has(record_as):
        return False
    # Not synced here, where a GPU would wait for the disk: see `Assembly`.
    with job.place.new(name) as file:
        splice = Splice(file)
        for group in side_by_side(
            partial(_encode, job, chunk, rows, reader(job, chunk)),
            chunk.row_groups(job.options.k, carried_widths),
        ):
            splice.add(group)
        schema = group.schema.with_metadata(provenance(job, counts))
        part, groups = splice.finish(schema, name)
    told.seconds["write"] = time.perf_counter() - start
    record = {
        "version": __version__,
        "rows": chunk.stop - chunk.start,
        "counts": counts,
        "worker": str(get_worker().name),
        "seconds": told.seconds,
        "verified": told.verified,
        "evidence": told.evidence and told.evidence.as_json(),
        "part": part,
        "footer": [movable.as_json() for movable in groups],
    }
    write_record(job.records, record_as, record)
    logger.info(
        "job %s: observations %d to %d done",
        *(job.id, chunk.start, chunk.stop - 1),
        extra={"job": job.id, "seconds": told.seconds},
    )
    return True


def _encode(job: Job, chunk: Chunk, rows: pa.Table, read: Reader, group: Chunk) -> Encoded:
    k = job.options.k
    own = rows.slice((group.start - chunk.start) * k, (group.stop - group.start) * k)
    with carried(job, group, own, read) as table:
        return encode(table)


def standing_record(job: Job, chunk: Chunk) -> dict[str, Any] | None:
    """The record of a chunk that an earlier run of the job has done; None when it has not.

    A part file that is damaged, or of another version, does not count.
    """
    name = part_name(*chunk)
    trouble = None
    try:
        record = read_record(job.records, record_name(*chunk))
        # Another version may encode it otherwise: a result is of one.
        if record["version"] == __version__:
            if is_whole(job.place, Part.read(record["part"])):
                return record
            trouble = "it has not the bytes of its digests"
    except StoreFailed:
        # Nothing is known of it; the job waits for the store.
        raise
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError) as error:
        trouble = str(error)
    if trouble is not None:
        logger.warning("job %s: the part file %s is damaged: %s", job.id, name, trouble)
    job.records.remove([record_name(*chunk)])
    return None
