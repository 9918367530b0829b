"""The two proximity questions of Apache SpatialBench, from files to file, beside SedonaDB.

    spatialbench-cli --scale-factor 1 --tables trip,building --output-dir sf1
    python benchmarks/spatialbench sf1 [--sedonadb PYTHON] [--repeats N] [--json FILE]

Q8 counts the pickups within 500 m of each building, Q12 finds the five nearest buildings of each
pickup; columns and sorting are those of the suite. Theirs are on a plane of degrees, where 500 m
are 0.0045 degrees; ours are on the globe. A script for each way stands beside this file. It is run
twice by a process, which starts anew for each turn: the second run is timed, when libraries and
compiled code are loaded, by the clock and in seconds of its processors, which others that run on
the machine lengthen less. All write zstd of level 1. `--sedonadb` is a Python that has sedonadb.
"""

import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from georesolve.benchmarks.machine import benchmark_parser, write_figures

HERE = Path(__file__).resolve().parent
TWICE = """
import runpy, sys, time
runpy.run_path(sys.argv[1])
clock, processors = time.perf_counter(), time.process_time()
runpy.run_path(sys.argv[1])
print(time.perf_counter() - clock, time.process_time() - processors)
"""
WAYS = {"q8": ["georesolve", "sedonadb", "geopandas"], "q12": ["georesolve", "sedonadb"]}


def main() -> None:
    """Run all ways in turns, and print a table."""
    parser = benchmark_parser(__doc__, repeats=3)
    parser.add_argument("folder", type=Path, help="where trip.parquet and building.parquet are")
    parser.add_argument("--sedonadb", help="a Python that has sedonadb; without it it is left out")
    parser.add_argument("--questions", nargs="+", choices=list(WAYS), default=list(WAYS))
    given = parser.parse_args()
    pythons = {"georesolve": sys.executable, "geopandas": sys.executable}
    pythons |= {"sedonadb": given.sedonadb} if given.sedonadb else {}
    ways = [(one, way) for one in given.questions for way in WAYS[one] if way in pythons]
    figures: dict[tuple[str, str], dict[str, Any]] = {
        way: {"seconds": [], "processor_seconds": []} for way in ways
    }
    sets = [str(given.folder / f"{name}.parquet") for name in ("trip", "building")]
    with tempfile.TemporaryDirectory() as name:
        for _ in range(given.repeats):
            for question, way in random.sample(ways, len(ways)):
                out = Path(name) / f"{question}-{way}.parquet"
                command = [pythons[way], "-c", TWICE, str(HERE / f"by_{way}.py"), question]
                done = subprocess.run([*command, *sets, str(out)], check=True, capture_output=True)
                of = figures[question, way]
                clock, processors = map(float, done.stdout.split())
                of["seconds"].append(clock)
                of["processor_seconds"].append(processors)
                of["rows"] = pq.read_metadata(out).num_rows
                out.unlink()
    print("| question | way | rows | s | processor s |\n|---|---|---|---|---|")
    for (question, way), of in figures.items():
        spread = " | ".join(_spread(of[kind]) for kind in ("seconds", "processor_seconds"))
        print(f"| {question} | {way} | {of['rows']} | {spread} |")
    write_figures(given.json, {" ".join(way): of for way, of in figures.items()})


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} [{min(seconds):.2f}, {max(seconds):.2f}]"


if __name__ == "__main__":
    main()
