"""Runs jobs on the cluster, whichever process has accepted them."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib import metadata
from typing import Literal

import pyarrow.parquet as pq
from sqlalchemy.exc import SQLAlchemyError

from georesolve.engine.match_sets import CarriedTooLong
from georesolve.engine.plan import way_of
from georesolve.io.errors import Refused
from georesolve.io.source_files import SourceFailed
from georesolve.io.storage import OutputFailed, StoreFailed
from georesolve.io.validation import remarks
from georesolve.service import errors, pools
from georesolve.service.clock import in_hours, seconds_between
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Disk
from georesolve.service.jobs.cluster import ClusterKeeper
from georesolve.service.jobs.endings import clear, end, remove
from georesolve.service.jobs.models import MEASURES, Report
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.service.store.quotas import Quotas
from georesolve.service.store.rows import JobRow
from georesolve.service.store.store import Store
from georesolve.version import __version__
from georesolve.workers.cluster import Cluster
from georesolve.workers.job import Job
from georesolve.workers.logs import about
from georesolve.workers.pipeline import JobCancelled, Progress, run
from georesolve.workers.quarantine import WorkerLost
from georesolve.workers.results.manifest import Manifest

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
_WATCH_SECONDS = 1.0
_MOST_RUNNER_DEATHS = 6
"""A job is failed when so many runners died that had it in hand, and it never got on meanwhile.
From half of them on it runs alone: somebody else may have killed them, or a job beside it."""
_VERSIONS = {
    "georesolve": __version__,
    **{name: metadata.version(name) for name in ("dask", "numba", "pyarrow")},
}


class Supervisor:
    """Runs accepted jobs, as many at a time as the settings say, on the cluster of its keeper."""

    def __init__(
        self, settings: Settings, store: Store, library: Library, metrics: Metrics
    ) -> None:
        self.keeper = ClusterKeeper(settings)
        self.stopping = False
        self._settings = settings
        self._store = store
        self._library = library
        self._metrics = metrics
        self._disk = Disk(settings)
        self._places = pools.Turns(settings.concurrent_jobs)
        self._threads = pools.Pool("job", settings.concurrent_jobs)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._live: set[str] = set()
        self._begun: set[str] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the cluster and take up the jobs that are not finished; they stay so on exit."""
        async with self.keeper.running():
            self._store.jobs_place.make()
            self._fail_guilty_jobs()
            looker = asyncio.create_task(self._look_for_jobs())
            try:
                yield
            finally:
                self.stopping = True
                looker.cancel()
                # A job without a cluster waits for one; one that runs sees that all is stopping.
                if self.keeper.cluster is None:
                    for task in self._tasks.values():
                        task.cancel()
                await asyncio.gather(looker, *self._tasks.values(), return_exceptions=True)
                self._threads.close()

    async def _look_for_jobs(self) -> None:
        """Take up the jobs that are accepted, and let go of those that others have ended.

        One that runs leaves its workers within seconds. One that waits leaves the line, or a client
        that sends and dismisses jobs would make that as long as it likes.
        """
        with self._store.changes.of(None) as changed, self._store.bell.heard(changed.set):
            while True:
                changed.clear()
                try:
                    live = await pools.database(self._store.live_ids)
                    self._live = set(live)
                    for id in [id for id in live if id not in self._tasks]:
                        self._start(id)
                    for id in self._tasks.keys() - self._live - self._begun:
                        self._tasks[id].cancel()
                    await changed.wait()
                except (SQLAlchemyError, OSError, errors.Problem) as error:
                    logger.warning("accepted jobs cannot be looked for: %s", error)
                    await asyncio.sleep(_WATCH_SECONDS)

    def _start(self, id: str) -> None:
        self._tasks[id] = task = asyncio.create_task(self._run(id), name=f"job {id}")
        task.add_done_callback(lambda _: self._tasks.pop(id, None))

    def _fail_guilty_jobs(self) -> None:
        """Fail the jobs that ended the services which ran them, as it seems."""
        self._store.note_death()
        for job in self._store.live_jobs():
            if job.deaths >= _MOST_RUNNER_DEATHS:
                problem = errors.JobFailed(
                    "the service died each time that it ran this job, at last alone, so it is not "
                    "tried again: a job may need more memory than there is; send fewer rows at a "
                    "time, or carry fewer or shorter columns"
                )
                logger.error("job %s failed: %s", job.id, problem, extra={"job": job.id})
                self._fail(job.id, problem)
                clear(self._store, self._library, job.id)

    def _fail(self, id: str, problem: errors.Problem) -> None:
        outcome = problem.document(f"/jobs/{id}")
        end(self._store, self._metrics, id, "failed", problem.detail, problem=outcome)

    async def _run(self, id: str) -> None:
        """Run a job when its turn comes, again where a turn did not end it."""
        row = await pools.database(self._store.job, id)
        if row is None:
            return
        with about(job=id, **({"request_id": row.request} if row.request else {})):
            while not self.stopping and not await self._turn(row):
                await asyncio.sleep(_WATCH_SECONDS)

    async def _turn(self, row: JobRow) -> bool:
        """Run a job in its turn; False when it is to be run again."""
        await self.keeper.opened.wait()
        async with self._places.place(row.owner, alone=row.deaths >= _MOST_RUNNER_DEATHS // 2):
            cluster = self.keeper.cluster
            if cluster is None or self.stopping:
                return False
            self._begun.add(row.id)
            try:
                return await self._threads(self._attempt, row, cluster)
            except SQLAlchemyError:
                # Its end could not be written down, so it is run again: its parts stand.
                logger.exception("job %s: the store failed", row.id)
                return False
            finally:
                self._begun.discard(row.id)

    def _attempt(self, row: JobRow, cluster: Cluster) -> bool:
        """Run a job; no error passes but those of the database. False when it is to run again."""
        id = row.id
        try:
            if self._disk.is_low():
                wait = "waiting for room on the disk"
                return not self._store.update_live(id, rows_a_second=None, message=wait)
            if self._store.start_job(id):
                self._run_started(id, cluster)
        except JobCancelled:
            logger.info("job %s stopped", id)
        except SQLAlchemyError:
            raise
        except Exception as error:
            if (obstacle := _obstacle(error, cluster)) is not None:
                logger.warning("job %s is %s: %s", id, obstacle, error)
                return not self._store.update_live(id, rows_a_second=None, message=obstacle)
            logger.exception("job %s failed", id)
            problem = self._damage(row) or _problem_of_failure(error)
            is_full = isinstance(error, errors.StorageFull) or errors.is_disk_full(error)
            if is_full:
                # What it wrote is in its own way, and in that of the line that says so.
                with contextlib.suppress(OSError):
                    remove(self._store, row)
            self._fail(id, problem)
        finally:
            clear(self._store, self._library, id)
        return True

    def _damage(self, row: JobRow) -> errors.Problem | None:
        """What is wrong with the files of a job that failed, which may be why; None for nothing."""
        try:
            for dataset in {row.observations, row.references}:
                self._library.whole(dataset, every_byte=True)
        except (errors.DatasetDamaged, errors.NoSuchDataset) as damage:
            return damage
        except OSError:
            logger.exception("job %s: its files cannot be checked", row.id)
        return None

    def _run_started(self, id: str, cluster: Cluster) -> None:
        row = self._store.job(id)
        assert row is not None, "only jobs that have ended are forgotten"
        observations = self._library.whole(row.observations)
        references = self._library.whole(row.references)
        folder = self._store.job_folder(id)
        indexes = self._library.indexes_of(references)
        sets = observations.dataset, references.dataset
        job = Job(*sets, row.options, indexes, id=id, folder=folder, output=row.delivery.output)
        logger.info("job %s started", id)
        reporter = _Reporter(self._store, id, self._disk)
        left = None if job.output else Quotas(self._settings).left(self._store.of(row.owner))
        most = min(self._settings.result_bytes, sys.maxsize if left is None else left)
        start = time.monotonic()
        result, progress = run(
            cluster, job, reporter, lambda: self.stopping or id not in self._live, most
        )
        self.keeper.ran.add(job.kind)
        compiled = progress.seconds.get("compile")
        if not (reporter.first_rows or compiled) and job.options.question == "nearest":
            # Of a job that was taken up again nobody knows how long the whole takes; the next of
            # one that compiled takes less.
            seconds = time.monotonic() - start
            self.keeper.pace.note(cluster, job, seconds, progress.compared)
        report = _report_of(job, result, progress, cluster.device)
        report.seconds["queue"] = seconds_between(row.created, row.started or row.created)
        for name, dataset in (("observations", observations), ("references", references)):
            report.seconds |= {f"{stage}_{name}": took for stage, took in dataset.seconds.items()}
        expires = in_hours(self._settings.result_hours)
        outcome = {"report": report.model_dump(), "expires": expires}
        if end(self._store, self._metrics, id, "successful", "done", **outcome):
            self._metrics.count_rows("job", progress.rows_done, report.counts)
            logger.info("job %s successful: %s", id, report.counts)


def _obstacle(error: Exception, cluster: Cluster) -> str | None:
    """What a job waits for that was stopped by an error; None where the job is at fault."""
    if not cluster.is_up():
        return "waiting for its cluster, which was lost"
    if errors.is_out_of_descriptors(error):
        # Clients have them, and go. The parts of the job stand for the next try.
        return "waiting until files can be opened again"
    return "waiting for the object store" if isinstance(error, StoreFailed) else None


def _time_unit(result: Manifest) -> str | None:
    with result.reading(result.parts[0]) as file:
        schema = pq.read_schema(file)
    at = schema.get_field_index("time_apart")
    return getattr(schema.types[at], "unit", None) if at >= 0 else None


def _report_of(
    job: Job, result: Manifest, progress: Progress, device: Literal["cpu", "cuda"]
) -> Report:
    observations = job.observations
    if (seen := progress.evidence) is not None:
        observations = replace(observations, bbox=seen.bbox, null_island=seen.null_island)
    # As they were given.
    observations, references = job.options.in_order(observations, job.references)
    chunks = max(1, sum(progress.chunks_by_worker.values()))
    # A row a shape: the points look for these.
    searched = job.references if job.observations.outlines is None else job.observations
    own = {
        "rows": result.rows,
        "size_bytes": result.size_bytes,
        "digest": result.digest,
        "observations_sha256": observations.sha256,
        "references_sha256": references.sha256,
        "observations_bbox": observations.bbox,
        "references_bbox": references.bbox,
        "device": device,
        "search": str(way_of(-(-progress.rows // chunks), searched, job.options, device)),
        "geometry": next(
            (one.outlines.column for one in (observations, references) if one.outlines), None
        ),
        "verification": {"observations": progress.verified},
        "versions": _VERSIONS,
        "remarks": remarks(observations, references),
        "measure": MEASURES[job.options.earth],
        "time_unit": _time_unit(result) if job.options.filters else None,
        "options": job.options,
    }
    return Report.model_validate(vars(progress) | own)


def _problem_of_failure(error: BaseException) -> errors.Problem:
    """What the client is told of a job that ended with an error of ours."""
    if isinstance(error, Refused):
        return errors.problem_of(error)
    if isinstance(error, CarriedTooLong | OutputFailed | SourceFailed | WorkerLost):
        return errors.JobFailed(str(error))
    if errors.is_disk_full(error):
        return errors.disk_full()
    return errors.JobFailed("an error of the service; its log has the details")


class _Reporter:
    """Notes progress, twice a second at most; ends the job while too little of the disk is free."""

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
