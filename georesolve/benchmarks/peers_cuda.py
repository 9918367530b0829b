"""Other nearest-neighbour searches on a GPU, each if it is installed, beside ours.

A peer gets what it takes: unit vectors on the device in its own precision, no trigonometry. What it
makes of the references counts. None of them settles ties by row, and float32 cannot tell apart what
lies within a metre; so wrong rows are counted. Ours starts from degrees, through the public call.

    python -m georesolve.benchmarks.peers_cuda [--toy] [--json FILE] [--only NAME ...] [--k K ...]
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import cupy as cp

from georesolve.benchmarks.inputs import inputs
from georesolve.benchmarks.kernels_cuda import time_ms
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.kernels import build_index, nearest
from georesolve.kernels.coordinates_cuda import unit_vectors

Search = Callable[[cp.ndarray, cp.ndarray, int], cp.ndarray]
"""References and observations, unit vectors of shape (n, 3), and k, to rows of shape (n, k)."""


def cupyx_tree() -> Search:
    """CuPy's own k-d tree, float64."""
    from cupyx.scipy.spatial import KDTree

    return lambda references, observations, k: KDTree(references).query(observations, k=k)[1]


def cupy_knn() -> Search:
    """A bounding volume hierarchy (github.com/mortacious/cupy-knn), float32."""
    from cupy_knn import lbvh_index

    # The C++11 that it asks for is too old for the headers of CuPy 14.
    flags = tuple(flag.replace("c++11", "c++17") for flag in lbvh_index._compile_flags)
    lbvh_index._compile_flags = flags
    lbvh_index._construct_tree_kernels = cp.RawModule(
        code=lbvh_index._lbvh_src,
        options=flags,
        name_expressions=lbvh_index._construct_tree_kernels.name_expressions,
    )
    prepared: dict[int, Any] = {}

    def search(references: cp.ndarray, observations: cp.ndarray, k: int) -> cp.ndarray:
        if k not in prepared:
            prepared[k] = lbvh_index.LBVHIndex(leaf_size=32, compact=True, sort_queries=True)
            prepared[k].prepare_knn_default(k)
        prepared[k].build(references)
        return prepared[k].query_knn(observations)[0]

    return search


def cuml(algorithm: str) -> Search:
    """Brute force of cuML, or its random ball cover, float32."""
    from cuml.neighbors import NearestNeighbors

    def search(references: cp.ndarray, observations: cp.ndarray, k: int) -> cp.ndarray:
        neighbors = NearestNeighbors(n_neighbors=k, algorithm=algorithm, output_type="cupy")
        return neighbors.fit(references).kneighbors(observations, return_distance=False)

    return search


def cuvs_brute() -> Search:
    """Brute force of cuVS, float32."""
    from cuvs.neighbors import brute_force

    def search(references: cp.ndarray, observations: cp.ndarray, k: int) -> cp.ndarray:
        return cp.asarray(brute_force.search(brute_force.build(references), observations, k)[1])

    return search


def jztree() -> Search:
    """A dual walk of Morton trees (github.com/jstuecker/jztree), float32, through JAX."""
    # JAX would take three quarters of the device's memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    from jztree.config import KNNConfig
    from jztree.knn import knn

    def search(references: cp.ndarray, observations: cp.ndarray, k: int) -> cp.ndarray:
        # Its own choice of memory for lists is too small where observations outnumber references.
        many = len(observations) > 64 * len(references)
        rows = knn.jit(
            jax.dlpack.from_dlpack(references),
            k,
            part_query=jax.dlpack.from_dlpack(observations),
            result="globalidx",
            cfg=KNNConfig(alloc_fac_ilist=256.0 * (min(11, 2 + k) if many else 1)),
        )
        return cp.from_dlpack(rows.block_until_ready())

    return search


