"""What has expired is removed while the service runs: by one sweeper, row by row."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from georesolve.service.clock import is_id, now
from georesolve.service.datasets.library import Library, id_in
from georesolve.service.jobs.endings import settle
from georesolve.service.settings import Settings
from georesolve.service.store.engine import refuse_missing
from georesolve.service.store.store import LONG_AGO, Store
from georesolve.workers.tiles.map_files import MapFolder

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 60.0
_SHORTEST_PAUSE_SECONDS = 1.0
_SHOWN = 3


def unknown(store: Store) -> dict[str, Callable[[], None]]:
    """Names of files and folders that no row names, and what removes each."""
    datasets, jobs = store.datasets_place, store.jobs_place
    # Listed before the database is asked: what is entered meanwhile is known.
    files = [(name, id_in(name)) for name in datasets.names()]
    folders = [name for name in jobs.folders() if is_id(name)] if jobs.is_made() else []
    known = store.kept_ids()
    found: dict[str, Callable[[], None]] = {
        f"datasets/{name}": partial(datasets.remove, [name])
        for name, id in files
        if id and id not in known
    }
    return found | {f"jobs/{id}": jobs.below(id).clear for id in folders if id not in known}


def sweep_by_hand(settings: Settings, *, believes_clock: bool, removes_unknown: bool) -> int:
    """What `georesolve sweep` does: it prints names of unknown files; returns an exit code."""
    place = (settings.data_dir, settings.database)
    refuse_missing(*place)
    with contextlib.closing(Store(*place, settings.store)) as store:
        store.refuse_other_folder()
        if believes_clock:
            store.sweep_now()
        for name, remove in sorted(unknown(store).items()):
            if removes_unknown:
                remove()
            print("removed" if removes_unknown else "unknown", name)
    return 0


class Retention:
    """Removes what has expired, again and again."""

    def __init__(self, settings: Settings, store: Store, library: Library) -> None:
        self._settings = settings
        self._store = store
        self._library = library
        self._maps = MapFolder(store.maps_folder, settings.index_bytes, settings.keep_free)
        lives = (settings.result_hours, settings.dataset_hours, settings.job_hours)
        tenth = 360 * min(filter(None, lives), default=1.0)
        self._has_told = False
        self._waits: str | None = None
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, max(_SHORTEST_PAUSE_SECONDS, tenth))

    async def sweep_for_ever(self) -> None:
        """Sweep again and again."""
        while True:
            try:
                await self._store.files(self.sweep)
            except Exception:
                # A full disk, a database that is away: the next sweep may find them well.
                logger.exception("what has expired could not be removed")
            await asyncio.sleep(self._pause_seconds)

    def sweep(self) -> None:
        """Remove what has expired; after a jump of the clock, only what nobody wants any more."""
        with self._store.removing() as may_remove:
            if not may_remove:
                return
        self._library.indexes.keep_free()
        self._maps.keep_free()
        if not self._has_told:
            if names := sorted(unknown(self._store)):
                logger.warning(
                    "%d files or folders are not known to the database, such as %s: they stay; if "
                    "the database is the right one, 'georesolve sweep --unknown' removes them",
                    len(names),
                    ", ".join(names[:_SHOWN]),
                )
            self._has_told = True
        until = self._store.waits_until()
        if until != self._waits and until is not None:
            logger.warning(
                "more than a day has passed since the last sweep, or the clock jumped: nothing "
                "that has expired is removed until %s; if the clock is right, 'georesolve sweep "
                "--now' removes it at once",
                until,
            )
        self._waits = until
        for kept in self._store.expired(None if until is None else LONG_AGO):
            try:
                if kept.kind == "result":
                    settle(self._store, kept)
                elif self._library.discard(kept.id, expires=kept.expires):
                    logger.info("the %s %s is removed", kept.kind, kept.id)
            except Exception:
                logger.exception("%s cannot be removed, and is tried again", kept.id)
        if until is None and (hours := self._settings.job_hours):
            for id in self._store.forget_jobs(now(-3600 * hours)):
                logger.info("the job %s ended long ago and is forgotten", id)
