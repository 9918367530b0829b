"""Jobs and datasets in the database: what is accepted survives whatever dies."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import sqlalchemy as sa

from georesolve.service import pools
from georesolve.service.clock import new_id, now, seconds_between
from georesolve.service.disk import Probe
from georesolve.service.errors import KeyInUse, OutputTaken
from georesolve.service.store.bell import Bell
from georesolve.service.store.changes import Changes
from georesolve.service.store.engine import name_of_database, open_database
from georesolve.service.store.identity import ID_FILE, refuse_other_store
from georesolve.service.store.keys import Keys
from georesolve.service.store.lease import Lease
from georesolve.service.store.listing import ALL, Page, Selection
from georesolve.service.store.names import Names, is_newest
from georesolve.service.store.queries import Admission, Queries, admit_any
from georesolve.service.store.rows import (
    LIVE,
    REMOVED,
    DatasetRow,
    Delivery,
    JobRow,
    JobState,
    JobStatus,
    Repeat,
    dataset_row,
    job_row,
    job_state,
    stored_dataset,
)
from georesolve.service.store.schema import datasets as _datasets
from georesolve.service.store.schema import jobs as _jobs
from georesolve.service.store.schema import names as _names
from georesolve.service.store.schema import store as _store
from georesolve.workers.datasets import Dataset
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.logs import subject
from georesolve.workers.places import Folder, Home, Object, Prefix, file_in

P = ParamSpec("P")
T = TypeVar("T")
_NUL = "\0"
"""No id has it, and Postgres takes no text that has."""
_DAY_SECONDS = 86400.0
_STEP_BACK_SECONDS = 60.0
"""Clocks that are kept right are set back by less."""
_LONG_AGO = "0001-01-01T00:00:00.000+00:00"
"""When what is removed has expired: so to every front, whatever its clock says."""
_IDS_AT_ONCE = 1000
"""A statement may have 32 766 values in SQLite."""
# Every request that names a dataset asks this: to make a statement takes longer than its answer.
_DATASET = sa.select(_datasets).where(_datasets.c.id == sa.bindparam("id"))
_STATE = [_jobs.c[field.name] for field in fields(JobState)]
_ROW = [_jobs.c[field.name] for field in fields(JobRow) if field.name in _jobs.c]
_TOLD = sa.select(_store.c.beat, _store.c.cluster, _store.c.metrics)


class Store(Queries):
    """Datasets and jobs in one database. Every method is one transaction.

    Attributes
    ----------
    changes
        Tells of changed jobs.
    bell
        Rings when a job is accepted.
    root
        Where the files of datasets and results lie: the data folder, or a prefix of an object
        store, which processes share that share no folder.
    datasets_place, jobs_place
        Where the files of all datasets lie, and the folders of all jobs.
    indexes_folder
        The folder of the indexes of datasets, which are this machine's own.
    maps_folder
        The folder of the maps of jobs, one each: beside their results, or this machine's own.
    sees_all
        Whether the datasets and jobs of others are seen, too.
    keys
        The API keys in the same database.
    writable
        Whether the database can be written, and an object store answers.
    """

    def __init__(
        self, data_dir: Path, database_url: str | None = None, href: str | None = None
    ) -> None:
        data_dir = data_dir.absolute()
        super().__init__(open_database(data_dir, database_url))
        self.sees_all = False
        folder = Folder(data_dir)
        self.root = Prefix(href.removeprefix("s3://").rstrip("/"), is_own=True) if href else folder
        self.datasets_place, self.jobs_place = self.root.below("datasets"), self.root.below("jobs")
        self.indexes_folder = data_dir / "datasets" / "indexes"
        # Where results lie in a bucket, `jobs` may have those of before there was one.
        self.maps_folder = data_dir / ("maps" if href else "jobs")
        self.changes = Changes(self._engine)
        self.bell = Bell(data_dir)
        self._fence: sa.ColumnElement[bool] = sa.true()
        self._name = name_of_database(data_dir, database_url)
        self.writable = Probe(self._try)
        self.keys = Keys(self._engine)

    def _try(self) -> None:
        # Written, although nothing changes.
        self._change(_store.update().values(beat=_store.c.beat))
        if isinstance(self.root, Prefix):
            self.root.look(ID_FILE)

    def of(self, owner: str, *, sees_all: bool = False) -> Self:
        """The same store as one owner sees it: rows of others are not there, unless it sees all."""
        own = copy.copy(self)
        own.owner, own.sees_all = owner, sees_all
        return own

    def _seen(self, table: sa.Table) -> sa.ColumnElement[bool]:
        # To an owner what has expired is not there; the service has it until no job needs it.
        is_there = sa.true() if self.owner is None or table is _jobs else ~self._expired(table)
        return is_there if self.sees_all else self._own(table) & is_there

    def sees(self, owner: str) -> bool:
        """Whether what an owner has is there."""
        return self.sees_all or self.owner in (None, owner)

    def owners(self) -> dict[str, str]:
        """Names of the keys by id, to tell whose something is where all is seen."""
        return {key.id: key.name for key in self.keys.all()} if self.sees_all else {}

    def lease(self, holder: str) -> Lease:
        """The lease of the jobs; from now on no job is changed here while another holds it."""
        lease = Lease(self._engine, holder)
        self._fence = lease.is_held
        return lease

    def forget_holder(self) -> None:
        """Free the lease at once: no other process has the data folder."""
        self._change(_store.update().values(holder="", cluster={}))

    def told(self) -> "sa.Row[Any, Any, Any]":
        """What the holder of the lease told last: its `beat`, and `cluster` and `metrics`."""
        with self._single.connect() as connection:
            return connection.execute(_TOLD).one()

    def refuse_other_folder(self) -> None:
        """Refuse the data folder of another store; see `service.store.identity`."""
        refuse_other_store(self._engine, self.root, self._name)

    async def files(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What a function returns that asks for files of datasets or results, called by a thread.

        Raises
        ------
        NotReady
            When a bucket is silent, and too many wait for it.
        """
        if isinstance(self.root, Folder):
            return await pools.disk(function, *given, **named)
        return await pools.remote(self.owner or "", function, *given, **named)

    @property
    def names(self) -> Names:
        """The names of its owner's datasets."""
        return self.names_of(self.owner or "")

    def names_of(self, owner: str) -> Names:
        """The names of an owner's datasets."""
        return Names(self._engine, owner)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def dataset_file(self, id: str) -> Path | Object:
        """Where the file of a dataset lies."""
        return file_in(self.datasets_place, f"{id}.parquet")

    def job_folder(self, id: str) -> Home:
        """Where a job's own files lie."""
        place = self.jobs_place.below(id)
        return place.path if isinstance(place, Folder) else place

    def dataset_ids(self, *, registered: bool | None = None, before: str | None = None) -> set[str]:
        """Ids of all datasets, or of those that are registered or not, or made before a time."""
        query = sa.select(_datasets.c.id).where(self._seen(_datasets))
        if registered is not None:
            query = query.where(_datasets.c.registered == registered)
        if before is not None:
            query = query.where(_datasets.c.created < before)
        return set(self._scalars(query))

    def registered_digests(self) -> set[str]:
        """The SHA-256 of all registered datasets."""
        query = sa.select(_datasets.c.sha256).where(_datasets.c.registered & self._seen(_datasets))
        return set(self._scalars(query))

    def add_dataset(self, row: DatasetRow, admit: "Admission") -> None:
        """Enter a dataset, before its file is there; `admit` is as for `add_job`."""
        stored = {"dataset": stored_dataset(row.dataset), "sha256": row.dataset.sha256}
        with self._accepting(admit) as connection:
            connection.execute(_datasets.insert().values({**vars(row), **stored}))

    def register_dataset(self, id: str, expires: str | None) -> bool:
        """Register a dataset; False when its owner has registered its content already."""
        query = _datasets.update().where(_datasets.c.id == id)
        try:
            return bool(self._change(query.values(registered=True, expires=expires)))
        except sa.exc.IntegrityError:
            return False

    def dataset(self, id: str) -> DatasetRow | None:
        """The dataset with this id."""
        if _NUL in id:
            return None
        row = self._first(_DATASET, id=id)
        if row is None or not self.sees(row["owner"]):
            return None
        # As `_seen` has it: to an owner what has expired is not there.
        if self.owner is not None and row["expires"] and row["expires"] <= now():
            return None
        return self._dataset(row)

    def _dataset(self, row: sa.RowMapping) -> DatasetRow:
        return dataset_row(row, self.dataset_file(row["id"]))

    def prolong_dataset(self, id: str, expires: str | None) -> bool:
        """Let a registered dataset expire later; False when it is gone, or is being removed.

        The newest version of a name never does.
        """
        is_there = (_datasets.c.id == id) & _datasets.c.registered
        query = _datasets.update().where(is_there & self._own(_datasets))
        later = sa.case((is_newest(_datasets.c.id), sa.null()), else_=expires)
        return bool(self._change(query.values(expires=later)))

    def _reading(self, own: sa.Connection | None) -> AbstractContextManager[sa.Connection]:
        """A connection to read with: the one that a transaction has already, or another."""
        return self._single.connect() if own is None else nullcontext(own)

    def kept_bytes(self, connection: sa.Connection | None = None) -> int:
        """Bytes that datasets and results take, or are expected to once they are whole."""
        is_kept = _jobs.c.status.in_(LIVE) | (
            (_jobs.c.status == "successful") & ~self._expired(_jobs)
        )
        sums = [
            sa.select(sa.func.sum(table.c.size_bytes)).where(self._own(table) & which)
            for table, which in ((_datasets, sa.true()), (_jobs, is_kept))
        ]
        with self._reading(connection) as reading:
            return sum(int(reading.execute(query).scalar() or 0) for query in sums)

    def keep_datasets_for_ever(self) -> None:
        """Let no dataset expire that is there."""
        self._change(_datasets.update().values(expires=None))

    def expired_datasets(self) -> list[str]:
        """Ids of datasets that have expired, and are there still."""
        return self._scalars(sa.select(_datasets.c.id).where(self._expired(_datasets)))

    def expired_results(self, before: str) -> set[str]:
        """Ids of jobs whose result has expired before a time."""
        return set(self._scalars(sa.select(_jobs.c.id).where(_jobs.c.expires < before)))

    def with_result(self, ids: list[str]) -> set[str]:
        """Those of some jobs that have a result, and it has not expired."""
        has_result = (_jobs.c.status == "successful") & ~self._expired(_jobs)
        query = sa.select(_jobs.c.id).where(has_result)
        batches = (ids[i : i + _IDS_AT_ONCE] for i in range(0, len(ids), _IDS_AT_ONCE))
        return {id for some in batches for id in self._scalars(query.where(_jobs.c.id.in_(some)))}

    def registered_dataset(self, like: Dataset) -> DatasetRow | None:
        """A registered dataset with the same content, be it expired, as long as it is there.

        The content names the coordinate and id columns too: they are in the file's metadata.
        """
        same = (_datasets.c.sha256 == like.sha256) & _datasets.c.registered
        row = self._first(sa.select(_datasets).where(same & self._own(_datasets)))
        return self._dataset(row) if row else None

    def registered_datasets(self, page: Page) -> list[DatasetRow]:
        """A page of the registered datasets, and one more when there is another page."""
        query = sa.select(_datasets).where(_datasets.c.registered & self._seen(_datasets))
        return [self._dataset(row) for row in self._rows(page.of(query, _datasets))]

    def remove_dataset(
        self,
        id: str,
        remove_file: Callable[[], None] = lambda: None,
        *,
        only_expired: bool = False,
        expires: str | None = None,
    ) -> bool:
        """Forget a dataset, unless a live job needs it; tells whether it was forgotten.

        One that came with a request stays, too, while a result needs its coordinates. Where
        `expires` is given, one that expires at another time stays: it was used meanwhile. From the
        first moment on nobody sees it. Its row goes after its file: where that cannot be removed,
        or this process is killed, it has expired, and is removed by the next sweep.
        """
        # What comes after the lock sees the job that held it.
        lock = sa.select(_datasets.c.id).where(_datasets.c.id == id).with_for_update()
        is_input = (_jobs.c.observations == id) | (_jobs.c.references == id)
        needed = sa.exists().where(_jobs.c.status.in_(LIVE) & is_input)
        has_result = (_jobs.c.status == "successful") & ~self._expired(_jobs)
        keeps_sets = _jobs.c.delivery["keeps_sets"].as_boolean()
        kept = ~_datasets.c.registered & sa.exists().where(has_result & keeps_sets & is_input)
        own = (_datasets.c.id == id) & self._seen(_datasets)
        query = _datasets.update().where(own & ~needed & ~kept & ~is_newest(_datasets.c.id))
        if only_expired:
            query = query.where(self._expired(_datasets))
        if expires is not None:
            query = query.where(_datasets.c.expires == expires)
        query = query.values(registered=False, expires=_LONG_AGO)

        with self._engine.begin() as connection:
            connection.execute(lock)
            if not connection.execute(query).rowcount:
                return False
            connection.execute(_names.delete().where(_names.c.dataset == id))
        remove_file()
        self._change(_datasets.delete().where(_datasets.c.id == id))
        return True

    def add_job(
        self,
        observations: DatasetRow,
        references: DatasetRow,
        options: MatchOptions,
        delivery: Delivery,
        repeat: Repeat | None = None,
        size_bytes: int = 0,
        admit: Admission = admit_any,
    ) -> str | None:
        """Accept a job, and keep the key that its request may be repeated by.

        Once this returns neither is forgotten. Returns the id of the job; None when one of the
        datasets has been removed meanwhile.

        Parameters
        ----------
        size_bytes
            What the job is expected to take on the disk.
        admit
            Is called with the connection of the transaction that enters the job, and may refuse it
            by raising something. No other job is entered meanwhile.

        Raises
        ------
        KeyInUse
            When another process accepted a request with the key meanwhile.
        """
        time = now()
        values: dict[str, Any] = {
            "process": "nearest",
            "observations": observations.id,
            "references": references.id,
            "rows": observations.dataset.rows,
            "size_bytes": size_bytes,
            "id": new_id(),
            "owner": self.owner or "",
            "status": "accepted",
            "request": subject("request_id"),
            "created": time,
            "updated": time,
            "options": asdict(options),
            "delivery": asdict(delivery),
            "rows_done": 0,
            "message": "waiting for a free place",
        }
        values |= repeat._asdict() if repeat else {}
        sets = {observations.id, references.id}
        # Postgres holds them until the job is entered; in SQLite one writes at a time.
        lock = sa.select(_datasets.c.id).where(_datasets.c.id.in_(sets)).order_by(_datasets.c.id)
        # One statement: a dataset cannot be removed between the look and the entry.
        exist = (
            sa.exists().where((_datasets.c.id == id) & self._seen(_datasets)) for id in sorted(sets)
        )
        row = sa.select(
            *(sa.literal(value, _jobs.c[name].type) for name, value in values.items())
        ).where(sa.and_(sa.true(), *exist))
        insert = _jobs.insert().from_select(list(values), row).returning(_jobs.c.id)
        try:
            with self._accepting(admit) as connection:
                connection.execute(lock.with_for_update(read=True, key_share=True))
                id: str | None = connection.execute(insert).scalar()
        except sa.exc.IntegrityError:
            raise KeyInUse(
                "another request with this Idempotency-Key was accepted meanwhile: send this again"
            ) from None
        self.bell.ring()
        return id

    def first_of(self, repeat: Repeat) -> tuple[str, str] | None:
        """The job that the first request with a key made, and the fingerprint of that request.

        A key whose job is dismissed or forgotten is forgotten with it.
        """
        own = (_jobs.c.owner == (self.owner or "")) & (_jobs.c.key == repeat.key)
        row = self._first(sa.select(_jobs.c.id, _jobs.c.fingerprint).where(own))
        return (row["id"], row["fingerprint"]) if row else None

    def job_ids(self) -> set[str]:
        """Ids of all jobs that are not forgotten."""
        return set(self._scalars(sa.select(_jobs.c.id)))

    def job(self, id: str) -> JobRow | None:
        """The job with this id."""
        if _NUL in id:
            return None
        row = self._first(sa.select(*_ROW).where((_jobs.c.id == id) & self._seen(_jobs)))
        return job_row(row, now()) if row else None

    def jobs(self, page: Page, selection: Selection = ALL) -> list[JobState]:
        """A page of jobs, and one more when there is another page."""
        query = sa.select(*_STATE).where(self._seen(_jobs))
        query = selection.of(query, now(), self._engine.dialect.name)
        return [job_state(row) for row in self._rows(page.of(query, _jobs))]

    def has_ended(self, id: str) -> bool:
        """Whether a job is not live any more."""
        query = sa.select(_jobs.c.id).where((_jobs.c.id == id) & _jobs.c.status.in_(LIVE))
        return self._first(query) is None

    def live_ids(self) -> list[str]:
        """Ids of the jobs that are not finished, in the order in which they were accepted."""
        query = sa.select(_jobs.c.id).where(_jobs.c.status.in_(LIVE)).order_by(_jobs.c.created)
        return self._scalars(query)

    def live_jobs(self) -> list[JobState]:
        """Jobs that are not finished, in the order in which they were accepted."""
        query = sa.select(*_STATE).where(_jobs.c.status.in_(LIVE) & self._seen(_jobs))
        return [job_state(row) for row in self._rows(query.order_by(_jobs.c.created))]

    def old_jobs(self, before: str) -> list[str]:
        """Ids of the jobs that ended before a time; one whose result is kept is not among them."""
        has_result = _jobs.c.status == "successful"
        is_kept = has_result & ~self._expired(_jobs)
        old = (_jobs.c.finished < before) & _jobs.c.status.not_in(LIVE) & ~is_kept
        return self._scalars(sa.select(_jobs.c.id).where(old))

    def forget_job(self, id: str) -> None:
        """Forget a job, with the key of its request."""
        self._change(_jobs.delete().where(_jobs.c.id == id))

    def count_live(self, connection: sa.Connection | None = None) -> tuple[int, int]:
        """How many jobs are not finished: of all owners, and of this one."""
        query = sa.select(sa.func.count(), sa.func.count().filter(self._own(_jobs)))
        with self._reading(connection) as reading:
            everyone, own = reading.execute(query.where(_jobs.c.status.in_(LIVE))).one()
        return everyone, own

    def refuse_output_of_others(self, output: str, connection: sa.Connection) -> None:
        """Refuse to write where the result of a live job will lie, of whatever owner.

        Raises
        ------
        OutputTaken
        """
        theirs = _jobs.c.delivery["output"].as_string()
        query = sa.select(theirs).where(_jobs.c.status.in_(LIVE) & theirs.is_not(None))
        for other in connection.execute(query).scalars():
            if other.startswith(output) or output.startswith(other):
                raise OutputTaken(
                    f"another job will write its result to {other}: name another folder than "
                    f"{output}"
                )

    def has_successor(self, job: JobRow) -> bool:
        """Whether a later job writes its result where this one was to write it, or has done so.

        One that ended without a result has left nothing there.
        """
        theirs = _jobs.c.delivery["output"].as_string()
        is_later = (_jobs.c.created >= job.created) & (_jobs.c.id != job.id)
        query = sa.select(_jobs.c.id).where((theirs == job.delivery.output) & is_later)
        has_result = (_jobs.c.status == "successful") | (_jobs.c.message == REMOVED)
        query = query.where(_jobs.c.status.in_(LIVE) | has_result)
        return self._first(query) is not None

    def waits_until(self) -> str | None:
        """Until when nothing is swept, because the clock jumped; None to sweep now. Notes the time.

        The clock has jumped where more than a day has passed since the last sweep.
        """
        time = now()
        with self._engine.begin() as connection:
            last = connection.execute(sa.select(_store.c.swept, _store.c.waits_until)).one()
            until: str | None = last.waits_until
            passed = seconds_between(last.swept or time, time)
            if passed < -_STEP_BACK_SECONDS or (until and until <= time):
                # It was set back, or a day has passed, be it that nothing ran then.
                until = None
            elif passed > _DAY_SECONDS:
                until = now(_DAY_SECONDS)
            connection.execute(_store.update().values(swept=time, waits_until=until))
        return until

    def sweep_now(self) -> None:
        """Believe the clock: the next sweep does not wait."""
        self._change(_store.update().values(swept=now(), waits_until=None))

    def start_job(self, id: str) -> bool:
        """Mark a live job as running; tells whether it still was live."""
        # It began when it first did: what it waits when it is taken up again is no queue.
        started = sa.func.coalesce(_jobs.c.started, now())
        values = {"status": "running", "started": started, "message": "starting"}
        return self._update_live(id, **values, rows_a_second=None, held=True)

    def rest_job(self, id: str) -> None:
        """Note that a live job does not run for now, though its service lives."""
        self._update_live(id, held=False)

    def note_death(self) -> None:
        """Count the death of a runner for the jobs it ran; called when the next one starts."""
        query = _jobs.update().where(_jobs.c.held & _jobs.c.status.in_(LIVE))
        self._change(query.values(deaths=_jobs.c.deaths + 1, held=False))

    def report_progress(
        self, id: str, rows_done: int, rows_a_second: float | None, message: str
    ) -> None:
        """Note how far a running job is, and how fast it goes; with more rows, it has got on."""
        deaths = sa.case((_jobs.c.rows_done < rows_done, 0), else_=_jobs.c.deaths)
        values = {"rows_done": rows_done, "rows_a_second": rows_a_second, "message": message}
        self._update_live(id, **values, deaths=deaths)

    def finish_job(
        self,
        id: str,
        status: JobStatus,
        message: str,
        *,
        problem: dict[str, Any] | None = None,
        report: dict[str, Any] | None = None,
        expires: str | None = None,
    ) -> bool:
        """End a live job; a job ends once, and whoever comes second is told so by False."""
        values: dict[str, Any] = {"status": status, "finished": now(), "message": message}
        values |= {"problem": problem, "report": report, "expires": expires}
        if status == "successful":
            values["rows_done"] = _jobs.c.rows
            is_elsewhere = _jobs.c.delivery["output"].as_string().is_not(None)
            size_bytes = (report or {}).get("size_bytes", 0)
            values["size_bytes"] = sa.case((is_elsewhere, 0), else_=size_bytes)
        else:
            values["size_bytes"] = 0
        if status == "dismissed":
            values |= {"options": {}, "key": None}
        return self._update_live(id, **values)

    def _update_live(self, id: str, **values: Any) -> bool:
        query = _jobs.update().where(
            (_jobs.c.id == id) & _jobs.c.status.in_(LIVE) & self._seen(_jobs) & self._fence
        )
        return bool(self._change(query.values(updated=now(), **values)))

    def dismiss_finished_job(self, id: str) -> bool:
        """Mark a finished job as dismissed: its result is removed."""
        query = _jobs.update().where(
            (_jobs.c.id == id) & _jobs.c.status.in_(["successful", "failed"]) & self._seen(_jobs)
        )
        message = sa.case(
            (_jobs.c.status == "successful", REMOVED), else_="removed after its failure"
        )
        values: dict[str, Any] = {"status": "dismissed", "message": message, "updated": now()}
        # Nobody is shown any more what it was told.
        values |= {"report": None, "options": {}, "size_bytes": 0, "key": None}
        return bool(self._change(query.values(values)))
