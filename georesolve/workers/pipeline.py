"""One job from its first chunk to its result: submit in windows, count, retry, cancel, conclude."""

import contextlib
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from distributed import CancelledError, Client, Future, futures_of, wait
from distributed.scheduler import KilledWorker

from georesolve.engine.cost_model import takes_long
from georesolve.engine.match_sets import CarriedTooLong
from georesolve.engine.plan import (
    CHUNKS_IN_HAND,
    Chunk,
    Run,
    chunks,
    next_run,
    too_wide,
    widths,
)
from georesolve.engine.sampling import compared
from georesolve.io.evidence import Evidence
from georesolve.io.storage import OutputFailed, named
from georesolve.io.threads import side_by_side
from georesolve.workers.assembly import Assembly
from georesolve.workers.cluster import Cluster
from georesolve.workers.job import Job
from georesolve.workers.partitions import RUN, bounds, resolve, resolve_run, standing_record
from georesolve.workers.plugin import READY
from georesolve.workers.quarantine import Suspects
from georesolve.workers.results.manifest import Manifest
from georesolve.workers.results.parts import read_record, record_name

logger = logging.getLogger(__name__)

_WINDOW_A_WORKER = 8
"""Tasks in flight a worker: enough to keep it busy, few enough for a cancel to be quick."""
_PARTITIONS = 10
"""Runs that are sent as the partitions of one collection."""
_AT_ONCE = 16
"""Ended runs whose records are read before the job is looked at, and workers get more, again."""
_POLL_SECONDS = 0.25
_STOP_SECONDS = 20
_PATIENCE_SECONDS = 5.0
_TIMES_LONGER = 3.0
"""A run is late that takes so many times longer than the longest, and these seconds more."""


class JobCancelled(Exception):
    """The job was cancelled, and no worker has it in hand any more."""


class ClusterLost(RuntimeError):
    """The scheduler is gone and with it what was submitted; what stands is taken up elsewhere."""


@dataclass
class Progress:
    """How far a job is; grows while it runs."""

    rows: int
    rows_done: int = 0
    """Observations of its finished chunks."""
    counts: Counter[str] = field(default_factory=Counter)
    """Finished result rows by status."""
    verified: int = 0
    """Observations that were searched a second time, by another algorithm."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage, summed over chunks. Wall time are `partitions`, until the last chunk is done,
    and `assemble`, from then until the result is there."""
    chunks_by_worker: Counter[str] = field(default_factory=Counter)
    """Those that each worker finished."""
    evidence: Evidence | None = None
    """What the observations say, of files that nobody has looked at before."""
    compared: float = 0.0
    """What `rates.rows_a_second` knows of the points."""

    def add(self, record: dict[str, Any], whole: int) -> None:
        """Count a finished chunk, of so many rows that all chunks of all passes have."""
        self.rows_done += record["rows"] * self.rows // whole
        self.counts.update(record["counts"])
        self.verified += record["verified"]
        self.chunks_by_worker[record["worker"]] += 1
        for stage, seconds in record["seconds"].items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


