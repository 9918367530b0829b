"""Results and datasets go when their time is over, and not before."""

import time
from contextlib import closing

import pytest
from sqlalchemy.exc import OperationalError

from georesolve.query import MatchOptions
from georesolve.service.clock import now
from georesolve.service.datasets.library import Library
from georesolve.service.errors import NoSuchDataset
from georesolve.service.jobs.retention import Retention
from georesolve.service.settings import Settings
from georesolve.service.store.names import Condition
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.schema import jobs, kept
from georesolve.service.store.store import Store
from tests.conftest import finished, points, running_service, store_points, wait_until
from tests.service.test_bounds import fill, small_disk
from tests.service.test_jobs import PARQUET, files_of, parquet, start_job

SECOND = 1 / 3600
"""In hours."""


def test_results_and_datasets_expire(tmp_path, shared_cluster):
    flags = [*shared_cluster, "--result-hours", 2 * SECOND, "--dataset-hours", 4 * SECOND]
    with running_service(tmp_path / "data", *flags) as client:
        upload = {"content": parquet(points(50, 1)), "headers": {"Content-Type": PARQUET}}
        dataset = client.post("/datasets", **upload)
        assert dataset.json()["expires"] > dataset.json()["created"]
        job = start_job(client, points(20, 1), points(20, 2))
        info = finished(client, job)
        assert info["expires"] > info["finished"]
        wait_until(lambda: client.get(f"{job}/results").status_code == 410)
        problem = client.get(f"{job}/results/matches.parquet").json()
        assert problem["type"] == "urn:georesolve:problem:result-expired"
        assert info["expires"] in problem["detail"]
        assert client.get(job).json()["status"] == "successful"
        assert client.get(f"{job}/report").status_code == 200
        wait_until(lambda: client.get(dataset.headers["location"]).status_code == 404)
        assert client.get("/datasets").json()["datasets"] == []
        wait_until(lambda: files_of(client) == set())
        downloaded = client.post("/datasets", **upload).json()

        def is_kept():
            assert client.get(f"/datasets/{downloaded['id']}/data.parquet").status_code == 200
            return now() > downloaded["expires"]

        wait_until(is_kept)
        assert is_kept()
        assert client.delete(f"/datasets/{downloaded['id']}").status_code == 204
        # It can be registered again, and is another one.
        again = client.post("/datasets", **upload)
        assert again.status_code == 201
        assert again.json()["id"] != dataset.json()["id"]


def test_by_default_both_are_kept_for_days(service):
    before = files_of(service)
    upload = {"content": parquet(points(7, 77)), "headers": {"Content-Type": PARQUET}}
    dataset = service.post("/datasets", **upload)
    job = start_job(service, points(20, 1), points(20, 2))
    assert now(29 * 86400) < dataset.json()["expires"] < now(31 * 86400)
    assert now(6 * 86400) < finished(service, job)["expires"] < now(8 * 86400)
    assert service.delete(dataset.headers["location"]).status_code == 204
    service.delete(job)
    wait_until(lambda: files_of(service) <= before)


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "data")) as store:
        store.jobs_place.make()
        yield store


def made(tmp_path, seed):
    return DatasetRow(store_points(points(5, seed), tmp_path / f"{seed}.parquet"), {})


def sweep(store, **hours):
    settings = Settings(**hours)
    library = Library(store, settings.dataset_hours)
    Retention(settings, store, library).sweep()


def test_a_dataset_that_a_job_needs_stays(tmp_path, store):
    ours = store.of("ours")
    row, _ = Library(ours, 3 * SECOND).register(made(tmp_path, 1))
    id = store.add_job(row, row, MatchOptions(), Delivery())
    wait_until(lambda: ours.dataset(row.id) is None)
    sweep(store)
    assert store.dataset(row.id) is not None
    assert store.dataset_file(row.id).exists()
    store.finish_job(id, "failed", "over")
    sweep(store)
    assert store.dataset(row.id) is None
    assert not store.dataset_file(row.id).exists()


def test_use_prolongs_the_life_of_a_dataset(tmp_path, store):
    library = Library(store.of("ours"), SECOND)
    row, _ = library.register(made(tmp_path, 1))
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        used = library.use(row.id)
        sweep(store)
    assert used.expires > row.expires
    wait_until(lambda: store.of("ours").dataset(row.id) is None)
    # Expired and not yet swept away: the same content is found, and lives again.
    revived, is_new = library.register(made(tmp_path, 1))
    assert (revived.id, is_new) == (row.id, False)
    sweep(store)
    assert library.get(row.id).dataset.rows == 5


