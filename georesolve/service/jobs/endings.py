"""The end of a job: waiting for it, ending it early, removing what the job needs no more."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from georesolve.service import pools
from georesolve.service.clock import is_id, now, seconds_between
from georesolve.service.datasets.library import Library
from georesolve.service.errors import JobDismissed
from georesolve.service.metrics import Metrics
from georesolve.service.store.rows import LIVE, JobRow, JobStatus
from georesolve.service.store.store import Store
from georesolve.workers.jobs import CANCELLED, RECORDS
from georesolve.workers.manifest import read_manifest
from georesolve.workers.parts import keep_parts
from georesolve.workers.places import Folder, own_place, place_of

logger = logging.getLogger(__name__)

_LET_GO_SECONDS = 60.0
"""After so long no worker has a job in hand that has ended."""
_SETTLED_SECONDS = 3600.0
"""Nor does one that hung in a write."""


async def wait_for_end(store: Store, id: str, seconds: float | None) -> None:
    """Wait until a job has ended, this process is about to end, or time is over."""
    with suppress(TimeoutError), store.changes.of(id) as changed:
        async with asyncio.timeout(seconds):
            while not store.changes.stopping:
                changed.clear()
                if await pools.database(store.has_ended, id):
                    return
                await changed.wait()


def end(
    store: Store, metrics: Metrics, id: str, status: JobStatus, message: str, **outcome: Any
) -> bool:
    """End a live job, as `Store.finish_job` does, and count it."""
    if not store.finish_job(id, status, message, **outcome):
        return False
    row = store.job(id)
    if row is not None:
        start, finish = row.started, row.finished
        metrics.count_job(
            row.process,
            row.status,
            row.problem["type"] if row.problem else "",
            seconds_between(row.created, start) if start else None,
            seconds_between(start, finish) if start and finish else None,
        )
    return True


def dismiss(store: Store, library: Library, metrics: Metrics, id: str) -> None:
    """End a live job, which a runner that has it then lets go of, or remove a finished one.

    Raises
    ------
    JobDismissed
        When that was done before. What the job holds is left to the one who did it.
    """
    if end(store, metrics, id, "dismissed", "dismissed by the client"):
        row = store.job(id)
        # A job that no runner has in hand may have been seen by none.
        if row is not None and not row.held:
            clear(store, library, id)
        return
    if not store.dismiss_finished_job(id):
        raise JobDismissed(f"the job {id!r} was dismissed already")
    clear(store, library, id)


def clear(store: Store, library: Library, id: str) -> None:
    """Remove what a job that has ended needs no more; a live one rests till it is taken up."""
    row = store.job(id)
    if row is None:
        return
    if row.status in LIVE:
        store.rest_job(id)
        return
    tidy(store, row)
    for dataset in {row.observations, row.references}:
        library.release(dataset)


def tidy(store: Store, row: JobRow) -> None:
    """Remove the files of a job that has ended: all but its result, or all."""
    if row.status != "successful":
        remove(store, row)
        return
    folder = store.job_folder(row.id)
    try:
        home = own_place(folder)
        # First: a worker that still has a chunk in hand writes no part where there are none.
        home.below(RECORDS).clear()
        if not row.delivery.output:
            read_manifest(folder).tidy()
        home.remove([CANCELLED])
    except FileNotFoundError:
        # A client has deleted the job meanwhile, and another process its files.
        logger.info("job %s has no result to tidy", row.id)
    except OSError:
        # Who asks for the result is told what is wrong with it.
        logger.exception("the result in %s cannot be read", folder)


def remove(store: Store, row: JobRow) -> None:
    """Remove all files of a job, but those of a result that was finished elsewhere.

    Of one that was not, none stays there, unless the place is that of a later job by now. If they
    cannot be removed now, its folder stays: who sweeps later finds its records.
    """
    home, output = own_place(store.job_folder(row.id)), row.delivery.output
    is_unfinished = output and not row.has_succeeded and not store.has_successor(row)
    try:
        if output and is_unfinished and home.below(RECORDS).is_made():
            keep_parts(place_of(output), ())
        home.clear()
    except OSError as error:
        logger.warning("job %s: its parts stay for now: %s", row.id, error)


def sweep_unfinished(store: Store, ids: Iterable[str]) -> set[str]:
    """Remove what is left of jobs that ended without a result some time ago, elsewhere and here.

    Parameters
    ----------
    ids
        Of jobs whose folders are there.

    Returns
    -------
    tidy
        Those of them that ended long ago and leave nothing: they need not be asked for again.
    """
    # Workers may have the chunks of one that was just dismissed in hand.
    before, long_ago = now(-_LET_GO_SECONDS), now(-_SETTLED_SECONDS)
    tidy_ids = set()
    for id in ids:
        row = store.job(id)
        if row is None or row.status in LIVE or row.updated >= before:
            continue
        if own_place(store.job_folder(id)).below(RECORDS).is_made():
            tidy(store, row)
        elif row.updated < long_ago:
            tidy_ids.add(id)
    return tidy_ids


def sweep(store: Store) -> None:
    """Remove what an earlier service left of jobs that have ended."""
    if not isinstance(store.jobs_place, Folder):
        return
    for job in filter(lambda path: is_id(path.name), store.jobs_place.path.iterdir()):
        row = store.job(job.name)
        if row is not None and row.status not in LIVE:
            tidy(store, row)
            # Nobody writes now: what is hidden was never finished.
            for path in job.glob(".*"):
                path.unlink(missing_ok=True)
