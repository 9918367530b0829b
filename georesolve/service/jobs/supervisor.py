"""Keeps the cluster open and runs jobs on it, whichever process has accepted them."""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from georesolve.service import pools
from georesolve.service.clock import in_hours
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Disk
from georesolve.service.errors import (
    DatasetDamaged,
    JobFailed,
    NoSuchDataset,
    Problem,
    StorageFull,
    is_disk_full,
    is_out_of_descriptors,
)
from georesolve.service.jobs.cluster import ClusterState
from georesolve.service.jobs.endings import clear, end, remove
from georesolve.service.jobs.reports import account_of, problem_of_failure, seconds_before
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.service.store.rows import JobRow, JobStatus
from georesolve.service.store.store import Store
from georesolve.service.turns import Turns
from georesolve.workers.cluster import Cluster, in_event_loop, open_cluster, workers_of
from georesolve.workers.estimate import Capacity, Pace, memory_of_worker
from georesolve.workers.gpus import choose_device
from georesolve.workers.jobs import Job
from georesolve.workers.logs import about
from georesolve.workers.pipeline import JobCancelled, Progress, run
from georesolve.workers.places import StoreFailed

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
_REOPEN_SECONDS = 5.0
_WATCH_SECONDS = 1.0
_ASK_SECONDS = 2.0
"""How often the scheduler is asked for its workers."""
_SILENCE_SECONDS = 10.0
"""A scheduler that has not answered for longer is asked for nothing on behalf of a client."""
_MOST_DEATHS = 6
"""A job is failed when so many runners died that had it in hand, and it never got on meanwhile.
From half of them on it runs alone: somebody else may have killed them, or a job beside it."""


