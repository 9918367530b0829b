"""Small requests against a registered set, beside a bare FastAPI app: latency, and under load.

    python -m georesolve.benchmarks.small_requests --references 100000 --clients 64

`wrk` (of the Debian package of that name) posts observations as JSON to `/nearest` of the service
and to `benchmarks.bare_app`, in turns of a few seconds in shuffled order, as one client and as
many. Both answer in Parquet, the service also where its set is called by a name; one client asks it
for other formats, too. `cpu` is the
processor time of a request, which a busy machine changes least. Then the service
is asked alone, by stage: `http` is what it does nothing in, the answer of ``/livez``.
"""

import io
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa

from georesolve.benchmarks.inputs import uniform
from georesolve.benchmarks.machine import benchmark_parser, machine, write_figures
from georesolve.benchmarks.service import ROOT, front_processes, running, sphere
from georesolve.io.result_formats import ARROW, JSON, PARQUET, Format

_BODIES = 16
"""Different requests that are sent in turn."""
_SCRIPT = """\
local bodies, at = {}, 0
init = function()
  for i = 1, %(bodies)d do
    local file = io.open(string.format("%(folder)s/%%d", i - 1), "rb")
    bodies[i] = wrk.format("POST", "%(path)s", %(headers)s, file:read("*a"))
    file:close()
  end
end
request = function()
  at = at %% #bodies + 1
  return bodies[at]
end
done = function(summary, latency)
  local failed = summary.errors
  print(string.format("FIGURES [%%d, %%d, %%d, %%d, %%d, %%d]", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), failed.status,
    failed.connect + failed.read + failed.write + failed.timeout))
end
"""


class Case(NamedTuple):
    """Requests that are sent to one address, and the processes that answer them."""

    by: list[psutil.Process]
    url: str
    path: str
    sends: Format
    accepts: Format
    bodies: tuple[bytes, ...]

    @property
    def headers(self) -> dict[str, str]:
        """Of each of them."""
        return {"Content-Type": self.sends.media_type, "Accept": self.accepts.media_type}

    def processor_seconds(self) -> float:
        """What its processes have taken of the cores so far."""
        return sum(sum(one.cpu_times()[:2]) for one in self.by)


def body_of(rows: int, seed: int, dataset: str) -> bytes:
    """A request: points uniform on the sphere as JSON arrays against a registered set."""
    lat, lon = uniform(np.random.default_rng(seed), rows)
    points = {"lat": lat.tolist(), "lon": lon.tolist()}
    return json.dumps({"observations": points, "references": f"dataset:{dataset}"}).encode()


def stream_of(rows: int, seed: int) -> bytes:
    """The same points as an Arrow stream."""
    lat, lon = uniform(np.random.default_rng(seed), rows)
    table = pa.table({"lat": lat, "lon": lon})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


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
    headers = {"Content-Type": JSON.media_type, "Accept": PARQUET.media_type}
    return client.post("/nearest", content=body, headers=headers).raise_for_status()


def drive(case: Case, clients: int, seconds: float) -> dict[str, float]:
    """Let `wrk` post for some seconds.

    Raises
    ------
    RuntimeError
        When an answer is not 200, or does not come.
    """
    with tempfile.TemporaryDirectory() as folder:
        for i, body in enumerate(case.bodies):
            (Path(folder) / f"{i}").write_bytes(body)
        script = Path(folder) / "post.lua"
        headers = ", ".join(f'["{name}"] = "{value}"' for name, value in case.headers.items())
        filled = {"bodies": len(case.bodies), "folder": folder, "path": case.path}
        script.write_text(_SCRIPT % {**filled, "headers": f"{{{headers}}}"})
        flags = ["-t1", f"-c{clients}", f"-d{seconds:g}s", "--timeout", "60s", "-s", str(script)]
        before = case.processor_seconds()
        done = subprocess.run(["wrk", *flags, case.url], capture_output=True, text=True)
        taken = case.processor_seconds() - before
    [line] = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")] or [""]
    if not line:
        raise RuntimeError(f"wrk failed: {done.stdout} {done.stderr}")
    requests, microseconds, p50, p99, refused, lost = json.loads(line.removeprefix("FIGURES "))
    if refused or lost or not requests:
        raise RuntimeError(
            f"of {requests} answers of {case.url} {refused} were no 200, {lost} lost"
        )
    return {
        "requests_a_second": requests / microseconds * 1e6,
        "p50": p50 / 1e3,
        "p99": p99 / 1e3,
        "processor_ms": taken / requests * 1e3,
    }


def warm_up(case: Case) -> None:
    """Send each request once; the first ones load the kernels and the index."""
    with httpx.Client(base_url=case.url, timeout=120, headers=case.headers) as client:
        for body in case.bodies:
            client.post(case.path, content=body).raise_for_status()


