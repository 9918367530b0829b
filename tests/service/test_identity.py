"""A start touches nothing that is not its own: folders and databases of others are refused."""

import asyncio
import logging
from contextlib import closing

import pytest

from georesolve.cli.serve import main
from georesolve.query import MatchOptions
from georesolve.service.clock import new_id
from georesolve.service.datasets.library import Library
from georesolve.service.disk import Disk
from georesolve.service.errors import CannotStart
from georesolve.service.jobs.retention import Retention, unknown
from georesolve.service.receiving.ingest import Ingest
from georesolve.service.server import prepare
from georesolve.service.settings import Settings
from georesolve.service.store.identity import owned
from georesolve.service.store.listing import Page
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.store import Store
from tests.conftest import NO_CLUSTER, points, running_service, store_points, wait_until
from tests.service.test_store import postgres  # noqa: F401

CSV = {"Content-Type": "text/csv"}


class Killed(BaseException):
    """The end of a process."""


def content(folder):
    """Every file of a folder with its bytes; folders with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def refused(data_dir):
    """What a start says that is refused."""

    with pytest.raises(CannotStart) as refusal, owned(data_dir, shared=False) as ownership:
        prepare(Settings(data_dir=data_dir), is_alone=ownership.is_alone)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def a_dataset(tmp_path, store):
    seed = len(store.kept_ids())
    dataset = store_points(points(5, seed), tmp_path / f"{new_id()}.parquet")
    return Library(store).keep(DatasetRow(dataset, {}), registered=True)


def test_a_project_of_a_user_is_refused_and_not_touched(tmp_path, capsys):
    project = tmp_path / "project"
    for name in ("datasets/cities.csv", "jobs/nightly/run.sh", "incoming/mail/a.txt", "main.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("mine")
    before = content(project)
    told = refused(project)
    assert "is not that of a service, it has 'datasets/cities.csv'" in told
    assert told.endswith("name an empty or a new folder with --data-dir")
    assert main(["keys", "create", "ann", "--data-dir", str(project)]) == 1
    assert "is not that of a service" in capsys.readouterr().err
    assert content(project) == before
    (project / "lock").write_text("mine, too")
    before = content(project)
    assert "is not that of a service" in refused(project)
    assert content(project) == before


@pytest.mark.parametrize("loss", ["missing", "empty"])
def test_a_lost_database_is_told_and_nothing_is_lost(tmp_path, capsys, loss):
    data, away = tmp_path / "data", tmp_path / "away"
    with closing(Store(data)) as store:
        store.refuse_other_folder()
        for _ in range(3):
            a_dataset(tmp_path, store)
    database = data / "georesolve.sqlite"
    database.rename(away)
    if loss == "empty":
        database.touch()
    before = content(data)
    expected = f"its database {database} is {loss}: put the database back"
    assert expected in refused(data)
    assert main(["keys", "create", "ann", "--data-dir", str(data)]) == 1
    assert expected in capsys.readouterr().err
    assert main(["keys", "list", "--data-dir", str(data)]) == 1
    assert "there is no store" in capsys.readouterr().err
    # Whose number is in the lock is all that has changed.
    assert content(data) | {"lock": b""} == before | {"lock": b""}
    away.replace(database)
    with closing(Store(data)) as store:
        store.refuse_other_folder()
        store.take_over()
        Library(store).take_over()
        assert len(store.kept_ids()) == len(list(store.datasets_place.path.iterdir())) == 3


def test_a_file_that_is_no_database_is_told_in_one_line(tmp_path):
    with closing(Store(tmp_path / "data")):
        pass
    (tmp_path / "data" / "georesolve.sqlite").write_bytes(b"nothing of the kind" * 1000)
    assert "the database cannot be opened: file is not a database" in refused(tmp_path / "data")


def test_the_database_of_another_store_is_refused(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        with closing(Store(folder)) as store:
            store.refuse_other_folder()
    (other / "georesolve.sqlite").rename(one / "georesolve.sqlite")
    told = refused(one)
    assert (
        f"the data folder {one} is of the store {(one / 'store-id').read_text().strip()!r}" in told
    )
    its_id = (other / "store-id").read_text().strip()
    assert f"write {its_id} into {one / 'store-id'}" in told
    (one / "store-id").write_text(its_id)
    with closing(Store(one)) as store:
        store.refuse_other_folder()


def test_a_new_folder_gets_the_id_of_its_database_once(tmp_path, caplog):
    data = tmp_path / "data"
    with closing(Store(data)) as store:
        a_dataset(tmp_path, store)
    assert not (data / "store-id").exists()
    caplog.set_level(logging.INFO)
    for _ in range(2):
        with closing(Store(data)) as store:
            store.refuse_other_folder()
    assert caplog.text.count("is from now on of the store") == 1


def test_a_folder_and_a_database_of_postgres(tmp_path, postgres):  # noqa: F811
    url, new = postgres("identity"), postgres("identity_new")

    def join(folder, url):
        with (
            owned(tmp_path / folder, shared=False),
            closing(Store(tmp_path / folder, url)) as store,
        ):
            store.refuse_other_folder()
            return a_dataset(tmp_path, store).id

    assert join("data", url)
    before = content(tmp_path / "data")
    with pytest.raises(CannotStart, match=r"has none of the 1 datasets .* it has nothing; "):
        join("a folder that is not mounted", url)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.py").touch()
    with pytest.raises(CannotStart, match="is not that of a service"):
        join("project", url)
    assert content(tmp_path / "data").keys() == before.keys()
    assert join("data", url)
    with pytest.raises(CannotStart, match=r"is of the store '[0-9a-f]{32}'; the database is"):
        join("data", new)
    assert join("its own folder", new)


def test_a_start_that_was_killed_between_the_two_marks_is_made_up_for(tmp_path):
    """The database has its id first; the next start gives it to the folder."""
    data = tmp_path / "data"
    with owned(data, shared=False), closing(Store(data)):
        pass
    assert not (data / "store-id").exists()
    with owned(data, shared=False), closing(Store(data)) as store:
        store.refuse_other_folder()
    # What was being written when it was killed is no id.
    (data / f".store-id.{new_id()}").write_text("ab")
    with owned(data, shared=False), closing(Store(data)) as store:
        store.refuse_other_folder()


def test_a_new_disk_is_an_empty_folder(tmp_path):
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshot").mkdir()
    with owned(tmp_path, shared=False), closing(Store(tmp_path)) as store:
        store.refuse_other_folder()


def test_files_without_a_row_stay_until_they_are_removed_by_hand(tmp_path, capsys):
    """As they do when the database is an older copy of itself; names of others are left alone."""
    data = tmp_path / "data"
    with closing(Store(data)) as store:
        kept = a_dataset(tmp_path, store)
        store.jobs_place.make()
        done = store.add_job(kept, kept, MatchOptions(), Delivery())
        store.finish_job(done, "successful", "done", report={})
    unknown = new_id()
    theirs = ["datasets/cities.csv", "jobs/nightly/run.sh", "incoming/mail/a.txt"]
    ours = [f"datasets/{unknown}.parquet", f"jobs/{unknown}/parts/0.parquet"]
    known = [f"jobs/{done}/parts/0.parquet"]
    half, received = f"datasets/.{new_id()}.parquet.{new_id()}", f"incoming/{new_id()}/upload"
    for name in [*theirs, *ours, *known, half, received]:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    with running_service(data, *NO_CLUSTER, ready=False) as client:
        assert client.get(f"/datasets/{kept.id}").status_code == 200
        wait_until(lambda: "2 files or folders are not known" in client.log.read_text())
        log = client.log.read_text()
        after = content(data)
        assert all(after[name] == name.encode() for name in [*theirs, *ours, *known])
        assert f"such as datasets/{unknown}.parquet, jobs/{unknown}: they stay" in log
        # Nobody writes any more what is half written.
        assert not {half, received} & after.keys()
        assert "a front was killed, and what it had received is removed" in log
        for flags, verb in (((), "unknown"), (["--unknown"], "removed"), ((), "")):
            assert main(["sweep", *flags, "--data-dir", str(data)]) == 0
            names = [f"datasets/{unknown}.parquet", f"jobs/{unknown}"]
            told = capsys.readouterr().out.splitlines()
            assert told == ([f"{verb} {name}" for name in names] if verb else [])
        left = content(data)
        assert not set(ours) & left.keys()
        assert {*theirs, *known, f"datasets/{kept.id}.parquet"} <= left.keys()


def test_a_dataset_whose_process_was_killed_leaves_no_file(tmp_path, monkeypatch):
    """Its row is there before its file, whenever it dies, and nobody is shown it."""
    with closing(Store(tmp_path / "data")) as store:
        store.jobs_place.make()
        library = Library(store)
        for dies_at in ("_place", "register_dataset"):
            made = DatasetRow(store_points(points(5, 1), tmp_path / "new.parquet"), {})
            with monkeypatch.context() as patch:
                owner = library if dies_at == "_place" else store
                place = getattr(owner, dies_at)

                def die(*given, place=place, dies_at=dies_at):
                    if dies_at == "_place":
                        place(*given)
                    raise Killed

                patch.setattr(owner, dies_at, die)
                # What a process that is killed does not do any more.
                patch.setattr(library, "release", lambda _: None)
                with pytest.raises(Killed):
                    library.keep(made, registered=True)
            assert len(list(store.datasets_place.path.glob("*.parquet"))) == 1
            assert store.of("").registered_datasets(Page()) == []
            assert unknown(store) == {}
            store.take_over()
            Retention(Settings(), store, library).sweep()
            assert store.kept_ids() == set()
            assert list(store.datasets_place.path.glob("*.parquet")) == []


def test_what_a_killed_front_received_goes_when_the_next_one_starts(tmp_path):
    settings = Settings(data_dir=tmp_path)

    def front():
        return closing(Ingest(settings, Disk(settings)))

    async def received(ingest):
        async with ingest.folder() as incoming:
            folder = incoming.path
            folder.mkdir()
            (folder / "body.received").touch()
            with front() as other:
                assert folder.exists(), "its front is alive"
                left = other._own
            # As if it had been killed.
            left.mkdir()
            (left / new_id()).mkdir()
            with front():
                assert folder.exists()
                assert not left.exists()

    with front() as ingest:
        asyncio.run(received(ingest))
    assert [path.name for path in tmp_path.rglob("*")] == ["incoming"]
