"""Files from strangers: limits hold, and a child that dies takes nothing with it."""

import asyncio
import atexit
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.io.columns import Reading
from georesolve.io.formats import Source
from georesolve.service.disk import Disk
from georesolve.service.errors import StorageFull, TooLarge
from georesolve.service.receiving import decoders
from georesolve.service.receiving.children import Children
from georesolve.service.receiving.decoders import decode_in_child
from georesolve.service.receiving.decoding import Limits
from georesolve.service.receiving.ingest import Ingest
from georesolve.service.receiving.uploads import keep_upload
from georesolve.service.settings import Settings
from tests.conftest import NO_CLUSTER, ROOT, children_of, roles_of, running_service, wait_until
from tests.service import misbehaving

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIMITS = Limits(memory_bytes=1 << 30, seconds=30, rows=10**6, columns=10)


@cache
def own_decoders():
    children = decoders.open_decoders()
    atexit.register(children.close)
    return children


def decode(path, format="parquet", names=None, work=None, **limits):
    source = Source(path, format, Reading(**(names or {}), on_invalid="null"), "points")
    target, limits = path.with_suffix(".out"), replace(LIMITS, **limits)
    if work is None:
        return decode_in_child(source, target, limits, own_decoders())[0]
    with closing(Children(work, [])) as children:
        # Its server is at work, as that of a service is.
        with children.child(60):
            pass
        return decode_in_child(source, target, limits, children)[0]


