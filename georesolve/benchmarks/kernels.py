"""The CPU's searches beside their peers, on the same inputs, in one run, taking turns.

Wall clock from degrees in numpy arrays to rows (ours: rows and metres): trigonometry, building the
index and searching, each with all cores. Where a case is "built", the index stands already. Peers
get unit vectors in float64; the haversine ones get radians. Peers that are not installed are named.
The GPU has `benchmarks.kernels_cuda`.

    python -m georesolve.benchmarks.kernels
        [--toy] [--json FILE] [--repeats N] [--only NAME ...] [--first]
"""

import os

# Threads of one library that spin after their work take the cores from the next in turn.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import importlib.metadata
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pandas as pd

from georesolve import kernels
from georesolve.benchmarks.inputs import Pair, cartesian, near, uniform
from georesolve.benchmarks.inputs import inputs as drawn
from georesolve.benchmarks.machine import benchmark_parser, machine, write_figures
from georesolve.kernels import tree_cpu
from georesolve.kernels.cache import cached_njit
from georesolve.kernels.coordinates_cpu import unit_vectors
from georesolve.kernels.order_cpu import ROW, scratch, sort
from georesolve.kernels.query import Degrees
from georesolve.kernels.ways import Search
from georesolve.query import MAX_K, Algorithm

ROOT = Path(__file__).resolve().parents[2]
BRUTE_PAIRS = 2**33
"""Pairs of observation and reference up to which brute force takes part, and is compared with."""
WARM_OBSERVATIONS = 2**16
"""Observations up to which a method has an untimed turn right before each timed one."""
_FIRST_ANSWER = """
import time
from georesolve.benchmarks.inputs import uniform
import numpy as np
from georesolve import kernels
rng = np.random.default_rng(7)
references, observations = uniform(rng, 2**13), uniform(rng, 2**16)
start = time.perf_counter()
kernels.nearest(kernels.build_index(*references), *observations)
print(time.perf_counter() - start)
"""
SLOW_OBSERVATIONS = 2**18
"""Observations up to which peers that need microseconds for one take part."""


class Method(NamedTuple):
    """One way to search: what it needs, how it builds, how it answers with rows."""

    package: str
    build: Callable[[Pair], Any]
    query: Callable[[Any, Pair, int], np.ndarray]
    takes: Callable[[int, int, int], bool] = lambda m, n, k: True
    ours: bool = False


def _threads() -> int:
    return numba.get_num_threads()


def _build_gicp(references: Pair) -> Any:
    return import_module("small_gicp").KdTree(cartesian(references), num_threads=_threads())


def _query_gicp(tree: Any, observations: Pair, k: int) -> np.ndarray:
    points = cartesian(observations)
    if k == 1:
        return tree.batch_nearest_neighbor_search(points, num_threads=_threads())[0]
    return tree.batch_knn_search(points, k, num_threads=_threads())[0]


def _build_nanoflann(references: Pair) -> Any:
    tree = import_module("pynanoflann").KDTree(metric="l2")
    tree.fit(cartesian(references))
    return tree


def _query_nanoflann(tree: Any, observations: Pair, k: int) -> np.ndarray:
    return tree.kneighbors(cartesian(observations), n_neighbors=k, n_jobs=_threads())[1]


def _build_pykdtree(references: Pair) -> Any:
    return import_module("pykdtree.kdtree").KDTree(cartesian(references))


def _query_pykdtree(tree: Any, observations: Pair, k: int) -> np.ndarray:
    return tree.query(cartesian(observations), k=k)[1]


def _build_scipy(references: Pair) -> Any:
    return import_module("scipy.spatial").cKDTree(cartesian(references))


def _query_scipy(tree: Any, observations: Pair, k: int) -> np.ndarray:
    return tree.query(cartesian(observations), k=k, workers=-1)[1]


def _build_ball(references: Pair) -> Any:
    neighbors = import_module("sklearn.neighbors")
    return neighbors.BallTree(np.radians(np.stack(references, axis=1)), metric="haversine")


def _query_ball(tree: Any, observations: Pair, k: int) -> np.ndarray:
    parts = np.array_split(np.radians(np.stack(observations, axis=1)), _threads())
    with ThreadPoolExecutor(_threads()) as pool:
        found = pool.map(lambda part: tree.query(part, k, return_distance=False), parts)
        return np.concatenate(list(found))


