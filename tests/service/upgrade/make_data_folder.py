"""Make the archive and the expected answers that `test_upgrade.py` reads.

Run with the environment of the tests, for a clean checkout of the revision to record:

    python make_data_folder.py CHECKOUT

Two files appear in the working directory: data_REVISION.tar.xz and expected.json. A revision with
other names of routes, options or flags needs other requests below.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PARQUET = "application/vnd.apache.parquet"
FLAGS = ["--port", "0", "--dashboard-address", "127.0.0.1:0", "--fronts", "1", "--device", "cpu"]
# One job at a time: the next one waits.
FLAGS += ["--concurrent-jobs", "1"]
# Keep jobs and datasets for ever: tests open the folder years later.
FLAGS += ["--result-hours", "0", "--job-hours", "0", "--dataset-hours", "0"]
START_SECONDS = 300
"""A service may have to compile its kernels first."""
JOB_SECONDS = 120
MIN_CHUNKS = 2
"""Chunks that the second worker has completed when the service is killed."""
MAX_CHUNKS = 5
"""Chunks of eight that both workers may have completed by then."""
ANSWERS = [
    "/nearest?lat=47.11&lon=8.15&references=places&k=3&columns=name,size&near=true",
    "/nearest?lat=47.11&lon=8.15&references=places@1&k=2&columns=name",
    "/nearest?lat=0.25&lon=30.5&references=zones&k=2&columns=zone",
]


def points(rows, seed, **columns):
    """Return points with an id; coordinates have two decimals, so that they compress well."""
    random = np.random.default_rng(seed)
    lat = np.degrees(np.arcsin(random.uniform(-1, 1, rows))).round(2)
    lon = random.uniform(-180, 180, rows).round(2)
    return pa.table({"id": np.arange(rows) + 1000, "lat": lat, "lon": lon, **columns})


def places(rows):
    """Return the references: by country and day, with columns to carry."""
    numbers = np.arange(rows)
    return points(
        rows,
        1,
        name=[f"place {number}" for number in numbers],
        country=pa.array(np.array(["DE", "FR", "PE"])[numbers % 3]),
        day=numbers * 7 % 100,
        size=numbers * numbers % 1009,
    )


def zones():
    """Return polygons: eight rectangles along the equator, the last one with a hole."""

    def rectangle(west, south, east, north):
        return [[west, south], [east, south], [east, north], [west, north], [west, south]]

    rings = [[rectangle(west, -20, west + 40, 30)] for west in range(-170, 150, 40)]
    rings[-1].append(rectangle(120, 0, 140, 10)[::-1])
    features = [
        {
            "type": "Feature",
            "properties": {"zone": f"zone {number}"},
            "geometry": {"type": "Polygon", "coordinates": rings_of_zone},
        }
        for number, rings_of_zone in enumerate(rings)
    ]
    return json.dumps({"type": "FeatureCollection", "features": features}).encode()


def grid():
    """Return a regular grid, large enough for chunks of the minimum size: 1024 observations."""
    lat, lon = np.meshgrid(np.arange(512) * 0.3125 - 80, np.arange(1024) * 0.3515625 - 180)
    return pa.table({"lat": lat.ravel(), "lon": lon.ravel()})


def with_invalid_rows(table, missing, invalid):
    """Return points of which one row has no latitude, and one an invalid latitude."""
    lat = table["lat"].to_pylist()
    lat[missing], lat[invalid] = None, 95.0
    return table.set_column(1, "lat", pa.array(lat))


def observations_of_every_status():
    """Return observations that match, or lack coordinates, a country or a partner."""
    country = ["DE", "FR", "PE"] * 20
    country[6], country[7] = None, "XX"
    table = points(60, 2, day=np.arange(60) % 90, country=country)
    return with_invalid_rows(table, 3, 4)


def parquet(table):
    """Return a table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


