"""What runs on one partition: read a chunk, resolve it, write its part file."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
from dask._task_spec import Task
from distributed import get_worker

from georesolve import __version__
from georesolve.kernels.coordinates import is_valid
from georesolve.workers import footers
from georesolve.workers.carried import Reader, carried, reader
from georesolve.workers.evidence import Evidence
from georesolve.workers.frames import Frame, backend, read_points
from georesolve.workers.jobs import Job
from georesolve.workers.matches import matches, statuses
from georesolve.workers.parts import (
    Part,
    has_record,
    is_whole,
    part_name,
    read_record,
    remove_record,
    write_record,
)
from georesolve.workers.places import StoreFailed
from georesolve.workers.plan import Chunk, Run
from georesolve.workers.result import provenance
from georesolve.workers.search import device_in_use, load, search, verify
from georesolve.workers.splice import Encoded, Splice, encode
from georesolve.workers.threads import side_by_side

logger = logging.getLogger(__name__)

PART = pd.DataFrame({"part": pd.Series(dtype="str")})
"""Empty frame like those that `write_part` returns, for Dask's `meta`."""


class _Told(threading.local):
    """What the record of a chunk tells besides its rows.

    Attributes
    ----------
    chunk, is_first
        The one that `in_turn` has in hand, and whether its run begins with it.
    is_over
        Whether the job was cancelled, or had ended, when its turn came: so does the run. The task
        ends without a part and without an error: Dask would log one for each chunk in hand, with
        its stack.
    is_left_out
        Whether that is so, or the chunk is done: by a copy of the run, or before a worker died.
    seconds
        By stage.
    verified
        Number of observations that were searched a second time.
    evidence
        What the coordinates say, where nobody has looked at them before.
    """

    def __init__(self) -> None:
        self.chunk: Chunk | None = None
        self.is_first = True
        self.is_over = self.is_left_out = False
        self.seconds: dict[str, float] = {}
        self.verified = 0
        self.evidence: Evidence | None = None


# Of the chunk that this thread has in hand. The three functions of a chunk run one after the other
# in one fused task, and the frames that pass between them have nowhere to put it.
_told = _Told()


@contextmanager
def _stage(name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    backend().synchronize()
    _told.seconds[name] = time.perf_counter() - start


def in_turn(partition: tuple[Task], run: Run) -> None:
    """Compute a partition again and again, each time of another chunk, until the job is over.

    Parameters
    ----------
    partition
        The three functions below as one task, made with no chunk.
    """
    for chunk in run:
        _told.chunk, _told.is_first = chunk, chunk == run[0]
        partition[0]()
        if _told.is_over:
            return


def read_chunk(chunk: Chunk | None, job: Job) -> Frame:
    """Read the coordinates of a chunk as a frame of pandas or cudf.

    Parameters
    ----------
    chunk
        None for the one that `in_turn` has in hand.
    """
    # Of the first a record would be news; a bucket takes some time to be asked for one.
    is_first = chunk is not None or _told.is_first
    chunk = chunk or _told.chunk
    assert chunk is not None, "a partition without a chunk is computed by `in_turn`"
    _told.seconds, _told.verified = {}, 0
    _told.is_over = job.is_cancelled() or not (is_first or job.records.is_made())
    is_done = not (is_first or _told.is_over) and has_record(job.records, part_name(*chunk))
    _told.is_left_out = _told.is_over or is_done
    if _told.is_left_out:
        return pd.DataFrame()
    with device_in_use(), _stage("read"):
        frame, _told.evidence = read_points(job.observations, *chunk)
        names = {job.observations.lat: "lat_deg", job.observations.lon: "lon_deg"}
        frame = frame.rename(columns=names)
        frame.index = frame.index + chunk.start
    return frame


def resolve(frame: Frame, job: Job) -> Frame:
    """Find the nearest reference of every row of a chunk.

    Returns
    -------
    frame
        With k rows an observation, numbered through the job: `reference` (int64 row, -1 where
        none), `distance_m` (float64, NaN where none) and `status` (int8, an index into `STATUSES`).
        That of a chunk that is left out is empty.
    """
    if _told.is_left_out:
        return frame
    with device_in_use(), _stage("index"):
        load(job.references, job.indexes)
    with device_in_use(), _stage("resolve"):
        lat_deg, lon_deg = frame["lat_deg"].values, frame["lon_deg"].values
        k = job.options.k
        first = _first_row(frame)
        answer = search(job.references, lat_deg, lon_deg, job.options, first)
        status = statuses(
            answer.reference.reshape(-1, k),
            is_valid(lat_deg, lon_deg),
            job.references.valid_rows,
            exclude_self=job.options.exclude_self,
        )
        columns = {**answer._asdict(), "status": status}
        found = type(frame)({name: column.reshape(-1) for name, column in columns.items()})
        found.index = found.index + first * k
    with device_in_use(), _stage("verify"):
        _told.verified = verify(job.references, lat_deg, lon_deg, job.options, first, answer)
    return found


def _first_row(frame: Frame) -> int:
    return int(frame.index[0]) if len(frame) else 0


def write_part(frame: Frame, job: Job) -> pd.DataFrame:
    """Write the part file of a resolved chunk, carried columns included.

    The row groups of the file are those of the result. Its record is written last: once that
    stands, the chunk is done, whatever happens to the worker or to the future.

    Returns
    -------
    frame
        One row: the name of the file; none where the chunk is left out.
    """
    if _told.is_left_out or job.is_cancelled():
        return PART
    start = time.perf_counter()
    with device_in_use():
        answer = backend().to_arrow(frame)
    row = _first_row(frame) // job.options.k
    chunk = Chunk(row, row + len(frame) // job.options.k)
    # For all at once: threads that each do a little in Python wait for each other.
    rows, counts = matches(job.options.k, chunk, answer)
    name, carried_widths = part_name(*chunk), job.widths()
    if not job.records.is_made() or has_record(job.records, name):
        # The job has ended, or a copy of the chunk was quicker: its part is the record of it.
        return PART
    # Not synced here, where a GPU would wait for the disk: see `Assembly`.
    with job.place.new(name) as file:
        splice = Splice(file)
        for group in side_by_side(
            partial(_encode, job, chunk, rows, reader(job, chunk)),
            chunk.row_groups(job.options.k, carried_widths),
        ):
            splice.add(group)
        spliced = splice.finish(group.schema.with_metadata(provenance(job, counts)))
    _told.seconds["write"] = time.perf_counter() - start
    record = {
        "version": __version__,
        "rows": chunk.stop - chunk.start,
        "counts": counts,
        "worker": str(get_worker().name),
        "seconds": _told.seconds,
        "verified": _told.verified,
        "evidence": _told.evidence and _told.evidence.as_json(),
        "part": Part.of(name, spliced),
        "footer": [footers.as_json(group) for group in spliced.movable],
    }
    write_record(job.records, name, record)
    logger.info(
        "job %s: observations %d to %d done",
        *(job.id, chunk.start, chunk.stop - 1),
        extra={"job": job.id, "seconds": _told.seconds},
    )
    return pd.DataFrame({"part": [name]})


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
        record = read_record(job.records, name)
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
    remove_record(job.records, name)
    return None