@cached_njit(parallel=True)
def haversine_loop(lat, lon, lats, lons, rows):  # type: ignore[no-untyped-def]
    """Find the rows of the nearest references by brute force; arguments are radians."""
    cosines = np.cos(lats)
    for i in numba.prange(lat.size):
        best = np.inf
        cosine = np.cos(lat[i])
        for j in range(lats.size):
            half = np.sin((lats[j] - lat[i]) / 2) ** 2
            half += cosine * cosines[j] * np.sin((lons[j] - lon[i]) / 2) ** 2
            if half < best:
                best = half
                rows[i] = j


def _query_haversine(references: Pair, observations: Pair, k: int) -> np.ndarray:
    rows = np.full(observations[0].size, -1, np.int64)
    haversine_loop(*map(np.radians, (*observations, *references)), rows)
    return rows


def _ours(algorithm: Algorithm) -> Callable[[Any, Pair, int], np.ndarray]:
    return lambda index, points, k: (
        kernels.nearest(index, *points, k=k, algorithm=algorithm).reference
    )


def _by_way(by: Search) -> Callable[[Any, Pair, int], np.ndarray]:
    def query(index: Any, points: Pair, k: int) -> np.ndarray:
        taken = Degrees(*points)
        return tree_cpu.search(index, taken, kernels.Query(k), measure=True, by=by).reference

    return query


def _up_to(pairs: int, greatest_k: int = MAX_K) -> Callable[[int, int, int], bool]:
    return lambda m, n, k: m * n <= pairs and k <= greatest_k


