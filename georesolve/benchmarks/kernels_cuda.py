"""Times of the GPU's kernels by stage, beside the case study's pair, with wrong rows counted.

Wall clock from arrays on the device to answers on the device: allocation, Python and the final
synchronisation included. Answers are compared with float64 brute force, for all observations where
that takes seconds, else for a sample of them.

    python -m georesolve.benchmarks.kernels_cuda
        [--toy] [--json FILE] [--repeats N] [--only NAME ...]
"""

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import cupy as cp

from georesolve.benchmarks import case_study_cuda
from georesolve.benchmarks.inputs import inputs
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.kernels import build_index, nearest, order_cuda, reduce_cuda, tree_cuda
from georesolve.kernels.query import Degrees, Query
from georesolve.kernels.sizes_cuda import WARP

BRUTE_PAIRS = 2**39
"""Pairs of observation and reference that checking and timing brute force may take."""
PAIR_PAIRS = 2**38
"""Pairs that timing the case study's pair may take: 2^24 by 2^14, its own size."""


def time_ms(action: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median, least and largest wall clock of an action in ms, after one that is not counted."""
    action()
    times = []
    for _ in range(repeats):
        cp.cuda.Device().synchronize()
        start = time.perf_counter()
        action()
        cp.cuda.Device().synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return {"median": statistics.median(times), "least": min(times), "largest": max(times)}


def measure(kind: str, log_m: int, log_n: int, repeats: int) -> dict[str, Any]:
    """Times and wrong rows of one input, 2^log_m observations against 2^log_n references."""
    m, n = 2**log_m, 2**log_n
    references, others = inputs(kind, m, n)
    lat, lon, other_lat, other_lon = (cp.asarray(a) for a in (*references, *others))
    row: dict[str, Any] = {"kind": kind, "observations": m, "references": n}
    row["all"] = time_ms(lambda: nearest(build_index(lat, lon), other_lat, other_lon), repeats)

    observations = Degrees(other_lat, other_lon)
    index = build_index(lat, lon)
    row_of, key = tree_cuda.search(index, observations, Query())
    for stage, action in {
        "build": lambda: build_index(lat, lon),
        "sort": lambda: order_cuda.order(
            observations, order_cuda.extent(observations, tree_cuda.SAMPLE)
        ),
        "sort and walk": lambda: tree_cuda.search(index, observations, Query(), width=WARP),
        "search": lambda: tree_cuda.search(index, observations, Query(), measure=True),
    }.items():
        row[stage] = time_ms(action, repeats)

    sample = min(m, max(1, BRUTE_PAIRS // n))
    part = Degrees(*(cp.ascontiguousarray(a[:: m // sample]) for a in observations))
    exact_row, exact_key = reduce_cuda.search(index, part, Query())
    row["checked"] = part.lat_deg.size
    same_row, same_key = exact_row == row_of[:: m // sample], exact_key == key[:: m // sample]
    row["wrong"] = int(part.lat_deg.size - int((same_row & same_key).sum()))
    slow = max(1, min(3, repeats))
    if m * n <= BRUTE_PAIRS:
        row["brute"] = time_ms(lambda: reduce_cuda.search(index, observations, Query()), slow)
    if m * n <= PAIR_PAIRS:
        pair = [case_study_cuda.radians(*points) for points in ((lat, lon), (other_lat, other_lon))]
        row["pair"] = time_ms(lambda: case_study_cuda.nearest(*pair), slow)
        row["pair, fast"] = time_ms(lambda: case_study_cuda.nearest(*pair, fast=True), slow)
        row["pair wrong"] = int((case_study_cuda.nearest(*pair)[0] != row_of[:, 0]).sum())
    return row


CASES = {
    "2^24 x 2^14": ("uniform", 24, 14),
    "2^24 x 2^20": ("uniform", 24, 20),
    "2^24 x 2^24": ("uniform", 24, 24),
    "2^16 x 2^20": ("uniform", 16, 20),
    "2^16 x 2^13": ("uniform", 16, 13),
    "2^10 x 2^24": ("uniform", 10, 24),
    "2^20 x 2^24": ("uniform", 20, 24),
    "2^20 x 2^17": ("uniform", 20, 17),
    "2^24 x 2^10": ("uniform", 24, 10),
    "box 2^24 x 2^20": ("box", 24, 20),
    "cities 2^24 x 2^17": ("cities", 24, 17),
    "grid 2^24 x 2^20": ("grid", 24, 20),
    "zeros 2^20 x 2^20": ("zeros", 20, 20),
    "copies 2^20 x 2^20": ("copies", 20, 20),
    "coincident 2^16 x 2^18": ("coincident", 16, 18),
    "cluster 2^20 x 2^20": ("cluster", 20, 20),
    "ring 2^9 x 2^20": ("ring", 9, 20),
}
TOY = {name: (kind, 10, 8) for name, (kind, _, _) in CASES.items() if kind != "uniform"}


def main() -> None:
    """Measure, write the JSON, print the table."""
    parser = benchmark_parser(__doc__, repeats=15, toy=True)
    parser.add_argument("--only", nargs="*", help="names of cases")
    arguments = parser.parse_args()
    rows = []
    for name, (kind, log_m, log_n) in (TOY if arguments.toy else CASES).items():
        if arguments.only and name not in arguments.only:
            continue
        rows.append({"name": name, **measure(kind, log_m, log_n, arguments.repeats)})
        cp.get_default_memory_pool().free_all_blocks()
        write_figures(arguments.json, rows)
    print("cuML:", "installed, not timed here" if find_spec("cuml") else "not installed")
    stages = [
        "all",
        "build",
        "sort",
        "sort and walk",
        "search",
        "brute",
        "pair",
        "pair, fast",
    ]
    print(
        "ms, medians".ljust(20) + "".join(stage.rjust(16) for stage in stages) + "  wrong/checked"
    )
    for row in rows:
        times = (f"{row[s]['median']:.3f}" if s in row else "-" for s in stages)
        line = row["name"].ljust(20) + "".join(t.rjust(16) for t in times)
        pair = f"  pair wrong {row['pair wrong']}" if "pair wrong" in row else ""
        print(f"{line}  {row['wrong']}/{row['checked']}{pair}")


if __name__ == "__main__":
    main()
