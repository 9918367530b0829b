"""The nearest on the ellipsoid beside the walk on the sphere, one geodesic a row, and PROJ.

On degrees where they lie, the index included in none: the walk is that of the sphere without cells,
and a geodesic a row is that from each observation to its nearest reference. PROJ measures geodesics
to the 8 nearest of scipy's cKDTree by unit vectors, and the least of them is its answer, which is
not exact; it is tried on a CPU, at 2^20 x 2^20. Methods take turns. Rows of a sample are compared
with the least of all geodesics by PROJ.

    python -m georesolve.benchmarks.geodesics
        [--device cuda] [--toy] [--repeats N] [--json FILE]
"""

import random
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numba import njit

from georesolve import kernels
from georesolve.benchmarks.inputs import Pair, cartesian, inputs
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.kernels.devices import implementation
from georesolve.kernels.geodesic import geodesic_m
from georesolve.kernels.query import Degrees, Query
from georesolve.kernels.threads_cpu import in_threads, threads_for

CASES = {
    "cpu": (("uniform", 20, 14), ("uniform", 22, 20), ("uniform", 20, 20), ("cities", 20, 17)),
    "cuda": (("uniform", 24, 14), ("uniform", 24, 20), ("cities", 24, 17)),
}
"""Kind, powers of two of observations and of references."""
PEER = ("uniform", 20, 20)
_NEAR = 8
_SAMPLE = 32


@njit(nogil=True, error_model="numpy")
def _measure(thread, threads, references, observations, rows, metres):  # type: ignore[no-untyped-def]
    n = rows.size
    for i in range(n * thread // threads, n * (thread + 1) // threads):
        j = rows[i]
        metres[i] = geodesic_m(
            observations[i, 0], observations[i, 1], observations[i, 2],
            references[j, 0], references[j, 1], references[j, 2],
        )  # fmt: skip


def _geodesics(device: Any, index: Any, observations: Degrees, rows: Any) -> Callable[[], Any]:
    """What measures one geodesic a row."""
    vectors = implementation(device, "coordinates").unit_vectors(*observations, earth="wgs84")
    if device == "cpu":
        metres = np.empty(rows.size)
        at = (threads_for(rows.size, 1 << 12), index.vectors, vectors, rows, metres)
        return lambda: in_threads(_measure, *at)
    cp, cuda = import_module("cupy"), import_module("georesolve.kernels.ellipsoid_cuda")
    metres, of = cp.empty(rows.size), cp.arange(rows.size)
    return lambda: cuda.stride(cuda.measure, rows.size, index.vectors, vectors, of, rows, metres)


def by_proj(references: Pair, observations: Pair) -> np.ndarray:
    """Rows, by geodesics to the 8 nearest by their chords."""
    tree = import_module("scipy.spatial").cKDTree(cartesian(references))
    _, rows = tree.query(cartesian(observations), k=_NEAR, workers=-1)
    lat, lon = (np.repeat(axis, _NEAR) for axis in observations)
    there = [axis[rows.ravel()] for axis in references]
    metres = import_module("pyproj").Geod(ellps="WGS84").inv(lon, lat, there[1], there[0])[2]
    best = metres.reshape(rows.shape).argmin(axis=1)
    return np.asarray(rows[np.arange(len(rows)), best])


def wrong_rows(references: Pair, observations: Pair, rows: np.ndarray) -> int:
    """How many of a sample are farther than the least of all geodesics, by more than 1 um."""
    geod, wrong = import_module("pyproj").Geod(ellps="WGS84"), 0
    for i in np.linspace(0, rows.size - 1, min(rows.size, _SAMPLE)).astype(int):
        here = [np.full(references[0].size, axis[i]) for axis in observations]
        metres = geod.inv(here[1], here[0], references[1], references[0])[2]
        wrong += bool(metres[rows[i]] > metres.min() + 1e-6)
    return wrong


def measure(device: Any, kind: str, log_m: int, log_n: int, repeats: int, peer: bool) -> Any:
    """Milliseconds of each method on one input: all turns, by name."""
    on_host = inputs(kind, 2**log_m, 2**log_n)
    to_host: Callable[[Any], np.ndarray] = np.asarray
    wait: Callable[[], Any] = lambda: None  # noqa: E731
    references, observations = (Degrees(*pair) for pair in on_host)
    if device == "cuda":
        cp = import_module("cupy")
        to_host, wait = cp.asnumpy, cp.cuda.Device().synchronize
        references, observations = (Degrees(*map(cp.asarray, pair)) for pair in on_host)
    sphere = kernels.build_index(*references)
    wgs84 = kernels.build_index(*references, earth="wgs84")
    tree = implementation(device, "tree")
    walked: dict[str, Any] = {"by": "packets"} if device == "cpu" else {"width": 32}
    rows = kernels.nearest(wgs84, *observations).reference
    methods: dict[str, Callable[[], Any]] = {
        "sphere, walk": lambda: tree.search(sphere, observations, Query(), measure=True, **walked),
        "one geodesic a row": _geodesics(device, wgs84, observations, rows),
        "ellipsoid": lambda: kernels.nearest(wgs84, *observations),
    }
    if peer:
        methods["cKDTree and PROJ"] = lambda: by_proj(*on_host)
        methods["ellipsoid, with its index"] = lambda: kernels.nearest(
            kernels.build_index(*references, earth="wgs84"), *observations
        )
    times: dict[str, list[float]] = {name: [] for name in methods}
    turns = [name for name in methods for _ in range(repeats)]
    random.Random(1).shuffle(turns)
    for method in methods.values():
        method()
    for name in turns:
        wait()
        start = time.perf_counter()
        methods[name]()
        wait()
        times[name].append((time.perf_counter() - start) * 1e3)
    case = {"kind": kind, "observations": 2**log_m, "references": 2**log_n, "device": device}
    return case | {"wrong": wrong_rows(*on_host, to_host(rows)), "ms": times}


def main(arguments: list[str] | None = None) -> None:
    """Print what all methods take on all inputs."""
    parser = benchmark_parser(__doc__, repeats=7, toy=True)
    parser.add_argument("--device", choices=[*CASES], default="cpu")
    given = parser.parse_args(arguments)
    figures = []
    print("| input | method | median ms | least | largest | wrong of the sample |")
    print("|---|---|---|---|---|---|")
    for kind, log_m, log_n in CASES[given.device]:
        peer = given.device == "cpu" and (kind, log_m, log_n) == PEER
        sizes = (10, 9) if given.toy else (log_m, log_n)
        figures.append(measure(given.device, kind, *sizes, given.repeats, peer))
        for name, times in figures[-1]["ms"].items():
            print(
                f"| {kind} 2^{sizes[0]} x 2^{sizes[1]} | {name} | {statistics.median(times):.1f} "
                f"| {min(times):.1f} | {max(times):.1f} | {figures[-1]['wrong']} |"
            )
    write_figures(given.json, figures)


if __name__ == "__main__":
    main()