JOBS = {
    "nearest": (
        {"observations": observations_of_every_status(), "references": "dataset:places"},
        {
            "k": 2,
            "by": "country",
            "time": "day",
            "max_time": 20,
            "max_distance_m": 2_000_000,
            "columns": "name,size",
            "observation_columns": "country",
            "near": True,
            "on_invalid": "null",
        },
    ),
    "pairs": (
        {"observations": points(80, 3), "references": places(50)},
        {
            "question": "within",
            "distance_m": 2_000_000,
            "how": "left",
            "columns": "name",
        },
    ),
    "summary": (
        {"observations": points(300, 4, weight=np.arange(300)), "references": "dataset:zones"},
        {
            "question": "within",
            "distance_m": 0,
            "summary": '{"count": true, "weight": ["sum", "mean"]}',
            "summary_by": "reference",
            "columns": "zone",
        },
    ),
    "empty": (
        {"observations": points(5, 5), "references": points(2, 6)},
        {"max_distance_m": 1, "how": "inner"},
    ),
    "interrupted": (
        {"observations": with_invalid_rows(points(8192, 7), 5, 8000), "references": grid()},
        {"k": 2, "algorithm": "brute", "observation_columns": "id", "on_invalid": "null"},
    ),
    "waiting": (
        {"observations": points(100, 8), "references": "dataset:places"},
        {"k": 1, "columns": "name"},
    ),
}
"""Sets and options of each job; a text is the name of a dataset."""
FINISHED_JOBS = ("nearest", "pairs", "summary", "empty")


@contextlib.contextmanager
def running_service(checkout, data_dir, workers, number=signal.SIGTERM):
    """Run the service of a checkout, and end its process group with a signal."""
    log = data_dir.parent / f"{data_dir.name}.log"
    command = [sys.executable, "-m", "georesolve", "serve", "--data-dir", data_dir, *FLAGS]
    command += ["--workers", str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=checkout, env=environment, process_group=0
        )
    try:
        pattern = r"http://127\.0\.0\.1:\d+"
        wait_until(lambda: re.search(pattern, log.read_text()), START_SECONDS)
        url = re.search(pattern, log.read_text())[0]
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_until(lambda: client.get("/readyz").is_success, START_SECONDS)
            yield client
    finally:
        os.killpg(process.pid, number)
        process.wait()


def wait_until(condition, seconds, pause=0.1):
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition did not hold within {seconds} s")
        time.sleep(pause)