METHODS = {
    "ours, auto": Method("numba", lambda r: kernels.build_index(*r), _ours("auto"), ours=True),
    "ours, tree": Method("numba", lambda r: kernels.build_index(*r), _ours("tree"), ours=True),
    "ours, packets": Method(
        "numba", lambda r: kernels.build_index(*r), _by_way("packets"), ours=True
    ),
    "ours, singles": Method(
        "numba", lambda r: kernels.build_index(*r), _by_way("singles"), ours=True
    ),
    "ours, brute": Method(
        "numba",
        lambda r: kernels.build_index(*r),
        _ours("brute"),
        takes=_up_to(BRUTE_PAIRS),
        ours=True,
    ),
    "small_gicp": Method("small_gicp", _build_gicp, _query_gicp),
    "pynanoflann": Method("pynanoflann", _build_nanoflann, _query_nanoflann),
    "pykdtree": Method("pykdtree", _build_pykdtree, _query_pykdtree),
    "scipy cKDTree": Method("scipy", _build_scipy, _query_scipy),
    "sklearn BallTree": Method(
        "scikit-learn", _build_ball, _query_ball, takes=lambda m, n, k: m <= SLOW_OBSERVATIONS
    ),
    "Numba haversine": Method(
        "numba", lambda r: r, _query_haversine, takes=_up_to(BRUTE_PAIRS // 2**6, 1)
    ),
}


class Case(NamedTuple):
    """An input: the kind of its points and how many; references None for the places.

    Without `peers` where these take hours.
    """

    kind: str
    observations: int
    references: int | None
    k: int = 1
    built: bool = False
    peers: bool = True


CASES = {
    "2^20 x 2^14": Case("uniform", 2**20, 2**14),
    "2^20 x places": Case("uniform", 2**20, None),
    "2^22 x 2^20": Case("uniform", 2**22, 2**20),
    "2^10 x places, built": Case("uniform", 2**10, None, built=True),
    "2^16 x 2^13": Case("uniform", 2**16, 2**13),
    "2^10 x 2^10": Case("uniform", 2**10, 2**10),
    "2^24 x 2^10": Case("uniform", 2**24, 2**10),
    "2^12 x 2^22": Case("uniform", 2**12, 2**22),
    "2^16 x 2^20, built": Case("uniform", 2**16, 2**20, built=True),
    "2^10 x 2^24, built": Case("uniform", 2**10, 2**24, built=True),
    "cities 2^20 x 2^17": Case("cities", 2**20, 2**17),
    "near places 2^20": Case("near", 2**20, None),
    "oceans 2^20 x cities 2^17": Case("oceans", 2**20, 2**17),
    "2^20 x 2^14, k = 8": Case("uniform", 2**20, 2**14, k=8),
    "2^20 x 2^14, k = 32": Case("uniform", 2**20, 2**14, k=32),
    "2^20 x places, k = 8": Case("uniform", 2**20, None, k=8),
    "box 2^20 x 2^20": Case("box", 2**20, 2**20),
    "grid 2^20 x 2^20": Case("grid", 2**20, 2**20),
    "cities 2^24 x 2^17": Case("cities", 2**24, 2**17),
    "box 2^24 x 2^20": Case("box", 2**24, 2**20),
    "2^24 x 2^14": Case("uniform", 2**24, 2**14),
    "2^24 x 2^20": Case("uniform", 2**24, 2**20),
    "2^24 x 2^24": Case("uniform", 2**24, 2**24),
}
_HARD = (("coincident", 18, 20), ("copies", 18, 20), ("ring", 9, 20), ("cluster", 18, 20))
CASES |= {
    f"{kind} 2^{m} x 2^{n}, k = {k}": Case(kind, 2**m, 2**n, k=k, peers=False)
    for kind, m, n in _HARD
    for k in (1, 8, 64)
}
TOY = {
    "uniform": Case("uniform", 2**8, 2**7),
    "cities": Case("cities", 2**8, 2**7),
    "box, built": Case("box", 2**8, 2**7, built=True),
    "grid": Case("grid", 2**8, 2**7),
    "oceans, k = 3": Case("oceans", 2**8, 2**7, k=3),
    **{kind: Case(kind, 2**8, 2**7, k=2, peers=False) for kind, *_ in _HARD},
}


def inputs(case: Case, places: Path) -> tuple[Pair, Pair]:
    """References and observations of a case, in degrees."""
    if case.references is None:
        read = pd.read_parquet if places.suffix == ".parquet" else pd.read_csv
        table = read(places, columns=["lat", "lon"]) if read is pd.read_parquet else read(places)
        lat, lon = (table[name].to_numpy(np.float64) for name in ("lat", "lon"))
        rng = np.random.default_rng(7)
        if case.kind == "near":
            return (lat, lon), near(rng, (lat, lon), case.observations)
        return (lat, lon), uniform(rng, case.observations)
    return drawn(case.kind, case.observations, case.references)


def along_the_curve(points: Pair) -> Pair:
    """The same points, neighbours together: what a peer gains from sorted observations."""
    memory = scratch(points[0].size)._replace(points=unit_vectors(*points))
    rows = memory.order[: sort(memory, 2)] & ROW
    return points[0][rows], points[1][rows]


def missing() -> dict[str, str]:
    """Methods whose package is not installed."""
    absent = {}
    for name, method in METHODS.items():
        try:
            importlib.metadata.version(method.package)
        except importlib.metadata.PackageNotFoundError:
            absent[name] = method.package
    return absent


def measure(
    case: Case, places: Path, repeats: int, absent: dict[str, str], orders: list[str]
) -> list[dict[str, Any]]:
    """Times of every method that takes part, in turns; each with what differs from brute force."""
    references, observations = inputs(case, places)
    m, n = observations[0].size, references[0].size
    runs = {}
    for order in orders:
        points = along_the_curve(observations) if order == "sorted" else observations
        for name, method in METHODS.items():
            allowed = case.peers or method.ours
            if allowed and name not in absent and method.takes(m, n, case.k):
                runs[name, order] = (method, points, method.build(references))
    sample = slice(None, None, max(1, m * n // BRUTE_PAIRS))
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    differing = {}
    index = kernels.build_index(*references)
    for order in orders:
        key = ("ours, auto", order)
        lat, lon = runs[key][1]
        points = lat[sample], lon[sample]
        want = kernels.nearest(index, *points, k=case.k, algorithm="brute").reference
        for name, other in runs:
            if other == order:
                method, points, state = runs[name, order]
                rows = np.asarray(method.query(state, points, case.k), np.int64)[sample]
                differing[name, order] = int((rows.reshape(want.shape) != want).sum())
    turn = list(runs.items())
    chance = random.Random(0)
    for _ in range(repeats):
        # Who has just freed memory, or emptied the caches, slows the next: nobody is always next.
        chance.shuffle(turn)
        for key, (method, points, state) in turn:
            if m <= WARM_OBSERVATIONS:
                # The others have emptied the caches and left threads to be woken.
                ready = state if case.built else method.build(references)
                method.query(ready, points, case.k)
            start = time.perf_counter()
            if not case.built:
                state = method.build(references)
            method.query(state, points, case.k)
            seconds[key].append(time.perf_counter() - start)
    base = {order: statistics.median(seconds["ours, auto", order]) for _, order in runs}
    return [
        {
            "method": name,
            "order": order,
            "ours": METHODS[name].ours,
            "observations": m,
            "references": n,
            "k": case.k,
            "built": case.built,
            "median_ms": statistics.median(times) * 1e3,
            "least_ms": min(times) * 1e3,
            "times_of_auto": statistics.median(times) / base[order],
            "million_per_second": m / statistics.median(times) / 1e6,
            "differing": differing[name, order],
            "checked": len(range(m)[sample]),
        }
        for (name, order), times in seconds.items()
    ]


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        **machine(method.package for method in METHODS.values()),
        "threads": _threads(),
    }


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """Print a case: a line a method, slower than auto by so much."""
    print(f"\n{name}: {rows[0]['observations']:,} x {rows[0]['references']:,}")
    header = ("method", "order", "median ms", "least ms", "M/s", "of auto", "differing")
    print("{:20}{:10}{:>12}{:>12}{:>10}{:>10}{:>12}".format(*header))
    for row in rows:
        print(
            f"{row['method']:20}{row['order']:10}{row['median_ms']:12.3f}{row['least_ms']:12.3f}"
            f"{row['million_per_second']:10.2f}{row['times_of_auto']:10.2f}"
            f"{row['differing']:12,}"
        )


def summary(cases: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A line a case: auto beside the best of its own ways and beside the fastest peer."""
    lines = []
    for name, rows in cases.items():
        for order in dict.fromkeys(row["order"] for row in rows):
            here = [row for row in rows if row["order"] == order]
            auto = next(row for row in here if row["method"] == "ours, auto")
            line = {"case": name, "order": order, "auto_ms": auto["median_ms"]}
            line["auto_least_ms"] = auto["least_ms"]
            for kind, ours in (("way", True), ("peer", False)):
                others = [row for row in here if row["ours"] == ours and row is not auto]
                for figure in ("median_ms", "least_ms") if others else ():
                    best = min(others, key=lambda row: row[figure])
                    line[f"best_{kind}"] = best["method"]
                    line[f"{kind}_{figure}_of_auto"] = best[figure] / auto[figure]
            lines.append(line)
    return lines


def first_answer(cache: Path | None = None) -> float:
    """Seconds from degrees to the first answer of a fresh process, imports not counted."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if cache:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-c", _FIRST_ANSWER]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the tables, write the JSON."""
    parser = benchmark_parser(__doc__, repeats=7, toy=True)
    parser.add_argument("--places", type=Path, default=ROOT / "samples" / "places.parquet")
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--methods", nargs="*", help="methods beside auto")
    parser.add_argument("--orders", nargs="*", default=["as given", "sorted"])
    parser.add_argument("--first", action="store_true", help="time a fresh process as well")
    options = parser.parse_args(arguments)
    absent = missing()
    for name, package in absent.items():
        print(f"{name}: {package} is not installed, left out")
    if options.methods:
        absent |= {name: "" for name in METHODS if name not in (*options.methods, "ours, auto")}
    figures: dict[str, Any] = {"environment": environment(), "cases": {}}
    if options.first:
        with tempfile.TemporaryDirectory() as cache:
            figures["first_answer_s"] = [first_answer(Path(cache)) for _ in range(2)]
        print(
            "first answer of a process: {:.1f} s, cached {:.1f} s".format(
                *figures["first_answer_s"]
            )
        )
    for name, case in (TOY if options.toy else CASES).items():
        if options.only and name not in options.only:
            continue
        rows = measure(case, options.places, options.repeats, absent, options.orders)
        figures["cases"][name] = rows
        show(name, rows)
        figures["summary"] = summary(figures["cases"])
        write_figures(options.json, figures)
    print("\nof auto, by the medians and by the least of each:")
    for line in summary(figures["cases"]):
        print(
            f"{line['case']:24}{line['order']:10}{line['auto_ms']:10.2f} ms"
            + "".join(
                f"   {line[f'best_{kind}']} {line[f'{kind}_median_ms_of_auto']:.2f}"
                f" {line[f'{kind}_least_ms_of_auto']:.2f}"
                for kind in ("way", "peer")
                if f"best_{kind}" in line
            )
        )


if __name__ == "__main__":
    main()
