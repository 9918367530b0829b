"""What waits for one thing holds up nothing else: threads by kind, and a free event loop."""

import asyncio
import gzip
import json
import socket
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from pydantic import RootModel

from georesolve.cli import main
from georesolve.io.result_formats import JSON
from georesolve.kernels.threads_cpu import allowed
from georesolve.service import pools
from georesolve.service.disk import Probe
from georesolve.service.http import bodies
from georesolve.service.ops.router import get_health
from georesolve.service.resolve import outcome, requests, sets
from georesolve.service.resolve.models import MatchInputs
from georesolve.service.results.response import Results
from georesolve.service.store.store import Store
from tests.conftest import NO_CLUSTER, finished, running_service, wait_until
from tests.lines import line_to
from tests.object_store import BUCKET, seaweed

SETS = {
    "observations": {"lat": [1.0, 2.0], "lon": [3.0, 4.0]},
    "references": {"lat": [1.5, 2.0], "lon": [3.0, 4.5]},
}
SILENT_REQUESTS = 16
"""Of two keys: all threads that ask object stores are held, and none of these waits for its turn,
which would end after 30 s."""


@contextmanager
def silent_server():
    """A server that takes connections and says nothing.

    It yields what came, its port, and what ends it.
    """
    taken = []
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:

        def take():
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        taking = threading.Thread(target=take, daemon=True)
        taking.start()

        def end():
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            taking.join()
            server.close()
            for one in taken:
                one.close()

        try:
            yield taken, server.getsockname()[1], end
        finally:
            end()


@contextmanager
def silent_bucket():
    with silent_server() as (taken, port, end), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "a")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        patch.setenv("AWS_REGION", "us-east-1")
        yield taken, end


def test_a_silent_store_stops_nothing_else(tmp_path, capsys):
    data_dir = tmp_path / "data"
    with seaweed(tmp_path / "weed") as store, pytest.MonkeyPatch.context() as patch:
        endpoint = SimpleNamespace(base_url=httpx.URL(store.environment["AWS_ENDPOINT_URL"]))
        with line_to(endpoint) as line:
            for name, value in {**store.environment, "AWS_ENDPOINT_URL": line.address}.items():
                patch.setenv(name, value)
            flags = ("--store", f"s3://{BUCKET}/service", "--fronts", 1)
            with running_service(data_dir, *NO_CLUSTER, *flags, ready=False) as client:
                keys = [new_key(data_dir, name, capsys) for name in ("ann", "bob")]
                wait_until(lambda: client.get("/datasets").status_code == 401)
                kept = []
                for key in keys:
                    kind = {"Content-Type": "text/csv", **key}
                    answer = client.post("/datasets", content="lat,lon\n1,2\n", headers=kind)
                    kept.append(answer.raise_for_status().json()["id"])
                line.open.clear()
                before = line.connections

                def ask(number):
                    id, key = kept[number % 2], keys[number % 2]
                    if number % 3:
                        return client.get(f"/datasets/{id}/data.parquet", headers=key)
                    named = {**SETS, "references": f"dataset:{id}"}
                    return client.post("/nearest", json=named, headers=key)

                with ThreadPoolExecutor(SILENT_REQUESTS) as threads:
                    silent = [threads.submit(ask, number) for number in range(SILENT_REQUESTS)]
                    wait_until(lambda: line.connections > before)
                    for _ in range(3):
                        assert client.get("/livez").is_success
                        assert client.get("/readyz").status_code in (200, 503)
                        for key in keys:
                            assert client.get("/datasets", headers=key).is_success
                            assert client.get("/jobs", headers=key).is_success
                            assert client.post("/nearest", json=SETS, headers=key).is_success
                    assert not any(one.done() for one in silent)
                    line.open.set()
                    assert all(one.result().is_success for one in silent)


def new_key(data_dir, name, capsys):
    assert main(["keys", "create", name, "--data-dir", str(data_dir)]) == 0
    return {"Authorization": f"Bearer {capsys.readouterr().out.strip()}"}


