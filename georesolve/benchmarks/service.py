"""One job through a service of its own, over HTTP, with the time of every stage.

    python -m georesolve.benchmarks.service --device cpu --observations 20 --references 14 --runs 5

The sets have 2^OBSERVATIONS and 2^REFERENCES points, uniform on the sphere, as Parquet. Each run
posts both files, waits, and downloads the result; the first one is reported apart, as cold. With
``--samples`` the airports are resolved against the places instead.
"""

import hashlib
import io
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.benchmarks.inputs import Pair, uniform
from georesolve.benchmarks.machine import benchmark_parser, write_figures

ROOT = Path(__file__).resolve().parents[2]


class Done(NamedTuple):
    """A job that was successful: its statusInfo, its result, and the seconds its client saw."""

    job: dict[str, Any]
    content: bytes
    seconds: dict[str, float]


def sphere(n: int, seed: int) -> bytes:
    """Points uniform on the sphere, as a Parquet file."""
    return parquet(uniform(np.random.default_rng(seed), n))


def parquet(points: Pair) -> bytes:
    """Points as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.table(dict(zip(("lat", "lon"), points, strict=True))), sink)
    return sink.getvalue()


@contextmanager
def running(device: str, data_dir: Path, log: Path, *flags: str) -> Iterator[httpx.Client]:
    """A service of one's own, that is ready."""
    process, client = start(device, data_dir, log, *flags)
    try:
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(60)


def front_processes() -> list[psutil.Process]:
    """The processes that answer requests, of all services that this one runs."""
    children = psutil.Process().children(recursive=True)
    return [one for one in children if one.name().startswith("front")]


def start(
    device: str, data_dir: Path, log: Path, *flags: str
) -> tuple[subprocess.Popen[bytes], httpx.Client]:
    """Start a service and wait until it is ready."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "georesolve", "serve", "--port", "0"),
                *("--device", device, "--data-dir", str(data_dir)),
                *("--dashboard-address", "127.0.0.1:0", *flags),
            ],
            stdout=sink,
            stderr=sink,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        for _ in range(1200):
            words = log.read_text().split()
            urls = [word for word in words if word.startswith("http://127.0.0.1:")]
            if urls and httpx.get(f"{urls[0]}/readyz", timeout=60).status_code == 200:
                return process, httpx.Client(base_url=urls[0], timeout=600)
            if process.poll() is not None:
                break
            time.sleep(0.1)
    except BaseException:
        process.kill()
        raise
    process.kill()
    sys.exit(f"the service did not start:\n{log.read_text()}")


def whole_job(client: httpx.Client, observations: bytes | str, references: bytes | str) -> Done:
    """One job from the first byte sent to the last received, of files or of registered datasets."""
    begin = time.perf_counter()
    job, seconds = until_successful(client, observations, references)
    successful = time.perf_counter()
    content = client.get(f"/jobs/{job['id']}/results").raise_for_status().content
    end = time.perf_counter()
    return Done(job, content, {"total": end - begin, **seconds, "send": end - successful})


def until_successful(
    client: httpx.Client, observations: bytes | str, references: bytes | str
) -> tuple[dict[str, Any], dict[str, float]]:
    """One job up to its result: its statusInfo, and the seconds that its client saw."""
    begin = time.perf_counter()
    files = {
        # As a file: of bytes in one piece httpx copies what is left for each piece that it sends.
        name: (f"{name}.parquet", io.BytesIO(points))
        if isinstance(points, bytes)
        else (None, points)
        for name, points in (("observations", observations), ("references", references))
    }
    answer = client.post("/resolve", files=files, headers={"Prefer": "respond-async"})
    answer.raise_for_status()
    accepted = time.perf_counter()
    path = f"/jobs/{answer.json()['id']}"
    # Told when it ends, and not asked again and again, which takes time from who does the work.
    with client.stream("GET", f"{path}/events") as events:
        for _ in events.iter_lines():
            pass
    job = client.get(path).raise_for_status().json()
    if job["status"] != "successful":
        sys.exit(f"the job is {job['status']}: {job['message']}")
    successful = time.perf_counter()
    return job, {"accept": accepted - begin, "accepted_to_successful": successful - accepted}


def run(client: httpx.Client, observations: bytes | str, references: bytes | str) -> dict[str, Any]:
    """The report of one whole job, with what its client saw, and no trace of it left."""
    done = whole_job(client, observations, references)
    report: dict[str, Any] = client.get(f"/jobs/{done.job['id']}/report").json()
    report["sha256"] = hashlib.sha256(done.content).hexdigest()
    client.delete(f"/jobs/{done.job['id']}")
    report["seconds"] |= done.seconds
    return report


def main() -> None:
    """Run the benchmark and print its table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--observations", type=int, default=20, help="power of two")
    parser.add_argument("--references", type=int, default=14, help="power of two")
    parser.add_argument("--samples", action="store_true", help="airports x places instead")
    parser.add_argument("--runs", type=int, default=5, help="runs after the cold one")
    options = parser.parse_args()
    if options.samples:
        files = [(ROOT / "samples" / f"{n}.parquet").read_bytes() for n in ("airports", "places")]
    else:
        files = [sphere(1 << options.observations, 1), sphere(1 << options.references, 2)]
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        with running(options.device, where / "data", where / "log") as client:
            checks = {c["name"]: c["detail"] for c in client.get("/readyz").json()["checks"]}
            dashboard = httpx.get(checks["dashboard"]).status_code
            cold, *warm = [run(client, *files) for _ in range(1 + options.runs)]
    checksums = {report["sha256"] for report in (cold, *warm)}
    if len(checksums) != 1:
        sys.exit(f"the runs differ: {checksums}")
    name = "airports x places" if options.samples else "2^{0.observations} x 2^{0.references}"
    print(
        f"{name.format(options)} on {checks['device']}, {checks['workers']}, {platform.machine()}"
    )
    print(f"sha256 {cold['sha256']}, counts {cold['counts']}")
    print(f"chunks by worker {cold['chunks_by_worker']}; the dashboard answers {dashboard}")
    print(f"{'stage':<24}{'cold s':>10}{'median s':>10}{'min s':>10}{'max s':>10}")
    for stage, value in cold["seconds"].items():
        values = [report["seconds"][stage] for report in warm] or [value]
        row = (value, statistics.median(values), min(values), max(values))
        print(f"{stage:<24}" + "".join(f"{v:>10.4f}" for v in row))
    write_figures(options.json, {"cold": cold, "warm": warm})


if __name__ == "__main__":
    main()
