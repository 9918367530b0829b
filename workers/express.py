"""Small jobs answered at once: several share one search, outside the queue of tasks.

A task takes Dask's scheduler some ten milliseconds, and the graph, the part files and their fsync
as many again: more than such a job computes. So it goes to one worker as a plain call, and its
answer comes back as bytes. Nothing is kept: who asks and does not hear asks again.
"""

import asyncio
import io
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from distributed import Client

from georesolve.kernels import Answer
from georesolve.kernels.coordinates import is_valid
from georesolve.workers.carried import carried
from georesolve.workers.datasets import Dataset, read_rows
from georesolve.workers.frames import backend
from georesolve.workers.jobs import CarriedTooLong, Job
from georesolve.workers.matches import answered, matches
from georesolve.workers.plan import QUICKLY_INDEXED, Chunk
from georesolve.workers.references import is_resident, load_all, pieces
from georesolve.workers.result import provenance, write_rows
from georesolve.workers.search import device_in_use, load, search

logger = logging.getLogger(__name__)

_CARRIED_BYTES = 2**26
"""What is answered from memory carries no more."""
_warming = threading.Lock()


class NotAtOnce(Exception):
    """A worker cannot answer small jobs at once: they carry too much, or search piece by piece."""


class NotResident(NotAtOnce):
    """A worker lacks the references of small jobs, and loads them in the background first."""


class ExpressAnswer(NamedTuple):
    """The answer to a small job.

    Attributes
    ----------
    content
        The result file, the same bytes as a job's own.
    counts
        Number of result rows by status.
    seconds
        Time by stage; the search is that of the whole batch.
    """

    content: bytes
    counts: dict[str, int]
    seconds: dict[str, float]


ResolveAtOnce = Callable[[str, list[Job]], Coroutine[Any, Any, list[ExpressAnswer]]]
"""Has the worker at an address answer small jobs.

The jobs have the same references and options, and if there are several no `exclude_self`. It raises
OSError when the worker cannot be reached, NotResident when loading the references takes it long (a
later call finds them there), and NotAtOnce when only a job can give the answer.
"""


def express(client: Client) -> ResolveAtOnce:
    """The way for small jobs by a client of the caller's event loop: no thread stands between."""

    async def resolve_at_once(worker: str, jobs: list[Job]) -> list[ExpressAnswer]:
        answers = await client.run(_on_worker, jobs, workers=[worker])
        if worker not in answers:
            raise OSError(f"the worker {worker} is gone")
        answer: list[ExpressAnswer] = answers[worker]
        return answer

    return resolve_at_once


async def _on_worker(jobs: list[Job]) -> list[ExpressAnswer]:
    # Not in the thread of the event loop, which speaks with the scheduler, nor in that of tasks,
    # which may have a chunk in hand.
    try:
        return await asyncio.to_thread(_resolve, jobs)
    except OSError as error:
        # To the caller an OSError is a worker that cannot be reached.
        raise RuntimeError(f"the worker failed to read its input: {error}") from error


def _resolve(jobs: list[Job]) -> list[ExpressAnswer]:
    references, options = jobs[0].references, jobs[0].options
    _, carried = jobs[0].carried()
    if references.rows > QUICKLY_INDEXED and not is_resident(references, carried):
        if len(pieces(references)) > 1:
            # Where not all pieces have room, they would push each other out for ever.
            raise NotAtOnce(f"{references.rows} references are searched piece by piece")
        # One set at a time: each takes memory and all cores.
        if _warming.acquire(blocking=False):
            threading.Thread(target=_warm_up, args=(references, carried), daemon=True).start()
        raise NotResident(f"a worker reads and indexes the {references.rows} references now")
    start = time.perf_counter()
    tables = [
        read_rows(job.observations.file, 0, job.observations.rows, _coordinates(job))
        for job in jobs
    ]
    lat_deg, lon_deg = (
        np.concatenate([table.column(i).to_numpy() for table in tables]) for i in (0, 1)
    )
    read = time.perf_counter()
    with device_in_use():
        load(references)
        loaded = time.perf_counter()
        to_device = backend().to_device
        answer = search(references, to_device(lat_deg), to_device(lon_deg), options)
        answer = Answer(*map(backend().to_host, answer))
    resolved = time.perf_counter()
    found = answered(answer, is_valid(lat_deg, lon_deg), references.valid_rows, options)
    seconds = {"read": read - start, "index": loaded - read, "resolve": resolved - loaded}
    answers = []
    row = 0
    for job in jobs:
        rows = job.observations.rows
        answers.append(_answer(job, found.slice(row * options.k, rows * options.k), seconds))
        row += rows
    return answers


def _warm_up(references: Dataset, columns: list[str]) -> None:
    try:
        with device_in_use():
            load_all(references, columns)
    except Exception:
        # A job that needs them tells of it; they may have been removed meanwhile.
        logger.warning("%d references cannot be loaded", references.rows, exc_info=True)
    finally:
        _warming.release()


def _coordinates(job: Job) -> list[str]:
    return [job.observations.lat, job.observations.lon]


def _answer(job: Job, found: pa.Table, seconds: dict[str, float]) -> ExpressAnswer:
    start = time.perf_counter()
    chunk = Chunk(0, job.observations.rows)
    rows, counts = matches(job.options.k, chunk, found)
    sink = io.BytesIO()
    try:
        with carried(job, chunk, rows, _CARRIED_BYTES) as table:
            write_rows(sink, table.replace_schema_metadata(provenance(job, counts)))
    except CarriedTooLong as error:
        raise NotAtOnce(str(error)) from error
    write = time.perf_counter() - start
    return ExpressAnswer(sink.getvalue(), counts, {**seconds, "write": write})