def test_a_silent_bucket_stops_nothing_else(tmp_path, capsys):
    data_dir = tmp_path / "data"
    with silent_bucket() as (taken, end):
        flags = ("--sources", "s3://observations/", "--fronts", 1)
        with running_service(data_dir, *NO_CLUSTER, *flags, ready=False) as client:
            keys = [new_key(data_dir, name, capsys) for name in ("ann", "bob")]
            wait_until(lambda: client.get("/datasets").status_code == 401)
            elsewhere = {**SETS, "references": "s3://observations/places.parquet"}

            def ask(number):
                return client.post("/nearest", json=elsewhere, headers=keys[number % 2])

            with ThreadPoolExecutor(SILENT_REQUESTS) as threads:
                silent = [threads.submit(ask, number) for number in range(SILENT_REQUESTS)]
                wait_until(lambda: len(taken) >= 2)
                # All of them are there, and each waits for the bucket or for its turn.
                for _ in range(3):
                    assert client.get("/livez").is_success
                    assert client.get("/readyz").status_code in (200, 503)
                    for key in keys:
                        assert client.get("/datasets", headers=key).is_success
                        assert client.get("/jobs", headers=key).is_success
                        assert client.post("/nearest", json=SETS, headers=key).is_success
                        table = "lat,lon\n1,2\n"
                        kind = {"Content-Type": "text/csv", **key}
                        assert client.post("/datasets", content=table, headers=kind).is_success
                assert not any(one.done() for one in silent)
                end()
                for one in silent:
                    assert "places.parquet cannot be read" in one.result().json()["detail"]


def test_checks_of_a_silent_store_hold_up_no_key_check():
    told = threading.Event()
    writable = Probe(told.wait)
    service = SimpleNamespace(
        store=SimpleNamespace(writable=writable, count_live=lambda: (0, 0)),
        disk=SimpleNamespace(writable=writable, space=lambda: {"free": 1}, must_stay_free=0),
        at_hand=SimpleNamespace(trouble=None),
        cluster=SimpleNamespace(state=None, trouble="none is asked"),
    )

    async def ask():
        app = SimpleNamespace(state=SimpleNamespace(service=service))
        request, response = SimpleNamespace(app=app, state=None), SimpleNamespace(headers={})
        asked = [asyncio.ensure_future(get_health(request, response)) for _ in range(24)]
        await asyncio.sleep(0)
        await pools.database(bool)
        assert not any(one.done() for one in asked)
        told.set()
        assert {(await one).status for one in asked} == {"unavailable"}

    asyncio.run(ask())


def test_a_search_that_asks_elsewhere_takes_one_core(monkeypatch):
    monkeypatch.setattr(outcome, "_look_up", lambda *_: allowed.threads)
    elsewhere = SimpleNamespace(lies_elsewhere=True)
    asked = SimpleNamespace(sets=(), datasets=(elsewhere, elsewhere))
    told = outcome.looked_up(SimpleNamespace(owner="a"), asked, None, 0.0)
    assert asyncio.run(told) == 1


def test_arrays_of_many_columns_are_made_a_table_by_a_thread():
    """6 KB with 250 columns took 57 ms, however short the request was."""
    threads = []
    ingest = SimpleNamespace(from_arrays=lambda *_: threads.append(threading.current_thread()))
    service = SimpleNamespace(ingest=ingest, owner="a")

    async def make(columns):
        arrays = {f"c{i}": [1] for i in range(columns)}
        inputs = MatchInputs(observations=arrays, references={})
        await sets.planned(inputs, "observations", service, Path(), is_short=True)

    asyncio.run(make(16))
    asyncio.run(make(17))
    assert [one is threading.main_thread() for one in threads] == [True, False]


def test_what_comes_waits_for_no_result_that_is_read(tmp_path):
    """Behind the pieces of 24 results a packed body took four times as long, for each client."""
    may_end = threading.Event()
    service = SimpleNamespace(owner="a", reading=pools.Turns(1))
    long = bytearray(b"[" + b"1," * requests.SHORT_BYTES + b"1]")

    async def ask(store):
        run = await Results(store.of("a"), None, None, 0)._making(None, JSON)
        pieces = [asyncio.create_task(run(may_end.wait)) for _ in range(8)]
        try:
            await asyncio.wait_for(requests.parsed(service, long, RootModel[list[int]]), 30)
        finally:
            may_end.set()
            await asyncio.gather(*pieces)

    with closing(Store(tmp_path / "data")) as store:
        asyncio.run(ask(store))


