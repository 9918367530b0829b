"""The search on a CPU beside its peers: one run, the same inputs, medians and ratios.

    pip install -e '.[bench]'
    python -m benchmarks.kernels [--toy] [--json FILE] [--repeats N] [--only NAME ...]

Every way is timed from degrees to rows and distances, trigonometry and building included, with all
cores; then with its index built already, for small batches. Peers get float64 unit vectors, and
once more with their observations sorted beforehand, the sorting not counted. Their rows are
compared with ours: a row counts as wrong if its reference is farther away.
"""

import argparse
import importlib
import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

import kernels
from benchmarks.inputs import Pair, inputs

CORES = len(os.sched_getaffinity(0))
EARTH_RADIUS_M = 6_371_008.8
BALL_TREE_PAIRS = 2**35
"""Pairs up to which scikit-learn's haversine tree is timed: it is slow."""
BRUTE_PAIRS = 2**33
"""Likewise for every brute force."""

Query = Callable[[np.ndarray], np.ndarray]


def cartesian(points: Pair) -> np.ndarray:
    """Float64 unit vectors, shape (n, 3), as users of the peers make them."""
    lat, lon = np.radians(points[0]), np.radians(points[1])
    cosine = np.cos(lat)
    return np.stack([cosine * np.cos(lon), cosine * np.sin(lon), np.sin(lat)], axis=1)


def small_gicp(references: np.ndarray) -> Query:
    """small_gicp: a k-d tree of a point-cloud library."""
    library = importlib.import_module("small_gicp")
    tree = library.KdTree(references, num_threads=CORES)
    search = tree.batch_nearest_neighbor_search
    return lambda points: np.asarray(search(points, num_threads=CORES)[0])


def pynanoflann(references: np.ndarray) -> Query:
    """Nanoflann through pynanoflann."""
    library = importlib.import_module("pynanoflann")
    tree = library.KDTree(n_neighbors=1, metric="L2", leaf_size=10)
    tree.fit(references)
    return lambda points: tree.kneighbors(points, n_jobs=CORES)[1][:, 0].astype(np.int64)


def pykdtree(references: np.ndarray) -> Query:
    """The k-d tree of pykdtree, with OpenMP."""
    tree = importlib.import_module("pykdtree.kdtree").KDTree(references)
    return lambda points: tree.query(points, k=1)[1].astype(np.int64)


def ckdtree(references: np.ndarray) -> Query:
    """scipy.spatial.cKDTree."""
    tree = importlib.import_module("scipy.spatial").cKDTree(references)
    return lambda points: tree.query(points, k=1, workers=CORES)[1]


@numba.njit(parallel=True, cache=True)
def _plain_brute(references, points, rows):  # type: ignore[no-untyped-def]
    for i in numba.prange(points.shape[0]):
        best = np.inf
        for j in range(references.shape[0]):
            dx = references[j, 0] - points[i, 0]
            dy = references[j, 1] - points[i, 1]
            dz = references[j, 2] - points[i, 2]
            d = dx * dx + dy * dy + dz * dz
            if d < best:
                best = d
                rows[i] = j


def plain_brute(references: np.ndarray) -> Query:
    """A plain Numba prange brute force."""

    def query(points: np.ndarray) -> np.ndarray:
        rows = np.empty(len(points), np.int64)
        _plain_brute(references, points, rows)
        return rows

    return query


def ball_tree(references: np.ndarray) -> Query:
    """scikit-learn's BallTree with the haversine metric, from unit vectors back to radians."""
    library = importlib.import_module("sklearn.neighbors")

    def radians(vectors: np.ndarray) -> np.ndarray:
        lat = np.arcsin(np.clip(vectors[:, 2], -1, 1))
        return np.stack([lat, np.arctan2(vectors[:, 1], vectors[:, 0])], axis=1)

    tree = library.BallTree(radians(references), metric="haversine")
    return lambda points: tree.query(radians(points), k=1)[1][:, 0]


PEERS: dict[str, Callable[[np.ndarray], Query]] = {
    "small_gicp": small_gicp,
    "pynanoflann": pynanoflann,
    "pykdtree": pykdtree,
    "cKDTree": ckdtree,
    "BallTree haversine": ball_tree,
    "prange brute": plain_brute,
}
_MODULES = {
    "cKDTree": "scipy",
    "BallTree haversine": "sklearn",
    "prange brute": "numba",
}


def missing(peer: str) -> bool:
    """Whether a peer's package is not installed."""
    return importlib.util.find_spec(_MODULES.get(peer, peer)) is None


