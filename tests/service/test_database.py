"""A database that is away, hangs or has no connection left: nothing waits for ever or is lost."""

import asyncio
import contextlib
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from georesolve.service.database import postgres as postgres_module
from georesolve.service.database.engine import open_database
from georesolve.service.database.rows import Delivery
from georesolve.service.database.store import Store
from georesolve.service.datasets.library import Library
from georesolve.service.jobs import supervisor as supervisor_module
from georesolve.service.jobs.supervisor import Supervisor
from georesolve.service.metrics import Metrics
from georesolve.service.settings import Settings
from georesolve.service.uploads.ingest import Ingested
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.manifest import read_manifest
from tests.conftest import points, store_points
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
                for name in ("statement_timeout", "lock_timeout", "work_mem")
            ]
        assert shown == ["15s", "10s", "77kB"]
        with hanging(Path(url.partition("host=")[2])):
            for waits in ("for a statement", "for a session"):
                start = time.monotonic()
                with pytest.raises(sa.exc.OperationalError, match=r"did not answer|timeout"):
                    engine.connect()
                assert time.monotonic() - start < 10, waits
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        engine.dispose()


def test_a_job_whose_end_finds_no_connection_is_ended_later(tmp_path, cluster, monkeypatch):
    """The pool is exhausted in the moment in which the job has its result."""
    settings = Settings(data_dir=tmp_path / "data", device=cluster.device)
    with closing(Store(settings.data_dir)) as store:
        library = Library(store)
        rows = [
            library.keep(Ingested(store_points(points(n, n), tmp_path / f"{n}.parquet"), {}))
            for n in (2_000, 300)
        ]
        job = store.add_job(*rows, MatchOptions(), Delivery())
        supervisor = Supervisor(settings, store, library, Metrics())
        supervisor.cluster = cluster
        supervisor._opened.set()
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
        asyncio.run(supervisor._run_to_its_end(store.job(job)))
        assert len(results) == 2, "its first end found a connection"
        assert store.job(job).status == "successful", store.job(job).problem
        assert read_manifest(store.job_folder(job)).digest == results[0]
