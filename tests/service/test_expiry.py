"""A wrong clock removes nothing: a sweep that follows a jump of the clock waits for a day."""

import datetime
from contextlib import closing
from types import SimpleNamespace

import pytest

from georesolve.cli.serve import main
from georesolve.query import MatchOptions
from georesolve.service import clock
from georesolve.service.clock import in_hours
from georesolve.service.datasets.library import Library
from georesolve.service.jobs.retention import Retention
from georesolve.service.settings import Settings
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.store import Store
from tests.conftest import points, store_points

MONTH = datetime.timedelta(days=31)
SETTINGS = Settings()


@pytest.fixture
def machine(monkeypatch):
    """A machine whose clock can be set; `ahead` is how far."""
    machine = SimpleNamespace(ahead=datetime.timedelta())
    real = datetime.datetime

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return real.now(tz) + machine.ahead

    dates = SimpleNamespace(datetime=Shifted, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr(clock, "datetime", dates)
    return machine


class Kept:
    """A dataset, a result and the input of a request that is being received, on one disk."""

    def __init__(self, tmp_path, store):
        library = Library(store, SETTINGS.dataset_hours)
        sets = [
            DatasetRow(store_points(points(5, seed), tmp_path / f"{seed}.parquet"), {})
            for seed in range(2)
        ]
        self.dataset, _ = library.register(sets[0])
        self.received = library.keep(sets[1])
        self.job = store.add_job(self.dataset, self.dataset, MatchOptions(), Delivery())
        expires = in_hours(SETTINGS.result_hours)
        store.finish_job(self.job, "successful", "done", report={}, expires=expires)
        store.job_folder(self.job).mkdir(parents=True)

    def are_there(self, store):
        """Whether the files of the three are there."""
        return (
            self.dataset.dataset.file.exists(),
            store.job_folder(self.job).exists(),
            self.received.dataset.file.exists(),
        )


def sweep(store, times=2):
    retention = Retention(SETTINGS, store, Library(store, SETTINGS.dataset_hours))
    for _ in range(times):
        retention.sweep()


def pass_hours(machine, store, hours):
    """Let time pass while the service sweeps."""
    for _ in range(hours // 12):
        machine.ahead += datetime.timedelta(hours=12)
        sweep(store, 1)


def test_a_clock_that_jumps_ahead_and_back_removes_nothing(tmp_path, machine, caplog):
    with closing(Store(tmp_path / "data")) as store:
        kept = Kept(tmp_path, store)
        retention = Retention(SETTINGS, store, Library(store, SETTINGS.dataset_hours))
        retention.sweep()
        machine.ahead = MONTH
        for _ in range(3):
            retention.sweep()
            machine.ahead += datetime.timedelta(hours=7)
        assert kept.are_there(store) == (True, True, True)
        assert caplog.text.count("nothing that has expired is removed until") == 1
        machine.ahead = datetime.timedelta()
        retention.sweep()
        # It is as if nothing had been: all goes in its time.
        pass_hours(machine, store, 8 * 24)
        assert kept.are_there(store) == (True, False, False)
        pass_hours(machine, store, 23 * 24)
        assert kept.are_there(store) == (False, False, False)


def test_a_clock_that_jumped_while_the_service_was_away(tmp_path, machine):
    """If it was right, what has expired goes after a day, however often the service starts."""
    with closing(Store(tmp_path / "data")) as store:
        kept = Kept(tmp_path, store)
        sweep(store)
    machine.ahead = MONTH
    for _ in range(3):
        with closing(Store(tmp_path / "data")) as store:
            sweep(store)
            assert kept.are_there(store) == (True, True, True)
        machine.ahead += datetime.timedelta(hours=9)
    with closing(Store(tmp_path / "data")) as store:
        sweep(store)
        assert kept.are_there(store) == (False, False, False)


def test_a_clock_that_is_right_can_be_believed_at_once(tmp_path, machine, capsys):
    data_dir = tmp_path / "data"
    with closing(Store(data_dir)) as store:
        kept = Kept(tmp_path, store)
        sweep(store)
        machine.ahead = MONTH
        sweep(store)
        assert kept.are_there(store) == (True, True, True)
        assert main(["sweep", "--now", "--data-dir", str(data_dir)]) == 0
        sweep(store)
        assert kept.are_there(store) == (False, False, False)
    assert main(["sweep", "--data-dir", str(tmp_path / "nowhere")]) == 1
    assert "there is no store of a service" in capsys.readouterr().err


def test_what_was_made_by_a_clock_that_was_behind_is_kept(tmp_path, machine):
    with closing(Store(tmp_path / "data")) as store:
        machine.ahead = -MONTH
        kept = Kept(tmp_path, store)
        sweep(store)
        machine.ahead = datetime.timedelta()
        sweep(store)
        assert kept.are_there(store) == (True, True, True)


def test_a_service_that_is_up_for_an_hour_every_other_day_sweeps(tmp_path, machine):
    kept = None
    for _ in range(10):
        with closing(Store(tmp_path / "data")) as store:
            kept = kept or Kept(tmp_path, store)
            sweep(store)
            machine.ahead += datetime.timedelta(hours=1)
            sweep(store)
            there = kept.are_there(store)
        machine.ahead += datetime.timedelta(hours=47)
    assert there == (True, False, False)
