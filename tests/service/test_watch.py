"""What the service tells those who look after it: the lines of its log, its metrics."""

import gzip
import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import finished, look_up, points, running_service, wait_until
from tests.service.test_jobs import files_of, parquet, start_job

SETS = {
    "observations": {"lat": [1.0, 2.0, 99.0], "lon": [3.0, 4.0, 5.0]},
    "references": {"lat": [1.0], "lon": [3.0]},
}

FAILED = "reason=urn:georesolve:problem:job-failed"
DAMAGED = "reason=urn:georesolve:problem:dataset-damaged"


@pytest.fixture(scope="module")
def watched(tmp_path_factory, device):
    """A service of its own, so that what is counted is known, with a log in JSON."""
    data_dir = tmp_path_factory.mktemp("watched") / "data"
    flags = ["--device", device, "--log-format", "json", "--inline-bytes", 1_000]
    with running_service(data_dir, *flags) as client:
        yield client


def lines_of(client, start=0):
    return [json.loads(line) for line in client.log.read_bytes()[start:].splitlines()]


def lines_with(client, **fields):
    return [line for line in lines_of(client) if fields.items() <= line.items()]


def metrics_of(client):
    """Values by name and labels."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_answer_has_the_id_of_its_request(watched):
    requests = [
        ("GET", "/livez", 200, {}),
        ("HEAD", "/livez", 200, {}),
        ("GET", "/nowhere", 404, {}),
        ("PUT", "/jobs", 405, {}),
        ("GET", "/jobs/none", 404, {}),
        ("GET", "/jobs?limit=many", 400, {}),
        ("GET", "/jobs", 400, {"Host": "elsewhere.example"}),
        ("POST", "/nearest", 413, {"Content-Type": "application/json"}),
    ]
    for number, (method, path, status, headers) in enumerate(requests):
        id = f"test-{number}/of.mine"
        content = b" " * 1_001 if status == 413 else None
        headers["X-Request-ID"] = id
        answer = watched.request(method, path, headers=headers, content=content)
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, id)
        [line] = wait_for_lines(watched, request_id=id, method=method)
        assert (line["path"], line["status"]) == (path.partition("?")[0], status)
        assert line["level"] == "INFO"
        assert 0 < line["seconds"] < 60
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*(\+00:00|Z)", line["time"])


def wait_for_lines(client, **fields):
    found = []

    def written():
        found[:] = lines_with(client, **fields)
        return found

    wait_until(written)
    return found


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b', "é"])
def test_an_id_that_is_not_plain_is_replaced(watched, given):
    headers = {"X-Request-ID": given.encode("latin-1")}
    made = watched.get("/livez", headers=headers).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", made)


def test_no_secret_is_written_down(watched):
    headers = {"Authorization": "Bearer s3cret-1", "X-API-Key": "s3cret-2", "Cookie": "s3cret-3"}
    path = "/jobs/none?key=s3cret-4"
    id = watched.get(path, headers=headers).headers["x-request-id"]
    wait_for_lines(watched, request_id=id)
    assert b"s3cret" not in watched.log.read_bytes()


def test_lines_about_a_job_carry_its_id_and_that_of_its_request(watched):
    files = {
        role: (f"{role}.parquet", parquet(points(2_000, seed)))
        for seed, role in enumerate(("observations", "references"))
    }
    headers = {"Prefer": "respond-async", "X-Request-ID": "who-asked"}
    answer = watched.post("/resolve", files=files, headers=headers)
    job = answer.headers["location"].rpartition("/")[2]
    assert finished(watched, f"/jobs/{job}")["status"] == "successful"
    lines = wait_for_lines(watched, job=job, message=f"job {job} started")
    lines = lines_with(watched, job=job)
    asked = {
        line["message"].partition(":")[0] for line in lines_with(watched, request_id="who-asked")
    }
    assert {f"job {job} accepted", f"job {job} started", f"job {job} successful"} <= asked
    chunks = [line for line in lines if line["logger"] == "georesolve.workers.partitions"]
    assert sum(" done" in line["message"] for line in chunks) >= 1
    [line] = [line for line in lines if line.get("path") == "/resolve"]
    assert (line["status"], line["request_id"]) == (201, "who-asked")


def test_metrics_count_what_was_done(watched):
    jobs = ("georesolve_jobs_total", "process=nearest", "reason=", "status=successful")
    ended = watched.get("/jobs", params={"status": "successful"}).json()["jobs"]
    # The runner tells what it has counted once a second.
    wait_until(lambda: metrics_of(watched)[jobs] == len(ended))
    before = metrics_of(watched)

    def grown(*name):
        return metrics_of(watched).get(name, 0) - before.get(name, 0)

    location = start_job(watched, points(3_000, 5), points(100, 6))
    assert finished(watched, location)["status"] == "successful"
    answer = look_up(watched, {**SETS, "on_invalid": "null"})
    assert answer.status_code == 200, answer.text
    for id in ("1", "2", "3"):
        watched.get(f"/datasets/no-{id}")
    watched.head("/livez")
    packed = gzip.compress(json.dumps(SETS).encode())
    kind = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert watched.post("/nearest", content=packed, headers=kind).status_code == 400
    assert watched.request("PROPFIND", "/nowhere").status_code == 404

    requests = "georesolve_request_seconds_count"
    assert grown(requests, "method=POST", "route=/nearest", "status=200") == 1
    assert grown(requests, "method=POST", "route=/nearest", "status=400") == 1
    assert grown(requests, "method=POST", "route=/resolve", "status=201") == 1
    assert grown(requests, "method=GET", "route=/datasets/{id}", "status=404") == 3
    assert grown(requests, "method=HEAD", "route=/livez", "status=200") == 1
    assert grown(requests, "method=other", "route=none", "status=404") == 1
    assert grown("georesolve_received_bytes_total") > 50_000
    wait_until(lambda: grown(*jobs) == 1)
    assert grown("georesolve_job_queue_seconds_count") == 1
    assert grown("georesolve_job_run_seconds_count", "status=successful") == 1
    assert grown("georesolve_rows_in_total", "by=job") == 3_000
    assert grown("georesolve_rows_out_total", "by=job", "status=matched") == 3_000
    assert grown("georesolve_rows_in_total", "by=at hand") == 3
    assert grown("georesolve_rows_out_total", "by=at hand", "status=matched") == 2
    assert grown("georesolve_rows_out_total", "by=at hand", "status=invalid_coordinate") == 1


def test_jobs_are_counted_from_nought(watched):
    """An alert on an increase misses the first failure of a series that begins with it."""
    times = {name[1] for name in metrics_of(watched) if name[0] == "georesolve_job_run_seconds_sum"}
    assert times == {"status=successful", "status=failed", "status=dismissed"}
    rows = {name[1] for name in metrics_of(watched) if name[0] == "georesolve_rows_in_total"}
    assert rows == {"by=job", "by=at hand"}
    jobs = {name[1:] for name in metrics_of(watched) if name[0] == "georesolve_jobs_total"}
    full = "reason=urn:georesolve:problem:storage-full"
    assert jobs == {
        (f"process={process}", reason, f"status={status}")
        for process in ("nearest", "within")
        for reason, status in (
            *(("reason=", status) for status in ("successful", "dismissed")),
            *((reason, "failed") for reason in (FAILED, DAMAGED, full, "reason=other")),
        )
    }
    assert (
        metrics_of(watched)["georesolve_jobs_total", "process=nearest", FAILED, "status=failed"]
        == 0
    )


def test_metrics_tell_how_a_failed_and_a_dismissed_job_ended(watched, long_job):
    before = files_of(watched)
    data_dir = watched.log.with_suffix("")
    observations, references, options = long_job
    location = start_job(watched, observations, references, **options)
    live = [("georesolve_live_jobs", f"status={status}") for status in ("accepted", "running")]
    wait_until(lambda: metrics_of(watched)[live[1]] == 1)
    assert metrics_of(watched)[live[0]] == 0
    watched.delete(location)
    ended = ("georesolve_jobs_total", "process=nearest", "reason=", "status=dismissed")
    assert metrics_of(watched)[ended] == 1
    assert metrics_of(watched)[live[1]] == 0

    # Its inputs are gone before it starts.
    content, many = parquet(points(20, 7)), parquet(points(200_000, 8))
    blockers = [
        start_job(watched, points(200_000, 8), points(50_000, 9), algorithm="brute")
        for _ in range(2)
    ]
    files = {"observations": ("o.parquet", content), "references": ("r.parquet", many)}
    old = files_of(watched)
    location = watched.post("/resolve", files=files, headers={"Prefer": "respond-async"}).headers[
        "location"
    ]
    for path in files_of(watched) - old:
        if path.parent == data_dir / "datasets":
            path.unlink()
    for blocker in blockers:
        watched.delete(blocker)
    assert finished(watched, location)["status"] == "failed"
    failed = ("georesolve_jobs_total", "process=nearest", DAMAGED, "status=failed")
    wait_until(lambda: metrics_of(watched)[failed] == 1)
    # What the alert tells to look for.
    [line] = lines_with(watched, message=f"job {location.rpartition('/')[2]} failed")
    assert "is damaged or missing on the disk" in line["exc_info"]
    wait_until(lambda: files_of(watched) <= before)


def test_metrics_tell_how_things_are(watched, device):
    metrics = metrics_of(watched)
    assert metrics["georesolve_cluster_up",] == 1
    assert metrics["georesolve_workers", f"device={device}"] >= 1
    assert metrics["georesolve_rows_per_second",] == 0
    assert metrics["georesolve_disk_bytes", "state=free"] > 0
    assert metrics["georesolve_disk_bytes", "state=used"] > 0
    assert metrics["process_resident_memory_bytes",] > 0
    [info] = [name for name in metrics if name[0] == "georesolve_info"]
    assert re.fullmatch(r"version=\d+\.\d+.*", info[1])


def test_labels_are_few(watched):
    """What clients choose freely makes no series."""
    for number in range(20):
        watched.get(f"/made-up-{number}")
        watched.get(f"/jobs/made-up-{number}")
    assert "made-up" not in watched.get("/metrics").text
    for verb in ("PROPFIND", "MKCOL", "LINK"):
        watched.request(verb, "/")
        assert verb not in watched.get("/metrics").text
