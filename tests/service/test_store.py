"""The store: its tables and their version, its verbs on SQLite and on Postgres."""

import asyncio
import contextlib
import copy
import gc
import signal
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
import uvicorn
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from georesolve.cli.serve import main
from georesolve.query import MatchOptions
from georesolve.service import pools
from georesolve.service.clock import now
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Disk
from georesolve.service.errors import CannotStart, KeyInUse, NoSuchDataset, OutputTaken
from georesolve.service.front import _Server
from georesolve.service.jobs import endings, supervisor
from georesolve.service.jobs.retention import Retention
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.service.store import lease as lease_module
from georesolve.service.store import schema
from georesolve.service.store.changes import Bell
from georesolve.service.store.engine import open_database
from georesolve.service.store.keys import Adoption, hash_of, prefix_of
from georesolve.service.store.lease import Lease
from georesolve.service.store.listing import JobQuery, Page
from georesolve.service.store.names import Condition
from georesolve.service.store.rows import DatasetRow, Delivery, Repeat
from georesolve.service.store.schema import VERSION, kept, metadata
from georesolve.service.store.store import LONG_AGO, Store
from georesolve.workers.pipeline import Progress
from tests.conftest import (
    NO_CLUSTER,
    START_SECONDS,
    finished,
    free_port,
    points,
    running_service,
    small_job,
    store_points,
    wait_until,
)
from tests.forks import fork
from tests.postgres import missing, running_postgres
from tests.service.test_jobs import start_job


@pytest.fixture(scope="module")
def postgres():
    if missing():
        pytest.skip(missing())
    with running_postgres() as database:
        yield database


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request):
    """None for SQLite, or the URL of an empty database of Postgres."""
    if request.param == "sqlite":
        return None
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)[-60:].lower()
    return request.getfixturevalue("postgres")(name)


@pytest.fixture
def store(tmp_path, database_url):
    with closing(Store(tmp_path / "data", database_url)) as store:
        yield store


def add(library, tmp_path, seed, registered=True):
    dataset = store_points(points(5, seed), tmp_path / f"{seed}.parquet")
    add_row = library.register if registered else lambda one: (library.keep(one), True)
    return add_row(DatasetRow(dataset, {"decode": 0.5}))


