"""The rungs of the ladder: ways to search, each a small function, in a literal table.

A rung prepares a problem, off the clock, and gives what is then timed. Peers find their input in
the form that they take (radians, unit types, on the device); ours start from float64 degrees, and
their time has the trigonometry, building the index and the metres in it.
"""

import io
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from georesolve.benchmarks.inputs import Pair
from georesolve.benchmarks.problem import Prepare, Prepared, Problem

_DIAMETER_M = 2 * 6_371_008.8
_NUMPY_PAIRS_AT_ONCE = 2**18
"""Distances that NumPy has in hand at a time: what they take stays in a core's cache."""
_CUPY_PAIRS_AT_ONCE = 2**27
"""Distances that CuPy has in hand at a time: a gigabyte for each array of them."""


class Rung(NamedTuple):
    """A way to search.

    Attributes
    ----------
    open
        What it needs for all sizes, such as a cluster; gives the function that prepares one size.
    timed
        Where its time begins and ends.
    beside
        Which of ours it is compared with: the first of these that has run.
    needs
        Modules without which it cannot run, each with the package that has it.
    gpu
        Whether it needs one.
    grows
        What its time is proportional to.
    """

    open: Callable[[], AbstractContextManager[Prepare]]
    timed: str
    beside: tuple[str, ...]
    needs: Mapping[str, str] = MappingProxyType({})
    gpu: bool = False
    grows: Literal["pairs", "observations"] = "pairs"


def python_loop(problem: Problem) -> Prepared:
    """The haversine formula in two loops of Python."""
    lat, lon = (np.radians(a).tolist() for a in problem.observations)
    lats, lons = (np.radians(a).tolist() for a in problem.references)
    cosines = [math.cos(phi) for phi in lats]

    def run() -> list[int]:
        rows = []
        for i in range(len(lat)):
            best, nearest, cosine = math.inf, -1, math.cos(lat[i])
            for j in range(len(lats)):
                a = math.sin((lats[j] - lat[i]) / 2) ** 2
                a += cosine * cosines[j] * math.sin((lons[j] - lon[i]) / 2) ** 2
                if a < best:
                    best, nearest = a, j
            rows.append(nearest)
        return rows

    return Prepared(run)


def numpy_broadcast(problem: Problem) -> Prepared:
    """The haversine formula of all pairs at once, in blocks, with NumPy."""
    return Prepared(_broadcast(np, problem, _NUMPY_PAIRS_AT_ONCE))


def cupy_broadcast(problem: Problem) -> Prepared:
    """The same with CuPy."""
    cp = import_module("cupy")
    broadcast = _broadcast(cp, problem, _CUPY_PAIRS_AT_ONCE)

    def run() -> Any:
        rows = broadcast()
        cp.cuda.Device().synchronize()
        return rows

    return Prepared(run, cp.asnumpy)