def metres(references: np.ndarray, points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Great-circle distances to the rows found, as users of the peers compute them."""
    chord = np.linalg.norm(points - references[rows], axis=1)
    return 2 * EARTH_RADIUS_M * np.arcsin(np.minimum(chord / 2, 1))


def peer_answer(build: Callable[[np.ndarray], Query], references: Pair, others: Pair) -> np.ndarray:
    """A peer from degrees to rows and distances."""
    vectors, points = cartesian(references), cartesian(others)
    rows = build(vectors)(points)
    metres(vectors, points, rows)
    return rows


def our_answer(references: Pair, others: Pair, algorithm: Any = "auto") -> np.ndarray:
    """Ours from degrees to rows and distances."""
    index = kernels.build_index(*references)
    rows: np.ndarray = kernels.nearest(index, *others, algorithm=algorithm).reference
    return rows


def sorted_like_a_user(points: Pair) -> Pair:
    """Observations in the order of a coarse grid of cells, row by row, every other row back."""
    lat, lon = points
    row = np.floor((lat + 90) * 4)
    order = np.lexsort((np.where(row % 2 == 0, lon, -lon), row))
    return lat[order], lon[order]


def farther(references: Pair, others: Pair, rows: np.ndarray, ours: np.ndarray) -> int:
    """Rows of a peer whose reference is farther away than ours, beyond rounding."""
    vectors, points = cartesian(references), cartesian(others)
    different = np.flatnonzero(rows != ours)
    theirs = np.linalg.norm(points[different] - vectors[rows[different]], axis=1)
    best = np.linalg.norm(points[different] - vectors[ours[different]], axis=1)
    return int((theirs > best + 1e-15).sum())


def measure(kind: str, log_m: int, log_n: int, repeats: int, peers: list[str]) -> dict[str, Any]:
    """Times of every way on one input, interleaved so that the machine's mood hits all alike."""
    references, others = inputs(kind, 2**log_m, 2**log_n)
    m, n = others[0].size, references[0].size
    ordered = sorted_like_a_user(others)
    ways: dict[str, Callable[[], np.ndarray]] = {
        "ours": lambda: our_answer(references, others),
        "ours, tree": lambda: our_answer(references, others, "tree"),
        "ours, sorted": lambda: our_answer(references, ordered),
    }
    if m * n <= BRUTE_PAIRS:
        ways["ours, brute"] = lambda: our_answer(references, others, "brute")
    for peer in peers:
        build = PEERS[peer]
        limit = {"BallTree haversine": BALL_TREE_PAIRS, "prange brute": BRUTE_PAIRS}.get(peer)
        if limit is not None and m * n > limit:
            continue
        ways[peer] = lambda build=build: peer_answer(build, references, others)
        if limit is None:
            ways[f"{peer}, sorted"] = lambda build=build: peer_answer(build, references, ordered)
    wrong = {}
    truth = our_answer(references, others)
    for name, way in ways.items():
        rows = way()  # the warm-up
        if not name.endswith("sorted"):
            wrong[name] = farther(references, others, rows, truth)
    built = built_ways(references, others, peers) if m <= 2**14 else {}
    ways |= built
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    return {
        "kind": kind,
        "observations": m,
        "references": n,
        "seconds": times,
        "median": {name: statistics.median(values) for name, values in times.items()},
        "wrong": wrong,
    }


def built_ways(
    references: Pair, others: Pair, peers: list[str]
) -> dict[str, Callable[[], np.ndarray]]:
    """Queries against an index that is built already: what a small batch waits for."""
    index = kernels.build_index(*references)
    ways: dict[str, Callable[[], np.ndarray]] = {
        "built: ours": lambda: kernels.nearest(index, *others).reference
    }
    for peer in peers:
        if peer not in ("BallTree haversine", "prange brute"):
            query = PEERS[peer](cartesian(references))
            ways[f"built: {peer}"] = lambda query=query: query(cartesian(others))
    for way in ways.values():
        way()
    return ways


CASES = {
    "2^10 x 2^14": ("uniform", 10, 14),
    "2^10 x places": ("places", 10, 18),
    "2^13 x 2^13": ("uniform", 13, 13),
    "2^16 x 2^13": ("uniform", 16, 13),
    "2^20 x 2^14": ("uniform", 20, 14),
    "2^20 x places": ("places", 20, 18),
    "2^22 x 2^20": ("uniform", 22, 20),
    "2^16 x 2^20": ("uniform", 16, 20),
    "cities 2^20 x 2^17": ("cities", 20, 17),
    "box 2^20 x 2^20": ("box", 20, 20),
    "2^20 x 2^20": ("uniform", 20, 20),
    "grid 2^20 x 2^16": ("grid", 20, 16),
    "2^24 x 2^14": ("uniform", 24, 14),
}
TOY = {name: (kind, 8, 7) for name, (kind, _, _) in CASES.items()}


def report(name: str, row: dict[str, Any]) -> None:
    """Print one case: every way, its median and spread, how many times slower than ours."""
    print(f"\n{name}: {row['observations']} observations, {row['references']} references")
    for way, median in sorted(row["median"].items(), key=lambda item: item[1]):
        ours = row["median"]["built: ours" if way.startswith("built") else "ours"]
        values = row["seconds"][way]
        spread = f"[{min(values) * 1e3:.2f}, {max(values) * 1e3:.2f}]"
        wrong = f"  wrong {row['wrong'][way]}" if row["wrong"].get(way) else ""
        print(f"  {way:<26}{median * 1e3:>11.2f} ms {spread:<24}{median / ours:>7.2f} x{wrong}")


def main() -> None:
    """Measure every case and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="sizes for a test of the benchmark")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of cases")
    options = parser.parse_args()
    # Read when the libraries are loaded, below. Threads of one way must not spin while the next one
    # is timed: each library brings an OpenMP of its own.
    os.environ.setdefault("OMP_NUM_THREADS", str(CORES))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    peers = [peer for peer in PEERS if not missing(peer)]
    absent = [peer for peer in PEERS if missing(peer)]
    print(
        f"{platform.machine()}, {CORES} cores, {options.repeats} interleaved runs after a warm-up"
    )
    print("not installed:", ", ".join(absent) or "none")
    rows = {}
    for name, case in (TOY if options.toy else CASES).items():
        if options.only and name not in options.only:
            continue
        rows[name] = measure(*case, options.repeats, peers)
        report(name, rows[name])
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