def test_decoders_leave_cores_to_the_front():
    with own_decoders().child(60) as child:
        number = child.number
        assert os.getpriority(os.PRIO_PROCESS, number) > os.getpriority(os.PRIO_PROCESS, 0)
        # What has a session of its own is given as much of the cores as the whole service.
        assert os.getsid(number) == os.getsid(0)
        assert os.getpgid(number) != os.getpgid(0)


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_what_a_file_decodes_to_fits_the_room(tmp_path, monkeypatch):
    """A few kilobytes that say the same a million times are 16 MB of points."""
    settings = Settings(data_dir=tmp_path, keep_free=0, concurrent_decodes=2)

    def ingest(room, path):
        disk = Disk(settings)
        monkeypatch.setattr(disk, "left", lambda: room)

        async def upload():
            async with ingest.folder() as incoming:
                upload = keep_upload(path.read_bytes(), incoming.path, "", "points")
                return (await ingest.from_upload(upload, Reading(), incoming.path, "")).dataset

        with closing(Ingest(settings, disk)) as ingest:
            return asyncio.run(upload())

    n = 1 << 20
    path = write(tmp_path / "f", lat=np.full(n, 1.0), lon=np.full(n, 2.0))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(StorageFull, match=f"more than the {8 << 20} bytes that the"):
        ingest(8 << 20, path)
    assert ingest(128 << 20, path).rows == n
    assert list((tmp_path / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    "type",
    [
        pa.float32(), pa.float64(), pa.int16(), pa.uint64(), pa.decimal128(9, 2),
        pa.dictionary(pa.int32(), pa.float64()),
    ],
)  # fmt: skip
def test_every_kind_of_number_becomes_float64(tmp_path, type):
    lat = pa.array([1.0, None, 3.0])
    lat = lat.dictionary_encode() if pa.types.is_dictionary(type) else lat.cast(type)
    dataset = decode(write(tmp_path / "f", lat=lat, lon=pa.array([1.0, 2.0, 3.0])))
    stored = pq.read_table(dataset.file)
    assert stored.schema.field("lat").type == pa.float64()
    np.testing.assert_array_equal(stored["lat"].to_numpy(), [1.0, np.nan, 3.0])
    assert dataset.invalid_rows == 1


def test_other_columns_keep_their_types(tmp_path):
    columns = {
        "lat": [1.0],
        "lon": [2.0],
        "when": pa.array([0], pa.timestamp("ms")),
        "tags": pa.array([["a", "b"]]),
        "kind": pa.array(["x"]).dictionary_encode(),
    }
    dataset = decode(write(tmp_path / "f", **columns))
    stored = pq.read_table(dataset.file)
    assert stored.to_pydict() == pa.table(columns).to_pydict()


def test_too_many_rows(tmp_path):
    with pytest.raises(TooLarge, match="11 rows are more than the limit of 10"):
        decode(write(tmp_path / "f", lat=[0.0] * 11, lon=[0.0] * 11), rows=10)
    (tmp_path / "c").write_text("lat,lon\n" + "0,0\n" * 11)
    with pytest.raises(TooLarge, match="11 rows are more than the limit of 10"):
        decode(tmp_path / "c", "csv", rows=10)


def test_too_many_columns(tmp_path):
    columns = {f"c{i}": [1.0] for i in range(9)}
    with pytest.raises(TooLarge, match="11 columns are more than the limit of 10"):
        decode(write(tmp_path / "f", lat=[0.0], lon=[0.0], **columns))


def test_a_bomb_is_stopped_by_its_memory(tmp_path):
    # 500 MB of one repeated string, in a file of a few kilobytes.
    bomb = pa.DictionaryArray.from_arrays(np.zeros(5_000, np.int32), pa.array(["x" * 100_000]))
    bomb = write(tmp_path / "f", lat=[0.0] * 5_000, lon=[0.0] * 5_000, bomb=bomb.cast("string"))
    assert bomb.stat().st_size < 10**6
    with pytest.raises(TooLarge, match="more than the limit of 256 MiB of memory"):
        decode(bomb, memory_bytes=256 << 20)


def test_a_file_may_be_larger_than_the_memory_that_it_is_decoded_in(tmp_path):
    chance, n = np.random.default_rng(1), 17_000_000
    file = write(tmp_path / "f", lat=chance.uniform(-90, 90, n), lon=chance.uniform(-180, 180, n))
    limit = 256 << 20
    dataset = decode(file, memory_bytes=limit, rows=n)
    assert dataset.rows == n
    assert dataset.file.stat().st_size > limit


def test_time_is_limited(tmp_path):
    file, start = write(tmp_path / "f", lat=[0.0], lon=[0.0]), time.monotonic()
    with pytest.raises(TooLarge, match=r"longer than the limit of 0\.5 s"):
        decode(file, work=misbehaving.sleep, seconds=0.5)
    assert time.monotonic() - start < 20


def test_a_crash_is_not_the_fault_of_the_file(tmp_path):
    file = write(tmp_path / "f", lat=[0.0], lon=[0.0])
    for work, words in (
        (misbehaving.crash, r"exit code -11 and without an answer"),
        (
            misbehaving.fail,
            r"(?s)\| KeyError: 'a defect of ours\?\[31m'\n    \| 12:00 a line of the log",
        ),
        (misbehaving.lie, "without an answer"),
        (misbehaving.babble, "more than 16777216 bytes"),
    ):
        with pytest.raises(decoders.DecoderFailed, match=words):
            decode(file, work=work)
        assert not file.with_suffix(".out").exists()
    with pytest.raises(TooLarge, match="took all memory"):
        decode(file, work=misbehaving.abort_for_memory)


def test_a_decoder_that_was_killed_while_it_waited_is_not_the_fault_of_a_file(tmp_path):
    with running_service(tmp_path / "data", *NO_CLUSTER, ready=False) as client:
        wait_until(lambda: decoders_of(client))
        [decoder] = decoders_of(client)
        decoder.kill()
        # Its pipe is closed after its name is gone.
        wait_until(lambda: not decoder.is_running() or decoder.status() == "zombie")
        headers = {"Content-Type": "text/csv"}
        answer = client.post("/datasets", content=b"lat,lon\n1,2\n", headers=headers)
        assert answer.status_code == 201, answer.text


def test_a_crash_is_an_error_of_the_service_with_an_id_in_its_log(tmp_path):
    flags = [*NO_CLUSTER, "--log-format", "json"]
    with running_service(tmp_path / "data", *flags, ready=False) as client:
        wait_until(lambda: decoders_of(client))
        [decoder] = decoders_of(client)
        # It has told its number: one that stands still before that is replaced.
        wait_until(lambda: decoder.io_counters().write_count)
        decoder.suspend()
        headers = {"Content-Type": "text/csv", "X-Request-ID": "a-crash"}
        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(client.post, "/datasets", content=b"lat,lon\n", headers=headers)
            wait_until(lambda: len(decoders_of(client)) == 2)
            decoder.send_signal(signal.SIGSEGV)
            decoder.resume()
            answer = sent.result()
        assert answer.status_code == 500
        assert answer.json()["detail"] == "an error of the service; its log has the details"
        assert answer.headers["x-request-id"] == "a-crash"
        [line] = [one for one in client.log.read_text().splitlines() if "exit code -11" in one]
        assert json.loads(line)["request_id"] == "a-crash"
        headers = {"Content-Type": "text/csv; charset=zlib"}
        answer = client.post("/datasets", content=b"lat,lon\n1,2\n", headers=headers)
        assert answer.status_code == 400
        assert "there is no charset 'zlib'" in answer.json()["detail"]


def servers_of(client):
    """The processes that fork those which decode: one a front."""
    return [one for one in _forked_by_fronts(client) if one.name() != "child"]


def decoders_of(client):
    """The processes of a service that decode, or wait for a file."""
    return [one for one in _forked_by_fronts(client) if one.name() == "child"]


def _forked_by_fronts(client):
    fronts = roles_of(client.process, "front")
    return [child for front in fronts for child in children_of(front, "forkserver")]


def test_a_child_loads_only_what_decodes(tmp_path):
    """Each upload starts one; here from a script as pip writes it for `georesolve`."""
    module, _, function = PROJECT["scripts"]["georesolve"].partition(":")
    script = tmp_path / "georesolve"
    script.write_text(
        f"from {module} import {function}\n"
        "if __name__ == '__main__':\n"
        "    from tests.service.loaded import write_modules_of_child\n"
        "    write_modules_of_child()\n"
    )
    run = [sys.executable, script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    assert "pyarrow" in loaded
    others = {"alembic", "dask", "distributed", "fastapi", "numba", "pandas", "pydantic"}
    assert not loaded & {*others, "sqlalchemy"}
