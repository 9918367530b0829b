"""How long the first picture of a result takes, and its tiles after that, over HTTP.

    python -m georesolve.benchmarks.maps --rows 24

A job resolves 2^ROWS points against 2^14. Then a client asks for the tile of the whole world, which
makes the map, and follows a path of zooming in and panning, 12 tiles a view, one after the other.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.benchmarks.inputs import uniform
from georesolve.benchmarks.machine import machine
from georesolve.benchmarks.service import running

_REFERENCES = 14
_VIEW = (4, 3)
"""Columns and rows of tiles that fill a window."""


def register(client: httpx.Client, path: Path, rows: int, seed: int) -> str:
    """Register points as a dataset; returns its id."""
    lat, lon = uniform(np.random.default_rng(seed), rows)
    pq.write_table(pa.table({"lat": lat, "lon": lon}), path)
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


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=22, help="power of two")
    parser.add_argument("--zoom", type=int, default=12, help="how far the path leads in")
    parser.add_argument("--json", type=Path, help="write every time to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running("cpu", folder / "data", folder / "log", "--workers", "1") as client:
            sets = {
                "observations": register(client, folder / "points", 1 << options.rows, 1),
                "references": register(client, folder / "points", 1 << _REFERENCES, 2),
            }
            # Another job has the code compiled, and the pictures' libraries loaded.
            client.get(
                f"{finished(client, {**sets, 'observations': sets['references']})}/tiles/0/0/0.png"
            )
            job = finished(client, sets)
            first = seconds_of(client, f"{job}/tiles/0/0/0.png")
            tiles = path_of(options.zoom)
            pictures = [seconds_of(client, f"{job}/tiles/{z}/{x}/{y}.png") for z, x, y in tiles]
            features = [seconds_of(client, f"{job}/tiles/{z}/{x}/{y}.geojson") for z, x, y in tiles]
            memory = sum(_memory_bytes().values())
    print(f"2^{options.rows} rows: first picture {first:.2f} s, then {len(tiles)} tiles")
    for what, seconds in (("png", pictures), ("geojson", features)):
        middle, high = np.percentile(seconds, [50, 95]) * 1e3
        print(f"{what:<8} p50 {middle:.0f} ms, p95 {high:.0f} ms, most {max(seconds) * 1e3:.0f} ms")
    print(f"fronts hold {memory / 2**20:.0f} MiB of their own")
    if options.json:
        report = {"first": first, "png": pictures, "geojson": features, "machine": machine()}
        options.json.write_text(json.dumps(report, indent=1))


def _memory_bytes() -> dict[int, int]:
    """Memory of the fronts below this process that no file backs, by process."""
    return {
        one.pid: one.memory_full_info().uss
        for one in psutil.Process().children(recursive=True)
        if one.name().startswith("front")
    }


if __name__ == "__main__":
    main()
