"""Jobs and datasets in the database: what is accepted survives whatever dies."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import sqlalchemy as sa

from georesolve.io.datasets import Dataset
from georesolve.io.storage import Folder, Home, Object, Prefix
from georesolve.query import MatchOptions
from georesolve.service import errors, pools
from georesolve.service.clock import new_id, now, seconds_between
from georesolve.service.disk import Probe, removing
from georesolve.service.store import rows
from georesolve.service.store.changes import Bell, Changes
from georesolve.service.store.engine import Admission, Queries, name_of_database, open_database
from georesolve.service.store.identity import ID_FILE, refuse_other_store
from georesolve.service.store.keys import NOBODY, Keys
from georesolve.service.store.lease import Lease
from georesolve.service.store.listing import JobQuery, Page
from georesolve.service.store.names import Names, is_newest
from georesolve.service.store.schema import is_registered, jobs, kept, names, store
from georesolve.workers.logs import subject

P = ParamSpec("P")
T = TypeVar("T")
_DAY_SECONDS = 86400.0
_STEP_BACK_SECONDS = 60.0
"""Clocks that are kept right are set back by less."""
LONG_AGO = "0001-01-01T00:00:00.000+00:00"
"""When what nobody wants any more has expired, whatever a clock says."""
_LET_GO_SECONDS = 60.0
"""After so long no worker has a job in hand that has ended."""
_IDS_AT_ONCE = 1000
"""A statement may have 32 766 values in SQLite."""
# Every request that names a dataset asks this: to make a statement takes longer than its answer.
_DATASET = sa.select(kept).where((kept.c.id == sa.bindparam("id")) & (kept.c.kind != "result"))
_STATE = [jobs.c[field.name] for field in fields(rows.JobState)]
_ROW = [jobs.c[field.name] for field in fields(rows.JobRow) if field.name in jobs.c]
_KEPT = [kept.c[name] for name in rows.Kept._fields]
_TOLD = sa.select(store.c.beat, store.c.cluster, store.c.metrics)
_IS_LIVE = jobs.c.status.in_(rows.LIVE)
_IS_NEEDED = sa.exists().where(
    _IS_LIVE & ((jobs.c.observations == kept.c.id) | (jobs.c.references == kept.c.id))
)
"""Whether a live job names a set."""


class Store(Queries):
    """Datasets and jobs in one database. Every method is one transaction."""

    def __init__(self, data_dir: Path, url: str | None = None, href: str | None = None) -> None:
        data_dir = data_dir.absolute()
        super().__init__(open_database(data_dir, url))
        # Whether the datasets and jobs of others are seen, too.
        self.sees_all = False
        # Where files lie: the data folder, or a prefix of an object store that processes share.
        folder = Folder(data_dir)
        self.root = Prefix(href.removeprefix("s3://").rstrip("/"), is_own=True) if href else folder
        self.datasets_place, self.jobs_place = self.root.below("datasets"), self.root.below("jobs")
        # This machine's own.
        self.indexes_folder, self.maps_folder = data_dir / "datasets" / "indexes", data_dir / "maps"
        self.changes, self.bell = Changes(self._engine), Bell(data_dir)
        self.removing = partial(removing, data_dir)
        self.keys = Keys(self._engine)
        self.writable = Probe(self._try)
        self._fence: sa.ColumnElement[bool] = sa.true()
        self._name = name_of_database(data_dir, url)

    def _try(self) -> None:
        # Written, although nothing changes.
        self._change(store.update().values(beat=store.c.beat))
        if isinstance(self.root, Prefix):
            self.root.look(ID_FILE)

    def of(self, owner: str, *, sees_all: bool = False) -> Self:
        """The same store as one owner sees it: rows of others are not there, unless it sees all."""
        own = copy.copy(self)
        own.owner, own.sees_all = owner, sees_all
        return own

    def _seen(self, table: sa.Table) -> sa.ColumnElement[bool]:
        return sa.true() if self.sees_all else self._own(table)

    @property
    def _is_there(self) -> sa.ColumnElement[bool]:
        # To an owner what has expired is gone; the service has it until no job needs it.
        has_it = sa.true() if self.owner is None else ~self._expired(kept)
        return self._seen(kept) & (kept.c.state != "going") & has_it

    def sees(self, owner: str) -> bool:
        """Whether what an owner has is there."""
        return self.sees_all or self.owner in (None, owner)

    def owners(self) -> dict[str, str]:
        """Names of the keys by id, to tell whose something is where all is seen."""
        return {key.id: key.name for key in self.keys.all()} if self.sees_all else {}

    def _of(self, table: sa.Table, owner: str | None) -> sa.ColumnElement[bool]:
        """What was made with the keys of a name or prefix, without keys for an empty one."""
        if owner is None:
            return sa.true()
        if not self.sees_all:
            raise errors.Forbidden(
                "/query/owner: only a key of the role admin sees what others have made, and "
                "chooses among their owners: leave it out"
            )
        ids = [key.id for key in self.keys.all() if owner in (key.name, key.prefix)]
        if owner and not ids:
            raise errors.misplaced(
                "/query/owner",
                f"no key is called {owner[:80]!r}, or begins so: 'georesolve keys list' shows all "
                "keys; leave the value empty for what was made without keys",
            )
        return table.c.owner.in_(ids or [NOBODY])

    def lease(self, holder: str) -> Lease:
        """The lease of the jobs; from now on no job is changed here while another holds it."""
        lease = Lease(self._engine, holder)
        self._fence = lease.is_held
        return lease

    def take_over(self) -> None:
        """Free the lease, and let go of what was being made: no other process has the store."""
        self._change(store.update().values(holder="", cluster={}))
        is_left, is_result = kept.c.state == "incoming", kept.c.kind == "result"
        self._change(kept.update().where(is_left & ~is_result).values(expires=LONG_AGO))
        # No worker writes to them any more. Whether a result has expired is another question, which
        # the clock may be wrong about.
        is_late = is_left & is_result & (kept.c.expires > now())
        self._change(kept.update().where(is_late).values(expires=now()))

    def told(self) -> "sa.Row[Any, Any, Any]":
        """What the holder of the lease told last: its `beat`, and `cluster` and `metrics`."""
        with self._single.connect() as connection:
            return connection.execute(_TOLD).one()

    def refuse_other_folder(self) -> None:
        """Refuse the data folder of another store; see `service.store.identity`."""
        refuse_other_store(self._engine, self.root, self._name)

    async def files(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What a function returns that asks for files, called by a thread: NotReady."""
        if isinstance(self.root, Folder):
            return await pools.disk(function, *given, **named)
        return await pools.remote(self.owner or "", function, *given, **named)

    @property
    def names(self) -> Names:
        """The names of its owner's datasets."""
        return Names(self._engine, self.owner or "")

    def close(self) -> None:
        """Close all connections."""
        self.changes.close()
        self._engine.dispose()

    def dataset_file(self, id: str) -> Path | Object:
        """Where the file of a dataset lies."""
        place, name = self.datasets_place, f"{id}.parquet"
        return place.path / name if isinstance(place, Folder) else Object(place, name)

    def job_folder(self, id: str) -> Home:
        """Where a job's own files lie."""
        place = self.jobs_place.below(id)
        return place.path if isinstance(place, Folder) else place

    def has(self, id: str) -> bool:
        """Whether anybody has something of this id, in whatever state."""
        return bool(self._scalars(sa.select(kept.c.id).where(kept.c.id == id)))

    def kept_ids(self, *kinds: str) -> set[str]:
        """Ids of all that is kept of some kinds, or of any."""
        query = sa.select(kept.c.id).where(self._seen(kept))
        return set(self._scalars(query.where(kept.c.kind.in_(kinds)) if kinds else query))

    def registered_digests(self) -> set[str]:
        """The SHA-256 of all registered datasets."""
        return set(self._scalars(sa.select(kept.c.sha256).where(is_registered)))

    def add_dataset(self, row: rows.DatasetRow, admit: Admission | None) -> None:
        """Enter a set, before its file is there; `admit` is as for `add_job`."""
        stored = {"dataset": rows.stored_dataset(row.dataset), "sha256": row.dataset.sha256}
        with self._accepting(admit) as connection:
            values = {**vars(row), **stored, "state": "incoming"}
            connection.execute(kept.insert().values(values))

    def register_dataset(self, id: str, expires: str | None) -> bool:
        """Register a dataset; False when its owner has registered its content already."""
        is_made = (kept.c.id == id) & (kept.c.state == "incoming")
        query = kept.update().where(is_made).values(state="whole", expires=expires)
        try:
            return bool(self._change(query))
        except sa.exc.IntegrityError:
            return False

    def dataset(self, id: str) -> rows.DatasetRow | None:
        """The dataset with this id."""
        row = self._first(_DATASET, id=id)
        if row is None or not self.sees(row["owner"]) or row["state"] == "going":
            return None
        # As `_is_there` has it.
        if self.owner is not None and row["expires"] and row["expires"] <= now():
            return None
        return self._dataset(row)

    def _dataset(self, row: sa.RowMapping) -> rows.DatasetRow:
        return rows.dataset_row(row, self.dataset_file(row["id"]))

    def rename_dataset(self, id: str, name: str) -> None:
        """Call a registered dataset something else."""
        query = kept.update().where((kept.c.id == id) & is_registered & self._seen(kept))
        self._change(query.values(name=name))

    def prolong_dataset(self, id: str, expires: str | None) -> bool:
        """Let a registered dataset expire later, the newest of a name never; False if gone."""
        query = kept.update().where((kept.c.id == id) & is_registered & self._own(kept))
        later = sa.case((is_newest, sa.null()), else_=expires)
        # In turn with `Names.put`: on Postgres a name given meanwhile would not be seen.
        with self._accepting() as connection:
            return bool(connection.execute(query.values(expires=later)).rowcount)

    def _reading(self, own: sa.Connection | None) -> AbstractContextManager[sa.Connection]:
        """A connection to read with: the one that a transaction has already, or another."""
        return self._single.connect() if own is None else nullcontext(own)

    def kept_bytes(self, connection: sa.Connection | None = None) -> int:
        """Bytes that datasets and results take, or are expected to once they are whole."""
        query = sa.select(sa.func.sum(kept.c.size_bytes)).where(self._own(kept))
        with self._reading(connection) as reading:
            return int(reading.execute(query).scalar() or 0)

    def keep_datasets_for_ever(self) -> None:
        """Let no dataset expire that is there."""
        self._change(kept.update().where(is_registered).values(expires=None))

    def registered_dataset(self, like: Dataset) -> rows.DatasetRow | None:
        """A registered dataset with the same content, and so the same columns; be it expired."""
        same = (kept.c.sha256 == like.sha256) & is_registered
        row = self._first(sa.select(kept).where(same & self._own(kept)))
        return self._dataset(row) if row else None

    def registered_datasets(self, page: Page) -> list[rows.DatasetRow]:
        """A page of the registered datasets, and one more when there is another page."""
        query = sa.select(kept).where(is_registered & self._is_there & self._of(kept, page.owner))
        return [self._dataset(row) for row in self._rows(page.of(query, kept))]

    def expired(self, before: str | None = None, job: str | None = None) -> list[rows.Kept]:
        """What has expired by now or before a time, of all or of one job, and no live job needs."""
        has_expired = (kept.c.expires <= (before or now())) & ~_IS_NEEDED & self._seen(kept)
        query = sa.select(*_KEPT).where(has_expired)
        query = query if job is None else query.where(kept.c.needed_by == job)
        return [rows.Kept(**row) for row in self._rows(query.order_by(kept.c.expires))]

    def let_go(self, id: str, **as_it_was: str) -> rows.Kept | None:
        """Have a set be gone for everyone, before its file is; None if it is needed or was used."""
        may_go = (kept.c.id == id) & self._seen(kept) & ~_IS_NEEDED & ~is_newest
        for name, value in as_it_was.items():
            may_go &= kept.c[name] == value
        gone = {"state": "going", "size_bytes": 0, "expires": LONG_AGO}
        # No job that needs it is entered meanwhile.
        with self._accepting() as connection:
            query = kept.update().where(may_go).values(gone).returning(*_KEPT)
            row = connection.execute(query).mappings().first()
            if row is None:
                return None
            connection.execute(names.delete().where(names.c.dataset == id))
        return rows.Kept(**row)

    def forget(self, id: str) -> None:
        """Forget what was kept: its bytes are gone."""
        self._change(kept.delete().where(kept.c.id == id))

    def settle(self, was: rows.Kept, state: str, expires: str | None) -> None:
        """Note in what state a result is, and when to see to it again, unless it goes by now."""
        same = (kept.c.id == was.id) & (kept.c.expires == was.expires)
        self._change(kept.update().where(same).values(state=state, expires=expires))

    def add_job(
        self,
        observations: rows.DatasetRow,
        references: rows.DatasetRow,
        options: MatchOptions,
        delivery: rows.Delivery,
        repeat: rows.Repeat | None = None,
        size_bytes: int = 0,
        admit: Admission | None = None,
        name: str = "",
    ) -> str:
        """Accept a job that will take some bytes; returns its id. NoSuchDataset, KeyInUse.

        `admit` may refuse it in the transaction that enters it, while no other is entered.
        """
        id, owner, time = new_id(), self.owner or "", now()
        values: dict[str, Any] = {
            "process": options.question,
            "observations": observations.id,
            "references": references.id,
            "rows": observations.dataset.rows,
            "id": id,
            "owner": owner,
            "name": name,
            "status": "accepted",
            "request": subject("request_id"),
            "created": time,
            "updated": time,
            "options": asdict(options),
            "delivery": asdict(delivery),
            "rows_done": 0,
            "message": "waiting for a free place",
            **(repeat._asdict() if repeat else {}),
        }
        result = kept.insert().values(id=id, kind="result", owner=owner, state="incoming")
        result = result.values(size_bytes=size_bytes, created=time, needed_by=id)
        ids = {observations.id, references.id}
        found = sa.select(sa.func.count()).where(kept.c.id.in_(ids) & self._is_there)
        row = sa.select(*(sa.literal(one, jobs.c[name].type) for name, one in values.items()))
        if_there = row.where(found.scalar_subquery() == len(ids))
        job = jobs.insert().from_select([*values], if_there).returning(jobs.c.id)
        is_new = (kept.c.kind == "input") & kept.c.needed_by.is_(None)
        inputs = kept.update().where(kept.c.id.in_(ids) & is_new)
        try:
            with self._accepting(admit) as connection:
                if connection.execute(job).scalar() is None:
                    raise errors.NoSuchDataset(
                        "one of the two datasets was removed while the job was accepted"
                    )
                connection.execute(result)
                if "input" in (observations.kind, references.kind):
                    connection.execute(inputs.values(state="whole", needed_by=id, expires=None))
        except sa.exc.IntegrityError:
            raise errors.KeyInUse(
                "another request with this Idempotency-Key was accepted meanwhile: send this again"
            ) from None
        self.bell.ring()
        return id

    def first_of(self, repeat: rows.Repeat) -> tuple[str, str] | None:
        """The job that the first request with a key made, and the fingerprint of that request."""
        own = (jobs.c.owner == (self.owner or "")) & (jobs.c.key == repeat.key)
        row = self._first(sa.select(jobs.c.id, jobs.c.fingerprint).where(own))
        return (row["id"], row["fingerprint"]) if row else None

    @property
    def _has_result(self) -> sa.ColumnElement[bool]:
        return (jobs.c.status == "successful") & ~self._expired(jobs)

    def with_result(self, ids: list[str]) -> set[str]:
        """Those of some jobs that have a result, and it has not expired."""
        query = sa.select(jobs.c.id).where(self._has_result)
        batches = (ids[i : i + _IDS_AT_ONCE] for i in range(0, len(ids), _IDS_AT_ONCE))
        return {id for some in batches for id in self._scalars(query.where(jobs.c.id.in_(some)))}

    def job(self, id: str) -> rows.JobRow | None:
        """The job with this id."""
        # Postgres takes no text that has one.
        if "\0" in id:
            return None
        row = self._first(sa.select(*_ROW).where((jobs.c.id == id) & self._seen(jobs)))
        return rows.JOB.validate_python({**row}) if row else None

    def rename_job(self, id: str, name: str) -> None:
        """Call a job something else."""
        self._change(jobs.update().where((jobs.c.id == id) & self._seen(jobs)).values(name=name))

    def jobs(self, asked: JobQuery) -> list[rows.JobState]:
        """A page of jobs, and one more when there is another page."""
        query = sa.select(*_STATE).where(self._seen(jobs) & self._of(jobs, asked.owner))
        query = query.where(*asked.chosen(self._engine.dialect.name))
        found = self._rows(asked.of(query, jobs))
        return [rows.JOB_STATE.validate_python({**row}) for row in found]

    def has_ended(self, id: str) -> bool:
        """Whether a job is not live any more."""
        query = sa.select(jobs.c.id).where((jobs.c.id == id) & _IS_LIVE)
        return self._first(query) is None

    def live_ids(self) -> list[str]:
        """Ids of the jobs that are not finished, in the order in which they were accepted."""
        query = sa.select(jobs.c.id).where(_IS_LIVE).order_by(jobs.c.created)
        return self._scalars(query)

    def live_jobs(self) -> list[rows.JobState]:
        """Jobs that are not finished, in the order in which they were accepted."""
        query = sa.select(*_STATE).where(_IS_LIVE & self._seen(jobs))
        query = query.order_by(jobs.c.created)
        return [rows.JOB_STATE.validate_python({**row}) for row in self._rows(query)]

    def forget_jobs(self, before: str) -> list[str]:
        """Forget jobs that ended before a time and keep no result; returns their ids."""
        is_old = (jobs.c.finished < before) & ~_IS_LIVE
        return self._scalars(jobs.delete().where(is_old & ~self._has_result).returning(jobs.c.id))

    def count_live(self, connection: sa.Connection | None = None) -> tuple[int, int]:
        """How many jobs are not finished: of all owners, and of this one."""
        query = sa.select(sa.func.count(), sa.func.count().filter(self._own(jobs)))
        with self._reading(connection) as reading:
            everyone, own = reading.execute(query.where(_IS_LIVE)).one()
        return everyone, own

    def refuse_output_of_others(self, connection: sa.Connection, output: str | None) -> None:
        """Refuse to write where the result of a live job of any owner will lie: OutputTaken."""
        if output is None:
            return
        theirs = jobs.c.delivery["output"].as_string()
        query = sa.select(theirs).where(_IS_LIVE & theirs.is_not(None))
        for other in connection.execute(query).scalars():
            if other.startswith(output) or output.startswith(other):
                raise errors.OutputTaken(
                    f"another job will write its result to {other}: name another folder than "
                    f"{output}"
                )

    def has_successor(self, job: rows.JobRow) -> bool:
        """Whether a later job writes, or has written, its result where this one was to."""
        theirs = jobs.c.delivery["output"].as_string()
        is_later = (jobs.c.created >= job.created) & (jobs.c.id != job.id)
        query = sa.select(jobs.c.id).where((theirs == job.delivery.output) & is_later)
        query = query.where(_IS_LIVE | jobs.c.succeeded)
        return self._first(query) is not None

    def waits_until(self) -> str | None:
        """Note the time; until when nothing is swept as the clock jumped a day, None to sweep."""
        time = now()
        with self._engine.begin() as connection:
            last = connection.execute(sa.select(store.c.swept, store.c.waits_until)).one()
            until: str | None = last.waits_until
            passed = seconds_between(last.swept or time, time)
            if passed < -_STEP_BACK_SECONDS or (until and until <= time):
                # It was set back, or a day has passed, be it that nothing ran then.
                until = None
            elif passed > _DAY_SECONDS:
                until = now(_DAY_SECONDS)
            connection.execute(store.update().values(swept=time, waits_until=until))
        return until

    def sweep_now(self) -> None:
        """Believe the clock: the next sweep does not wait."""
        self._change(store.update().values(swept=now(), waits_until=None))

    def start_job(self, id: str) -> bool:
        """Mark a live job as running; tells whether it still was live."""
        # It began when it first did: what it waits when it is taken up again is no queue.
        started = sa.func.coalesce(jobs.c.started, now())
        message = "starting; kernels that are new to this machine are compiled first"
        values = {"status": "running", "started": started, "message": message}
        return self.update_live(id, **values, rows_a_second=None, held=True)

    def note_death(self) -> None:
        """Count the death of a runner for the jobs it ran; called when the next one starts."""
        query = jobs.update().where(jobs.c.held & _IS_LIVE)
        self._change(query.values(deaths=jobs.c.deaths + 1, held=False))

    def report_progress(self, id: str, rows_done: int, rate: float | None, message: str) -> None:
        """Note how far a running job is, and how fast it goes; with more rows, it has got on."""
        deaths = sa.case((jobs.c.rows_done < rows_done, 0), else_=jobs.c.deaths)
        values = {"rows_done": rows_done, "rows_a_second": rate, "message": message}
        self.update_live(id, **values, deaths=deaths)

    def finish_job(
        self, id: str, status: rows.JobStatus, message: str, **outcome: Any
    ) -> rows.JobRow | None:
        """End a live job with its `problem`, or a `report` that `expires`; None if it had ended."""
        values = {"status": status, "finished": now(), "message": message, **outcome}
        if status == "successful":
            values |= {"rows_done": jobs.c.rows, "succeeded": True}
        if status == "dismissed":
            values |= {"options": {}, "key": None}
        query = self._live(id).values(updated=now(), **values).returning(*_ROW)
        with self._engine.begin() as connection:
            row = connection.execute(query).mappings().first()
            if row is None:
                return None
            job = rows.JOB.validate_python({**row})
            is_here = status == "successful" and not job.delivery.output
            size_bytes = (job.report or {}).get("size_bytes", 0) if is_here else 0
            # Its workers may have chunks of it in hand still.
            look = min(filter(None, (now(_LET_GO_SECONDS), job.expires)))
            result = kept.update().where(kept.c.id == id)
            connection.execute(result.values(size_bytes=size_bytes, expires=look))
            keeps_sets = status == "successful" and job.delivery.keeps_sets
            inputs = (kept.c.needed_by == id) & (kept.c.kind == "input")
            until = job.expires if keeps_sets else LONG_AGO
            connection.execute(kept.update().where(inputs).values(expires=until))
        return job

    def _live(self, id: str) -> sa.Update:
        is_live = (jobs.c.id == id) & _IS_LIVE
        return jobs.update().where(is_live & self._seen(jobs) & self._fence)

    def update_live(self, id: str, **values: Any) -> bool:
        """Note something of a live job, such as that it is not `held`; False of another."""
        return bool(self._change(self._live(id).values(updated=now(), **values)))

    def dismiss_finished_job(self, id: str) -> bool:
        """Mark a finished job as dismissed: its result is removed."""
        query = jobs.update().where(
            (jobs.c.id == id) & jobs.c.status.in_(["successful", "failed"]) & self._seen(jobs)
        )
        message = sa.case(
            (jobs.c.succeeded, "removed after its success"), else_="removed after its failure"
        )
        values: dict[str, Any] = {"status": "dismissed", "message": message, "updated": now()}
        # Nobody is shown any more what it was told.
        values |= {"report": None, "options": {}, "key": None}
        size_bytes = sa.case((kept.c.id == id, 0), else_=kept.c.size_bytes)
        gone = kept.update().where(kept.c.needed_by == id)
        with self._engine.begin() as connection:
            is_dismissed = bool(connection.execute(query.values(values)).rowcount)
            if is_dismissed:
                connection.execute(gone.values(size_bytes=size_bytes, expires=LONG_AGO))
        return is_dismissed
