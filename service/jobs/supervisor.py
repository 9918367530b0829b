"""Keeps the cluster open and runs jobs on it, also those that an earlier process accepted."""

import asyncio
import contextlib
import contextvars
import logging
import shutil
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from georesolve.service.clock import in_hours, is_id
from georesolve.service.database.rows import LIVE, EchoOptions, JobStatus
from georesolve.service.database.store import Store
from georesolve.service.datasets.library import Library
from georesolve.service.errors import (
    DatasetDamaged,
    JobDismissed,
    NoSuchDataset,
    Problem,
    is_disk_full,
    is_out_of_descriptors,
)
from georesolve.service.jobs.failures import problem_of_failure, problem_of_guilt
from georesolve.service.jobs.reports import account_of, seconds_before
from georesolve.service.jobs.suspicion import ALONE, GUILTY, OUT_OF_MEMORY, oom_kills
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.service.turns import Turns
from georesolve.workers.cluster import Cluster, in_event_loop, open_cluster, workers_of
from georesolve.workers.estimate import Estimator, Pace, estimate
from georesolve.workers.gpus import choose_device
from georesolve.workers.jobs import Job, MatchOptions
from georesolve.workers.logs import about
from georesolve.workers.manifest import read_manifest
from georesolve.workers.pipeline import JobCancelled, Progress, run

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
_REOPEN_SECONDS = 5.0
_WATCH_SECONDS = 1.0
_SILENCE_SECONDS = 10.0
"""A scheduler that has not answered for longer is asked for nothing on behalf of a client."""


