"""Data folder of an earlier revision: this revision opens it and gives the same answers.

`upgrade/make_data_folder.py` made the folder and recorded the answers.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

import georesolve
from tests.conftest import finished, running_service

FOLDER = Path(__file__).parent / "upgrade"
ARCHIVE = FOLDER / "data_079c6f8e.tar.xz"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
JOBS, DATASETS, ANSWERS = EXPECTED["jobs"], EXPECTED["datasets"], EXPECTED["answers"]
UNFINISHED_JOBS = ("interrupted", "waiting")
# The jobs of the folder ended long ago.
NO_EXPIRY = ("--result-hours", 0, "--job-hours", 0, "--dataset-hours", 0)


@pytest.fixture(scope="module")
def service(tmp_path_factory, device):
    """Client of this revision on the folder, with the API key of the folder."""
    folder = tmp_path_factory.mktemp("upgrade")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    with running_service(folder / "data", "--device", device, *NO_EXPIRY) as client:
        client.headers["Authorization"] = f"Bearer {EXPECTED['key']}"
        yield client


def location_of(name):
    return f"/jobs/{JOBS[name]['id']}"


def check_rows(content, job):
    """Compare types and values of all rows, but no metadata, which names the version."""
    table = pq.read_table(io.BytesIO(content))
    assert {field.name: str(field.type) for field in table.schema} == job["schema"]
    if "columns" in job:
        assert table.to_pydict() == job["columns"]
    else:
        columns = json.dumps(table.to_pydict()).encode()
        assert table.num_rows == job["n_rows"]
        assert hashlib.sha256(columns).hexdigest() == job["columns_sha256"]


def test_the_key_sees_all_jobs(service):
    ids = {job["id"] for job in service.get("/jobs").raise_for_status().json()["jobs"]}
    assert ids == {job["id"] for job in JOBS.values()}
    assert httpx.get(f"{service.base_url}/jobs").status_code == 401


@pytest.mark.parametrize("name", [name for name in JOBS if name not in UNFINISHED_JOBS])
def test_a_finished_job_has_the_same_bytes(service, name):
    content = service.get(f"{location_of(name)}/results").raise_for_status().content
    assert hashlib.sha256(content).hexdigest() == JOBS[name]["sha256"]
    check_rows(content, JOBS[name])


@pytest.mark.parametrize("name", DATASETS)
def test_a_named_dataset_has_the_same_bytes(service, name):
    content = service.get(f"/datasets/{name}/data.parquet").raise_for_status().content
    assert hashlib.sha256(content).hexdigest() == DATASETS[name]


@pytest.mark.parametrize("path", ANSWERS)
def test_a_named_dataset_gives_the_same_answer(service, path):
    assert service.get(path).raise_for_status().json() == ANSWERS[path]


@pytest.mark.parametrize("name", UNFINISHED_JOBS)
def test_an_unfinished_job_ends_with_the_same_rows(service, name):
    info = finished(service, location_of(name))
    assert info["status"] == "successful", info
    check_rows(service.get(f"{location_of(name)}/results").raise_for_status().content, JOBS[name])


def test_completed_chunks_are_not_computed_again(service, device):
    # Chunks of another version, or of the plan for another device, do not count.
    if (georesolve.__version__, device) != (EXPECTED["version"], "cpu"):
        pytest.skip(f"the chunks are those of version {EXPECTED['version']} on a CPU")
    finished(service, location_of("interrupted"))
    report = service.get(f"{location_of('interrupted')}/report").raise_for_status().json()
    assert report["chunks_by_worker"] == JOBS["interrupted"]["chunks_by_worker"]
