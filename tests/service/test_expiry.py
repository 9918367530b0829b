"""A wrong clock removes nothing: what expires does so by the time that really passes."""

import datetime
from contextlib import closing
from types import SimpleNamespace

import pytest

from georesolve.service import clock
from georesolve.service.clock import ExpiryClock, in_hours
from georesolve.service.database.rows import Delivery
from georesolve.service.database.store import Store
from georesolve.service.datasets.library import Library
from georesolve.service.jobs.retention import Retention
from georesolve.service.settings import Settings
from georesolve.service.uploads.ingest import Ingested
from georesolve.workers.jobs import MatchOptions
from tests.conftest import points, store_points

MONTH = datetime.timedelta(days=31)
SETTINGS = Settings()


@pytest.fixture
def machine(monkeypatch):
    """A machine whose clock can be set, and on which time can pass."""
    machine = SimpleNamespace(ahead=datetime.timedelta(), passed=datetime.timedelta())
    real = datetime.datetime
    real_elapsed, boot = clock.time.clock_gettime, clock.time.CLOCK_BOOTTIME

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return real.now(tz) + machine.ahead + machine.passed

    def elapsed(which):
        return real_elapsed(which) + machine.passed.total_seconds()

    dates = SimpleNamespace(datetime=Shifted, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr(clock, "datetime", dates)
    times = SimpleNamespace(clock_gettime=elapsed, CLOCK_BOOTTIME=boot)
    monkeypatch.setattr(clock, "time", times)
    return machine


class Kept:
    """A dataset, a result and the input of a request that is being received, on one disk."""

    def __init__(self, tmp_path, store):
        library = Library(store, SETTINGS.dataset_hours)
        sets = [
            Ingested(store_points(points(5, seed), tmp_path / f"{seed}.parquet"), {})
            for seed in range(2)
        ]
        self.dataset, _ = library.register(sets[0])
        self.received = library.keep(sets[1])
        self.job = store.add_job(self.dataset, self.dataset, MatchOptions(), Delivery())
        expires = in_hours(SETTINGS.result_hours)
        store.finish_job(self.job, "successful", "done", report={}, expires=expires)
        store.job_folder(self.job).mkdir(parents=True)

    def are_there(self, store):
        """Whether each of the three is there for its owner."""
        ours = store.of("")
        job = ours.job(self.job)
        return (
            ours.dataset(self.dataset.id) is not None and self.dataset.dataset.file.exists(),
            job is not None and not job.has_expired and store.job_folder(self.job).exists(),
            ours.dataset(self.received.id) is not None,
        )


def sweep(store, times=2):
    retention = Retention(SETTINGS, store, Library(store, SETTINGS.dataset_hours))
    for _ in range(times):
        retention.sweep()


def test_a_clock_that_jumps_ahead_removes_nothing(tmp_path, machine, caplog):
    with closing(Store(tmp_path / "data")) as store:
        kept = Kept(tmp_path, store)
        sweep(store)
        machine.ahead = MONTH
        machine.passed += datetime.timedelta(seconds=70)
        sweep(store)
        assert kept.are_there(store) == (True, True, True)
        assert caplog.text.count("1 datasets and 1 results that have expired by the clock") == 1
        assert "the clock is 30 days, 23:5" in caplog.text
        assert "are removed within 248.0 hours" in caplog.text
        machine.ahead = datetime.timedelta()
        sweep(store)
        assert kept.are_there(store) == (True, True, True)
        # It is as if nothing had been: all goes in its time.
        machine.passed += datetime.timedelta(days=8)
        sweep(store)
        assert kept.are_there(store) == (True, False, False)
        machine.passed += datetime.timedelta(days=23)
        sweep(store)
        assert kept.are_there(store) == (False, False, False)


def test_a_clock_that_jumped_while_the_service_was_away(tmp_path, machine):
    with closing(Store(tmp_path / "data")) as store:
        kept = Kept(tmp_path, store)
        sweep(store)
    machine.ahead = MONTH
    for _ in range(3):
        with closing(Store(tmp_path / "data")) as store:
            sweep(store)
            assert kept.are_there(store) == (True, True, True)
            machine.passed += datetime.timedelta(minutes=10)
    # If it was right, what has expired goes within a third of the time that it jumped.
    with closing(Store(tmp_path / "data")) as store:
        machine.passed += MONTH / 3
        sweep(store)
        assert kept.are_there(store) == (False, False, False)


def test_what_was_made_by_a_clock_that_was_behind_is_kept(tmp_path, machine):
    with closing(Store(tmp_path / "data")) as store:
        machine.ahead = -MONTH
        kept = Kept(tmp_path, store)
        sweep(store)
        machine.ahead = datetime.timedelta()
        sweep(store)
        assert kept.are_there(store) == (True, True, True)


def test_the_time_of_expiry_is_that_of_a_clock_that_is_right(machine):
    time = ExpiryClock()
    for days in (1, 10, 100):
        machine.passed += datetime.timedelta(days=days)
        assert time.lag() == datetime.timedelta()
