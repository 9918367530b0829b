"""The store: migrations up from the first schema, its verbs on SQLite and on Postgres."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from service.database import DatabaseUrlError, open_database
from service.errors import KeyInUse
from service.idempotency import Repeat
from service.ingest import Ingested
from service.library import Library
from service.listing import Page, Selection, cursor_after
from service.schema import metadata
from service.store import Delivery, EchoOptions, Store
from tests.conftest import ROOT, points, store_points
from tests.postgres import missing, running_postgres
from workers.jobs import MatchOptions

# What `create_all` made before there were migrations, as `.schema` of sqlite3 shows it.
_FIRST_SCHEMA = """
CREATE TABLE datasets (id VARCHAR NOT NULL, created VARCHAR NOT NULL, sha256 VARCHAR NOT NULL,
    registered BOOLEAN NOT NULL, dataset JSON NOT NULL, seconds JSON NOT NULL, PRIMARY KEY (id));
CREATE UNIQUE INDEX registered_content ON datasets (sha256) WHERE registered;
CREATE INDEX ix_datasets_sha256 ON datasets (sha256);
CREATE TABLE jobs (id VARCHAR NOT NULL, status VARCHAR NOT NULL, created VARCHAR NOT NULL,
    started VARCHAR, finished VARCHAR, updated VARCHAR NOT NULL, observations VARCHAR NOT NULL,
    "references" VARCHAR NOT NULL, options JSON NOT NULL, rows BIGINT NOT NULL,
    rows_done BIGINT NOT NULL, message VARCHAR NOT NULL, problem JSON, report JSON,
    PRIMARY KEY (id));
CREATE INDEX ix_jobs_status ON jobs (status);
CREATE INDEX ix_jobs_created ON jobs (created);
INSERT INTO datasets VALUES ('d1', '2026-11-20T10:00:00.000+00:00', 'abc', 1,
    '{"sha256": "abc", "rows": 1, "invalid_rows": 0, "lat": "lat", "lon": "lon", "id": null,
      "columns": ["lat", "lon"], "bbox": [1, 2, 1, 2], "first_invalid": []}', '{"decode": 0.1}');
INSERT INTO jobs VALUES ('j1', 'accepted', '2026-11-20T10:00:00.000+00:00', NULL, NULL,
    '2026-11-20T10:00:00.000+00:00', 'd1', 'd1',
    '{"k": 2, "max_distance_m": null, "exclude_self": false, "algorithm": "auto", "how": "left",
      "columns": [], "observation_columns": []}', 1, 0, 'waiting for a free place', NULL, NULL);