def run(
    cluster: Cluster,
    job: Job,
    report: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    most_bytes: int = sys.maxsize,
) -> tuple[Manifest, Progress]:
    """Run a job to its result. Chunks whose part file stands already are not computed again.

    It reports after every finished chunk, and asks several times a second whether it is cancelled.
    Pairs are counted before one is written: ResultTooLarge is raised where a result of them would
    have more than `most_bytes`. It also raises JobCancelled, CarriedTooLong, WorkerLost,
    ClusterLost, SourceFailed and InvalidInput.
    """
    carried = widths(job)
    if obstacle := too_wide(job.observations.rows, job.options.ranks, carried):
        raise CarriedTooLong(obstacle)
    if job.output and not job.records.is_made():
        # Of another job, or of others: what lies there is not removed when this job fails.
        with named(job.place):
            if job.place.is_taken():
                raise OutputFailed(f"{job.output}: something lies there, since it was accepted")
    progress = Progress(job.observations.rows)
    # Asked once: the scheduler tells it, and has other things to do.
    n_workers = max(1, len(cluster.workers()))
    rows = job.observations.rows, job.references.as_points
    # What a worker has in hand is a share of it at most.
    if takes_long(rows[0] // n_workers, rows[1], job.options, cluster.device):
        progress.compared = compared(job.observations, job.references, job.options)
    plan = chunks(*rows, job.options, cluster.device, n_workers, carried, progress.compared)
    start = time.perf_counter()
    passes = [job.counting(), job] if job.options.has_pairs else [job]
    result, counts = Assembly(passes[0]), dict(progress.counts)
    with cluster.client.as_current():
        for own in passes:
            if own.options.has_pairs:
                own, plan, counts = result.counted(job, cluster.device, most_bytes)
                result = Assembly(own)
            whole = len(passes) * max(1, plan[-1].stop)
            own.records.make()
            own.place.make()
            own.resume()
            # What is hidden is being written.
            known = {name for name in own.records.names() if name[0] != "."}
            # Of a chunk that was halved, or of another plan: nobody would check what it says.
            own.records.remove(known.difference(record_name(*chunk) for chunk in plan))
            todo = [chunk for chunk in plan if record_name(*chunk) not in known]
            done = [chunk for chunk in plan if record_name(*chunk) in known]
            # All bytes of their parts are compared, which a bucket gives one by one slowly.
            looked_at = side_by_side(partial(standing_record, own), done)
            with contextlib.closing(looked_at) as standing:
                for chunk, record in zip(done, standing, strict=True):
                    _check(cluster, own, cancelled)
                    if record is None:
                        todo.append(chunk)
                    else:
                        progress.add(record, whole)
                        result.add(chunk, record)
            todo.sort()
            report(progress)
            for chunk, record in _records(cluster, own, todo, n_workers, cancelled):
                progress.add(record, whole)
                report(progress)
                result.add(chunk, record)
            progress.evidence = progress.evidence or result.evidence()
    if counts:
        progress.counts, progress.rows_done = Counter(counts), progress.rows
    progress.seconds["partitions"] = time.perf_counter() - start
    start = time.perf_counter()
    finished = result.finish(dict(progress.counts))
    progress.seconds["assemble"] = time.perf_counter() - start
    return finished, progress


def _records(
    cluster: Cluster, job: Job, todo: list[Chunk], n_workers: int, cancelled: Callable[[], bool]
) -> Iterator[tuple[Chunk, dict[str, Any]]]:
    """Yield chunks with their records as they finish, a window of runs of them in flight."""
    waiting = todo[::-1]
    flight = _Flight(cluster.client, job)
    running = flight.running
    window = _WINDOW_A_WORKER * n_workers
    n_threads = CHUNKS_IN_HAND[cluster.device] * n_workers
    seconds: float | None = None
    is_short, alone = False, set[Run]()
    with contextlib.closing(Suspects(cluster.trial)) as suspects:
        try:
            while waiting or running or suspects:
                _check(cluster, job, cancelled)
                # Refill at half a window: one graph for many tasks costs little more than for one.
                # Not while there are suspects: more like them would end more workers.
                if waiting and not suspects and len(running) <= window // 2:
                    batch: list[Run] = []
                    while waiting and len(running) + len(batch) < window:
                        if is_short:
                            batch.append((waiting.pop(),))
                            alone.add(batch[-1])
                        else:
                            batch.append(next_run(waiting, n_threads, seconds))
                    flight.submit(batch)
                if not waiting and not suspects:
                    flight.submit_late()
                if called := suspects.call(0 if running else _POLL_SECONDS):
                    flight.submit([(chunk,) for chunk in called])
                for future, run in flight.take_ended(_POLL_SECONDS if running else 0):
                    for chunk in run:
                        suspects.dismiss(chunk)
                    trouble = _trouble(job, future)
                    records = _records_of(job, run, is_done=trouble is None)
                    left = [chunk for chunk in run if chunk not in records]
                    is_killed = bool(left) and _is_guilty(cluster.client, trouble)
                    if is_killed:
                        # A worker takes the chunks of a run in turn: it had the first in hand.
                        suspects.blame(left[0])
                    if left and run in running.values():
                        # Its other copy goes on: it would write its part beside those of halves.
                        continue
                    # A copy that is not needed any more ends without a part.
                    flight.drop([one for one, its in running.items() if its == run])
                    lasted = [sum(record["seconds"].values()) for record in records.values()]
                    if records:
                        flight.note(sum(lasted))
                        seconds = lasted[-1]
                    yield from records.items()
                    if is_killed:
                        suspects.add(left.pop(0))
                        # More like it would end more workers.
                        left += flight.recall(suspects.on_trial)
                    elif isinstance(trouble, MemoryError) and run in alone:
                        left = [half for chunk in left for half in _halves(job, chunk, trouble)]
                    elif isinstance(trouble, MemoryError):
                        # Others in hand may hold the memory: from now on a worker has one chunk at
                        # a time, which is halved if need be.
                        is_short, window = True, n_workers
                    if left:
                        waiting = sorted([*waiting, *left], reverse=True)
        except BaseException:
            if cluster.is_up():
                flight.stop()
            raise


class _Flight:
    """The runs of a job that were submitted; `running` are those not yet ended, by futures.

    A worker may hang in a read, so a copy may run beside a run that is late. The first of the two
    to finish counts: both write the same bytes.
    """

    def __init__(self, client: Client, job: Job) -> None:
        self.running: dict[Future[Any], Run] = {}
        self._client, self._job = client, job
        # In the order in which they ended. Not `distributed.wait`, which looks at all futures in
        # flight whenever one has ended: 64 workers have 512.
        self._ended = SimpleQueue[Future[Any]]()
        self._longest_seconds, self._since = 0.0, time.monotonic()

    def submit(self, batch: list[Run], workers: list[str] | None = None) -> None:
        """Send runs to the workers, or to some of them, as partitions of collections."""
        # A second to load, in which a service would not answer yet: `open_cluster` has loaded it.
        import dask.dataframe as dd

        # One word: Dask leaves out what follows a dash.
        word, ended = f"run_{self._job.id.replace('-', '_')}", self._ended
        for first in range(0, len(batch), _PARTITIONS):
            # Of one collection Dask begins the last partition first, and counts them by their
            # digits: so many it takes in the order of their rows, and the result grows from its
            # begin.
            runs = batch[first : first + _PARTITIONS][::-1]
            # Optimised, a run is one task, named after the first words of these two: the dashboard
            # shows which job it belongs to. What follows them is never used twice: a scheduler of
            # which a killed service was a client may still know its tasks.
            collection = (
                dd.from_map(bounds, runs, meta=RUN, label=f"resolve-{secrets.token_hex(8)}")
                .map_partitions(resolve_run, self._job, resolve, meta=RUN, token=word)
                .optimize()
            )
            # Batches of a minute would count as one, and the first of each be taken before all
            # others.
            sent = self._client.persist(collection, workers=workers, fifo_timeout="0s")
            for future in futures_of(sent):
                self.running[future] = runs[future.key[1]]
                # It holds the collection: a scheduler of this process finds its expressions by
                # their names as it reads the graph, and fails where they are let go of meanwhile.
                future.add_done_callback(lambda one, _held=collection: ended.put(one))
        # All have all the time again.
        self._since = time.monotonic()

    def note(self, seconds: float) -> None:
        """Take note of a finished run: its fellows may take as long."""
        self._longest_seconds = max(self._longest_seconds, seconds)
        self._since = time.monotonic()

    def submit_late(self) -> None:
        """Send runs that are late a second time, as many as there are workers without work."""
        patience = _PATIENCE_SECONDS + _TIMES_LONGER * self._longest_seconds
        if not self._longest_seconds or time.monotonic() - self._since < patience:
            return
        late = [run for run, times in Counter(self.running.values()).items() if times == 1]
        idle = [address for address, tasks in self._client.processing().items() if not tasks]
        if again := late[: len(idle)]:
            logger.warning(
                "job %s: %s are late, and computed elsewhere as well", self._job.id, again
            )
        self.submit(again, idle)

    def take_ended(self, seconds: float) -> Iterator[tuple[Future[Any], Run]]:
        """Some that have finished, failed or been cancelled, after a wait for the first of them."""
        try:
            ended = [self._ended.get(timeout=seconds)]
        except Empty:
            return
        ended += [self._ended.get() for _ in range(min(self._ended.qsize(), _AT_ONCE - 1))]
        for future in ended:
            # Else it was let go: the other copy of its run finished first.
            if future in self.running:
                yield future, self.running.pop(future)

    def recall(self, on_trial: Chunk | None) -> list[Chunk]:
        """Take back the chunks of runs that no worker has in hand, but not the one on trial."""
        in_hand = {key for keys in self._client.processing().values() for key in keys}
        queued = [
            future
            for future, run in self.running.items()
            if future.key not in in_hand and not future.done() and run != (on_trial,)
        ]
        runs = {self.running[future] for future in queued}
        self.drop(queued)
        # A copy that a worker has in hand goes on.
        return [chunk for run in runs.difference(self.running.values()) for chunk in run]

    def drop(self, futures: list[Future[Any]]) -> None:
        """Have the scheduler forget tasks, those too that have not ended."""
        for future in futures:
            del self.running[future]
        # It tells all clients of what is cancelled, and logs the stack of an error where one has
        # gone, as when the service stops: what has ended is released.
        if waiting := [future for future in futures if not future.done()]:
            self._client.cancel(waiting)
        for future in futures:
            future.release()

    def stop(self) -> None:
        """End a job that has failed or is cancelled, once no worker has it in hand any more."""
        futures = list(self.running)
        # The flag, not a cancelled future, ends what runs, and at once what is queued behind it.
        # After that nobody writes into the folder of the job.
        with contextlib.suppress(TimeoutError, CancelledError, OSError):
            self._job.cancel()
            wait(futures, timeout=_STOP_SECONDS)
        self.drop(futures)


def _halves(job: Job, chunk: Chunk, trouble: MemoryError) -> list[Chunk]:
    """A chunk that found no memory in two; raises the error where it is too small for that."""
    halves = chunk.halves()
    if not halves:
        raise trouble
    logger.warning("job %s: %s is halved: %s", job.id, chunk, trouble)
    return halves


def _records_of(job: Job, run: Run, *, is_done: bool) -> dict[Chunk, dict[str, Any]]:
    """Records of the chunks of a run: all of one that is done, else those that stand.

    They lie beside the parts: what the future holds is not asked for, and would be computed anew,
    for nothing, when its worker dies.
    """
    records = {}
    for chunk in run:
        try:
            records[chunk] = read_record(job.records, record_name(*chunk))
        except FileNotFoundError:
            if is_done:
                raise
    return records


def _check(cluster: Cluster, job: Job, cancelled: Callable[[], bool]) -> None:
    """End the run when the job is cancelled, or the cluster lost; keep its workers up."""
    if cancelled():
        raise JobCancelled(job.id)
    if not cluster.is_up():
        raise ClusterLost("the connection to the scheduler was lost")
    cluster.restore()


def _trouble(job: Job, future: Future[Any]) -> BaseException | None:
    """Why a run is not done, if it is to be tried again; raises whatever else it was.

    It was lost with its worker, or its worker had no memory for it, or another client of the
    scheduler has cancelled it.
    """
    try:
        # Dask calls a future lost that had finished, when its worker dies.
        if future.status not in ("finished", "lost"):
            future.result()
    except (KilledWorker, CancelledError) as error:
        logger.warning("job %s: a task was lost: %s", job.id, error)
        return error
    except MemoryError as error:
        return error
    finally:
        # Not when Python finds that nobody holds it any more: the frames of old errors do for long.
        future.release()
    return None


def _is_guilty(client: Client, trouble: BaseException | None) -> bool:
    """Whether a worker died with a run in hand.

    Dask gives tasks to a worker that joins, which it does not begin before it has passed its check.
    """
    if not isinstance(trouble, KilledWorker):
        return False
    ready = {event["address"] for _, event in client.get_events(READY)}
    return trouble.last_worker.address in ready