def test_migrations_and_models_agree(tmp_path, database_url):
    engine = open_database(tmp_path, database_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


@pytest.mark.parametrize("columns", [("kept", "jobs"), ()], ids=["unnamed", "named"])
def test_a_database_of_the_first_version_is_brought_up_to_date(tmp_path, database_url, columns):
    with closing(Store(tmp_path, database_url)) as store:
        dataset, _ = add(Library(store.of("")), tmp_path, 1)
        with store._engine.begin() as connection:
            for table in columns:
                connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN name")
            connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN succeeded")
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    with closing(Store(tmp_path, database_url)) as store:
        assert store.dataset(dataset.id).name == ""
        with store._engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_success_of_a_job_outlives_its_result_and_an_upgrade(tmp_path, database_url):
    """And is no text: a failure may have any message."""
    misleading = "removed after its success"
    endings = {
        "accepted": [],
        "successful": [("successful", "done")],
        "removed": [("successful", "done"), "dismiss"],
        "failed": [("failed", "over")],
        "removed failure": [("failed", "over"), "dismiss"],
        "dismissed": [("dismissed", "dismissed by the client")],
    }
    with closing(Store(tmp_path, database_url)) as store:
        dataset, _ = add(Library(store.of("")), tmp_path, 1)
        jobs = {}
        for name, steps in endings.items():
            jobs[name] = store.of("").add_job(dataset, dataset, MatchOptions(), Delivery())
            for step in steps:
                if step == "dismiss":
                    assert store.dismiss_finished_job(jobs[name])
                else:
                    store.finish_job(jobs[name], *step)
        succeeded = {name for name, id in jobs.items() if store.job(id).succeeded}
        assert succeeded == {"successful", "removed"}
        with store._engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN succeeded")
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0002'")
    with closing(Store(tmp_path, database_url)) as store:
        assert {name for name, id in jobs.items() if store.job(id).succeeded} == succeeded
        store.finish_job(jobs["accepted"], "failed", misleading)
        assert not store.job(jobs["accepted"]).succeeded
        with store._engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_database_that_is_older_than_the_first_version_is_refused(tmp_path, database_url):
    engine = open_database(tmp_path, database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE kept")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    engine.dispose()
    with pytest.raises(CannotStart, match=f"version 0001, .* up to {VERSION}: run"):
        open_database(tmp_path, database_url)


def test_the_version_of_the_tables_is_the_newest_migration():
    config = Config()
    config.set_main_option("script_location", "georesolve.service.store:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == VERSION


def test_what_was_made_without_keys_becomes_a_keys(tmp_path, store):
    store.keys.create("ann")
    [ann] = store.keys.all()
    nobody, own = store.of(""), store.of(ann.id)
    twice, other = (add(Library(nobody), tmp_path, seed)[0] for seed in (1, 2))
    nobody.names.put("sites", twice.id, Condition(), None)
    job = nobody.add_job(twice, other, MatchOptions(), Delivery(), Repeat("one", "a"))
    stays = add(Library(own), tmp_path, 1)[0]
    own.add_job(stays, stays, MatchOptions(), Delivery(), Repeat("one", "b"))
    adoption = Adoption(store._engine)
    assert adoption.unowned() == (2, 1)
    adoption.give_to(ann)
    assert adoption.unowned() == (0, 0)
    assert {row.id for row in own.registered_datasets(Page())} == {stays.id, other.id}
    assert own.names.find("sites") == stays.id
    assert own.job(job).references == other.id
    # It goes once the job that was accepted with it has ended.
    assert own.job(job).observations == twice.id
    assert store.dataset(twice.id).kind == "input"
    store.finish_job(job, "failed", "over")
    assert twice.id in {kept.id for kept in store.expired()}


def test_the_database_of_a_newer_version_is_refused(tmp_path, database_url):
    engine = open_database(tmp_path, database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(CannotStart, match=f"version 9999, .* up to {VERSION}: run"):
        open_database(tmp_path, database_url)


def test_processes_that_migrate_at_the_same_time_wait_for_each_other(tmp_path, database_url):
    place = ["--database-url", database_url] if database_url else ["--data-dir", str(tmp_path)]
    names = {"ann", "ben"}
    making = [fork("georesolve", ["keys", "create", name, *place]) for name in names]
    assert [one.wait(100) for one in making] == [0, 0]
    with closing(Store(tmp_path, database_url)) as store:
        assert {key.name for key in store.keys.all()} == names


def test_a_database_that_another_holds_is_told_of(tmp_path, monkeypatch):
    open_database(tmp_path).dispose()

    def impatient(connection, record):
        connection.execute("PRAGMA busy_timeout=10")

    monkeypatch.setattr("georesolve.service.store.engine._make_durable", impatient)
    with closing(sqlite3.connect(tmp_path / "georesolve.sqlite")) as other:
        other.execute("UPDATE alembic_version SET version_num = '0001'")
        other.commit()
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CannotStart, match="cannot be opened: database is locked"):
            open_database(tmp_path)


def test_a_user_of_postgres_who_may_make_no_tables_is_told(tmp_path, postgres):
    url = sa.make_url(postgres("may_make_no_tables")).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        connection.exec_driver_sql("CREATE ROLE reader LOGIN")
    engine.dispose()
    reader = url.set(drivername="postgresql", username="reader").render_as_string()
    with pytest.raises(CannotStart, match=r"denied for schema public .*; let its user make tables"):
        open_database(tmp_path, reader)


def test_tables_that_cannot_be_made_leave_nothing_behind(tmp_path):
    first = sa.create_engine(f"sqlite:///{tmp_path / 'georesolve.sqlite'}")
    with first.begin() as connection:
        # In the way of the tables.
        connection.exec_driver_sql("CREATE TABLE keys (id VARCHAR)")
    with pytest.raises(CannotStart, match=r"made or changed: .* keys already exists; let"):
        open_database(tmp_path)
    assert sa.inspect(first).get_table_names() == ["keys"]
    first.dispose()


def test_a_job_is_accepted_with_few_statements(tmp_path, store):
    """Others wait meanwhile: one says that both sets are there and enters the job."""
    library, said = Library(store), []
    made = [DatasetRow(store_points(points(5, n), tmp_path / f"{n}.parquet"), {}) for n in (1, 2)]
    registered, _ = library.register(made[0])
    new = library.keep(made[1])

    @sa.event.listens_for(store._engine, "before_cursor_execute")
    def note(connection, cursor, statement, *about):
        said.append(statement.split()[0])

    for row, most in ((registered, 2), (new, 3)):
        said.clear()
        assert store.add_job(row, registered, MatchOptions(), Delivery())
        assert said.pop(0) in ("BEGIN", "SELECT"), "the lock"
        assert len(said) == most, said


def test_outputs_of_live_jobs_are_theirs(tmp_path, store):
    row, _ = add(Library(store), tmp_path, 1)

    def accept(output):
        def admit(connection):
            store.refuse_output_of_others(connection, output)

        return store.add_job(
            row, row, MatchOptions(), Delivery(output=output), size_bytes=9, admit=admit
        )

    store.add_job(row, row, MatchOptions(), Delivery())
    id = accept("s3://bucket/a/")
    for other in ("s3://bucket/a/", "s3://bucket/", "s3://bucket/a/b/"):
        with pytest.raises(OutputTaken, match=f"name another folder than {other}"):
            accept(other)
    accept("s3://bucket/ab/")
    before = store.kept_bytes()
    assert store.finish_job(id, "successful", "done", report={"size_bytes": 1_000})
    # It takes nothing of the disk here.
    assert store.kept_bytes() == before - 9
    accept("s3://bucket/a/")


def test_what_cannot_be_removed_elsewhere_is_removed_later(tmp_path, monkeypatch):
    names = ["000000000000-000000000010.parquet", "_ending", "_SUCCESS", "notes.txt"]
    place = tmp_path / "results"
    place.mkdir()
    for name in names:
        (place / name).write_text(name)
    with closing(Store(tmp_path / "data")) as store:
        row, _ = add(Library(store), tmp_path, 1)
        output = f"file://{place}/"
        id = store.add_job(row, row, MatchOptions(), Delivery(output=output))
        folder = store.job_folder(id)
        (folder / "records").mkdir(parents=True)
        store.finish_job(id, "failed", "it failed")

        def refuse(*_):
            raise OSError("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(endings, "keep_parts", refuse)
            endings.clear(store, Library(store), id)
        assert sorted(path.name for path in place.iterdir()) == sorted(names)
        sweep(store)
        assert folder.exists(), "its workers may have it in hand"
        let_time_pass(store)
        sweep(store)
        # What others laid there stays.
        assert [path.name for path in place.iterdir()] == ["notes.txt"]
        assert not folder.exists()


@pytest.mark.parametrize("has_deleted", [False, True])
def test_what_a_later_job_wrote_elsewhere_is_not_swept_with_an_earlier_one(tmp_path, has_deleted):
    place = tmp_path / "results"
    with closing(Store(tmp_path / "data")) as store:
        row, _ = add(Library(store), tmp_path, 1)
        delivery = Delivery(output=f"file://{place}/")
        failed = []
        for _ in range(2):
            id = store.add_job(row, row, MatchOptions(), delivery)
            store.finish_job(id, "failed", "it failed")
            failed.append(id)
        later = store.add_job(row, row, MatchOptions(), delivery)
        for id in (*failed, later):
            (store.job_folder(id) / "records").mkdir(parents=True)
        place.mkdir()
        part = place / "000000000000-000000000010.parquet"
        part.write_text("of the later one")
        for status in ("running", "successful"):
            endings.tidy(store, store.job(failed[0]))
            assert part.exists(), status
            assert not store.job_folder(failed[0]).exists()
            (store.job_folder(failed[0]) / "records").mkdir(parents=True)
            store.finish_job(later, "successful", "done")
        if has_deleted:
            store.dismiss_finished_job(later)
            endings.tidy(store, store.job(later))
        endings.tidy(store, store.job(failed[1]))
        assert part.exists()


def sweep(store):
    store.jobs_place.make()
    Retention(Settings(), store, Library(store)).sweep()


def let_time_pass(store):
    """Have all that expires some day have expired."""
    with store._engine.begin() as connection:
        expires = kept.c.expires.is_not(None)
        connection.execute(kept.update().where(expires).values(expires=now(-10)))


def test_what_workers_write_after_the_end_of_their_job_goes(tmp_path, store, monkeypatch):
    """A minute after its end, and once more when none of them can hang in a write any more."""
    row, _ = add(Library(store, 0), tmp_path, 1)
    ids = [store.add_job(row, row, MatchOptions(), Delivery()) for _ in range(3)]
    live, failed, done = ids
    store.finish_job(failed, "failed", "it failed")
    store.finish_job(done, "successful", "done")
    for records_are_there in (True, True, False):
        for id in ids:
            (store.job_folder(id) / "records").mkdir(parents=True, exist_ok=True)
        let_time_pass(store)
        if not records_are_there:
            monkeypatch.setattr(endings, "_SETTLED_SECONDS", -10)
        sweep(store)
        assert [(store.job_folder(id) / "records").exists() for id in ids] == [True, False, False]
        assert store.job_folder(done).exists()
        assert not store.job_folder(failed).exists()
        assert store.kept_ids("result") == ({*ids} if records_are_there else {live, done})
    (store.job_folder(done) / "records").mkdir()
    sweep(store)
    assert (store.job_folder(done) / "records").exists(), "it is not asked for again"


def test_a_job_that_is_deleted_while_it_is_tidied_is_no_error(tmp_path, store, caplog):
    row, _ = add(Library(store), tmp_path, 1)
    id = store.add_job(row, row, MatchOptions(), Delivery())
    store.finish_job(id, "successful", "done")
    endings.tidy(store, store.job(id))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_job_ends_once(tmp_path, store):
    library = Library(store)
    row, _ = add(library, tmp_path, 1)
    id = store.add_job(row, row, MatchOptions(k=3, columns=("id",)), Delivery())
    assert store.job(id).options == MatchOptions(k=3, columns=("id",))
    assert store.start_job(id)
    assert not store.let_go(row.id)
    store.report_progress(id, 2, 1e6, "resolving")
    assert store.finish_job(id, "successful", "done", report={"rows": 5})
    assert not store.finish_job(id, "failed", "too late")
    job = store.job(id)
    assert (job.status, job.rows_done, job.report, job.problem) == (
        "successful",
        5,
        {"rows": 5},
        None,
    )
    assert store.live_jobs() == []
    assert store.dismiss_finished_job(id)
    assert store.job(id).report is None
    library.remove(row.id)
    with pytest.raises(NoSuchDataset):
        store.add_job(row, row, MatchOptions(), Delivery())


def test_a_dismissed_job_that_waits_leaves_its_runner(tmp_path, store):
    library, metrics = Library(store), Metrics()
    row, _ = add(library, tmp_path, 1)
    # Without a cluster all jobs wait.
    looking = supervisor.Supervisor(Settings(data_dir=tmp_path / "data"), store, library, metrics)

    async def look():
        async with (
            asyncio.timeout(30),
            store.changes.watched(),
            pools.beside(looking._look_for_jobs(), "looker"),
        ):
            jobs = [store.add_job(row, row, MatchOptions(), Delivery()) for _ in range(3)]
            while len(looking._tasks) < 3:
                await asyncio.sleep(0.01)
            for id in jobs[:2]:
                endings.dismiss(store, library, metrics, id)
            while len(looking._tasks) > 1:
                await asyncio.sleep(0.01)
            assert [*looking._tasks] == jobs[2:]
            looking._tasks[jobs[2]].cancel()

    asyncio.run(look())
    looking._threads.close()


def test_one_who_waits_hears_a_signal_between_any_two_steps(tmp_path, monkeypatch):
    clear = asyncio.Event.clear

    def clear_after_a_signal(event):
        signal.raise_signal(signal.SIGTERM)
        clear(event)

    async def wait(store):
        state = SimpleNamespace(service=SimpleNamespace(store=store))
        front = _Server(SimpleNamespace(state=state), uvicorn.Config(None), None)
        monkeypatch.setattr(asyncio.Event, "clear", clear_after_a_signal)
        with front.capture_signals():
            await asyncio.wait_for(endings.wait_for_end(store, "a", None), 30)

    # uvicorn gives it to the handler before its own in the end.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with closing(Store(tmp_path / "data")) as store:
            monkeypatch.setattr(store, "has_ended", lambda _: False)
            asyncio.run(wait(store))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert store.changes.stopping


def test_a_version_is_asked_for_where_that_waits_for_nothing(tmp_path, monkeypatch):
    async def ask(store):
        async with store.changes.watched():
            while store.changes.version() is None:
                await asyncio.sleep(0.01)
            # As after a failure: to connect may wait.
            store.changes.close()
            monkeypatch.setattr(store._engine, "connect", lambda: pytest.fail("it was connected"))
            assert store.changes.version() is None

    with closing(Store(tmp_path / "data")) as store:
        asyncio.run(ask(store))


def test_a_job_that_is_taken_up_again_waited_until_it_first_began(tmp_path, store):
    row = add(Library(store), tmp_path, 1)[0]
    id = store.add_job(row, row, MatchOptions(), Delivery())
    assert store.job(id).started is None
    store.start_job(id)
    started = store.job(id).started
    wait_until(lambda: now() > started)
    store.start_job(id)
    assert store.job(id).started == started
    assert store.job(id).updated > started


def test_a_rate_counts_from_what_stood_when_the_job_was_taken_up(tmp_path, store, monkeypatch):
    row = add(Library(store), tmp_path, 1)[0]
    id = store.add_job(row, row, MatchOptions(), Delivery())
    store.start_job(id)
    seconds = iter([0.0, 20.0, 22.0])
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    report = supervisor._Reporter(store, id, Disk(Settings(data_dir=tmp_path)))
    # For 20 s it looks at the parts that stand.
    report(Progress(rows=100, rows_done=40))
    report(Progress(rows=100, rows_done=60))
    job = store.job(id)
    assert (job.rows_done, job.rows_a_second) == (60, 10.0)
    assert "10 a second, 4 s left" in job.message


def test_owners_do_not_see_each_other(tmp_path, store):
    ours, theirs = store.of("ours"), store.of("theirs")
    mine, is_new = add(Library(ours), tmp_path, 1)
    assert (mine.owner, is_new) == ("ours", True)
    id = ours.add_job(mine, mine, MatchOptions(), Delivery())
    assert [row.id for row in ours.registered_datasets(Page())] == [mine.id]
    assert [row.id for row in ours.jobs(JobQuery())] == [id]
    assert theirs.dataset(mine.id) is None
    assert theirs.job(id) is None
    assert theirs.jobs(JobQuery()) == theirs.registered_datasets(Page()) == theirs.live_jobs() == []
    assert theirs.kept_ids() == set()
    with pytest.raises(NoSuchDataset):
        theirs.add_job(mine, mine, MatchOptions(), Delivery())
    assert not theirs.finish_job(id, "dismissed", "by a stranger")
    assert not theirs.let_go(mine.id)
    assert [row.id for row in store.live_jobs()] == [id]


def test_content_is_registered_once_an_owner(tmp_path, store):
    def register(i):
        return add(Library(store.of("ab"[i % 2])), tmp_path / f"{i}", 1)

    for i in range(6):
        (tmp_path / f"{i}").mkdir()
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(register, range(6)))
    assert sorted(is_new for _, is_new in answers) == [False] * 4 + [True] * 2
    assert len({row.id for row, _ in answers}) == 2
    assert store.kept_ids() == {row.id for row, _ in answers}
    assert len(list(store.datasets_place.path.iterdir())) == 2


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://user:secret@host/name", "begins with mysql://, allowed is postgresql://"),
        ("secret", "is no URL"),
    ],
)
def test_other_databases_are_refused(tmp_path, url, message):
    with pytest.raises(CannotStart, match=message) as refusal:
        open_database(tmp_path, url)
    assert "secret" not in str(refusal.value)


def test_without_the_driver_of_postgres_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(CannotStart, match=r"pip install '\.\[service,postgres\]'"):
        open_database(tmp_path, "postgresql://host/name")


def test_a_database_that_does_not_answer_is_told_in_one_line(tmp_path):
    url = f"postgresql://user:secret@127.0.0.1:{free_port()}/name"
    with pytest.raises(CannotStart, match=r"cannot be opened: .*refused") as refusal:
        open_database(tmp_path, url)
    assert "\n" not in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_an_id_that_no_database_takes_is_nobodys(store):
    assert store.job("\0") is None


def test_pages_and_selections(tmp_path, store):
    row, _ = add(Library(store), tmp_path, 1)
    ids = [store.add_job(row, row, MatchOptions(), Delivery()) for _ in range(5)][::-1]
    assert {job.id for job in store.jobs(JobQuery())} == set(ids)
    seen, page = [], JobQuery(limit=2)
    while True:
        rows = store.jobs(page)
        seen += [row.id for row in rows[:2]]
        # What comes meanwhile is on no page that is still to come.
        store.add_job(row, row, MatchOptions(), Delivery())
        if len(rows) <= 2:
            break
        page = JobQuery(limit=2, cursor=page.next_cursor(rows))
    assert set(seen) == set(ids)
    assert len(seen) == 5
    first = store.job(ids[-1])
    store.start_job(first.id)
    store.finish_job(first.id, "successful", "done")

    def selected(**wanted):
        return [job.id for job in store.jobs(JobQuery(**wanted))]

    assert selected(status=["successful"]) == [first.id]
    assert selected(processID=["within"]) == []
    assert len(selected(processID=["within", "nearest"])) == 8
    assert first.id in selected(datetime=first.created)
    assert selected(datetime="2100-01-01T00:00:00Z/..") == []
    # The others were never started, and have run for no time, not even for none.
    assert selected(minDuration=0, maxDuration=100) == [first.id]
    assert selected(minDuration=100) == []


def test_a_key_belongs_to_one_job(tmp_path, store):
    repeat = Repeat("key", "fingerprint")
    row, _ = add(Library(store), tmp_path, 1)
    id = store.add_job(row, row, MatchOptions(), Delivery(), repeat)
    with pytest.raises(KeyInUse):
        store.add_job(row, row, MatchOptions(k=2), Delivery(), repeat)
    assert [job.id for job in store.jobs(JobQuery())] == [id]
    assert store.first_of(repeat) == (id, "fingerprint")
    other = store.of("another owner")
    assert other.first_of(repeat) is None
    row, _ = add(Library(other), tmp_path, 1)
    assert other.add_job(row, row, MatchOptions(), Delivery(), repeat) != id


def test_keys(store):
    keys = store.keys
    first, second = keys.create("ann"), keys.create("ben")
    assert first != second
    assert [(key.prefix, key.name) for key in keys.all()] == [
        (prefix_of(first), "ann"),
        (prefix_of(second), "ben"),
    ]
    keys.revoke(keys.all()[0].id)
    since = keys.all()[0].revoked
    keys.revoke(keys.all()[0].id)
    assert keys.all()[0].revoked == since
    keys.note_use(keys.all()[1])
    revoked, used = keys.all()
    assert (revoked.revoked is None, revoked.last_used is None) == (False, True)
    assert (used.revoked is None, used.last_used is None) == (True, False)
    assert used.sha256 == hash_of(second)
    third = keys.rotate(used)
    assert third != second
    # A request that came with the old secret, just before.
    keys.note_use(used)
    [rotated] = [key for key in keys.all() if key.revoked is None]
    assert (rotated.id, rotated.name, rotated.last_used) == (used.id, "ben", None)
    assert (rotated.prefix, rotated.sha256) == (prefix_of(third), hash_of(third))
    assert rotated.created >= used.created


def test_what_has_expired(tmp_path, store):
    ours = store.of("ours")
    row, _ = add(Library(ours, 1), tmp_path, 1)
    job = ours.add_job(row, row, MatchOptions(), Delivery())
    theirs = store.of("theirs")
    their_row, _ = add(Library(theirs), tmp_path, 2)
    other = theirs.add_job(their_row, their_row, MatchOptions(), Delivery())
    assert (ours.count_live(), store.count_live()) == ((2, 1), (2, 2))
    assert store.finish_job(job, "successful", "done", report={}, expires=now(-10))
    assert [one.id for one in store.expired(now(-5))] == [job]
    assert store.expired(now(-15)) == []
    assert store.prolong_dataset(row.id, now(-1))
    assert [(one.kind, one.id) for one in store.expired()] == [("result", job), ("dataset", row.id)]
    assert ours.dataset(row.id) is None
    with pytest.raises(NoSuchDataset):
        ours.add_job(row, row, MatchOptions(), Delivery())
    assert not store.let_go(row.id, expires=row.expires), "it was used meanwhile"
    assert store.let_go(row.id, expires=store.expired()[1].expires).sha256 == row.dataset.sha256
    assert store.kept_ids() == {row.id, job, their_row.id, other}
    store.forget(row.id)
    assert store.kept_ids() == {job, their_row.id, other}
    assert not store.prolong_dataset(row.id, None)
    assert store.count_live() == (1, 1)
    assert ours.job(other) is None


def test_jobs_without_a_result_are_forgotten_with_their_keys(tmp_path, store):
    ours = store.of("ours")
    row, _ = add(Library(ours), tmp_path, 1)
    ends = {
        "expired": ("successful", now(-1)),
        "kept": ("successful", now(60)),
        "kept for ever": ("successful", None),
        "failed": ("failed", None),
        "live": (None, None),
    }
    jobs = {}
    for name, (status, expires) in ends.items():
        repeat = Repeat(name, "fingerprint")
        jobs[name] = ours.add_job(row, row, MatchOptions(), Delivery(), repeat)
        if status:
            store.finish_job(jobs[name], status, "over", report={}, expires=expires)
    assert store.forget_jobs(now(-60)) == []
    gone = {jobs["expired"], jobs["failed"]}
    for id in gone:
        store.job_folder(id).mkdir(parents=True)
    assert set(store.forget_jobs(now(1))) == gone
    left = {name for name, id in jobs.items() if store.job(id)}
    assert left == {"kept", "kept for ever", "live"}
    let_time_pass(store)
    sweep(store)
    assert not any(store.job_folder(id).exists() for id in gone)
    assert not store.kept_ids("result") & gone
    assert {name for name in jobs if ours.first_of(Repeat(name, "fingerprint"))} == left


def test_a_runner_hears_of_a_job_from_another_process_before_it_looks(tmp_path):
    with closing(Store(tmp_path / "data")) as front, closing(Store(tmp_path / "data")) as runner:
        row, _ = add(Library(front), tmp_path, 1)

        def accept():
            return front.add_job(row, row, MatchOptions(), Delivery())

        async def hear(times):
            rung = asyncio.Event()
            with runner.bell.heard(rung.set):
                for _ in range(times):
                    id = await asyncio.to_thread(accept)
                    # Its thread that looks at the database was not started.
                    await asyncio.wait_for(rung.wait(), 20)
                    rung.clear()
                    assert runner.live_ids()[-1] == id

        accept()
        for _ in range(2):
            asyncio.run(hear(3))
            accept()


def test_what_is_no_pipe_in_the_place_of_the_bell_does_not_end_the_runner(tmp_path, caplog):
    (tmp_path / ".bell").touch()
    rung = []

    async def hear():
        with Bell(tmp_path).heard(lambda: rung.append(True)):
            await asyncio.to_thread(Bell(tmp_path).ring)

    asyncio.run(hear())
    assert not rung
    assert "fronts cannot ring, and jobs start some moments later" in caplog.text


def test_one_runner_has_the_lease_and_another_one_gets_it(store, monkeypatch):
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.3)
    first, other, again = (Lease(store._engine, name) for name in ("first", "other", "first"))
    assert first._take()
    assert not other._take()
    assert again._take(), "another process of the same name: the first one is dead"
    for _ in range(5):
        time.sleep(0.1)
        assert again._renew(metrics="told")
        assert not other._take(), "it is renewed"
    assert (store.told().cluster, store.told().metrics) == ({}, "told")
    wait_until(other._take)
    assert not again._renew()
    assert other._renew(holder="")
    assert again._take(), "it was given back"
    for one in (first, other, again):
        one._close()