def _broadcast(xp: Any, problem: Problem, pairs_at_once: int) -> Callable[[], Any]:
    lat, lon = (xp.radians(xp.asarray(a)) for a in problem.observations)
    lats, lons = (xp.radians(xp.asarray(a)) for a in problem.references)
    at_once = max(1, pairs_at_once // lats.size)

    def run() -> Any:
        rows = xp.empty(lat.size, xp.int64)
        metres = xp.empty(lat.size)
        cosines = xp.cos(lats)
        for start in range(0, lat.size, at_once):
            part = slice(start, start + at_once)
            a = xp.sin((lats - lat[part, None]) / 2) ** 2
            a += xp.cos(lat[part, None]) * cosines * xp.sin((lons - lon[part, None]) / 2) ** 2
            rows[part] = a.argmin(axis=1)
            metres[part] = _DIAMETER_M * xp.arcsin(xp.sqrt(a.min(axis=1)))
        return rows

    return run


def sklearn_brute(problem: Problem) -> Prepared:
    """scikit-learn's brute force with the haversine metric, on all cores."""
    neighbors = import_module("sklearn.neighbors")
    search = neighbors.NearestNeighbors(
        n_neighbors=1, algorithm="brute", metric="haversine", n_jobs=-1
    ).fit(np.radians(np.stack(problem.references, axis=1)))
    observations = np.radians(np.stack(problem.observations, axis=1))
    return Prepared(lambda: search.kneighbors(observations), lambda answer: answer[1][:, 0])


def duckdb_spatial(problem: Problem) -> Prepared:
    """DuckDB's spatial extension, which knows no nearest neighbours: all distances on a sphere."""
    from georesolve.benchmarks.radius import spatial_duckdb

    database = spatial_duckdb()
    # Its axes of a sphere are latitude and longitude.
    for name, points in (("o", problem.observations), ("r", problem.references)):
        database.register("points", _table(points))
        database.execute(f"CREATE TABLE {name} AS SELECT i, ST_Point2D(lat, lon) AS g FROM points")
    query = (
        "SELECT o.i, arg_min(r.i, ST_Distance_Sphere(o.g, r.g)) AS reference FROM o, r "
        "GROUP BY o.i ORDER BY o.i"
    )
    return Prepared(lambda: database.execute(query).to_arrow_table(), _references)


def sedonadb_plane(problem: Problem) -> Prepared:
    """SedonaDB's nearest-neighbour join, which is on a plane of degrees."""
    import pyarrow as pa

    session = import_module("sedonadb").connect()
    for name, points in (("o", problem.observations), ("r", problem.references)):
        session.create_data_frame(_table(points)).to_view("points", overwrite=True)
        made = session.sql("SELECT i, ST_Point(lon, lat) AS g FROM points").to_memtable()
        made.to_view(name, overwrite=True)
    query = "SELECT o.i, r.i AS reference FROM o JOIN r ON ST_KNN(o.g, r.g, 1, FALSE)"
    return Prepared(
        lambda: pa.table(session.sql(query)), lambda found: _references(found.sort_by("i"))
    )


def _table(points: Pair) -> Any:
    import pyarrow as pa

    return pa.table({"i": np.arange(points[0].size), "lat": points[0], "lon": points[1]})


def _references(found: Any) -> np.ndarray:
    return found["reference"].to_numpy()


def numba_one_core(problem: Problem) -> Prepared:
    """The haversine formula in two loops, compiled by Numba."""
    from numba import njit

    from georesolve.benchmarks.kernels import haversine_loop

    return _numba(njit(haversine_loop.py_func), problem)


def numba_all_cores(problem: Problem) -> Prepared:
    """The same with `prange`."""
    from georesolve.benchmarks.kernels import haversine_loop

    return _numba(haversine_loop, problem)


def _numba(loop: Any, problem: Problem) -> Prepared:
    points = [np.radians(a) for a in (*problem.observations, *problem.references)]

    def run() -> np.ndarray:
        rows = np.full(points[0].size, -1, np.int64)
        loop(*points, rows)
        return rows

    return Prepared(run)


def cpu_tree(problem: Problem) -> Prepared:
    """Ours on all cores."""
    from georesolve import kernels

    def run() -> Any:
        index = kernels.build_index(*problem.references)
        return kernels.nearest(index, *problem.observations, algorithm="tree")

    return Prepared(run, lambda answer: answer.reference)


@contextmanager
def http_job() -> Iterator[Prepare]:
    """Ours from the first byte of two Parquet files posted to the last of the result."""
    import pyarrow.parquet as pq

    from georesolve.benchmarks.service import parquet, running, whole_job

    with (
        tempfile.TemporaryDirectory() as folder,
        running("auto", Path(folder) / "data", Path(folder) / "log") as client,
    ):

        def prepare(problem: Problem) -> Prepared:
            files = parquet(problem.observations), parquet(problem.references)
            return Prepared(
                lambda: whole_job(client, *files),
                lambda done: pq.read_table(io.BytesIO(done.content))["reference"].to_numpy(),
                lambda done: client.delete(f"/jobs/{done.job['id']}").raise_for_status(),
            )

        yield prepare


def _plain(prepare: Prepare) -> Callable[[], AbstractContextManager[Prepare]]:
    return lambda: nullcontext(prepare)


def _cuda(name: str) -> Callable[[], AbstractContextManager[Prepare]]:
    """A rung of `benchmarks.rungs_cuda`, which imports CUDA libraries."""
    return lambda: getattr(import_module("georesolve.benchmarks.rungs_cuda"), name)()


_ON_HOST = "arrays on the host to arrays on the host"
_TABLES = "tables of points in memory to a table in memory"
_ON_GPU = "arrays on the GPU to arrays on the GPU"
_ON_GPUS = "arrays on the GPUs to arrays on the GPUs"
_ON_WORKERS = "dataframe on the workers to dataframe on the workers"
_OVER_HTTP = "first byte posted to last byte of the result"
_SKLEARN = {"sklearn": "scikit-learn"}
_DUCKDB = {"duckdb": "duckdb", "duckdb_extension_spatial": "duckdb-extension-spatial"}
_CUPY = {"cupy": "cupy-cuda12x"}
_PAIR = _CUPY | {"numba_cuda": "numba-cuda"}
_DASK = _PAIR | {"cudf": "cudf-cu12", "dask_cuda": "dask-cuda"}
_CPU, _GPU, _GPUS = "ours, CPU tree", "ours, one GPU", "ours, all GPUs"

RUNGS = {
    "Python loop": Rung(_plain(python_loop), _ON_HOST, (_CPU,)),
    "NumPy broadcast": Rung(_plain(numpy_broadcast), _ON_HOST, (_CPU,)),
    "scikit-learn brute force": Rung(_plain(sklearn_brute), _ON_HOST, (_CPU,), _SKLEARN),
    "DuckDB spatial": Rung(_plain(duckdb_spatial), _TABLES, (_CPU,), _DUCKDB),
    "SedonaDB, on a plane": Rung(
        _plain(sedonadb_plane), _TABLES, (_CPU,), {"sedonadb": "sedonadb"}, grows="observations"
    ),
    "Numba, one core": Rung(_plain(numba_one_core), _ON_HOST, (_CPU,)),
    "Numba, prange": Rung(_plain(numba_all_cores), _ON_HOST, (_CPU,)),
    "CuPy broadcast": Rung(_plain(cupy_broadcast), _ON_GPU, (_GPU,), _CUPY, gpu=True),
    "cuML brute force": Rung(
        _cuda("cuml_brute"), _ON_GPU, (_GPU,), _CUPY | {"cuml": "cuml-cu12"}, gpu=True
    ),
    "cuVS brute force": Rung(
        _cuda("cuvs_brute"), _ON_GPU, (_GPU,), _CUPY | {"cuvs": "cuvs-cu12"}, gpu=True
    ),
    "the pair, float32": Rung(_cuda("pair"), _ON_GPU, (_GPU,), _PAIR, gpu=True),
    "the pair, fastmath": Rung(_cuda("fast_pair"), _ON_GPU, (_GPU,), _PAIR, gpu=True),
    "Dask + the pair": Rung(_cuda("dask_pair"), _ON_WORKERS, (_GPUS,), _DASK, gpu=True),
    "threads + RMM + the pair": Rung(
        _cuda("threads_pair"), _ON_GPUS, (_GPUS,), _PAIR | {"rmm": "rmm-cu12"}, gpu=True
    ),
    _CPU: Rung(_plain(cpu_tree), _ON_HOST, (_CPU,), grows="observations"),
    _GPU: Rung(_cuda("one_gpu"), _ON_GPU, (_GPU,), _PAIR, gpu=True, grows="observations"),
    _GPUS: Rung(_cuda("all_gpus"), _ON_WORKERS, (_GPUS,), _DASK, gpu=True, grows="observations"),
    "ours, HTTP job": Rung(
        http_job,
        _OVER_HTTP,
        (_GPUS, _CPU),
        grows="observations",
    ),
}
"""The ladder, from the bottom to the top."""