class Supervisor:
    """Runs accepted jobs, as many at a time as the settings say.

    Attributes
    ----------
    cluster
        The open cluster; None while there is none.
    estimate
        Tells what a job would take on it; None while there is no cluster.
    workers
        Addresses of its workers by name, as the scheduler told last: nobody waits for it to ask.
    pace
        How long jobs take here, for estimates.
    stopping
        Whether jobs are being stopped, because the process is about to end.
    """

    def __init__(
        self, settings: Settings, store: Store, library: Library, metrics: Metrics
    ) -> None:
        self.cluster: Cluster | None = None
        self.estimate: Estimator | None = None
        self.workers: dict[str, str] = {}
        self.pace = Pace()
        self._settings = settings
        self._store = store
        self._library = library
        self._metrics = metrics
        self._opened = asyncio.Event()
        self._trouble = "the cluster is being opened"
        self._heard_at = 0.0
        self._places = Turns(settings.concurrent_jobs)
        self._threads = ThreadPoolExecutor(settings.concurrent_jobs, thread_name_prefix="job")
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
        self._sweep()
        self._fail_guilty_jobs()
        keeper = asyncio.create_task(self._keep_cluster_open())
        for job in self._store.live_jobs():
            logger.info("job %s taken up again", job.id, extra={"job": job.id})
            self.start(job.id)
        try:
            yield
        finally:
            self.stop()
            # A job without a cluster waits for one; one that runs sees that all is stopping.
            if self.cluster is None:
                for task in list(self._tasks.values()):
                    task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            self._threads.shutdown()

    async def opened(self) -> None:
        """Wait until there is a cluster, whose scheduler has answered."""
        await self._opened.wait()

    def _fail_guilty_jobs(self) -> None:
        """Fail the jobs that ended the services which ran them, as it seems; see `suspicion`."""
        self._store.note_death(oom_kills(), OUT_OF_MEMORY)
        for job in self._store.live_jobs():
            if job.suspicion >= GUILTY:
                problem = problem_of_guilt()
                logger.error("job %s failed: %s", job.id, problem, extra={"job": job.id})
                self._fail(job.id, problem)
                self._clear(job.id)

    def _fail(self, id: str, problem: Problem) -> None:
        self._end(id, "failed", problem.detail, problem=problem.document(f"/jobs/{id}"))

    @property
    def silence_seconds(self) -> float:
        """Time since the scheduler last answered; 0 while there is no cluster."""
        return 0.0 if self.cluster is None else time.monotonic() - self._heard_at

    @property
    def trouble(self) -> str | None:
        """Why the cluster cannot be asked, in words; None while it can."""
        if self.cluster is None:
            return self._trouble
        seconds = self.silence_seconds
        if seconds <= _SILENCE_SECONDS:
            return None
        last = f"it had {len(self.workers)} workers"
        return f"the scheduler has not answered for {seconds:.0f} s; {last}"

    @property
    def waiting(self) -> str | None:
        """Why no job on the cluster gets on, in words; None while it can be asked."""
        trouble = self.trouble
        return None if trouble is None else f"waiting for workers: {trouble}"

    async def _keep_cluster_open(self) -> None:
        """Open the cluster, again and again: when it cannot be opened, and when it is lost."""
        # Not for ever: a client of Dask that closes after its scheduler was lost swallows the
        # cancellation that was meant for this task.
        while not self.stopping:
            opening = open_cluster(self._settings.cluster())
            try:
                cluster = await asyncio.to_thread(opening.__enter__)
            except Exception as error:
                # Whatever it was, without another try there would be no cluster ever again.
                self._trouble = f"the cluster cannot be opened: {error}"
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
                await asyncio.to_thread(_close, opening)

    async def _watch(self, cluster: Cluster) -> None:
        """Keep the workers up, as long as the cluster is up."""
        async with in_event_loop(cluster) as client:
            self.estimate = partial(estimate, client, cluster, self.pace)
            try:
                while cluster.is_up():
                    cluster.restore()
                    try:
                        self.workers = await workers_of(client)
                        self._heard_at = time.monotonic()
                        self._opened.set()
                    except OSError as error:
                        # It is stopped, or lost. What was known of it gets old.
                        logger.warning("%s", error)
                    await asyncio.sleep(_WATCH_SECONDS)
            finally:
                self.estimate = None

    def _sweep(self) -> None:
        """Remove what an earlier process left of jobs that have ended; move unknown ones away."""
        folder = self._store.jobs_folder
        folder.mkdir(exist_ok=True)
        jobs = {path for path in folder.iterdir() if is_id(path.name)}
        known = self._store.job_ids()
        self._store.quarantine.take(job for job in jobs if job.name not in known)
        for job in jobs:
            row = self._store.job(job.name)
            if row is not None and row.status not in LIVE:
                _tidy(job, keep_result=row.status == "successful")
                # Nobody writes now: what is hidden was never finished.
                for path in job.glob(".*"):
                    path.unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop all jobs within seconds; they stay accepted, for the next process to take up."""
        self.stopping = True

    def start(self, id: str) -> None:
        """Run an accepted job when its turn comes."""
        logger.info("job %s accepted", id, extra={"job": id})
        task = asyncio.create_task(self._run(id), name=f"job {id}")
        self._tasks[id] = task
        task.add_done_callback(lambda _: self._tasks.pop(id, None))

    async def finished(self, id: str, seconds: float | None = None) -> None:
        """Wait until a job that this process runs has ended or is stopped, or time is over."""
        task = self._tasks.get(id)
        if task is not None:
            await asyncio.wait([task], timeout=seconds)

    async def dismiss(self, id: str) -> None:
        """End a live job or remove a finished one.

        One that runs lets go of its workers within seconds; one that waits for its turn is cleared
        away at once.

        Raises
        ------
        JobDismissed
            When that was done before. What it holds is left to who did it.
        """
        message = "dismissed by the client"
        if not await asyncio.to_thread(self._end, id, "dismissed", message):
            await asyncio.to_thread(self._remove, id)
        elif id in self._begun:
            # What the job holds goes once its thread has let go of it.
            self._dismissed.add(id)
        elif id in self._tasks:
            self._tasks[id].cancel()
            await asyncio.to_thread(self._clear, id)

    def _remove(self, id: str) -> None:
        if not self._store.dismiss_finished_job(id):
            raise JobDismissed(f"the job {id!r} was dismissed already")
        self._clear(id)

    def _end(self, id: str, status: JobStatus, message: str, **outcome: Any) -> bool:
        """End a live job, as `Store.finish_job` does, and count it."""
        if not self._store.finish_job(id, status, message, **outcome):
            return False
        row = self._store.job(id)
        if row is not None:
            self._metrics.count_job(row)
        return True

    def _is_cancelled(self, id: str) -> bool:
        return self.stopping or id in self._dismissed

    async def _run(self, id: str) -> None:
        try:
            with about(job=id):
                await self._run_to_its_end(id)
        finally:
            self._begun.discard(id)
            self._dismissed.discard(id)

    async def _run_to_its_end(self, id: str) -> None:
        has_ended = False
        while not has_ended and not self.stopping:
            try:
                row = await asyncio.to_thread(self._store.job, id)
                if row is not None and isinstance(row.options, EchoOptions):
                    await self._echo(id, row.options)
                else:
                    is_suspect = row is not None and row.suspicion >= ALONE
                    await self._run_on_cluster(id, row.owner if row else "", alone=is_suspect)
                has_ended = True
            except SQLAlchemyError:
                # Its end could not be written down, so it is run again: its parts stand.
                logger.exception("job %s: the store failed", id)
                await asyncio.sleep(_WATCH_SECONDS)

    async def _echo(self, id: str, options: EchoOptions) -> None:
        """Wait as long as an echo is told to; what it gives back stands in its row."""
        self._begun.add(id)
        await asyncio.to_thread(self._store.start_job, id)
        end = time.monotonic() + options.pause
        while (left := end - time.monotonic()) > 0 and not self._is_cancelled(id):
            await asyncio.sleep(min(left, _WATCH_SECONDS))
        if not self.stopping:
            await asyncio.to_thread(self._end, id, "successful", "done")

    async def _run_on_cluster(self, id: str, owner: str, *, alone: bool) -> None:
        has_ended = False
        while not has_ended and not self.stopping:
            await self._opened.wait()
            async with self._places.place(owner, alone=alone):
                if self.cluster is not None and not self.stopping:
                    has_ended = await self._run_in_thread(id, self.cluster)
            if not has_ended:
                await asyncio.sleep(_WATCH_SECONDS)

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
            await asyncio.to_thread(self._clear, id)
            return True
        return has_ended

    def _run_blocking(self, id: str, cluster: Cluster) -> bool:
        """Run a job to whatever end; the boundary that no error of a job passes.

        Returns False when it is to be run again: the cluster was lost, or files cannot be opened.
        """
        try:
            if self._store.start_job(id, oom_kills()):
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
            logger.exception("job %s failed", id)
            problem = self._damage(id) or problem_of_failure(error)
            if is_disk_full(error):
                # What it wrote is in its own way, and in that of the line that says so.
                shutil.rmtree(self._store.job_folder(id), ignore_errors=True)
            self._fail(id, problem)
        finally:
            self._clear(id)
        return True

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
        assert isinstance(row.options, MatchOptions), "an echo does not run here"
        observations = self._library.whole(row.observations)
        references = self._library.whole(row.references)
        folder = self._store.job_folder(id)
        indexes = self._library.indexes_of(references)
        job = Job(id, folder, observations.dataset, references.dataset, row.options, indexes)
        logger.info("job %s started", id)
        reporter = _Reporter(self._store, id)
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

    def _clear(self, id: str) -> None:
        """Remove what a job that has ended needs no more; a live one rests till it is taken up."""
        row = self._store.job(id)
        if row is None:
            return
        if row.status in LIVE:
            self._store.rest_job(id)
            return
        _tidy(self._store.job_folder(id), keep_result=row.status == "successful")
        for dataset in {row.observations, row.references}:
            self._library.release(dataset)


def _tidy(folder: Path, *, keep_result: bool) -> None:
    """Remove the files of a job that has ended: all but its result, or all."""
    if not keep_result:
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        read_manifest(folder).tidy()
        (folder / "cancelled").unlink(missing_ok=True)
    except OSError:
        # Who asks for the result is told what is wrong with it.
        logger.exception("the result in %s cannot be read", folder)


def _close(opening: contextlib.AbstractContextManager[Cluster]) -> None:
    try:
        opening.__exit__(None, None, None)
    except OSError:
        # A scheduler that is gone cannot be told good-bye.
        pass
    except Exception:
        logger.exception("the lost cluster could not be closed")


class _Reporter:
    """Notes progress in the store, not more often than a reader would look."""

    def __init__(self, store: Store, id: str) -> None:
        self._store = store
        self._id = id
        self._start = time.monotonic()
        self._next = self._start + _REPORT_SECONDS
        self.first_rows: int | None = None

    def __call__(self, progress: Progress) -> None:
        if self.first_rows is None:
            self.first_rows = progress.rows_done
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _REPORT_SECONDS
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
