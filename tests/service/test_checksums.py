"""Checksums of results: told once they are counted, counted once, and never of what is gone."""

import asyncio
import hashlib
import io
import struct
import threading
from concurrent.futures import Future
from contextlib import closing

import pyarrow as pa
import pytest
from sqlalchemy.exc import OperationalError

from georesolve.service.database.rows import Delivery
from georesolve.service.database.store import Store
from georesolve.service.datasets.library import Library
from georesolve.service.results import checksums as module
from georesolve.service.results.checksums import Checksums
from georesolve.service.uploads.ingest import Ingested
from georesolve.workers.files import sha256_of
from georesolve.workers.jobs import RESULT_NAME, MatchOptions
from georesolve.workers.result import write_rows
from tests.conftest import points, store_points, wait_until


def parquet():
    sink = io.BytesIO()
    write_rows(sink, pa.table({"observation": range(5), "distance_m": [1.5] * 5}))
    return sink.getvalue()


CONTENT = parquet()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "data")) as store:
        yield store


@pytest.fixture
def job(tmp_path, store):
    """The id of a successful job whose checksum is not in its report yet."""
    dataset = store_points(points(5, 1), tmp_path / "points.parquet")
    row, _ = Library(store.of("ours"), 1).register(Ingested(dataset, {}))
    id = store.of("ours").add_job(row, row, MatchOptions(), Delivery())
    store.finish_job(id, "successful", "done", report={"rows": 5})
    store.job_folder(id).mkdir(parents=True)
    (store.job_folder(id) / RESULT_NAME).write_bytes(CONTENT)
    return id


def test_it_is_noted_once_it_is_counted(store, job):
    counting = Future()
    with Checksums(store) as checksums:
        with checksums.expected(job, counting):
            pass
        assert store.job(job).report == {"rows": 5}
        counting.set_result("counted")
        assert asyncio.run(checksums.of(store.job(job))) == "counted"
    assert store.job(job).report == {"rows": 5, "sha256": "counted"}


def test_who_asks_meanwhile_waits_and_counts_nothing(store, job, monkeypatch):
    monkeypatch.setattr(module, "sha256_of", None)
    counting = Future()

    async def ask_before_it_is_known(checksums):
        asked = [asyncio.create_task(checksums.of(store.job(job))) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in asked)
        asked[0].cancel()
        await asyncio.sleep(0)
        counting.set_result("counted")
        return await asyncio.gather(*asked[1:])

    with Checksums(store) as checksums, checksums.expected(job, counting):
        assert asyncio.run(ask_before_it_is_known(checksums)) == ["counted"] * 2


def test_those_who_find_none_have_it_counted_once(store, job, monkeypatch):
    counted, may_go_on = [], threading.Event()

    def slow_sha256_of(path):
        counted.append(path)
        may_go_on.wait(10)
        return sha256_of(path)

    monkeypatch.setattr(module, "sha256_of", slow_sha256_of)

    async def ask_together(checksums):
        asked = [asyncio.create_task(checksums.of(store.job(job))) for _ in range(6)]
        await asyncio.sleep(0.1)
        may_go_on.set()
        return await asyncio.gather(*asked)

    with Checksums(store) as checksums:
        assert asyncio.run(ask_together(checksums)) == [SHA256] * 6
        wait_until(lambda: "sha256" in store.job(job).report)
        assert asyncio.run(checksums.of(store.job(job))) == SHA256
    assert len(counted) == 1


def test_what_cannot_be_noted_is_not_counted_again(store, job, monkeypatch):
    def fail(*_):
        raise OperationalError("no room", None, OSError())

    monkeypatch.setattr(store, "note_checksum", fail)
    with Checksums(store) as checksums:
        assert asyncio.run(checksums.of(store.job(job))) == SHA256
        (store.job_folder(job) / RESULT_NAME).unlink()
        assert asyncio.run(checksums.of(store.job(job))) == SHA256


def test_what_could_not_be_counted_is_counted_again(store, job, monkeypatch):
    row, real = store.job(job), store.job

    def fail(_):
        monkeypatch.setattr(store, "job", real)
        raise OperationalError("no room", None, OSError())

    with Checksums(store) as checksums:
        monkeypatch.setattr(store, "job", fail)
        with pytest.raises(OperationalError):
            asyncio.run(checksums.of(row))
        assert asyncio.run(checksums.of(row)) == SHA256


def test_a_result_that_is_gone_has_none(store, job):
    row = store.job(job)
    (store.job_folder(job) / RESULT_NAME).unlink()
    with Checksums(store) as checksums:
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                asyncio.run(checksums.of(row))


def test_a_dismissed_job_gets_no_report_back(store, job):
    counting = Future()
    with Checksums(store) as checksums:
        with checksums.expected(job, counting):
            pass
        assert store.dismiss_finished_job(job)
        counting.set_result("counted")
    assert (store.job(job).status, store.job(job).report) == ("dismissed", None)


def test_nothing_is_noted_once_the_service_stops(store, job):
    counting = Future()
    with Checksums(store) as checksums, checksums.expected(job, counting):
        pass
    counting.set_result("counted")
    assert store.job(job).report == {"rows": 5}


def test_what_is_damaged_before_it_was_counted_gets_no_checksum(store, job):
    path = store.job_folder(job) / RESULT_NAME
    damaged = bytearray(CONTENT)
    damaged[CONTENT.index(struct.pack("<d", 1.5) * 5)] ^= 1
    path.write_bytes(damaged)
    with Checksums(store) as checksums, pytest.raises(OSError, match="CRC checksum"):
        asyncio.run(checksums.of(store.job(job)))
