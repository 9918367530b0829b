"""The end of a job: waiting for it, ending it early, removing what the job needs no more."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from georesolve.io.storage import own_place, place_of
from georesolve.service import errors, pools
from georesolve.service.clock import now
from georesolve.service.datasets.library import Library
from georesolve.service.metrics import Metrics
from georesolve.service.store.rows import LIVE, JobRow, JobStatus, Kept
from georesolve.service.store.store import Store
from georesolve.workers.job import CANCELLED, RECORDS
from georesolve.workers.results.manifest import read_manifest
from georesolve.workers.results.parts import keep_parts

logger = logging.getLogger(__name__)

_SETTLED_SECONDS = 3600.0
"""After so long no worker writes files of a job that has ended, even if it hung in a write."""
_OPENED_SECONDS = 1.0
"""A request that found a result just before it expired has the time to open it."""


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
) -> JobRow | None:
    """End a live job, as `Store.finish_job` does, and count it."""
    row = store.finish_job(id, status, message, **outcome)
    if row is not None:
        reason = row.problem["type"] if row.problem else ""
        times = row.created, row.started, row.finished
        metrics.count_job(row.process, row.status, reason, *times)
    return row


def dismiss(store: Store, library: Library, metrics: Metrics, id: str) -> None:
    """End a live job, or remove a finished one; JobDismissed when that was done before."""
    row = end(store, metrics, id, "dismissed", "dismissed by the client")
    if row is None and not store.dismiss_finished_job(id):
        raise errors.JobDismissed(f"the job {id!r} was dismissed already")
    # A runner that has it in hand lets go of it first. One that is not may have been seen by none.
    if row is None or not row.held:
        clear(store, library, id)


def clear(store: Store, library: Library, id: str) -> None:
    """Remove what a job that has ended needs no more; a live one rests till it is taken up."""
    row = store.job(id)
    if row is None:
        return
    if row.status in LIVE:
        store.update_live(id, held=False)
        return
    try:
        tidy(store, row)
        for kept in store.expired(job=id):
            if kept.kind == "input":
                library.discard(kept.id, expires=kept.expires)
    except OSError as error:
        logger.warning("job %s: some of its files stay for now: %s", id, error)


def tidy(store: Store, row: JobRow) -> None:
    """Remove the files of a job that has ended: all but its result, or all; raises OSError."""
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
        # What is hidden was never finished.
        home.remove([CANCELLED, *(name for name in home.names() if name.startswith("."))])
    except FileNotFoundError:
        # A client has deleted the job meanwhile, and another process its files.
        logger.info("job %s has no result to tidy", row.id)
    except OSError:
        # Who asks for the result is told what is wrong with it.
        logger.exception("the result in %s cannot be read", folder)


def remove(store: Store, row: JobRow) -> None:
    """Remove all files of a job, but those of a result that was finished elsewhere.

    Of one that was not, none stays there, unless the place is that of a later job by now.
    """
    home, output = own_place(store.job_folder(row.id)), row.delivery.output
    is_unfinished = output and not row.succeeded and not store.has_successor(row)
    with store.removing() as may_remove:
        if row.succeeded and not may_remove:
            raise OSError(f"{home.href} stays while a backup is made")
        if output and is_unfinished and home.below(RECORDS).is_made():
            keep_parts(place_of(output), ())
        home.clear()
    if home.is_made():
        raise OSError(f"{home.href} cannot be removed")


def settle(store: Store, kept: Kept) -> None:
    """See to what a job that ended has left: first a minute later, and again after an hour."""
    row = store.job(kept.id)
    if row is None:
        # Its files could not be removed for as long as jobs are remembered.
        own_place(store.job_folder(kept.id)).clear()
        store.forget(kept.id)
        return
    later = now(_SETTLED_SECONDS)
    is_settled = kept.state == "whole" or row.updated <= now(-_SETTLED_SECONDS)
    if row.status == "successful" and not row.has_expired:
        tidy(store, row)
        if is_settled:
            store.settle(kept, "whole", row.expires)
        else:
            store.settle(kept, "incoming", min(filter(None, (later, row.expires))))
    elif row.status == "dismissed" or (row.expires or "") <= now(-_OPENED_SECONDS):
        remove(store, row)
        if is_settled or row.has_expired:
            store.forget(row.id)
        else:
            store.settle(kept, "incoming", later)
