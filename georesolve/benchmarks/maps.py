"""How long the first picture of a result takes, and its tiles after that, over HTTP.

    python -m georesolve.benchmarks.maps --rows 24

A job resolves 2^ROWS points against 2^14. Then a client asks for the tile of the whole world, which
makes the map, and follows a path of zooming in and panning, 12 tiles a view, one after the other.
Before that it asks for the tile of another job, of 2^14 points: that one finds nothing compiled or
loaded in a service that has just started.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.benchmarks.inputs import uniform
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.benchmarks.service import front_processes, running

_REFERENCES = 14
_WRITTEN = 1 << 22
"""Points that are drawn at a time."""
_VIEW = (4, 3)
"""Columns and rows of tiles that fill a window."""


def register(client: httpx.Client, path: Path, rows: int, seed: int) -> str:
    """Register points as a dataset; returns its id."""
    rng = np.random.default_rng(seed)
    schema = pa.schema({"lat": pa.float64(), "lon": pa.float64()})
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, _WRITTEN):
            columns = uniform(rng, min(_WRITTEN, rows - start))
            writer.write_table(pa.table([pa.array(one) for one in columns], schema))
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    with path.open("rb") as file:
        answer = client.post("/datasets", content=file, headers=headers)
    return str(answer.raise_for_status().json()["id"])


def finished(client: httpx.Client, sets: dict[str, str]) -> str:
    """Run a job to its end; returns its path."""
    inputs = {role: {"dataset": id} for role, id in sets.items()}
    answer = client.post(
        "/processes/nearest/execution", json={"inputs": inputs}, headers={"Prefer": "respond-async"}
    )
    job = str(answer.raise_for_status().headers["location"])
    while (status := client.get(job).json()["status"]) in ("accepted", "running"):
        time.sleep(0.1)
    assert status == "successful", status
    return job


def path_of(most_zoom: int) -> list[tuple[int, int, int]]:
    """Tiles of views on a way in to a place and along it, without the first one."""
    x, y, tiles = 0.52, 0.35, []
    for z in range(1, most_zoom + 1):
        for step in (0.0, 1.0):
            left, top = int(x * 2**z + step), int(y * 2**z)
            tiles += [
                (z, (left + i) % 2**z, min(top + j, 2**z - 1))
                for i in range(_VIEW[0])
                for j in range(_VIEW[1])
            ]
    return list(dict.fromkeys(tiles))


def seconds_of(client: httpx.Client, path: str) -> float:
    """How long an answer takes."""
    start = time.perf_counter()
    client.get(path).raise_for_status()
    return time.perf_counter() - start


def _cpu_seconds() -> float:
    """Of all fronts so far."""
    return sum(sum(one.cpu_times()[:2]) for one in front_processes())


def _memory_bytes() -> int:
    """Memory of all fronts that no file backs."""
    total = 0
    for one in front_processes():
        for line in Path(f"/proc/{one.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1]) << 10
    return total


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """The most memory that the fronts have, in bytes, read a hundred times a second."""
    peak, ended = [_memory_bytes()], Event()

    def look() -> None:
        while not ended.wait(0.01):
            peak[0] = max(peak[0], _memory_bytes())

    thread = Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def measure(client: httpx.Client, folder: Path, rows: int, zoom: int) -> dict[str, Any]:
    """Every time in seconds, and the memory of the fronts in bytes."""
    sets = {
        "observations": register(client, folder / "points", 1 << rows, 1),
        "references": register(client, folder / "points", 1 << _REFERENCES, 2),
    }
    (folder / "points").unlink()
    small = finished(client, {**sets, "observations": sets["references"]})
    cold = seconds_of(client, f"{small}/tiles/0/0/0.png")
    job = finished(client, sets)
    before_bytes, before_cpu = _memory_bytes(), _cpu_seconds()
    with _peak_memory() as peak:
        first = seconds_of(client, f"{job}/tiles/0/0/0.png")
    cpu = _cpu_seconds() - before_cpu
    tiles = path_of(zoom)
    found: dict[str, Any] = {
        kind: [seconds_of(client, f"{job}/tiles/{z}/{x}/{y}.{kind}") for z, x, y in tiles]
        for kind in ("png", "geojson")
    }
    memory = {"before": before_bytes, "peak": peak[0], "after": _memory_bytes()}
    return {"rows": rows, "cold": cold, "first": first, "cpu": cpu, **found, "memory_bytes": memory}


def main() -> None:
    """Run the benchmark and print its table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the job")
    parser.add_argument("--rows", type=int, default=22, help="power of two")
    parser.add_argument("--zoom", type=int, default=12, help="how far the path leads in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(options.device, folder / "data", folder / "log") as client:
            report = measure(client, folder, options.rows, options.zoom)
    print(f"2^{_REFERENCES} rows in a new service: first picture {report['cold']:.2f} s")
    print(
        f"2^{options.rows} rows: first picture {report['first']:.2f} s, {report['cpu']:.1f} CPU s"
    )
    for kind in ("png", "geojson"):
        ms = np.array(report[kind]) * 1e3
        middle, high = np.percentile(ms, [50, 95])
        times = f"p50 {middle:.0f} ms, p95 {high:.0f} ms, most {ms.max():.0f} ms"
        print(f"{kind:<8} {ms.size} tiles: {times}")
    sizes = (f"{size >> 20} MiB {when}" for when, size in report["memory_bytes"].items())
    print(f"memory of the fronts that no file backs: {', '.join(sizes)}")
    write_figures(options.json, report)


if __name__ == "__main__":
    main()