def test_what_another_front_removes_is_registered_anew(tmp_path, store):
    """Its row is marked, and goes after its file: nothing brings it back meanwhile."""
    ours = store.of("ours")
    library = Library(ours, 1)
    row, _ = library.register(made(tmp_path, 1))
    # Until its file is removed.
    assert ours.let_go(row.id)
    assert ours.dataset(row.id) is None
    with pytest.raises(NoSuchDataset):
        ours.add_job(row, row, MatchOptions(), Delivery())
    assert not ours.prolong_dataset(row.id, now(3600))
    with pytest.raises(NoSuchDataset):
        ours.names.put("places", row.id, Condition(), None)
    again, is_new = library.register(made(tmp_path, 1))
    assert is_new
    sweep(store)
    assert not store.dataset_file(row.id).exists()
    assert again.id != row.id
    assert library.get(again.id) == again


def test_a_full_disk_is_no_reason_to_refuse_what_reads():
    with small_disk(8) as disk, closing(Store(disk / "data")) as store:
        library = Library(store, SECOND)
        row, _ = library.register(made(disk, 1))
        wait_until(lambda: row.expires < now(0.9))
        ballast = fill(disk)
        with pytest.raises(OperationalError, match="full"):
            store.prolong_dataset(row.id, row.expires)
        assert library.use(row.id).expires == row.expires
        ballast.unlink()
        assert library.use(row.id).id == row.id
        assert library.get(row.id).expires > row.expires


def test_what_cannot_be_removed_stops_nothing_else(tmp_path, store, caplog):
    library = Library(store.of("ours"), SECOND)
    rows = [library.register(made(tmp_path, seed))[0] for seed in range(3)]
    # The file that is removed first has become a folder.
    stuck = store.datasets_place.path / f"{min(row.id for row in rows)}.parquet"
    stuck.unlink()
    (stuck / "inside").mkdir(parents=True)
    job = store.add_job(rows[0], rows[0], MatchOptions(), Delivery())
    store.finish_job(job, "failed", "over")
    with store._engine.begin() as connection:
        long_ago = now(-91 * 86400)
        connection.execute(jobs.update().values(finished=long_ago, updated=long_ago))
        connection.execute(kept.update().where(kept.c.id == job).values(expires=long_ago))
    wait_until(lambda: len(store.expired()) == 4)
    sweep(store)
    assert [path.name for path in store.datasets_place.path.glob("*.parquet")] == [stuck.name]
    assert store.kept_ids() == {stuck.stem}
    assert store.of("ours").dataset(stuck.stem) is None
    assert store.job(job) is None
    assert f"{stuck.stem} cannot be removed, and is tried again" in caplog.text
    (stuck / "inside").rmdir()
    stuck.rmdir()
    sweep(store)
    assert store.kept_ids() == set()


def test_zero_keeps_for_ever(tmp_path, store):
    library = Library(store.of("ours"), 0)
    row, _ = library.register(made(tmp_path, 1))
    assert row.expires is None
    sweep(store, dataset_hours=0, result_hours=0)
    assert library.use(row.id).expires is None


def test_zero_holds_for_what_was_registered_before(tmp_path, store):
    row, _ = Library(store.of("ours"), 1).register(made(tmp_path, 1))
    assert row.expires is not None
    library = Library(store, 0)
    library.take_over()
    assert library.get(row.id).expires is None


def test_a_result_goes_with_its_job(tmp_path, store):
    """Also when its job is forgotten in the moment in which it expires."""
    ours = store.of("ours")
    row, _ = Library(ours).register(made(tmp_path, 1))
    id = ours.add_job(row, row, MatchOptions(), Delivery())
    store.finish_job(id, "successful", "done", report={}, expires=now(-2))
    store.job_folder(id).mkdir()
    sweep(store, job_hours=1e-9)
    assert store.job(id) is None
    assert not store.job_folder(id).exists()


@pytest.mark.parametrize("hours", ["inf", "nan", "1e9"])
def test_hours_are_no_more_than_a_calendar_has(capsys, hours):
    from georesolve.cli.serve import main

    for flag in ("--result-hours", "--job-hours", "--dataset-hours"):
        assert main(["serve", flag, hours]) == 2
        assert f"{flag} is '{hours}': Input should be" in capsys.readouterr().err


def test_a_setting_below_zero_is_refused(capsys):
    from georesolve.cli.serve import main

    assert main(["serve", "--result-hours", "-1"]) == 2
    expected = "--result-hours is '-1': Input should be greater than or equal to 0"
    assert expected in capsys.readouterr().err