def test_no_room_makes_the_event_loop_wait(tmp_path, shared_cluster):
    """Each asks for what it can; `running_service` looks whether the loop waited for any of it."""
    with running_service(tmp_path / "data", *shared_cluster) as client:
        csv = {"Content-Type": "text/csv"}
        table = "id,lat,lon\n" + "".join(f"{i},{i % 90},{i % 180}\n" for i in range(3_000))
        kept = client.post("/datasets", content=table, headers=csv).raise_for_status().json()["id"]
        for times in (1, 2):
            fewer = table.rsplit("\n", times + 1)[0]
            assert client.put("/datasets/places", content=fewer, headers=csv).is_success
        for address in (kept, "places", "places@1", f"{kept}/data.parquet"):
            whole = client.get(f"/datasets/{address}").raise_for_status()
            known = {"If-None-Match": whole.headers["ETag"]}
            client.get(f"/datasets/{address}", headers={**known, "Range": "bytes=0-9"})
        sets = {"observations": f"dataset:{kept}", "references": "dataset:places"}
        for references in (f"dataset:{kept}", "dataset:places", SETS["references"]):
            assert client.post("/nearest", json={**SETS, "references": references}).is_success
        assert client.post("/estimate", json=sets).is_success
        files = dict.fromkeys(sets, ("a.csv", table, "text/csv"))
        assert client.post("/resolve", files=files).is_success
        later = {"Prefer": "respond-async", "Idempotency-Key": "one"}
        for _ in range(2):
            job = client.post("/resolve", files=files, headers=later).headers["Location"]
        with client.stream("GET", f"{job}/events") as events:
            assert "event: end" in events.read().decode()
        assert finished(client, job)["status"] == "successful"
        told = client.get(f"{job}/results/parts").raise_for_status().json()["parts"]
        for address in (
            *("", "/report", "/results", "/distances", "/tiles", "/tiles/0/0/0.png"),
            *("/tiles/0/0/0.geojson", "/results/matches.parquet", "/results/matches.csv"),
            *("/results/matches.json", "/results/matches.geojson", "/results/matches.arrows"),
        ):
            assert client.get(f"{job}{address}").is_success, address
        assert client.get(told[0]["href"]).is_success
        for address in ("/jobs", "/datasets", "/processes", "/api", "/docs", "/", "/metrics"):
            assert client.get(address).is_success, address
        assert client.get("/", headers={"Accept": "text/html"}).is_success
        assert client.delete(job).is_success
        assert client.delete(f"/datasets/{kept}").is_success
        assert client.delete("/datasets/places").is_success
        assert client.delete("/datasets/places").status_code == 404


def test_gzip_of_many_empty_members_is_unpacked_by_a_thread(service):
    """A body may have a member for each 20 bytes, and none of them gives anything."""
    body = gzip.compress(b"") * 100_000 + gzip.compress(json.dumps(SETS).encode())
    kind = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = service.post("/nearest", content=body, headers=kind)
    assert answer.is_success
    assert answer.json() == service.post("/nearest", json=SETS).json()


def test_a_piece_of_gzip_is_unpacked_in_bounds():
    """Whatever it is of, one call of a thread gives a MiB at most and leaves the rest packed."""
    packed = gzip.compress(bytes(5 << 20)) + gzip.compress(b"end")
    unpacker, found = zlib.decompressobj(zlib.MAX_WBITS + 16), []
    while packed:
        unpacker, piece, packed = bodies._unpack(unpacker, packed)
        found.append(piece)
    assert max(map(len, found)) == 1 << 20
    assert b"".join(found) == bytes(5 << 20) + b"end"


def test_those_who_ask_meanwhile_share_the_work_and_go_on_together():
    async def turns_of(askers):
        shared, gate, begun, turns, turn = pools.Shared(), asyncio.Event(), [], [], 0

        def count():
            nonlocal turn
            turn += 1
            asyncio.get_running_loop().call_soon(count)

        async def work():
            begun.append(turn)
            await gate.wait()
            return "done"

        async def ask():
            assert await shared("key", work) == "done"
            turns.append(turn)

        count()
        asking = [asyncio.create_task(ask()) for _ in range(askers)]
        while not begun:
            await asyncio.sleep(0)
        asking[0].cancel()
        gate.set()
        ended = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError)
        assert len(begun) == 1
        assert await shared("key", work) == "done"
        assert len(begun) == 2
        return turns

    turns = asyncio.run(turns_of(64))
    assert len(turns) == 63
    assert len(set(turns)) == 1