def test_a_runner_that_lost_the_lease_changes_no_job(tmp_path, store):
    file = store_points(points(5, 1), tmp_path / "five.parquet")
    row = Library(store).keep(DatasetRow(file, {}), registered=True)
    job = store.add_job(row, row, MatchOptions(), Delivery())
    holder = copy.copy(store)
    mine, other = holder.lease("mine"), Lease(store._engine, "other")
    assert not holder.start_job(job), "it has not taken the lease yet"
    assert mine._take()
    assert holder.start_job(job)
    store.take_over()
    assert other._take()
    assert not holder.finish_job(job, "successful", "done")
    assert store.job(job).status == "running"
    # Clients end jobs whoever runs them.
    assert store.finish_job(job, "dismissed", "by the client")
    mine._close()
    other._close()


def test_a_runner_that_waits_for_the_lease_has_garbage_collected(store):
    holder, other = store.lease("holder"), Lease(store._engine, "other")
    assert holder._take()

    async def wait():
        waiting = asyncio.create_task(other.taken())
        while not gc.isenabled():
            await asyncio.sleep(0.01)
        waiting.cancel()

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(wait(), START_SECONDS))
    finally:
        gc.enable()
    for one in (holder, other):
        one._close()


def test_a_service_whose_lease_another_has_waits_for_it(tmp_path, postgres):
    url = postgres("lease")
    flags = [*NO_CLUSTER, "--database-url", url]
    with (
        running_service(tmp_path / "data", *flags, ready=False) as client,
        closing(Store(tmp_path / "other", url)) as store,
    ):
        wait_until(lambda: store.told().beat > 1)
        store.take_over()
        lease = Lease(store._engine, "other")
        if lease._take():
            answer = small_job(client)
            assert answer.status_code == 201
            wait_until(lambda: "another runner has taken the lease" in client.log.read_text())
            wait_until(lambda: "has the lease: this one waits" in client.log.read_text())
            assert client.get(answer.headers["location"]).json()["status"] == "accepted"
            beat = store.told().beat
            lease._close()
            wait_until(lambda: store.told().beat > beat)