def create_key(checkout, data_dir):
    """Return a new API key of a data folder, as an administrator makes one."""
    command = [sys.executable, "-m", "georesolve", "keys", "create", "fixture"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command += ["--data-dir", data_dir]
    output = subprocess.run(
        command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
    return output.stdout.strip()


def register(client, name, content, media_type, **options):
    """Register a dataset with a name."""
    headers = {"Content-Type": media_type}
    answer = client.put(f"/datasets/{name}", content=content, headers=headers, params=options)
    answer.raise_for_status()


def start_job(client, name):
    """Start a job, and return its id."""
    sets, options = JOBS[name]
    files = {
        role: (None, source) if isinstance(source, str) else (f"{role}.parquet", parquet(source))
        for role, source in sets.items()
    }
    headers = {"Prefer": "respond-async", "Idempotency-Key": f"fixture-{name}"}
    answer = client.post("/resolve", params=options, files=files, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def wait_for_result(client, id):
    """Wait for the end of a job, and return the Parquet file of its result."""
    info = {}

    def has_ended():
        info.update(client.get(f"/jobs/{id}").raise_for_status().json())
        return info["status"] not in ("accepted", "running")

    wait_until(has_ended, JOB_SECONDS)
    assert info["status"] == "successful", info
    return client.get(f"/jobs/{id}/results").raise_for_status().content


def describe_result(content):
    """Return the digest of a result, and its rows by column; of many rows a digest alone."""
    table = pq.read_table(io.BytesIO(content))
    schema = {field.name: str(field.type) for field in table.schema}
    description = {"sha256": hashlib.sha256(content).hexdigest(), "schema": schema}
    columns = json.dumps(table.to_pydict())
    if table.num_rows > 1000:
        digest = hashlib.sha256(columns.encode()).hexdigest()
        return {**description, "n_rows": table.num_rows, "columns_sha256": digest}
    return {**description, "columns": json.loads(columns)}


def workers_of_completed_chunks(data_dir, id):
    """Return the name of the worker of each completed chunk of a job."""
    records = (data_dir / "jobs" / id / "records").glob("[0-9]*.json")
    return [json.loads(path.read_bytes())["worker"] for path in records]


def fill(checkout, data_dir):
    """Fill a data folder, kill its service at work, and return the expected answers."""
    key = create_key(checkout, data_dir)
    # Two workers now, one later: the report of the interrupted job tells by the name of the second
    # worker that its chunks were not computed again.
    with running_service(checkout, data_dir, 2, signal.SIGKILL) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        register(client, "places", parquet(places(500)), PARQUET)
        register(client, "places", parquet(places(600)), PARQUET)
        # A metre, the default, would make the index of the zones large.
        register(client, "zones", zones(), "application/geo+json", densify_m=100)
        datasets = {}
        for name in ("places", "places@1", "zones"):
            content = client.get(f"/datasets/{name}/data.parquet").raise_for_status().content
            datasets[name] = hashlib.sha256(content).hexdigest()
        jobs = {}
        for name in FINISHED_JOBS:
            id = start_job(client, name)
            jobs[name] = {"id": id, **describe_result(wait_for_result(client, id))}
        answers = {path: client.get(path).raise_for_status().json() for path in ANSWERS}
        for name in ("interrupted", "waiting"):
            jobs[name] = {"id": start_job(client, name)}

        def is_halfway():
            workers = workers_of_completed_chunks(data_dir, jobs["interrupted"]["id"])
            return workers.count("1") >= MIN_CHUNKS

        wait_until(is_halfway, JOB_SECONDS, pause=0.005)
    n_completed = len(workers_of_completed_chunks(data_dir, jobs["interrupted"]["id"]))
    if n_completed > MAX_CHUNKS:
        raise RuntimeError(f"{n_completed} chunks are complete, at most {MAX_CHUNKS}: run again")
    return {"key": key, "datasets": datasets, "jobs": jobs, "answers": answers}


def resume(checkout, data_dir, expected):
    """Let the service of the same checkout end the jobs, and add their results."""
    with running_service(checkout, data_dir, 1) as client:
        client.headers["Authorization"] = f"Bearer {expected['key']}"
        for name in ("interrupted", "waiting"):
            job = expected["jobs"][name]
            job |= describe_result(wait_for_result(client, job["id"]))
        job = expected["jobs"]["interrupted"]
        report = client.get(f"/jobs/{job['id']}/report").raise_for_status().json()
        job["chunks_by_worker"] = report["chunks_by_worker"]
        expected["version"] = report["versions"]["georesolve"]


def main(checkout):
    """Write the archive and the expected answers of a checkout."""
    git = ["git", "-C", checkout, "rev-parse", "--short=8", "HEAD"]
    revision = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    archive = Path(f"data_{revision}.tar.xz")
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        expected = {"revision": revision} | fill(checkout, data_dir)
        # The members of a killed group end some moments later than its leader.
        time.sleep(2)
        with tarfile.open(archive, "w:xz", preset=9) as file:
            file.add(data_dir, "data", filter=portable_member)
        with tarfile.open(archive) as file:
            file.extractall(Path(folder) / "copy", filter="data")
        resume(checkout, Path(folder) / "copy" / "data", expected)
    # One line for each list keeps the file short and its changes readable.
    text = json.dumps(expected, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
    Path("expected.json").write_text(f"{text}\n")


def portable_member(member):
    """Return a member of the archive without its owner; None leaves out named pipes."""
    if member.isfifo():
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
