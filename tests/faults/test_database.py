"""A database that is away, hangs or has no connection left: nothing waits for ever or is lost."""

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from georesolve.query import MatchOptions
from georesolve.service.datasets.library import Library
from georesolve.service.jobs import supervisor as supervisor_module
from georesolve.service.jobs.supervisor import Supervisor
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.service.store import postgres as postgres_module
from georesolve.service.store.engine import open_database
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.store import Store
from georesolve.workers.results.manifest import read_manifest
from tests.conftest import (
    NO_CLUSTER,
    points,
    running_service,
    small_job,
    store_points,
    wait_until,
)
from tests.faults.test_hung import suspended
from tests.postgres import missing, running_postgres


@contextlib.contextmanager
def hanging(folder):
    """Stop a Postgres server with all of its sessions, so that it accepts and never answers."""
    [pid, *_] = (folder / "data" / "postmaster.pid").read_text().split()
    family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
    for one in family:
        one.suspend()
    try:
        yield
    finally:
        for one in family:
            one.resume()


@pytest.mark.skipif(bool(missing()), reason=str(missing()))
def test_a_database_that_hangs_is_given_up_and_found_again(tmp_path, monkeypatch):
    with running_postgres() as database:
        url = database("hangs")
        engine = open_database(tmp_path, f"{url}&connect_timeout=2&options=-c%20work_mem%3D77kB")
        monkeypatch.setattr(postgres_module, "SILENCE_SECONDS", 1.0)
        with engine.connect() as connection:
            shown = [
                connection.exec_driver_sql(f"SHOW {name}").scalar()
                for name in (
                    "statement_timeout",
                    "lock_timeout",
                    "idle_in_transaction_session_timeout",
                    "work_mem",
                )
            ]
        assert shown == ["15s", "10s", "5s", "77kB"]
        with hanging(Path(url.partition("host=")[2])):
            for waits in ("for a statement", "for a session"):
                start = time.monotonic()
                with pytest.raises(sa.exc.OperationalError, match=r"did not answer|timeout"):
                    engine.connect()
                assert time.monotonic() - start < 10, waits
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        engine.dispose()


def is_still(pid):
    """Whether all threads of a process that was told to stop have done so."""
    stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def dismiss(client, job):
    assert client.delete(job.headers["location"]).json()["status"] == "dismissed"


@pytest.mark.skipif(bool(missing()), reason=str(missing()))
def test_a_front_that_is_paused_in_a_transaction_stops_no_other(tmp_path):
    """It has entered a job and not committed it, and another connection waits for its locks."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(running_postgres())("paused")
        flags = [*NO_CLUSTER, "--database-url", url]
        service = stack.enter_context(running_service(tmp_path / "data", *flags, ready=False))
        flags += ["--role", "front", "--data-dir", tmp_path / "data"]
        front = stack.enter_context(running_service(tmp_path / "front", *flags, ready=False))
        dismiss(service, small_job(front))

        engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        stack.callback(engine.dispose)
        gate = stack.enter_context(engine.connect())
        watch = stack.enter_context(engine.connect()).execution_options(
            isolation_level="AUTOCOMMIT"
        )

        def waits_at_the_gate():
            waiting = "wait_event_type = 'Lock' AND starts_with(query, 'INSERT INTO jobs')"
            count = f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}"
            return watch.exec_driver_sql(count).scalar()

        def beat():
            return watch.exec_driver_sql("SELECT beat FROM store").scalar()

        gate.exec_driver_sql("LOCK TABLE jobs IN SHARE MODE")
        asker = stack.enter_context(ThreadPoolExecutor(1))
        asked = asker.submit(small_job, front)
        wait_until(waits_at_the_gate)
        with suspended(psutil.Process(front.process.pid)):
            wait_until(lambda: is_still(front.process.pid))
            gate.rollback()
            start, before = time.monotonic(), beat()
            job = small_job(service)
            assert job.status_code == 201, job.text
            dismiss(service, job)
            assert time.monotonic() - start < postgres_module.SILENCE_SECONDS / 2
            wait_until(lambda: beat() > before + 3)
        answer = asked.result(60)
        assert answer.status_code == 503, answer.text
        assert answer.json()["type"] == "urn:georesolve:problem:not-ready"
        assert len(service.get("/jobs").json()["jobs"]) == 2
        dismiss(service, small_job(front))
        assert "another runner has taken" not in service.log.read_text()


def test_a_job_whose_end_finds_no_connection_is_ended_later(tmp_path, cluster, monkeypatch):
    """The pool is exhausted in the moment in which the job has its result."""
    settings = Settings(data_dir=tmp_path / "data", device=cluster.device)
    with closing(Store(settings.data_dir)) as store:
        library = Library(store)
        rows = [
            library.keep(DatasetRow(store_points(points(n, n), tmp_path / f"{n}.parquet"), {}))
            for n in (2_000, 300)
        ]
        job = store.add_job(*rows, MatchOptions(), Delivery())
        supervisor = Supervisor(settings, store, library, Metrics())
        supervisor.keeper.cluster = cluster
        supervisor.keeper.opened.set()
        supervisor._live = {job}
        results, held = [], contextlib.ExitStack()
        real_run, real_finish = supervisor_module.run, store.finish_job

        def run_until_no_connection_is_left(*arguments):
            result = real_run(*arguments)
            results.append(result[0].digest)
            if len(results) == 1:
                store._engine.pool._timeout = 0.1
                with contextlib.suppress(sa.exc.TimeoutError):
                    while True:
                        held.enter_context(store._engine.connect())
            return result

        def finish_before_one_is_back(*arguments, **outcome):
            with held:  # which are let go whatever comes of it
                return real_finish(*arguments, **outcome)

        monkeypatch.setattr(supervisor_module, "run", run_until_no_connection_is_left)
        monkeypatch.setattr(store, "finish_job", finish_before_one_is_back)
        asyncio.run(supervisor._run(job))
        assert len(results) == 2, "its first end found a connection"
        assert store.job(job).status == "successful", store.job(job).problem
        assert read_manifest(store.job_folder(job)).digest == results[0]