class Supervisor:
    """Runs accepted jobs, as many at a time as the settings say.

    Attributes
    ----------
    cluster
        The open cluster; None while there is none.
    workers
        Addresses of its workers by name, as the scheduler told last: nobody waits for it to ask.
    pace
        How long jobs take here, for estimates.
    news
        Is set when `state` tells something else than before.
    stopping
        Whether jobs are being stopped, because the process is about to end.
    """

    def __init__(
        self, settings: Settings, store: Store, library: Library, metrics: Metrics
    ) -> None:
        self.cluster: Cluster | None = None
        self.workers: dict[str, str] = {}
        self.pace = Pace()
        self.news = asyncio.Event()
        self._memory: tuple[int, int, int] | None = None
        self._settings = settings
        self._store = store
        self._library = library
        self._metrics = metrics
        self._disk = Disk(settings)
        self._opened = asyncio.Event()
        self._trouble = "the cluster is being opened"
        self._heard_at = 0.0
        self._places = Turns(settings.concurrent_jobs)
        self._threads = ThreadPoolExecutor(settings.concurrent_jobs, thread_name_prefix="job")
        self._opening = pools.Pool("cluster", 1)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()
        self._dismissed: set[str] = set()
        self.stopping = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the cluster and take up the jobs that are not finished; stop all on exit.

        Jobs that are stopped this way stay accepted: the next process takes them up again.

        Raises
        ------
        NoGpuError
            When a GPU was asked for and there is none.
        """
        if not self._settings.cluster().is_existing:
            choose_device(self._settings.device)
        self._store.jobs_place.make()
        self._fail_guilty_jobs()
        keeper = asyncio.create_task(self._keep_cluster_open())
        looker = asyncio.create_task(self._look_for_jobs())
        try:
            yield
        finally:
            self.stopping = True
            looker.cancel()
            # A job without a cluster waits for one; one that runs sees that all is stopping.
            if self.cluster is None:
                for task in list(self._tasks.values()):
                    task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            keeper.cancel()
            await asyncio.gather(keeper, looker, return_exceptions=True)
            self._threads.shutdown()

    async def opened(self) -> None:
        """Wait until there is a cluster, whose scheduler has answered."""
        await self._opened.wait()

    async def _look_for_jobs(self) -> None:
        """Take up the jobs that are accepted, and let go of those that others have ended."""
        with self._store.changes.of(None) as changed, self._store.bell.heard(changed.set):
            while True:
                changed.clear()
                try:
                    live = await pools.database(self._store.live_ids)
                    ended = set(self._tasks).difference(live)
                    for id in [id for id in live if id not in self._tasks]:
                        self._start(id)
                    await asyncio.gather(*map(self._let_go, ended))
                    await changed.wait()
                except (SQLAlchemyError, OSError, Problem) as error:
                    logger.warning("accepted jobs cannot be looked for: %s", error)
                    await asyncio.sleep(_WATCH_SECONDS)

    def _start(self, id: str) -> None:
        """Run an accepted job when its turn comes."""
        task = asyncio.create_task(self._run(id), name=f"job {id}")
        self._tasks[id] = task
        task.add_done_callback(lambda _: self._tasks.pop(id, None))

    async def _let_go(self, id: str) -> None:
        """Let go of a job that was dismissed.

        One that runs leaves its workers within seconds; one that waits for its turn is cleared away
        at once.
        """
        if id in self._begun:
            # What the job holds goes once its thread has let go of it.
            self._dismissed.add(id)
        elif id in self._tasks:
            self._tasks[id].cancel()
            await self._store.files(clear, self._store, self._library, id)

    def _fail_guilty_jobs(self) -> None:
        """Fail the jobs that ended the services which ran them, as it seems."""
        self._store.note_death()
        for job in self._store.live_jobs():
            if job.deaths >= _MOST_DEATHS:
                problem = JobFailed(
                    "the service died each time that it ran this job, at last alone, so it is not "
                    "tried again: a job may need more memory than there is; send fewer rows at a "
                    "time, or carry fewer or shorter columns"
                )
                logger.error("job %s failed: %s", job.id, problem, extra={"job": job.id})
                self._fail(job.id, problem)
                clear(self._store, self._library, job.id)

    def _fail(self, id: str, problem: Problem) -> None:
        self._end(id, "failed", problem.detail, problem=problem.document(f"/jobs/{id}"))

    def state(self) -> ClusterState:
        """How the cluster is now."""
        cluster, n_workers = self.cluster, len(self.workers)
        if cluster is None:
            return ClusterState(self._trouble)
        silence, trouble, capacity = time.monotonic() - self._heard_at, None, None
        if silence > _SILENCE_SECONDS:
            trouble = (
                f"the scheduler has not answered for {silence:.0f} s; it had {n_workers} workers"
            )
        if self._memory is not None and n_workers:
            capacity = Capacity(cluster.device, n_workers, self.pace.factor, *self._memory)
        return ClusterState(
            trouble, silence, cluster.device, n_workers, cluster.dashboard_url, capacity
        )

    async def _keep_cluster_open(self) -> None:
        """Open the cluster, again and again: when it cannot be opened, and when it is lost."""
        # Not for ever: a client of Dask that closes after its scheduler was lost swallows the
        # cancellation that was meant for this task.
        while not self.stopping:
            opening = open_cluster(self._settings.cluster())
            try:
                cluster = await self._opening(opening.__enter__)
            except Exception as error:
                # Whatever it was, without another try there would be no cluster ever again.
                self._trouble = f"the cluster cannot be opened: {error}"
                self.news.set()
                logger.error(self._trouble, exc_info=not isinstance(error, OSError))
                await asyncio.sleep(_REOPEN_SECONDS)
                continue
            self.workers, self._heard_at = {}, time.monotonic()
            self.cluster = cluster
            try:
                await self._watch(cluster)
                logger.error("the cluster was lost")
            except Exception:
                logger.exception("the cluster can no longer be watched, and is opened anew")
            finally:
                self._opened.clear()
                self.cluster = None
                self._trouble = "the cluster was lost"
                self.news.set()
                await self._opening(_close, opening)

    async def _watch(self, cluster: Cluster) -> None:
        """Keep the workers up, as long as the cluster is up."""
        async with in_event_loop(cluster) as client:
            while cluster.is_up():
                cluster.restore()
                try:
                    workers = await workers_of(client)
                    self._heard_at = time.monotonic()
                    if workers != self.workers or self._memory is None:
                        await self._meet(client, cluster, workers)
                except OSError as error:
                    # It is stopped, or lost. What was known of it gets old.
                    logger.warning("%s", error)
                if not self._opened.is_set():
                    self._opened.set()
                    self.news.set()
                await asyncio.sleep(_ASK_SECONDS)

    def _end(self, id: str, status: JobStatus, message: str, **outcome: Any) -> bool:
        return end(self._store, self._metrics, id, status, message, **outcome)

    async def _meet(self, client: Any, cluster: Cluster, workers: dict[str, str]) -> None:
        """Take note of workers, and of the memory that one of them has."""
        self._memory = None
        try:
            if workers:
                address = next(iter(workers.values()))
                self._memory = await memory_of_worker(client, cluster.device, address)
        finally:
            self.workers = workers
            self.news.set()

    def _is_cancelled(self, id: str) -> bool:
        return self.stopping or id in self._dismissed

    async def _run(self, id: str) -> None:
        try:
            row = await pools.database(self._store.job, id)
            if row is not None:
                with about(job=id, **({"request_id": row.request} if row.request else {})):
                    await self._run_to_its_end(row)
        finally:
            self._begun.discard(id)
            self._dismissed.discard(id)

    async def _run_to_its_end(self, row: JobRow) -> None:
        while not self.stopping and not await self._run_once(row):
            await asyncio.sleep(_WATCH_SECONDS)

    async def _run_once(self, row: JobRow) -> bool:
        """Run a job when its turn comes; False when it is to be run again."""
        try:
            await self._opened.wait()
            async with self._places.place(row.owner, alone=row.deaths >= _MOST_DEATHS // 2):
                if self.cluster is None or self.stopping:
                    return False
                return await self._run_in_thread(row.id, self.cluster)
        except SQLAlchemyError:
            # Its end could not be written down, so it is run again: its parts stand.
            logger.exception("job %s: the store failed", row.id)
            return False

    async def _run_in_thread(self, id: str, cluster: Cluster) -> bool:
        # What is logged in the thread is about the same job.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        self._begun.add(id)
        try:
            has_ended = await loop.run_in_executor(
                self._threads, context.run, self._run_blocking, id, cluster
            )
        finally:
            self._begun.discard(id)
        if not has_ended and id in self._dismissed:
            # Dismissed too late for the thread to notice, and it need not wait for another turn.
            await self._store.files(clear, self._store, self._library, id)
            return True
        return has_ended

    def _run_blocking(self, id: str, cluster: Cluster) -> bool:
        """Run a job to whatever end; the boundary that no error of a job passes.

        Returns False when it is to be run again: the cluster was lost, or files cannot be opened.
        """
        try:
            if self._disk.is_low():
                self._note_wait(id, "waiting for room on the disk")
                return False
            if self._store.start_job(id):
                self._run_started(id, cluster)
        except JobCancelled:
            logger.info("job %s stopped", id)
        except SQLAlchemyError:
            raise  # of the store: the job is not at fault
        except Exception as error:
            if not cluster.is_up():
                logger.warning("job %s lost its cluster and waits for it: %s", id, error)
                return False
            if is_out_of_descriptors(error):
                # Clients have them, and go. The parts of the job stand for the next try.
                logger.warning("job %s waits until files can be opened again: %s", id, error)
                return False
            if isinstance(error, StoreFailed):
                logger.warning("job %s waits until the object store answers: %s", id, error)
                self._note_wait(id, "waiting for the object store")
                return False
            logger.exception("job %s failed", id)
            problem = self._damage(id) or problem_of_failure(error)
            is_full = isinstance(error, StorageFull) or is_disk_full(error)
            if is_full and (row := self._store.job(id)):
                # What it wrote is in its own way, and in that of the line that says so.
                with contextlib.suppress(OSError):
                    remove(self._store, row)
            self._fail(id, problem)
        finally:
            clear(self._store, self._library, id)
        return True

    def _note_wait(self, id: str, message: str) -> None:
        row = self._store.job(id)
        self._store.report_progress(id, row.rows_done if row else 0, None, message)

    def _damage(self, id: str) -> Problem | None:
        """What is wrong with the files of a job that failed, which may be why; None for nothing."""
        row = self._store.job(id)
        assert row is not None, "only jobs that have ended are forgotten"
        try:
            for dataset in {row.observations, row.references}:
                self._library.whole(dataset, every_byte=True)
        except (DatasetDamaged, NoSuchDataset) as damage:
            return damage
        except OSError:
            logger.exception("job %s: its files cannot be checked", id)
        return None

    def _run_started(self, id: str, cluster: Cluster) -> None:
        row = self._store.job(id)
        assert row is not None, "only jobs that have ended are forgotten"
        observations = self._library.whole(row.observations)
        references = self._library.whole(row.references)
        folder = self._store.job_folder(id)
        indexes = self._library.indexes_of(references)
        sets = observations.dataset, references.dataset
        job = Job(id, folder, *sets, row.options, indexes, row.delivery.output)
        logger.info("job %s started", id)
        reporter = _Reporter(self._store, id, self._disk)
        start = time.monotonic()
        result, progress = run(cluster, job, reporter, lambda: self._is_cancelled(id))
        if not reporter.first_rows:
            # Of a job that was taken up again nobody knows how long the whole takes.
            self.pace.note(cluster, job, time.monotonic() - start)
        account = account_of(job, result, progress, cluster.device)
        account.seconds |= seconds_before(row, observations, references)
        expires = in_hours(self._settings.result_hours)
        report = account.model_dump()
        if self._end(id, "successful", "done", report=report, expires=expires):
            self._metrics.count_rows("job", progress.rows_done, account.counts)
            logger.info("job %s successful: %s", id, account.counts)


def _close(opening: contextlib.AbstractContextManager[Cluster]) -> None:
    try:
        opening.__exit__(None, None, None)
    except OSError:
        # A scheduler that is gone cannot be told good-bye.
        pass
    except Exception:
        logger.exception("the lost cluster could not be closed")


class _Reporter:
    """Notes progress in the store, not more often than a reader would look.

    Ends the job while too little of the disk is free.
    """

    def __init__(self, store: Store, id: str, disk: Disk) -> None:
        self._store = store
        self._disk = disk
        self._id = id
        self._start = time.monotonic()
        self._next = self._start + _REPORT_SECONDS
        self.first_rows: int | None = None

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self.first_rows is None:
            self.first_rows = progress.rows_done
            # Until now it looked at the parts that stand.
            self._start = now
            if progress.rows_done:
                # Parts that stand show that the job got on before its runner died.
                self._next = now
        if now < self._next:
            return
        self._next = now + _REPORT_SECONDS
        if self._disk.holds_all:
            self._disk.refuse_when_low()
        rows = progress.rows_done - self.first_rows
        message = f"resolving: {progress.rows_done} of {progress.rows} rows"
        rate = None
        if rows:
            rate = rows / max(now - self._start, 1e-9)
            left = (progress.rows - progress.rows_done) / rate
            message += f", {rate:.0f} a second, {left:.0f} s left"
        try:
            self._store.report_progress(self._id, progress.rows_done, rate, message)
        except SQLAlchemyError:
            # A note less; the job itself goes on.
            logger.exception("job %s: its progress could not be noted", self._id)
