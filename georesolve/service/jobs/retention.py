"""What has expired is removed while the service runs: results, datasets, leftovers."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from time import monotonic, time_ns

from georesolve.service.clock import is_id, seconds_to_catch_up
from georesolve.service.database.store import Store
from georesolve.service.datasets.library import Library
from georesolve.service.jobs.endings import sweep_unfinished
from georesolve.service.maps.cache import map_folder
from georesolve.service.settings import Settings
from georesolve.service.uploads.ingest import sweep as sweep_received
from georesolve.workers.places import Folder

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 60.0
_SHORTEST_PAUSE_SECONDS = 1.0
_ACCEPTED_SECONDS = 3600.0
_ABANDONED_SECONDS = 3 * 3600.0
"""No request waits so long for its turn to be decoded."""
_TOLERATED_LAG = timedelta(minutes=5)
_TELL_SECONDS = 3600.0


class Retention:
    """Removes what has expired, again and again."""

    def __init__(self, settings: Settings, store: Store, library: Library) -> None:
        self._settings = settings
        self._began_ns = time_ns()
        self._store = store
        self._library = library
        self._maps = map_folder(settings, store.maps_folder)
        lives = (settings.result_hours, settings.dataset_hours, settings.job_hours)
        tenth = 360 * min(filter(None, lives), default=1.0)
        self._tidy: set[str] = set()
        self._told_at = -math.inf
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, max(_SHORTEST_PAUSE_SECONDS, tenth))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sweep from now on."""
        task = asyncio.create_task(self._sweep_for_ever(), name="retention")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.sweep)
            except Exception:
                # A full disk, a database that is away: the next sweep may find them well.
                logger.exception("what has expired could not be removed")
            await asyncio.sleep(self._pause_seconds)

    def sweep(self) -> None:
        """Remove what has expired by now."""
        expiry = self._store.expiry
        jobs = self._store.jobs_place
        kept = {name for name in jobs.folders() if is_id(name)}
        # A request that found it just before it expired has the time to open it.
        for id in self._store.expired_results(expiry.now(-_SHORTEST_PAUSE_SECONDS)) & kept:
            jobs.below(id).clear()
            if (job := self._store.job(id)) is not None:
                for dataset in {job.observations, job.references}:
                    self._library.release(dataset)
            logger.info("the result of the job %s has expired", id)
        self._tidy &= kept
        self._tidy |= sweep_unfinished(self._store, kept - self._tidy)
        for id in self._store.expired_datasets():
            if self._library.expire(id):
                logger.info("the dataset %s has expired", id)
        if hours := self._settings.job_hours:
            for id in self._store.forget_jobs(expiry.now(-3600 * hours)):
                # Of one that was forgotten in the moment in which its result expired.
                jobs.below(id).clear()
                logger.info("the job %s ended %s hours ago and is forgotten", id, hours)
        if isinstance(jobs, Folder):
            unknown = kept - self._store.job_ids()
            self._store.quarantine.take(jobs.path / id for id in unknown)
        self._store.quarantine.expire(expiry)
        self._library.remove_orphans(self._began_ns)
        sweep_received(self._settings, _ABANDONED_SECONDS)
        self._library.indexes.keep_free()
        self._maps.keep_free()
        # Of jobs whose end could not tidy up; what is younger may belong to a job not yet accepted.
        for id in self._store.dataset_ids(registered=False, before=expiry.now(-_ACCEPTED_SECONDS)):
            self._library.release(id)
        self._tell_what_is_late()
        # This notes the time; on a full disk that fails with a line in the log.
        self._store.writable.trouble()

    def _tell_what_is_late(self) -> None:
        lag = self._store.expiry.lag()
        late = self._store.count_late() if lag > _TOLERATED_LAG else (0, 0)
        if not any(late):
            self._told_at = -math.inf
        elif monotonic() > self._told_at + _TELL_SECONDS:
            self._told_at = monotonic()
            logger.warning(
                "the clock is %s ahead of the time that has passed here: %d datasets and %d "
                "results that have expired by the clock are kept for now, and are removed within "
                "%.1f hours if the clock is right; if it is wrong, set it",
                str(lag).partition(".")[0],
                *late,
                seconds_to_catch_up(lag) / 3600,
            )