"""


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
    return add_row(Ingested(dataset, {"decode": 0.5}))


def test_migrations_and_models_agree(tmp_path, database_url):
    engine = open_database(tmp_path, database_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_data_folder_of_before_migrations_is_taken_over(tmp_path):
    first = sa.create_engine(f"sqlite:///{tmp_path / 'georesolve.sqlite'}")
    with first.begin() as connection:
        for statement in _FIRST_SCHEMA.split(";\n")[:-1]:
            connection.exec_driver_sql(statement)
    first.dispose()
    for _ in range(2):
        with closing(Store(tmp_path)) as store:
            dataset, job = store.dataset("d1"), store.job("j1")
            assert (dataset.owner, dataset.expires, dataset.dataset.rows) == ("", None, 1)
            assert (job.owner, job.expires, job.options) == ("", None, MatchOptions(k=2))
            assert [job.id for job in store.of("").live_jobs()] == ["j1"]
    engine = open_database(tmp_path)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_processes_that_migrate_at_the_same_time_wait_for_each_other(tmp_path, database_url):
    script = (
        "import sys; from pathlib import Path; from service.store import Store\n"
        "Store(Path(sys.argv[1]), sys.argv[2] or None).close()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data"), database_url or ""]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate(timeout=100)[1] for process in processes] == [""] * 3
    assert [process.returncode for process in processes] == [0] * 3


def test_a_migration_that_breaks_leaves_nothing_behind(tmp_path):
    first = sa.create_engine(f"sqlite:///{tmp_path / 'georesolve.sqlite'}")
    with first.begin() as connection:
        # In the way of the second migration.
        connection.exec_driver_sql("CREATE TABLE keys (id VARCHAR)")
    with pytest.raises(sa.exc.OperationalError, match="keys already exists"):
        open_database(tmp_path)
    assert sa.inspect(first).get_table_names() == ["keys"]
    first.dispose()


def test_a_job_ends_once(tmp_path, store):
    library = Library(store)
    row, _ = add(library, tmp_path, 1)
    id = store.add_job(row, row, MatchOptions(k=3, columns=("id",)), Delivery())
    assert store.job(id).options == MatchOptions(k=3, columns=("id",))
    assert store.start_job(id)
    assert not store.remove_dataset(row.id)
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
    assert store.add_job(row, row, MatchOptions(), Delivery()) is None


def test_owners_do_not_see_each_other(tmp_path, store):
    ours, theirs = store.of("ours"), store.of("theirs")
    mine, is_new = add(Library(ours), tmp_path, 1)
    assert (mine.owner, is_new) == ("ours", True)
    id = ours.add_job(mine, mine, MatchOptions(), Delivery())
    assert [row.id for row in ours.registered_datasets(Page(10))] == [mine.id]
    assert [row.id for row in ours.jobs(Page(10))] == [id]
    assert theirs.dataset(mine.id) is None
    assert theirs.job(id) is None
    assert theirs.jobs(Page(10)) == theirs.registered_datasets(Page(10)) == theirs.live_jobs() == []
    assert theirs.dataset_ids() == set()
    assert theirs.add_job(mine, mine, MatchOptions(), Delivery()) is None
    assert not theirs.finish_job(id, "dismissed", "by a stranger")
    assert not theirs.remove_dataset(mine.id)
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
    assert len(list(store.datasets_folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://user:secret@host/name", "begins with mysql://, allowed is postgresql://"),
        ("secret", "is no URL"),
    ],
)
def test_other_databases_are_refused(tmp_path, url, message):
    with pytest.raises(DatabaseUrlError, match=message) as refusal:
        open_database(tmp_path, url)
    assert "secret" not in str(refusal.value)


def test_without_the_driver_of_postgres_the_extra_is_named(tmp_path):
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from pathlib import Path; from service.store import Store\n"
        "Store(Path(sys.argv[1]), 'postgresql://host/name')"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert "pip install 'georesolve[postgres]'" in done.stderr


def test_pages_and_selections(store):
    ids = [store.add_echo(EchoOptions("x"), Delivery()) for _ in range(5)][::-1]
    assert {job.id for job in store.jobs(Page(10))} == set(ids)
    seen, page = [], Page(2)
    while True:
        rows = store.jobs(page)
        seen += [row.id for row in rows[:2]]
        # What comes meanwhile is on no page that is still to come.
        store.add_echo(EchoOptions("later"), Delivery())
        if len(rows) <= 2:
            break
        page = Page(2, cursor_after(rows[1].created, rows[1].id))
    assert set(seen) == set(ids)
    assert len(seen) == 5
    first = store.job(ids[-1])
    store.start_job(first.id)
    store.finish_job(first.id, "successful", "done")

    def selected(**wanted):
        return [job.id for job in store.jobs(Page(100), Selection(**wanted))]

    assert selected(statuses=("successful",)) == [first.id]
    assert selected(processes=("nearest",)) == []
    assert len(selected(processes=("echo", "nearest"))) == 8
    assert first.id in selected(created_from=first.created, created_to=first.created)
    assert selected(created_from="2100-01-01T00:00:00.000+00:00") == []
    # The others were never started, and have run for no time, not even for none.
    assert selected(shortest_seconds=0, longest_seconds=100) == [first.id]
    assert selected(shortest_seconds=100) == selected(longest_seconds=-1) == []


def test_a_key_belongs_to_one_job(store):
    repeat = Repeat("key", "fingerprint")
    id = store.add_echo(EchoOptions("x"), Delivery(), repeat)
    with pytest.raises(KeyInUse):
        store.add_echo(EchoOptions("y"), Delivery(), repeat)
    assert [job.id for job in store.jobs(Page())] == [id]
    assert store.first_of(repeat) == (id, "fingerprint")
    other = store.of("another owner")
    assert other.first_of(repeat) is None
    assert other.add_echo(EchoOptions("x"), Delivery(), repeat) != id
