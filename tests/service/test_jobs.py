"""Jobs: dismissed, failed, taken up again after the service was killed; limits and health."""

import io
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pyarrow.parquet as pq
import pytest

from georesolve.query import MatchOptions
from georesolve.service.clock import new_id
from georesolve.service.datasets.library import Library
from georesolve.service.errors import NoSuchDataset
from georesolve.service.store.listing import JobQuery
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.store import Store
from georesolve.workers.cluster_settings import ClusterSettings
from tests.conftest import (
    NO_CLUSTER,
    ROOT,
    finished,
    kill_with_children,
    look_up,
    points,
    run_nearest,
    running_service,
    small_job,
    store_points,
    wait_until,
)

PARQUET = "application/vnd.apache.parquet"


def parquet(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def start_job(client, observations, references, **parameters):
    files = {
        "observations": ("observations.parquet", parquet(observations)),
        "references": ("references.parquet", parquet(references)),
    }
    headers = {"Prefer": "respond-async"}
    answer = client.post("/resolve", params=parameters, files=files, headers=headers)
    assert answer.status_code == 201, answer.text
    # Without the address: a service that is started again listens on another port.
    return httpx.URL(answer.headers["location"]).path


def shorter(long_job, parts=4):
    """What runs to its end, in some seconds: three chunks at least."""
    observations, references, options = long_job
    return observations.slice(0, observations.num_rows // parts), references, options


def files_of(client):
    """Files and folders that lie there now; those of an earlier test may still be going.

    Without the folder of indexes, which can be made again.
    """
    data_dir = client.log.with_suffix("")
    found = (data_dir.glob(name) for name in ("datasets/*", "jobs/*", "incoming/*/*"))
    return {p for paths in found for p in paths if p.name != "indexes"}


def test_dismissing_a_running_job_frees_its_workers(service, long_job):
    before = files_of(service)
    observations, references, options = long_job
    location = start_job(service, observations, references, **options)
    wait_until(lambda: service.get(location).json()["progress"] > 0)
    assert service.get(f"{location}/results").json()["type"].endswith("/result-not-ready")
    info = service.delete(location).json()
    assert info["status"] == "dismissed"
    assert service.get(location).json()["status"] == "dismissed"
    assert service.delete(location).status_code == 410
    assert service.get(f"{location}/results").status_code == 410
    wait_until(lambda: files_of(service) <= before, seconds=30)
    # The workers are free: a small job is not stuck behind what was dismissed.
    location = start_job(service, points(10, 1), points(10, 2))
    assert finished(service, location)["status"] == "successful"


def test_one_of_those_who_dismiss_a_running_job_does(service, long_job):
    before, log = files_of(service), service.log.stat().st_size
    observations, references, options = long_job
    location = start_job(service, observations, references, **options)
    wait_until(lambda: service.get(location).json()["progress"] > 0)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: service.delete(location), range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 410, 410, 410]
    wait_until(lambda: files_of(service) <= before, seconds=30)
    assert f"{location.rpartition('/')[2]} failed" not in service.log.read_bytes()[log:].decode()


def test_removing_a_finished_job(service):
    before = files_of(service)
    location = start_job(service, points(10, 1), points(10, 2))
    assert finished(service, location)["status"] == "successful"
    assert service.get(f"{location}/results").status_code == 200
    assert service.delete(location).json()["status"] == "dismissed"
    assert service.get(f"{location}/results").status_code == 410
    assert service.get(f"{location}/report").status_code == 410
    wait_until(lambda: files_of(service) <= before)


def test_unknown_jobs(service):
    for path in ("/jobs/none", "/jobs/none/results", "/jobs/none/report"):
        problem = service.get(path).json()
        assert (problem["status"], problem["type"].rpartition("/")[2]) == (404, "no-such-job")
    assert service.delete("/jobs/none").status_code == 404
    assert service.put("/jobs").status_code == 405


@pytest.mark.parametrize(
    ("method", "path", "detail"),
    [
        ("GET", "/nowhere", "there is nothing at /nowhere: /docs lists what there is"),
        ("GET", "/within", "/within takes POST, and GET was sent"),
        ("DELETE", "/datasets", "/datasets takes GET or POST or HEAD, and DELETE was sent"),
    ],
)
def test_what_does_not_exist_is_told_with_what_does(service, method, path, detail):
    answer = service.request(method, path)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == detail


def test_a_dataset_in_use_stays(service):
    content = parquet(points(100_000, 3))
    id = service.post("/datasets", content=content, headers={"Content-Type": PARQUET}).json()["id"]
    body = {"observations": f"dataset:{id}", "references": f"dataset:{id}"}
    answer = run_nearest(service, body, {"Prefer": "respond-async"})
    assert service.delete(f"/datasets/{id}").status_code == 409
    service.delete(answer.headers["location"])
    wait_until(lambda: service.delete(f"/datasets/{id}").status_code == 204)


def test_accepted_jobs_survive_kill_9(tmp_path, device, long_job):
    """And nothing stays of one that was dismissed just before."""
    data_dir = tmp_path / "data"
    # Two GPUs end a quarter between two looks at it.
    observations, references, options = shorter(long_job, {"cpu": 4, "cuda": 2}[device])
    with running_service(data_dir, "--device", device) as client:
        # The tree gives the same bytes sooner.
        undisturbed = start_job(client, observations, references)
        assert finished(client, undisturbed)["status"] == "successful"
        expected = client.get(f"{undisturbed}/report").json()["digest"]
        dismissed, running = (
            start_job(client, observations, references, **options) for _ in range(2)
        )
        waiting = [start_job(client, points(1_000, 6), points(10, 7)) for _ in range(3)]
        wait_until(lambda: client.get(dismissed).json()["progress"] > 0)
        wait_until(lambda: client.get(running).json()["progress"] > 10)
        assert client.get(running).json()["status"] == "running"
        client.delete(dismissed)
        kill_with_children(client.process)
    # Named as the service names them: what has another name is not its own.
    stale = data_dir / "incoming" / new_id()
    stale.mkdir()
    orphan = data_dir / "datasets" / f"{new_id()}.parquet"
    orphan.touch()
    manifest = data_dir / undisturbed.strip("/") / "manifest.json"
    (manifest.parent / ".manifest.json.half-written").touch()
    with running_service(data_dir, "--device", device) as client:
        assert finished(client, running)["status"] == "successful"
        assert client.get(f"{running}/report").json()["digest"] == expected
        assert {finished(client, job)["status"] for job in waiting} == {"successful"}
        assert client.get(dismissed).json()["status"] == "dismissed"
        assert not (data_dir / dismissed.strip("/")).exists()
        assert len(client.get("/jobs").json()["jobs"]) == 6
    assert not stale.exists()
    # A file that the database does not know is left to whoever looks after the store.
    orphan.unlink()
    assert {path.name for path in manifest.parent.iterdir()} == {manifest.name, "parts"}
    # Large sets of requests go when their jobs end: see `_SMALL_SETS_BYTES`.
    n_small = 5 if device == "cpu" else 3
    assert len(list((data_dir / "datasets").iterdir())) == 2 * n_small, "the sets of the results"


def test_without_a_cluster_the_service_says_so(tmp_path):
    with running_service(
        tmp_path / "data", "--scheduler", "tcp://127.0.0.1:9", ready=False
    ) as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
        body = {"observations": {"lat": [1], "lon": [2]}, "references": {"lat": [1], "lon": [2]}}
        answer = run_nearest(client, body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        # The service answers small requests by itself.
        assert look_up(client, body).status_code == 200
        assert client.get("/jobs").json()["jobs"] == []
        answer = run_nearest(client, body, {"Prefer": "respond-async"})
        assert client.get(answer.headers["location"]).json()["status"] == "accepted"


def test_nothing_below_a_dismissed_job_is_given(service):
    """Every address below a job answers 410, but its events, which end with the job."""
    finished_job, other_job = (small_job(service).headers["location"] for _ in range(2))
    finished(service, finished_job)
    part = service.get(f"{finished_job}/results/parts").json()["parts"][0]["href"]
    values = {"z": 0, "x": 0, "y": 0, "name": part.rpartition("/")[2]}
    paths = [
        path.removeprefix("/jobs/{id}").format(**values)
        for path, operations in service.get("/api").json()["paths"].items()
        if path.startswith("/jobs/{id}/") and "get" in operations
    ]
    assert {"/report", "/shapes", "/tiles", "/results/matches.geojson"} <= {*paths}
    for job in (finished_job, other_job):
        service.delete(job).raise_for_status()
        for path in paths:
            answer = service.get(
                job + path, params={"bbox": "-10,-10,10,10"} if "shapes" in path else None
            )
            if path == "/events":
                assert "event: end" in answer.text
            else:
                assert (path, answer.status_code) == (path, 410)
                assert answer.json()["type"].endswith(":job-dismissed")


def test_a_job_dismissed_before_its_turn_is_cleared_away_at_once(tmp_path):
    with running_service(tmp_path / "data", *NO_CLUSTER, ready=False) as client:
        files = {role: (role, parquet(points(10, 1))) for role in ("observations", "references")}
        with ThreadPoolExecutor(1) as threads:
            # With a key to come back with it is a job, small as it is.
            headers = {"Prefer": "wait=60", "Idempotency-Key": "one"}
            waiting = threads.submit(client.post, "/resolve", files=files, headers=headers)
            wait_until(lambda: client.get("/jobs").json()["jobs"])
            assert files_of(client)
            [job] = client.get("/jobs").json()["jobs"]
            assert client.delete(f"/jobs/{job['id']}").json()["status"] == "dismissed"
            answer = waiting.result(timeout=20)
        assert (answer.status_code, answer.json()["title"]) == (410, "The job was dismissed")
        wait_until(lambda: not files_of(client), seconds=20)


def test_a_job_dismissed_while_others_run_is_cleared_away_at_once(
    tmp_path, shared_cluster, long_job
):
    flags = [*shared_cluster, "--concurrent-jobs", 1]
    with running_service(tmp_path / "data", *flags) as client:
        observations, references, options = long_job
        first = start_job(client, observations, references, **options)
        # It runs once it has a folder of its own.
        wait_until(lambda: any(path.parent.name == "jobs" for path in files_of(client)))
        before = files_of(client)
        second = start_job(client, points(10, 1), points(10, 2))
        assert len(files_of(client) - before) >= 2
        client.delete(second)
        wait_until(lambda: files_of(client) <= before, seconds=20)
        assert client.get(first).json()["status"] == "running"
        client.delete(first)
        # The place of the first is free, and that of the second was never taken.
        third = start_job(client, points(10, 1), points(10, 2))
        assert finished(client, third)["status"] == "successful"


def database_of(service):
    return service.log.with_suffix("") / "georesolve.sqlite"


def test_a_job_whose_end_cannot_be_written_down_is_run_again(service):
    with closing(sqlite3.connect(database_of(service), timeout=30)) as database:
        database.executescript(
            "CREATE TRIGGER full BEFORE UPDATE ON jobs WHEN NEW.finished IS NOT NULL "
            "BEGIN SELECT RAISE(FAIL, 'no space left'); END"
        )
        try:
            start = service.log.stat().st_size
            location = start_job(service, points(10, 1), points(10, 2))
            wait_until(lambda: b"the store failed" in service.log.read_bytes()[start:])
            assert service.get(location).json()["status"] == "running"
        finally:
            database.executescript("DROP TRIGGER full")
    assert finished(service, location)["status"] == "successful"


def test_a_dataset_removed_meanwhile_takes_no_job(tmp_path):
    store = Store(tmp_path)
    library = Library(store)
    rows = []
    for seed in (1, 2):
        path = tmp_path / f"{seed}.parquet"
        rows.append(library.keep(DatasetRow(store_points(points(5, seed), path), {})))
    library.remove(rows[1].id)
    with pytest.raises(NoSuchDataset):
        store.add_job(*rows, MatchOptions(), Delivery())
    assert store.jobs(JobQuery()) == []
    store.close()


def test_limits(tmp_path, shared_cluster):
    flags = ["--sync-rows", 1000, "--upload-bytes", 200_000, "--inline-bytes", 10_000]
    with running_service(tmp_path / "data", *shared_cluster, *flags) as client:
        before = files_of(client)
        files = {"observations": ("a.parquet", parquet(points(900, 1)))}
        files["references"] = ("b.parquet", parquet(points(101, 2)))
        answer = client.post("/resolve", files=files)
        assert answer.status_code == 413
        assert "1001 rows of both sets together" in answer.json()["detail"]
        assert "limit of 1000" in answer.json()["detail"]
        assert "respond-async" in answer.json()["detail"]
        body = {"observations": {"lat": [0.5] * 2000, "lon": [0.5] * 2000}, "references": "x"}
        answer = look_up(client, body)
        assert (answer.status_code, answer.json()["type"]) == (
            413,
            "urn:georesolve:problem:too-large",
        )
        for send in (
            lambda content: client.post(
                "/datasets", content=content, headers={"Content-Type": PARQUET}
            ),
            lambda content: client.post("/datasets", files={"file": ("f.parquet", content)}),
        ):
            answer = send(parquet(points(10_000, 3)))
            assert (answer.status_code, answer.json()["title"]) == (413, "The input is too large")
        assert client.get("/datasets").json()["datasets"] == []
        assert files_of(client) == before


def test_health(service, device):
    assert service.get("/livez").json()["status"] == "ok"
    checks = {check["name"]: check for check in service.get("/readyz").json()["checks"]}
    assert checks["device"]["detail"] == device
    dashboard = checks["dashboard"]["detail"]
    assert dashboard.startswith("http://127.0.0.1:")
    page = httpx.get(dashboard, timeout=60)
    assert page.status_code == 200
    assert "Dask" in page.text


def test_a_store_that_cannot_be_written_is_told(tmp_path, shared_cluster):
    data_dir = tmp_path / "data"
    with running_service(data_dir, *shared_cluster) as client:
        for names, status in (("jobs", "away"), 503), (("away", "jobs"), 200):
            with closing(sqlite3.connect(data_dir / "georesolve.sqlite", timeout=30)) as database:
                database.execute("ALTER TABLE {} RENAME TO {}".format(*names))
            answer = client.get("/readyz")
            assert answer.status_code == status
            checks = {check["name"]: check for check in answer.json()["checks"]}
            assert checks["store"]["ok"] == (status == 200)
            assert checks["disk"]["ok"]


def test_the_service_process_loads_no_gpu_library():
    script = (
        "import sys, georesolve.service.app\n"
        # Where rmm is installed distributed imports it, and rmm CuPy: neither makes a context.
        "loaded = {'cudf', 'numba.cuda', 'dask_cuda'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "quantum"], "--device is 'quantum': Input should be 'auto', 'cpu' or 'cuda'"),
        (["--dashboard-address", ":8787"], "knows no passwords"),
        (["--scheduler", "scheduler"], "--scheduler is 'scheduler': a scheduler has an address"),
        (["--scheduler", "http://scheduler:8786"], "such as tcp://host:8786 or tls://host:8786"),
        (["--scheduler", "::1"], "--scheduler is '::1': a scheduler has an address"),
        (["--scheduler", "inproc://10.0.0.1/7/1"], "is 'inproc://10.0.0.1/7/1': a scheduler has"),
        (["--port", "70000"], "--port is '70000': Input should be less than or equal to 65535"),
    ],
)
def test_bad_settings_end_at_once(flags, message, capsys):
    from georesolve.cli.serve import main

    assert main(["serve", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("address", ["node:8786", "tls://[::1]:8786", "ucxx://10.0.0.1:8786"])
def test_addresses_that_schedulers_give_are_taken(address):
    assert ClusterSettings(scheduler=address).scheduler == address


def test_settings_from_the_environment(monkeypatch):
    from georesolve.service.settings import Settings

    monkeypatch.setenv("GEORESOLVE_DATA_DIR", "/somewhere")
    monkeypatch.setenv("GEORESOLVE_SCHEDULER", "tcp://scheduler:8786")
    settings = Settings()
    assert str(settings.data_dir) == "/somewhere"
    assert settings.cluster().scheduler == "tcp://scheduler:8786"


def test_a_job_whose_services_died_again_and_again_fails(tmp_path):
    data_dir = tmp_path / "data"
    with closing(Store(data_dir)) as store:
        library = Library(store)
        row = library.keep(DatasetRow(store_points(points(5, 1), tmp_path / "points.parquet"), {}))
        guilty, other = (store.add_job(row, row, MatchOptions(), Delivery()) for _ in range(2))
        for _ in range(6):
            store.start_job(guilty)
            store.note_death()
        store.start_job(other)
    with running_service(data_dir, *NO_CLUSTER, ready=False) as client:
        # A front may answer before the runner has looked.
        info = finished(client, f"/jobs/{guilty}")
        assert (info["status"], "died each time" in info["message"]) == ("failed", True)
        assert client.get(f"/jobs/{other}").json()["status"] == "running"
    with closing(Store(data_dir)) as store:
        assert store.job(other).deaths > 0
