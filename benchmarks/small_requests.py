"""Small requests against a registered set, over HTTP: latency alone and under load, by stage.

    python -m georesolve.benchmarks.small_requests --device cpu --references 100000 --clients 200

First one client asks one request after the other, then many at the same time; each asks for the
nearest references of arrays of observations as JSON. `http` is what the service does nothing in:
the answer of ``/livez``, the same client and connection.
"""

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from georesolve.benchmarks.service import running, sphere


def body_of(rows: int, seed: int, dataset: str) -> bytes:
    """A request: points uniform on the sphere as JSON arrays against a registered set."""
    random = np.random.default_rng(seed)
    lat = np.degrees(np.arcsin(random.uniform(-1, 1, rows)))
    points = {"lat": lat.tolist(), "lon": random.uniform(-180, 180, rows).tolist()}
    return json.dumps({"observations": points, "references": f"dataset:{dataset}"}).encode()


def alone(client: httpx.Client, body: bytes, requests: int) -> dict[str, Any]:
    """One request after the other: milliseconds as the client sees them, and by stage."""
    for _ in range(20):
        ask(client, body)
    stages: dict[str, list[float]] = {"http": [], "total": []}
    for _ in range(requests):
        begin = time.perf_counter()
        client.get("/livez")
        at_request = time.perf_counter()
        response = ask(client, body)
        end = time.perf_counter()
        stages["http"].append(1e3 * (at_request - begin))
        stages["total"].append(1e3 * (end - at_request))
        for timing in response.headers["server-timing"].split(", "):
            name, _, milliseconds = timing.partition(";dur=")
            stages.setdefault(name, []).append(float(milliseconds))
    return {
        name: {
            "min": min(values),
            "p50": statistics.median(values),
            "p99": float(np.percentile(values, 99)),
        }
        for name, values in stages.items()
    }


def ask(client: httpx.Client, body: bytes) -> httpx.Response:
    """One request."""
    headers = {"Content-Type": "application/json"}
    return client.post("/nearest", content=body, headers=headers).raise_for_status()


async def together(url: str, bodies: list[bytes], clients: int, requests: int) -> dict[str, Any]:
    """Many clients at the same time, each with one request after the other."""
    milliseconds: list[float] = []
    statuses: Counter[int] = Counter()
    waiting = iter(range(requests))
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def one_client() -> None:
            for i in waiting:
                begin = time.perf_counter()
                response = await client.post(
                    "/nearest",
                    content=bodies[i % len(bodies)],
                    headers={"Content-Type": "application/json"},
                )
                milliseconds.append(1e3 * (time.perf_counter() - begin))
                statuses[response.status_code] += 1

        begin = time.perf_counter()
        await asyncio.gather(*(one_client() for _ in range(clients)))
        seconds = time.perf_counter() - begin
    return {
        "clients": clients,
        "statuses": dict(statuses),
        "requests_a_second": requests / seconds,
        "p50": statistics.median(milliseconds),
        "p99": float(np.percentile(milliseconds, 99)),
    }


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--references", type=int, default=100_000, help="points registered")
    parser.add_argument("--rows", type=int, default=1_000, help="observations a request")
    parser.add_argument("--requests", type=int, default=400, help="requests alone")
    parser.add_argument("--clients", type=int, default=200, help="clients at the same time")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures: dict[str, Any] = {"references": options.references, "rows": options.rows}
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        with running(options.device, where / "data", where / "log") as client:
            made = client.post(
                "/datasets",
                content=sphere(options.references, 1),
                headers={"Content-Type": "application/vnd.apache.parquet"},
            )
            dataset = made.raise_for_status().json()["id"]
            bodies = [body_of(options.rows, seed, dataset) for seed in range(16)]
            figures["alone"] = alone(client, bodies[0], options.requests)
            figures["one observation"] = alone(client, body_of(1, 99, dataset), options.requests)
            url = str(client.base_url)
            loads = sorted({1, 8, options.clients})
            figures["together"] = [
                asyncio.run(together(url, bodies, clients, max(200, 10 * clients)))
                for clients in loads
            ]
    print(f"{options.device}, {platform.machine()}: {options.references} references, milliseconds")
    for name in ("alone", "one observation"):
        print(f"\n{name:<24}{'min':>10}{'p50':>10}{'p99':>10}")
        for stage, row in figures[name].items():
            print(f"{stage:<24}" + "".join(f"{value:>10.2f}" for value in row.values()))
    print(f"\n{'clients':<10}{'requests/s':>12}{'p50':>10}{'p99':>10}  statuses")
    for row in figures["together"]:
        print(
            f"{row['clients']:<10}{row['requests_a_second']:>12.0f}{row['p50']:>10.1f}"
            f"{row['p99']:>10.1f}  {row['statuses']}"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