def in_turns(
    cases: dict[int, dict[str, Case]], rounds: int, seconds: float
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """The figures of all rounds: all cases once a round.

    Parameters
    ----------
    cases
        By number of clients, and by name; one client asks for all of them.
    """
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        f"{clients}": {name: [] for name in named} for clients, named in cases.items()
    }
    order = random.Random(1)
    for case in cases[1].values():
        warm_up(case)
    for _ in range(rounds):
        for clients, named in cases.items():
            for name in order.sample(list(named), len(named)):
                found[f"{clients}"][name].append(drive(named[name], clients, seconds))
    return found


@contextmanager
def bare_app(references: Path) -> Iterator[tuple[int, str]]:
    """The bare app in a process of its own; yields the number of that, and its address."""
    command = [sys.executable, "-m", "georesolve.benchmarks.bare_app", str(references), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--references", type=int, default=100_000, help="points registered")
    parser.add_argument("--rows", type=int, default=1_000, help="observations a request")
    parser.add_argument("--requests", type=int, default=400, help="requests alone")
    parser.add_argument("--clients", type=int, default=64, help="clients at the same time")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each under each load")
    parser.add_argument("--seconds", type=float, default=3, help="that a turn takes")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    figures: dict[str, Any] = {
        "machine": machine(("fastapi", "uvicorn", "pydantic")),
        "references": options.references,
        "rows": options.rows,
    }
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        points = sphere(options.references, 1)
        (where / "references.parquet").write_bytes(points)
        with (
            running(options.device, where / "data", where / "log") as client,
            bare_app(where / "references.parquet") as (pid, url),
        ):
            headers = {"Content-Type": PARQUET.media_type}
            made = client.put("/datasets/places", content=points, headers=headers)
            dataset = made.raise_for_status().json()["id"]
            bodies = tuple(body_of(options.rows, seed, dataset) for seed in range(_BODIES))
            named = tuple(body_of(options.rows, seed, "places") for seed in range(_BODIES))
            streams = tuple(stream_of(options.rows, seed) for seed in range(_BODIES))
            own = str(client.base_url).rstrip("/")
            query = f"/nearest?references=dataset:{dataset}"
            pair = {
                "bare app": Case([psutil.Process(pid)], url, "/nearest", JSON, PARQUET, bodies),
                "service": Case(front_processes(), own, "/nearest", JSON, PARQUET, bodies),
                "service, by name": Case(front_processes(), own, "/nearest", JSON, PARQUET, named),
            }
            others = {
                "service, JSON out": Case(front_processes(), own, "/nearest", JSON, JSON, bodies),
                "service, Arrow in and out": Case(
                    front_processes(), own, query, ARROW, ARROW, streams
                ),
            }
            cases = {options.clients: pair, 1: pair | others}
            figures["together"] = in_turns(cases, options.rounds, options.seconds)
            figures["alone"] = alone(client, bodies[0], options.requests)
            figures["one observation"] = alone(client, body_of(1, 99, dataset), options.requests)
    _print(figures)
    write_figures(options.json, figures)


def _print(figures: dict[str, Any]) -> None:
    print(f"{figures['rows']} observations x {figures['references']} references, milliseconds")
    names = "".join(f"{name:>8}" for name in ("p50", "p99", "cpu"))
    print(f"\n{'clients':<10}{'':<28}{'requests/s':>12}{'(least, most)':>18}{names}")
    for clients, cases in figures["together"].items():
        for name, turns in cases.items():
            rates = sorted(turn["requests_a_second"] for turn in turns)
            p50, p99, taken = (
                statistics.median(turn[one] for turn in turns)
                for one in ("p50", "p99", "processor_ms")
            )
            spread = f"({rates[0]:.0f}, {rates[-1]:.0f})"
            rate = statistics.median(rates)
            print(
                f"{clients:<10}{name:<28}{rate:>12.0f}{spread:>18}{p50:>8.2f}{p99:>8.2f}{taken:>8.2f}"
            )
        for name, figure in product(
            ("service", "service, by name"), ("requests_a_second", "p50", "processor_ms")
        ):
            pairs = zip(cases[name], cases["bare app"], strict=True)
            ratios = sorted(own[figure] / bare[figure] for own, bare in pairs)
            print(
                f"{clients:<10}{f'{name} / bare app, {figure}':<50}"
                f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
    for name in ("alone", "one observation"):
        print(f"\n{name:<24}{'min':>10}{'p50':>10}{'p99':>10}")
        for stage, row in figures[name].items():
            print(f"{stage:<24}" + "".join(f"{value:>10.2f}" for value in row.values()))


if __name__ == "__main__":
    main()
