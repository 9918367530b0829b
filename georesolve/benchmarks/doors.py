"""What the doors of one machine cost beyond the kernels that they open to.

    python -m georesolve.benchmarks.doors [--repeats N] [--toy] [--json FILE]

Three pairs, which take turns of changing order. A call of `georesolve.nearest` on frames of pandas,
2^20 x 2^14, beside `build_index` and `nearest` of the kernels on arrays. `georesolve nearest` from
Parquet to Parquet, 2^22 observations and the places of `samples/`, beside `bare_script.py`: a
process each, all that they import included. And a process whose one call searches 2^10 points,
beside one that does the same with the kernels alone. Machine code is compiled before.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import georesolve
from georesolve import kernels
from georesolve.benchmarks.inputs import Pair, uniform
from georesolve.benchmarks.machine import benchmark_parser, machine, write_figures

ROOT = Path(__file__).resolve().parents[2]
_DRAWN = """
import numpy as np
draw = np.random.default_rng(1)
sets = [(draw.uniform(-80, 80, 2**10), draw.uniform(-180, 180, 2**10)) for _ in "or"]
"""
_FIRST_CALL = _DRAWN + "import georesolve; georesolve.nearest(*sets)"
_FIRST_SEARCH = _DRAWN + (
    "from georesolve import kernels; kernels.nearest(kernels.build_index(*sets[1]), *sets[0])"
)

Turns = dict[str, Callable[[], object]]


def call_on_frames(log_m: int, log_n: int) -> Turns:
    """A call on frames of pandas, and the kernels on the arrays that they hold."""
    rng = np.random.default_rng(7)
    sets = [uniform(rng, 2**log) for log in (log_m, log_n)]
    frames = [pd.DataFrame({"lat": lat, "lon": lon}) for lat, lon in sets]
    return {
        "georesolve.nearest on frames": lambda: georesolve.nearest(*frames),
        "kernels on arrays": lambda: kernels.nearest(kernels.build_index(*sets[1]), *sets[0]),
    }


def files_to_a_file(folder: Path, log_m: int, log_n: int | None) -> Turns:
    """The command and the bare script."""
    places = pq.read_table(ROOT / "samples" / "places.parquet", columns=["lat", "lon"])
    drawn = None if log_n is None else uniform(np.random.default_rng(8), 2**log_n)
    observations = _write(uniform(np.random.default_rng(7), 2**log_m), folder / "o.parquet")
    degrees = tuple(column.to_numpy() for column in places.columns)
    references = _write(drawn or degrees, folder / "r.parquet")
    sets = [str(observations), str(references)]
    command = ["-m", "georesolve", "nearest", *sets, "-o", str(folder / "n.parquet"), "--quiet"]
    bare = ["-m", "georesolve.benchmarks.bare_script", *sets, str(folder / "b.parquet")]
    return {
        "georesolve nearest, files to a file": lambda: _run(command),
        "bare script": lambda: _run(bare),
    }


def _write(degrees: Pair, path: Path) -> Path:
    pq.write_table(pa.table(dict(zip(("lat", "lon"), degrees, strict=True))), path)
    return path


def first_call() -> Turns:
    """Processes that search once."""
    return {
        "first georesolve.nearest": lambda: _run(["-c", _FIRST_CALL]),
        "first search of the kernels": lambda: _run(["-c", _FIRST_SEARCH]),
        "georesolve --help": lambda: _run(["-m", "georesolve", "--help"]),
    }


def _run(arguments: list[str]) -> None:
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=dict(os.environ)
    )


def measure(turns: Turns, repeats: int) -> dict[str, list[float]]:
    """Seconds of each, in turns of changing order, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(repeats + 1):
        for name in random.sample(list(turns), len(turns)):
            start = time.perf_counter()
            turns[name]()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Take all turns, and print a table."""
    parser = benchmark_parser(__doc__, repeats=9, toy=True)
    given = parser.parse_args()
    figures: dict[str, Any] = {"machine": machine(["pandas"])}
    with tempfile.TemporaryDirectory() as name:
        pairs = [
            call_on_frames(*((10, 6) if given.toy else (20, 14))),
            files_to_a_file(Path(name), *((10, 6) if given.toy else (22, None))),
            first_call(),
        ]
        print("| | median s | least and largest | times the second, median and least |")
        print("|---|---|---|---|")
        for turns in pairs:
            seconds = measure(turns, given.repeats)
            figures |= seconds
            base = seconds[list(turns)[1]]
            for way, taken in seconds.items():
                ratios = [
                    statistics.median(taken) / statistics.median(base),
                    min(taken) / min(base),
                ]
                print(
                    f"| {way} | {statistics.median(taken):.3f} | {min(taken):.3f} to "
                    f"{max(taken):.3f} | {ratios[0]:.2f}, {ratios[1]:.2f} |"
                )
    write_figures(given.json, figures)


if __name__ == "__main__":
    main()
