"""Results that are written elsewhere while workers and the runner are killed."""

import json

import pytest

from tests.conftest import (
    children_of,
    finished,
    roles_of,
    run_nearest,
    running_service,
    wait_until,
)
from tests.object_store import BUCKET, seaweed


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with seaweed(tmp_path_factory.mktemp("store") / "weed") as store:
        yield store


def kill_workers(client):
    for worker in children_of(client.process, "spawn_main", recursive=True):
        worker.kill()


def kill_runner(client):
    [runner] = roles_of(client.process, "runner")
    runner.kill()


def test_the_bytes_are_those_of_a_job_that_nothing_disturbed(
    tmp_path, device, store, long_job, monkeypatch
):
    """One result in an object store: its workers die, then its runner."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    prefix = f"{BUCKET}/results"
    flags = ("--device", device, "--sinks", f"s3://{prefix}/")
    observations, references, options = long_job
    arrays = {name: references[name].to_pylist() for name in ("lat", "lon")}
    with running_service(tmp_path / "data", *flags) as client:
        sets = {"observations": {"dataset": register(client, observations)}, "references": arrays}
        body = {"inputs": sets | options, "output": {"href": f"s3://{prefix}/disturbed"}}
        prefer = {"Prefer": "respond-async"}
        answer = client.post("/processes/nearest/execution", json=body, headers=prefer)
        job = answer.raise_for_status().headers["Location"]
        for count, kill in ((1, kill_workers), (2, kill_runner)):
            wait_until(lambda count=count: len(names(store, f"{prefix}/disturbed")) >= count)
            kill(client)
        assert "_SUCCESS" not in names(store, f"{prefix}/disturbed")
        assert finished(client, job)["status"] == "successful"
        told = client.get(f"{job}/results/parts").json()
        # The quick way to the same bytes.
        kept = run_nearest(client, sets, prefer).headers["Location"]
        finished(client, kept)
        assert client.get(f"{kept}/report").json()["digest"] == told["digest"]
    lies = names(store, f"{prefix}/disturbed")
    with store.files.open_input_file(f"{prefix}/disturbed/_manifest.json") as file:
        parts = {part["href"] for part in json.loads(file.read())["parts"]}
    assert lies == {*parts, "_ending", "_manifest.json", "_SUCCESS"}


def register(client, table):
    arrays = {name: table[name].to_pylist() for name in ("lat", "lon")}
    text = "lat,lon\n" + "\n".join(f"{a!r},{b!r}" for a, b in zip(*arrays.values(), strict=True))
    headers = {"Content-Type": "text/csv"}
    return client.post("/datasets", content=text, headers=headers).raise_for_status().json()["id"]


def names(store, prefix):
    from pyarrow.fs import FileSelector

    selector = FileSelector(prefix, allow_not_found=True)
    return {one.base_name for one in store.files.get_file_info(selector)}
