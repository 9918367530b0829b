"""One job from its first chunk to its result: submit in windows, count, retry, cancel, assemble."""

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import dask.dataframe as dd
import pandas as pd
from distributed import CancelledError, Client, Future, futures_of, wait
from distributed.scheduler import KilledWorker

from workers.cluster import Cluster
from workers.files import make_folder
from workers.jobs import Job
from workers.partitions import (
    RECORD,
    part_path,
    read_chunk,
    read_record,
    resolve,
    write_part,
)
from workers.plan import Chunk, chunks
from workers.result import Result, assemble

logger = logging.getLogger(__name__)

_WINDOW_A_WORKER = 4
"""Chunks in flight a worker: enough to keep it busy, few enough for a cancel to be quick."""
_ATTEMPTS = 3
_POLL_SECONDS = 0.25
_STOP_SECONDS = 20
_COORDINATES = pd.DataFrame({"lat_deg": pd.Series(dtype="f8"), "lon_deg": pd.Series(dtype="f8")})
_ANSWER = pd.DataFrame(
    {
        "observation": pd.Series(dtype="i8"),
        "reference": pd.Series(dtype="i8"),
        "distance_m": pd.Series(dtype="f8"),
        "valid": pd.Series(dtype="i1"),
    }
)


class JobCancelled(Exception):
    """The job was cancelled, and no worker has it in hand any more."""


class WorkerLost(RuntimeError):
    """Workers died again and again while they held one chunk."""


@dataclass
class Progress:
    """How far a job is; grows while it runs.

    Attributes
    ----------
    rows, rows_done
        Observations of the job, and of its finished chunks.
    counts
        Finished result rows by status.
    seconds
        Time by stage, summed over workers; `partitions` and `assemble` are wall time.
    chunks_by_worker
        Number of chunks that each worker finished.
    """

    rows: int
    rows_done: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    chunks_by_worker: Counter[str] = field(default_factory=Counter)

    def add(self, record: dict[str, Any]) -> None:
        """Count a finished chunk."""
        self.rows_done += record["rows"]
        self.counts.update(record["counts"])
        for stage, seconds in record.get("seconds", {}).items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        if "worker" in record:
            self.chunks_by_worker[record["worker"]] += 1


def run(
    cluster: Cluster,
    job: Job,
    report: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> tuple[Result, Progress]:
    """Run a job to its result. Chunks whose part file stands already are not computed again.

    Parameters
    ----------
    report
        Called after every finished chunk.
    cancelled
        Asked several times a second.

    Raises
    ------
    JobCancelled
        When `cancelled` said so.
    WorkerLost
        When one chunk ended several workers.
    """
    make_folder(job.parts)
    job.cancel_flag.unlink(missing_ok=True)
    progress = Progress(job.observations.rows)
    todo = []
    plan = chunks(
        job.observations.rows,
        job.references.rows,
        job.options,
        cluster.device,
        max(1, len(cluster.workers())),
    )
    for chunk in plan:
        if part_path(job, chunk).exists():
            progress.add(read_record(part_path(job, chunk)))
        else:
            todo.append(chunk)
    report(progress)

    start = time.perf_counter()
    with cluster.client.as_current():
        for record in _records(cluster, job, todo, cancelled):
            progress.add(record)
            report(progress)
    progress.seconds["partitions"] = time.perf_counter() - start

    parts = [part_path(job, chunk) for chunk in plan]
    arguments = (job, parts, dict(progress.counts))
    future = cluster.client.submit(assemble, *arguments, key=f"assemble-{job.id}")
    with cluster.client.as_current():
        while not _finished([future]):
            if cancelled():
                _stop(cluster.client, job, [future])
    result: Result = future.result()
    progress.seconds["assemble"] = result.seconds
    return result, progress


def _records(
    cluster: Cluster, job: Job, todo: list[Chunk], cancelled: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Yield the records of chunks as they finish, a window of them in flight."""
    window = _WINDOW_A_WORKER * max(1, len(cluster.workers()))
    attempts: Counter[Chunk] = Counter()
    waiting = todo[::-1]
    running: dict[Future[Any], Chunk] = {}
    try:
        while waiting or running:
            if cancelled():
                _stop(cluster.client, job, list(running))
            # Refill at half a window: one graph for many chunks costs little more than for one.
            if waiting and len(running) <= window // 2:
                batch = [waiting.pop() for _ in range(min(len(waiting), window - len(running)))]
                attempts.update(batch)
                running |= _submit(cluster.client, job, batch, [attempts[c] for c in batch])
            for future in _finished(list(running)):
                chunk = running.pop(future)
                if future.status == "finished":
                    # The part file is the record; a future held would be recomputed, for nothing,
                    # when its worker dies.
                    yield json.loads(future.result()["record"][0])
                    continue
                error = future.exception()
                if not isinstance(error, KilledWorker | CancelledError):
                    raise error
                if attempts[chunk] >= _ATTEMPTS:
                    raise WorkerLost(
                        f"observations {chunk.start} to {chunk.stop - 1} ended their workers in "
                        f"{_ATTEMPTS} attempts"
                    ) from error
                logger.warning("job %s: %s lost its worker", job.id, chunk)
                waiting.append(chunk)
    except BaseException:
        cluster.client.cancel(list(running))
        raise


def _submit(
    client: Client, job: Job, batch: list[Chunk], attempts: list[int]
) -> dict[Future[Any], Chunk]:
    """Send a batch of chunks to the workers as one dataframe collection."""
    collection = (
        dd.from_map(read_chunk, batch, attempts, job=job, meta=_COORDINATES)
        .map_partitions(resolve, job, meta=_ANSWER, enforce_metadata=False)
        .map_partitions(write_part, job, meta=RECORD, enforce_metadata=False)
    )
    # Optimised, the three functions of a chunk are one task: its frames stay on one worker.
    futures = futures_of(client.persist(collection.optimize()))
    # A key ends in the number of its partition.
    return {future: batch[future.key[1]] for future in futures}


def _finished(futures: list[Future[Any]]) -> list[Future[Any]]:
    try:
        done, _ = wait(futures, timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED")
    except TimeoutError:
        return []
    except CancelledError:
        # A worker or the scheduler let go of some: they are to be submitted again.
        return [future for future in futures if future.done()]
    return list(done)


def _stop(client: Client, job: Job, running: list[Future[Any]]) -> NoReturn:
    """End a job that is cancelled, once no worker has it in hand any more."""
    # The flag, not a cancelled future, ends what runs, and at once what is queued behind it. After
    # that nobody writes into the folder of the job.
    job.cancel_flag.touch()
    with contextlib.suppress(TimeoutError, CancelledError):
        wait(running, timeout=_STOP_SECONDS)
    client.cancel(running)
    raise JobCancelled(job.id)
