"""A full disk can be emptied: what makes room is written with the reserve."""

import errno
import shutil
import threading
from contextlib import closing

from georesolve.service.cli import main
from georesolve.service.database.store import Store
from georesolve.service.disk import Probe
from tests.conftest import NO_CLUSTER, points, running_service, small_job
from tests.service.test_bounds import small_disk
from tests.service.test_jobs import PARQUET, parquet

FLAGS = (*NO_CLUSTER, "--free-bytes", 0)


def fill(disk):
    """Take all room of a small disk, also what became free since the last time."""
    with (disk / "ballast").open("ab", buffering=0) as handle:
        for size in (1 << 20, 4096, 1):
            try:
                while shutil.disk_usage(disk).free:
                    handle.write(bytes(size))
            except OSError:
                continue
    assert shutil.disk_usage(disk).free == 0


def test_a_full_disk_can_be_emptied(capsys):
    with small_disk(32) as disk:
        with running_service(disk, *FLAGS, ready=False) as client:
            upload = {"content": parquet(points(5, 1)), "headers": {"Content-Type": PARQUET}}
            datasets = [
                client.post("/datasets", **{**upload, "content": parquet(points(5, seed))})
                for seed in range(4)
            ]
            jobs = [small_job(client).headers["location"] for _ in range(2)]
            with closing(Store(disk)) as store:
                store.finish_job(jobs[0].rpartition("/")[2], "successful", "done")
            fill(disk)
            # Something else on the disk takes whatever becomes free.
            for dataset in datasets[:2]:
                assert client.delete(dataset.headers["location"]).status_code == 204
                fill(disk)
            for job in jobs:
                assert client.delete(job).status_code == 200
                assert client.get(job).json()["status"] == "dismissed"
                fill(disk)
            for verb in ("create", "rotate", "revoke"):
                assert main(["keys", verb, "ann", "--data-dir", str(disk)]) == 0
                fill(disk)
            disk_check = client.get("/readyz").json()["checks"][1]
            assert not disk_check["ok"]
            assert "no file can be written: No space left on device" in disk_check["detail"]
            assert client.post("/datasets", **upload).status_code == 507
        # A service that starts now has nothing to write its number with.
        with running_service(disk, *FLAGS, ready=False) as client:
            assert client.delete(f"/datasets/{datasets[2].json()['id']}").status_code == 204
            fill(disk)
            (disk / "ballast").unlink()
            answer = client.post("/datasets", **{**upload, "content": parquet(points(9, 9))})
            assert answer.status_code == 201
            assert client.get("/readyz").json()["checks"][1]["ok"]


def test_the_reserve_is_made_again_when_there_is_room(capsys):
    with small_disk(16) as disk, closing(Store(disk)) as store:
        store.reserve.make()
        reserve = disk / "reserve"
        whole = reserve.stat().st_blocks
        assert whole * 512 == reserve.stat().st_size == 4 << 20
        fill(disk)
        assert main(["keys", "create", "ann", "--data-dir", str(disk)]) == 0
        store.reserve.make()
        assert 0 < reserve.stat().st_blocks < whole
        # Once all is given up, it is told in one line.
        reserve.unlink()
        fill(disk)
        assert main(["keys", "create", "ben", "--data-dir", str(disk)]) == 1
        told = capsys.readouterr().err.splitlines()
        assert told[-1].endswith("is full, and nothing was changed: remove what else lies there")
        (disk / "ballast").unlink()
        store.reserve.make()
        assert reserve.stat().st_blocks == whole


def test_a_write_that_hangs_holds_up_one_caller():
    going, written = threading.Event(), threading.Event()

    def write():
        going.set()
        written.wait(30)
        raise OSError(errno.ENOSPC, "")

    probe = Probe(write)
    first = threading.Thread(target=probe.trouble)
    first.start()
    going.wait(30)
    assert probe.trouble() is None
    written.set()
    first.join()
    assert probe.trouble() == ("No space left on device", True)
    going.clear()
    assert probe.trouble() == ("No space left on device", True)
    assert not going.is_set(), "it is not tried at each call"