def test_a_database_that_is_away_is_no_error_of_the_service(tmp_path, postgres):
    url, other = postgres("away"), postgres("elsewhere")
    flags = [*NO_CLUSTER, "--database-url", url]
    admin = sa.create_engine(
        other.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with running_service(tmp_path / "data", *flags, ready=False) as client, admin.connect() as sql:
        assert client.get("/jobs").status_code == 200
        sql.execute(sa.text("ALTER DATABASE away ALLOW_CONNECTIONS false"))
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'away'"
        sql.execute(sa.text(end))
        # The keys are read anew after a second, in front of all handlers.
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            for answer in (client.get("/jobs"), client.get("/datasets/none")):
                assert answer.status_code == 503, answer.text
                assert answer.json()["type"] == "urn:georesolve:problem:not-ready"
                assert answer.headers["retry-after"] == "2"
            time.sleep(0.1)
        sql.execute(sa.text("ALTER DATABASE away ALLOW_CONNECTIONS true"))
        wait_until(lambda: client.get("/jobs").status_code == 200)
    admin.dispose()


def test_a_dataset_stays_while_its_job_is_entered(tmp_path, store):
    """Postgres would let both come to pass, each by what it saw before the other."""
    ours = store.of("ours")
    row, _ = add(Library(ours), tmp_path, 1)
    is_entered, may_commit = threading.Event(), threading.Event()

    @sa.event.listens_for(store._engine, "commit")
    def wait(connection):
        if threading.current_thread().name.startswith("adder"):
            is_entered.set()
            may_commit.wait(10)

    with ThreadPoolExecutor(1, "adder") as adder, ThreadPoolExecutor(1) as remover:
        job = adder.submit(ours.add_job, row, row, MatchOptions(), Delivery())
        assert is_entered.wait(10)
        removed = remover.submit(ours.let_go, row.id)
        with contextlib.suppress(TimeoutError):
            removed.result(0.5)
        may_commit.set()
        assert not removed.result(10)
        assert ours.job(job.result(10)).status == "accepted"
    assert ours.dataset(row.id) is not None


def test_a_new_start_believes_no_clock_about_results(tmp_path, store):
    """A result that ended just before a clock jumped far ahead stays for a day."""
    row, _ = add(Library(store, 0), tmp_path, 1)
    id = store.add_job(row, row, MatchOptions(), Delivery())
    store.finish_job(id, "successful", "done", expires=now(-60))
    store.job_folder(id).mkdir(parents=True)
    with store._engine.begin() as connection:
        connection.execute(schema.store.update().values(swept=now(-10 * 86400)))
    store.take_over()
    sweep(store)
    assert store.job_folder(id).exists()


def test_a_result_that_is_deleted_while_it_is_settled_goes(tmp_path, store, monkeypatch):
    row, _ = add(Library(store, 0), tmp_path, 1)
    id = store.add_job(row, row, MatchOptions(), Delivery())
    store.finish_job(id, "successful", "done")
    let_time_pass(store)
    # The front that removes it is killed before its files are gone.
    monkeypatch.setattr(endings, "tidy", lambda store, row: store.dismiss_finished_job(row.id))
    sweep(store)
    assert [one.id for one in store.expired(LONG_AGO)] == [id]


def test_a_service_on_postgres(tmp_path, postgres, shared_cluster):
    url = postgres("service")
    flags = ["--database-url", url]
    with running_service(tmp_path / "data", *shared_cluster, *flags) as client:
        job = start_job(client, points(2_000, 1), points(20, 2), k=2)
        assert finished(client, job)["status"] == "successful"
        assert client.get(f"{job}/results").status_code == 200
    with running_service(tmp_path / "data", *NO_CLUSTER, *flags, ready=False) as client:
        assert client.get(job).json()["status"] == "successful"
    assert not (tmp_path / "data" / "georesolve.sqlite").exists()


def test_keys_in_postgres(tmp_path, postgres, monkeypatch, capsys):
    url = postgres("keys")
    monkeypatch.chdir(tmp_path)

    def keys(*arguments):
        code = main(["keys", *arguments, "--database-url", url])
        return code, *capsys.readouterr()

    code, _, told = keys("list")
    assert (code, "there is no store of a service in the Postgres database 'keys'" in told) == (
        1,
        True,
    )
    code, key, told = keys("create", "ann")
    assert (code, "made now" in told) == (0, True)
    code, listed, told = keys("list")
    assert listed.startswith(prefix_of(key))
    assert "made now" not in told
    assert list(tmp_path.iterdir()) == []


def test_deaths_of_the_service_count_against_jobs_that_ran(tmp_path, store):
    row, _ = add(Library(store), tmp_path, 1)
    ids = {
        name: store.add_job(row, row, MatchOptions(), Delivery())
        for name in ("ran", "got on", "rested", "waited", "ended")
    }
    for name in ids.keys() - {"waited"}:
        store.start_job(ids[name])
    store.update_live(ids["rested"], held=False)
    store.finish_job(ids["ended"], "successful", "done")

    def deaths():
        return {name: store.job(id).deaths for name, id in ids.items()}

    store.note_death()
    none = dict.fromkeys(ids, 0)
    assert deaths() == none | {"ran": 1, "got on": 1}
    # Nobody has started them since.
    store.note_death()
    assert deaths() == none | {"ran": 1, "got on": 1}
    for name in ("ran", "got on"):
        store.start_job(ids[name])
    store.report_progress(ids["ran"], 0, None, "it found the parts of before")
    store.report_progress(ids["got on"], 2, 1e6, "two of five")
    store.note_death()
    assert deaths() == none | {"ran": 2, "got on": 1}
