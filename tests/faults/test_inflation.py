"""Little that decodes to much, in sizes that took the memory and the disk of a service."""

import contextlib

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import children_of, finished, run_nearest, running_service
from tests.faults.cage import memory_cage
from tests.service.test_bounds import LATER
from tests.service.test_jobs import PARQUET
from tests.service.test_keys import as_holder, new_key

ROWS = 60_000
TEXT_BYTES = 200_000_000
MEMORY = 6 << 30
"""Of a service with its workers and decoders."""
WIDE = {
    "text": pa.array(["x" * 140_000]),
    "dictionary": pa.array(["x" * 140_000]).dictionary_encode(),
}


@contextlib.contextmanager
def bounded_service(data_dir, *flags):
    with memory_cage(MEMORY) as hold, running_service(data_dir, *flags) as client:
        for pid in family(client):
            hold(pid)
        yield client


def family(client):
    process = psutil.Process(client.process.pid)
    return {one.pid for one in [process, *process.children(recursive=True)]}


def lasting(client):
    """The service and its workers; each process that decodes a file ends with it."""
    return {
        client.process.pid,
        *(one.pid for one in children_of(client.process, "spawn_main", recursive=True)),
    }


def register(client, table):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    assert len(content) < 10_000
    answer = client.post("/datasets", content=content, headers={"Content-Type": PARQUET})
    return f"dataset:{answer.raise_for_status().json()['id']}"


def wide_sets(client, wide):
    """One reference, which all observations carry: 8.4 GB of two uploads."""
    nowhere = np.zeros(ROWS)
    return {
        "observations": register(client, pa.table({"lat": nowhere, "lon": nowhere})),
        "references": register(client, pa.table({"lat": [0.0], "lon": [0.0], "wide": wide})),
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", WIDE)
def test_a_wide_value_carried_into_many_rows(tmp_path, device, kind):
    flags = ["--device", device]
    with bounded_service(tmp_path / "data", *flags) as client:
        before = lasting(client)
        body = wide_sets(client, WIDE[kind])
        assert client.post("/estimate", json={**body, "columns": ["wide"]}).json()["fits"]
        answer = run_nearest(client, {**body, "columns": ["wide"]}, LATER)
        info = finished(client, answer.headers["location"])
        assert (info["status"], info["rows_done"]) == ("successful", ROWS), info["message"]
        for suffix in ("json", "csv"):
            # As much text as there is memory, of a result that is a thousandth as large.
            address = f"{answer.headers['location']}/results/matches.{suffix}"
            with client.stream("GET", address, timeout=120) as text:
                assert text.status_code == 200
                received = 0
                for piece in text.iter_raw():
                    received += len(piece)
                    if received > TEXT_BYTES:
                        break
            assert received > TEXT_BYTES
        assert lasting(client) == before, "a process was killed"


@pytest.mark.timeout(300)
def test_what_nobody_could_carry_is_refused(tmp_path, device):
    """One list of zeros, which killed three workers."""
    with bounded_service(tmp_path / "data", "--device", device) as client:
        before = lasting(client)
        body = wide_sets(client, pa.array([[0] * 200_000], pa.list_(pa.int8())))
        told = client.post("/estimate", json={**body, "columns": ["wide"]}).json()
        assert not told["fits"]
        for headers in (LATER, {}):
            answer = run_nearest(client, {**body, "columns": ["wide"]}, headers)
            assert answer.status_code == 413
            assert answer.json()["detail"] in told["obstacles"]
        assert run_nearest(client, body).status_code == 200
        assert lasting(client) == before, "a process was killed"


@pytest.mark.timeout(300)
def test_what_is_sent_is_kept_as_far_as_it_is_counted(tmp_path, device):
    data_dir, quota = tmp_path / "data", 100 << 20
    key = new_key(data_dir, "ann")
    flags = ["--device", device, "--key-bytes", quota]
    with bounded_service(data_dir, *flags) as client, as_holder(client, key) as ann:
        table = {"lat": [0.5], "lon": [0.5], "n": [1]}
        inputs = {"observations": table, "references": table, "columns": ["n"] * 2_000_000}
        body = {"inputs": inputs}
        answer = ann.post("/processes/nearest/execution", json=body, headers=LATER)
        assert finished(ann, answer.headers["location"])["status"] == "successful"
        kept = sum(path.stat().st_size for path in data_dir.glob("georesolve.sqlite*"))
        assert kept < 8 << 20
        body = wide_sets(ann, WIDE["text"])
        answer = run_nearest(ann, {**body, "columns": ["wide"]}, LATER)
        assert finished(ann, answer.headers["location"])["status"] == "successful"
        told = ann.get("/datasets").json()
        files = [path.stat().st_size for path in data_dir.rglob("*.*") if path.is_file()]
        assert told["used_bytes"] <= sum(files) < quota
