"""`georesolve backup`: what is removed meanwhile, and what it says; `tests/faults` has its load."""

import os
import tarfile
from contextlib import closing

import pytest

from georesolve.query import MatchOptions
from georesolve.service.clock import now
from georesolve.service.datasets.library import Library
from georesolve.service.disk import locked
from georesolve.service.jobs.retention import Retention
from georesolve.service.ops.backup import SUMS
from georesolve.service.settings import Settings
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.store import Store
from tests.conftest import points, store_points
from tests.forks import run


def back_up(data_dir, file):
    """Run `georesolve backup` as an administrator does."""
    return run("georesolve", ["backup", str(file), "--data-dir", str(data_dir)])


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "data")) as store:
        store.refuse_other_folder()
        store.jobs_place.make()
        yield store


def test_what_is_removed_meanwhile_goes_afterwards(tmp_path, store):
    library = Library(store.of("ours"))
    file = store_points(points(5, 1), tmp_path / "set.parquet")
    row, _ = library.register(DatasetRow(file, {}))
    job = store.of("ours").add_job(row, row, MatchOptions(), Delivery())
    store.finish_job(job, "successful", "done", report={}, expires=now(-2))
    store.job_folder(job).mkdir()
    retention = Retention(Settings(), store, Library(store))
    with locked(store.root.path):
        library.remove(row.id)
        assert store.of("ours").dataset(row.id) is None
        retention.sweep()
        assert store.dataset_file(row.id).exists()
        assert store.job_folder(job).exists()
    retention.sweep()
    assert not store.dataset_file(row.id).exists()
    assert not store.job_folder(job).exists()


def test_what_is_damaged_or_missing_is_told(tmp_path, store):
    library = Library(store.of("ours"))
    files = [store_points(points(5, seed), tmp_path / f"{seed}.parquet") for seed in range(3)]
    rows = [library.register(DatasetRow(file, {}))[0] for file in files]
    first, second, third = (store.dataset_file(row.id) for row in rows)
    first.unlink()
    second.write_bytes(b"no Parquet")
    told = back_up(tmp_path / "data", tmp_path / "backup.tar")
    assert told.returncode == 0
    assert f"datasets/{first.name} is missing, in the service, too" in told.stderr
    assert f"datasets/{second.name} is damaged, in the service, too" in told.stderr
    assert third.name not in told.stderr
    assert (tmp_path / "backup.tar").stat().st_mode & 0o777 == 0o600
    with tarfile.open(tmp_path / "backup.tar") as tar:
        names = tar.getnames()
    assert names[-3:] == ["store-id", "georesolve.sqlite", SUMS]
    assert f"datasets/{third.name}" in names


def test_what_cannot_be_backed_up_is_told_in_one_line(tmp_path, store):
    for flags, said in (
        (["--data-dir", tmp_path / "nothing"], "there is no store of a service in"),
        (["--database-url", "postgresql://nobody@nowhere/none"], "of Postgres take a dump"),
        (["--store", "s3://bucket/prefix/"], "have a bucket keep the versions of its objects"),
        (["--data-dir", tmp_path / "data"], "the backup cannot be written: "),
    ):
        file = tmp_path / "nowhere" / "backup.tar"
        told = run("georesolve", ["backup", *map(str, [file, *flags])])
        assert (told.returncode, told.stderr.count("\n")) == (1, 1), told.stderr
        assert said in told.stderr


def test_a_damaged_database_is_told_in_one_line(tmp_path, store):
    store.close()
    (tmp_path / "data" / "georesolve.sqlite").write_bytes(b"no database" * 1000)
    told = back_up(tmp_path / "data", tmp_path / "backup.tar")
    assert (told.returncode, told.stderr.count("\n")) == (1, 1), told.stderr
    assert "TMPDIR" in told.stderr
    assert not (tmp_path / "backup.tar").exists()


def test_a_backup_replaces_no_pipe(tmp_path, store):
    target = tmp_path / "backup.tar"
    os.mkfifo(target)
    result = back_up(tmp_path / "data", target)
    assert (result.returncode, result.stdout) == (1, "")
    assert "is no regular file" in result.stderr
    assert target.is_fifo()
