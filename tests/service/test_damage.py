"""Files that a disk has damaged: told of, never given out as whole, and mended by their content."""

import os

import pytest

from tests.conftest import finished, look_up, points, run_nearest
from tests.service.test_jobs import PARQUET, parquet, start_job


def flip(path, at=None):
    """Flip a bit of a file, in its middle unless told where."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def cut_off(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.fixture(scope="module")
def data_dir(service):
    return service.log.with_suffix("")


@pytest.fixture
def register(service):
    """Registers points; what it registered is removed in the end."""
    registered = set()

    def register(seed, status=201):
        content = parquet(points(3_000, seed))
        answer = service.post("/datasets", content=content, headers={"Content-Type": PARQUET})
        assert answer.status_code == status, answer.text
        registered.add(answer.json()["id"])
        return answer.json()["id"]

    yield register
    for id in registered:
        service.delete(f"/datasets/{id}").raise_for_status()


@pytest.mark.parametrize("damage", [cut_off, os.unlink, flip])
def test_a_damaged_dataset_is_told_of_and_mended(service, data_dir, register, damage):
    id = register(31)
    file = data_dir / "datasets" / f"{id}.parquet"
    body = {"observations": {"dataset": id}, "references": {"lat": [1, 2], "lon": [3, 4]}}
    whole = service.get(f"/datasets/{id}/data.parquet")
    expected = look_up(service, body).raise_for_status().content
    damage(file)
    refusals = [service.get(f"/datasets/{id}/data.parquet")]
    if damage is not flip:
        refusals += [service.post(path, json=body) for path in ("/nearest", "/estimate")]
    for answer in refusals:
        assert answer.status_code == 409, answer.text
        assert answer.json()["type"].endswith(":dataset-damaged")
        assert id in answer.json()["detail"]
        assert "register the same content again" in answer.json()["detail"]
        assert "etag" not in answer.headers
    assert service.get(f"/datasets/{id}").status_code == 200
    assert register(31, status=200) == id
    again = service.get(f"/datasets/{id}/data.parquet")
    assert (again.content, again.headers["etag"]) == (whole.content, whole.headers["etag"])
    assert look_up(service, body).content == expected


@pytest.mark.parametrize("prefer", ["respond-async", "wait=60"])
def test_what_shows_only_when_a_worker_reads_it_is_told_of(service, data_dir, register, prefer):
    id = register(32)
    # The head of the first page: the end of the file says nothing of it.
    with (data_dir / "datasets" / f"{id}.parquet").open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 200)
    body = {"observations": {"dataset": id}, "references": {"lat": [1, 2], "lon": [3, 4]}}
    rows = service.get(f"/datasets/{id}/rows")
    assert (rows.status_code, id in rows.json()["detail"]) == (409, True)
    answer = run_nearest(service, body, {"Prefer": prefer})
    if answer.status_code == 201:
        job = answer.headers["location"]
        assert finished(service, job)["status"] == "failed"
        answer = service.get(f"{job}/results")
        service.delete(job)
    assert answer.status_code == 409, answer.text
    assert answer.json()["type"].endswith(":dataset-damaged")
    assert id in answer.json()["detail"]


@pytest.fixture
def job(service):
    """A successful job, and the file of its result."""
    job = start_job(service, points(3_000, 33), points(500, 34))
    assert finished(service, job)["status"] == "successful"
    yield job
    service.delete(job)


def folder_of(data_dir, job):
    return data_dir / "jobs" / job.rpartition("/")[2]


def files_of(service, data_dir, job):
    """The part of a small result, what stands behind it, and the manifest."""
    [part] = service.get(f"{job}/results/parts").json()["parts"]
    folder = folder_of(data_dir, job)
    names = (part["href"].rpartition("/")[2], "_ending")
    return [*(folder / "parts" / name for name in names), folder / "manifest.json"]


def test_a_damaged_result_is_not_given_out(service, data_dir, job, tmp_path):
    whole = service.get(f"{job}/results")
    part, ending, manifest = files_of(service, data_dir, job)
    for file, at in ((part, 10), (part, None), (part, -20), (ending, None), (manifest, None)):
        content = file.read_bytes()
        flip(file, at)
        for name in ("", "/matches.parquet"):
            for headers in ({}, {"Range": "bytes=0-99"}):
                answer = service.get(f"{job}/results{name}", headers=headers)
                if file == ending and "Range" in headers:
                    # These bytes are not damaged.
                    assert answer.content == whole.content[:100]
                    continue
                assert answer.status_code == 500, (file, at, headers)
                assert answer.json()["type"].endswith(":result-damaged")
                assert "dismiss the job, and send it again" in answer.json()["detail"]
                assert "etag" not in answer.headers
        assert service.head(f"{job}/results").status_code == 500
        file.write_bytes(content)
        again = service.get(f"{job}/results")
        assert (again.content, again.headers["etag"]) == (whole.content, whole.headers["etag"])
    content = part.read_bytes()
    flip(part, 100)
    assert service.get(f"{job}/results/parts/{part.name}").status_code == 500
    for name in ("csv", "json", "arrows"):
        answer = service.get(f"{job}/results/matches.{name}")
        assert answer.json()["type"].endswith(":result-damaged"), answer.text
    part.write_bytes(content)
    assert service.get(f"{job}/results/matches.csv").status_code == 200
