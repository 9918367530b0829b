"""Times of counts and pairs within a distance on a GPU, beside the nearest reference.

Wall clock from degrees on the device to counts, pairs or rows on the device: the index, Python and
the final synchronisation included. Counts of a sample are compared with those of brute force.

    python -m georesolve.benchmarks.radius_cuda [--toy] [--json FILE] [--repeats N]
"""

from typing import Any

import cupy as cp

from georesolve.benchmarks.inputs import inputs
from georesolve.benchmarks.kernels_cuda import time_ms
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.benchmarks.radius import distance_for
from georesolve.kernels import build_index, count_within, nearest, within

CASES = (
    ("uniform", 22, 20, 30),
    ("cities", 22, 20, 30),
    ("uniform", 18, 20, 1000),
    ("uniform", 10, 20, 30_000),
    ("cities", 17, 22, 30),
)
"""Kind, powers of two of observations and references, and references within the distance."""
_SAMPLE = 2**8


def measure(kind: str, log_m: int, log_n: int, mean: int, repeats: int) -> dict[str, Any]:
    """Times of one input, how many pairs it has, and how many counts of a sample are wrong."""
    references, observations = inputs(kind, 2**log_m, 2**log_n)
    distance_m = distance_for(mean, references, observations)
    lat, lon, other_lat, other_lon = map(cp.asarray, (*references, *observations))
    degrees, others = (lat, lon), (other_lat, other_lon)

    index = build_index(*degrees, copies=True)
    counts = count_within(index, *others, distance_m)
    step = max(1, counts.size // _SAMPLE)
    part_lat, part_lon = (cp.ascontiguousarray(a[::step]) for a in others)
    exact = count_within(index, part_lat, part_lon, distance_m, algorithm="brute")
    row = {
        "kind": kind,
        "observations": 2**log_m,
        "references": 2**log_n,
        "distance_m": distance_m,
        "found": int(counts.sum()),
        "wrong": int((exact != counts[::step]).sum()),
    }
    del index, counts, exact
    for name, search in {
        "nearest": lambda: nearest(build_index(*degrees), *others),
        "counts": lambda: count_within(build_index(*degrees, copies=True), *others, distance_m),
        "pairs": lambda: within(build_index(*degrees, copies=True), *others, distance_m),
    }.items():
        row[name] = time_ms(search, repeats)
    return row


def main() -> None:
    """Measure, write the JSON, print the table."""
    parser = benchmark_parser(__doc__, repeats=9, toy=True)
    given = parser.parse_args()
    rows = []
    print("ms, medians".ljust(28), *(f"{s:>10}" for s in ("nearest", "counts", "pairs")), "found")
    for kind, log_m, log_n, mean in CASES:
        sizes = (9, 9, 10) if given.toy else (log_m, log_n, mean)
        row = measure(kind, *sizes, given.repeats)
        rows.append(row)
        cp.get_default_memory_pool().free_all_blocks()
        name = f"{kind} 2^{sizes[0]} x 2^{sizes[1]}, {sizes[2]} each".ljust(28)
        times = (f"{row[s]['median']:10.3f}" for s in ("nearest", "counts", "pairs"))
        print(name, *times, row["found"], f"wrong {row['wrong']}/{_SAMPLE}")
    write_figures(given.json, rows)


if __name__ == "__main__":
    main()