PEERS: dict[str, tuple[str, str, Callable[[], Search]]] = {
    "jztree": ("jztree_cuda", "float32", jztree),
    "cupy-knn": ("cupy_knn", "float32", cupy_knn),
    "cuML brute": ("cuml", "float32", partial(cuml, "brute")),
    "cuML rbc": ("cuml", "float32", partial(cuml, "rbc")),
    "cuVS brute": ("cuvs", "float32", cuvs_brute),
    "CuPy KDTree": ("cupyx", "float64", cupyx_tree),
}
"""Name of a peer to the module that must be installed, its precision, and what makes its search."""

CASES = {
    "2^24 x 2^14": ("uniform", 24, 14),
    "2^22 x 2^20": ("uniform", 22, 20),
    "2^20 x 2^20": ("uniform", 20, 20),
    "cities 2^24 x 2^17": ("cities", 24, 17),
    "2^24 x 2^20": ("uniform", 24, 20),
    "2^16 x 2^13": ("uniform", 16, 13),
}
NUMBERS = (1, 2, 4, 8, 16, 32, 64)
OURS = "ours"
_LIMIT_S = 120
"""Seconds that one search may take for all k of a case."""


def measure(name: str, case: str, k: int, repeats: int) -> dict[str, Any]:
    """Times of one search, and how many of its rows are not ours."""
    kind, log_m, log_n = case_of(case)
    degrees = [cp.asarray(a) for pair in inputs(kind, 2**log_m, 2**log_n) for a in pair]
    row: dict[str, Any] = {"case": case, "k": k, "search": name}
    exact = nearest(build_index(*degrees[:2]), *degrees[2:], k=k).reference.reshape(-1, k)
    if name == OURS:
        del exact
        return row | time_ms(lambda: nearest(build_index(*degrees[:2]), *degrees[2:], k=k), repeats)
    _, precision, make = PEERS[name]
    references, observations = (
        cp.ascontiguousarray(unit_vectors(*pair).T).astype(precision)
        for pair in (degrees[:2], degrees[2:])
    )
    search = make()
    found = search(references, observations, k).reshape(-1, k)
    row["wrong"] = int((found.astype(cp.int64) != exact).any(axis=1).sum())
    del found, exact
    return row | time_ms(lambda: search(references, observations, k), repeats)


def case_of(name: str) -> tuple[str, int, int]:
    """Kind and sizes of a case; a toy's are small."""
    kind, log_m, log_n = CASES[name.removeprefix("toy ")]
    return (kind, 10, 8) if name.startswith("toy ") else (kind, log_m, log_n)


def measure_apart(name: str, case: str, numbers: list[int], repeats: int) -> list[dict[str, Any]]:
    """`measure` for several k in a process of its own: one that fails takes its context along."""
    command = [
        sys.executable,
        "-m",
        "georesolve.benchmarks.peers_cuda",
        "--one",
        name,
        case,
        str(repeats),
    ]
    done = subprocess.run(
        ["timeout", str(_LIMIT_S), *command, *map(str, numbers)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode and len(rows) < len(numbers):
        why = (done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1]
        rows.append({"case": case, "k": numbers[len(rows)], "search": name, "failed": why[:300]})
    return rows


def main() -> None:
    """Measure, write the JSON, print the table."""
    parser = benchmark_parser(__doc__, toy=True)
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--k", nargs="*", type=int, default=list(NUMBERS))
    parser.add_argument("--one", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, case, repeats, *numbers = arguments.one
        for k in map(int, numbers):
            print(json.dumps(measure(name, case, k, int(repeats))), flush=True)
            cp.get_default_memory_pool().free_all_blocks()
        return
    rows = []
    for case in arguments.only or CASES:
        for name in [OURS, *(n for n, (module, _, _) in PEERS.items() if find_spec(module))]:
            wanted = ("toy " if arguments.toy else "") + case
            for row in measure_apart(name, wanted, arguments.k, 9 if name == OURS else 3):
                rows.append(row)
                time = f"{row['median']:10.3f} ms" if "median" in row else f"  {row['failed']}"
                print(f"{row['case']:20} k {row['k']:2} {name:12} {time} {row.get('wrong', '')}")
                write_figures(arguments.json, rows)


if __name__ == "__main__":
    main()
