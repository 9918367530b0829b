"""Resolve the samples through a service of one's own, with plain HTTP, and show what came out.

Exits with 0 only if the job was successful, every row is accounted for, and the rows shown agree
with a search of all places by the haversine formula.
"""

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pyarrow.parquet as pq

HERE = Path(__file__).parent
OUT = HERE.parent / ".demo"
SHOWN = 10
READY_SECONDS = 300
TOLD_SECONDS = 8
"""After so long it is told what the service waits for."""
JOB_SECONDS = 300


def request(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> bytes:
    """One HTTP request; ends the demo with the problem that the service reports."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, named, method=method), timeout=60
        ) as answer:
            content: bytes = answer.read()
            return content
    except HTTPError as error:
        sys.exit(f"{method} {url}: {error.read().decode()}")


def ask(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Any:
    """One HTTP request whose answer is JSON."""
    return json.loads(request(url, method, body, **headers))


def wait_until_ready(url: str, service: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Wait for the workers to pass their check; returns the checks of /readyz."""
    begun, told = time.monotonic(), False
    while time.monotonic() < begun + READY_SECONDS and service.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
                checks: list[dict[str, Any]] = json.load(answer)["checks"]
                return checks
        except OSError as error:
            is_late = time.monotonic() > begun + TOLD_SECONDS
            if is_late and not told and isinstance(error, HTTPError):
                told = True
                for check in json.load(error)["checks"]:
                    if not check["ok"]:
                        print(f"  waiting for {check['name']}: {check['detail']}", flush=True)
            time.sleep(0.2)
    what = "ended" if service.poll() is not None else f"was not ready within {READY_SECONDS} s"
    sys.exit(f"the service {what}; its log is {OUT / 'log'}")


def resolve(url: str) -> tuple[dict[str, Any], bytes]:
    """Register both sample sets, run the job, wait; returns its report and its result."""
    ids = {}
    for role, name in (("observations", "airports"), ("references", "places")):
        content = (HERE / f"{name}.parquet").read_bytes()
        dataset = ask(
            f"{url}/datasets", "POST", content, Content_Type="application/vnd.apache.parquet"
        )
        print(f"  {role}: {dataset['rows']} {name} as dataset {dataset['id']}")
        ids[role] = {"dataset": dataset["id"]}
    options = {"columns": ["name", "country"], "observation_columns": ["name"]}
    job = ask(
        f"{url}/processes/nearest/execution",
        "POST",
        json.dumps({"inputs": {**ids, **options}}).encode(),
        Content_Type="application/json",
        Prefer="respond-async",
    )
    deadline = time.monotonic() + JOB_SECONDS
    while job["status"] in ("accepted", "running"):
        if time.monotonic() > deadline:
            sys.exit(f"the job took longer than {JOB_SECONDS} s: {job['message']}")
        time.sleep(0.1)
        job = ask(f"{url}/jobs/{job['id']}")
    if job["status"] != "successful":
        sys.exit(f"the job is {job['status']}: {job['message']}")
    return ask(f"{url}/jobs/{job['id']}/report"), request(f"{url}/jobs/{job['id']}/results")


def haversine_km(lat: float, lon: float, lats: np.ndarray, lons: np.ndarray) -> np.ndarray:
    """Distances from one point to many, in km, the textbook way."""
    p, q = math.radians(lat), np.radians(lats)
    a = np.sin((q - p) / 2) ** 2
    a += math.cos(p) * np.cos(q) * np.sin(np.radians(lons - lon) / 2) ** 2
    return 2 * 6371.0088 * np.arcsin(np.sqrt(a))


def show(result: Path, report: dict[str, Any]) -> None:
    """Print ten rows, checked, the counts and the timings; ends the demo if a row is wrong."""
    matches = pq.read_table(result).to_pylist()
    airports = pq.read_table(HERE / "airports.parquet").to_pylist()
    places = pq.read_table(HERE / "places.parquet")
    lats, lons = places["lat"].to_numpy(), places["lon"].to_numpy()
    if len(matches) != len(airports) or sum(report["counts"].values()) != len(airports):
        sys.exit(f"{len(airports)} observations but {len(matches)} result rows")
    print(f"\n{'airport':<44}{'nearest place':<36}{'km':>9}")
    for row in range(SHOWN // 2, len(airports), len(airports) // SHOWN)[:SHOWN]:
        match, airport = matches[row], airports[row]
        distances = haversine_km(airport["lat"], airport["lon"], lats, lons)
        nearest = int(distances.argmin())
        km = match["distance_m"] / 1000
        if match["reference"] != nearest or abs(km - distances[nearest]) > 1e-6:
            sys.exit(f"row {row}: {match} but the nearest is {nearest} at {distances[nearest]} km")
        airport_name = f"{match['observation_id']} {match['observation_name']}"
        place_name = f"{match['reference_name']}, {match['reference_country']}"
        print(f"{airport_name[:42]:<44}{place_name[:34]:<36}{km:>9.3f}")
    print("\ncounts by status:", ", ".join(f"{k} {v}" for k, v in report["counts"].items()))
    print("seconds by stage:", ", ".join(f"{k} {v:.3f}" for k, v in report["seconds"].items()))
    print(f"computed on: {report['device']}, chunks by worker {report['chunks_by_worker']}")


def main() -> None:
    """Run the demo."""
    OUT.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory(prefix="georesolve-demo-") as data_dir,
        (OUT / "log").open("wb") as log,
    ):
        serve = [sys.executable, "-m", "georesolve", "serve", "--port", str(port)]
        service = subprocess.Popen(
            [*serve, "--data-dir", data_dir],
            stdout=log,
            stderr=log,
            cwd=HERE.parent,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            print(f"The service starts at {url} (API: {url}/docs).")
            checks = {check["name"]: check["detail"] for check in wait_until_ready(url, service)}
            print(f"  workers: {checks['workers']}, on {checks['device']}")
            print(f"  Dask dashboard while it runs: {checks['dashboard']}")
            report, content = resolve(url)
            result = OUT / "matches.parquet"
            result.write_bytes(content)
            show(result, report)
        finally:
            service.terminate()
            try:
                service.wait(30)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()
    print(f"\nThe result is {result}.")
    print("To keep a service and its Dask dashboard (http://127.0.0.1:8787): make serve")


if __name__ == "__main__":
    main()
