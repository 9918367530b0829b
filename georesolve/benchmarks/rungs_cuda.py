"""The rungs of the ladder that compute on GPUs: the case study's kernel pair, and ours."""

import functools
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.delayed import delayed
from distributed import Client, wait

from georesolve import kernels
from georesolve.benchmarks.inputs import Pair, cartesian
from georesolve.benchmarks.problem import Prepare, Prepared, Problem
from georesolve.engine.backends import Frame, backend
from georesolve.workers.cluster import open_cluster
from georesolve.workers.cluster_settings import ClusterSettings

_POINTS = pd.DataFrame({"lat_deg": pd.Series(dtype="f8"), "lon_deg": pd.Series(dtype="f8")})
_ANSWER = pd.DataFrame({"reference": pd.Series(dtype="i8"), "distance_m": pd.Series(dtype="f8")})
_PAIR_ANSWER = _ANSWER.astype({"reference": "i4", "distance_m": "f4"})


def pair() -> AbstractContextManager[Prepare]:
    """The case study's kernel pair on one GPU."""
    return nullcontext(functools.partial(_pair, fast=False))


def fast_pair() -> AbstractContextManager[Prepare]:
    """The same with hardware sine, root and division."""
    return nullcontext(functools.partial(_pair, fast=True))


def _pair(problem: Problem, fast: bool) -> Prepared:
    import cupy as cp

    from georesolve.benchmarks import case_study_cuda

    references, observations = (
        case_study_cuda.radians(*map(cp.asarray, points))
        for points in (problem.references, problem.observations)
    )

    def run() -> Any:
        rows, _ = case_study_cuda.nearest(references, observations, fast=fast)
        cp.cuda.Device().synchronize()
        return rows

    return Prepared(run, cp.asnumpy)


def cuml_brute() -> AbstractContextManager[Prepare]:
    """Brute force of cuML with the haversine metric, float32."""

    def prepare(problem: Problem) -> Prepared:
        import cupy as cp

        neighbors = import_module("cuml.neighbors")
        references, observations = (
            cp.radians(cp.stack([cp.asarray(a) for a in points], axis=1)).astype("f4")
            for points in (problem.references, problem.observations)
        )
        search = neighbors.NearestNeighbors(
            n_neighbors=1, algorithm="brute", metric="haversine", output_type="cupy"
        )

        def run() -> Any:
            rows = search.fit(references).kneighbors(observations, return_distance=False)
            cp.cuda.Device().synchronize()
            return rows

        return Prepared(run, lambda rows: cp.asnumpy(rows).ravel())

    return nullcontext(prepare)


def cuvs_brute() -> AbstractContextManager[Prepare]:
    """Brute force of cuVS on unit vectors, float32."""

    def prepare(problem: Problem) -> Prepared:
        import cupy as cp

        brute_force = import_module("cuvs.neighbors.brute_force")
        references, observations = (
            cp.asarray(cartesian(points), "f4")
            for points in (problem.references, problem.observations)
        )

        def run() -> Any:
            _, rows = brute_force.search(brute_force.build(references), observations, 1)
            cp.cuda.Device().synchronize()
            return rows

        return Prepared(run, lambda rows: cp.asnumpy(cp.asarray(rows)).ravel())

    return nullcontext(prepare)


def one_gpu() -> AbstractContextManager[Prepare]:
    """Ours on one GPU."""

    def prepare(problem: Problem) -> Prepared:
        import cupy as cp

        references = [cp.asarray(a) for a in problem.references]
        observations = [cp.asarray(a) for a in problem.observations]

        def run() -> Any:
            answer = kernels.nearest(kernels.build_index(*references), *observations)
            cp.cuda.Device().synchronize()
            return answer.reference

        return Prepared(run, cp.asnumpy)

    return nullcontext(prepare)


@contextmanager
def threads_pair() -> Iterator[Prepare]:
    """The pair on all GPUs, a thread each, memory from RMM's pools."""
    import cupy as cp
    import rmm
    from numba import cuda
    from rmm.allocators.cupy import rmm_cupy_allocator

    from georesolve.benchmarks import case_study_cuda

    devices = list(range(cp.cuda.runtime.getDeviceCount()))
    rmm.reinitialize(pool_allocator=True, initial_pool_size=2**32, devices=devices)
    cp.cuda.set_allocator(rmm_cupy_allocator)
    with ExitStack() as stack:
        # Each GPU has a thread of its own for good: CuPy and numba keep a current device a thread.
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in devices]

        def everywhere(function: Callable[[int], Any]) -> list[Any]:
            return [
                future.result()
                for future in [
                    thread.submit(function, i) for i, thread in zip(devices, threads, strict=True)
                ]
            ]

        def choose(device: int) -> None:
            cp.cuda.Device(device).use()
            cuda.select_device(device)

        everywhere(choose)

        def prepare(problem: Problem) -> Prepared:
            def to_device(device: int) -> list[Any]:
                part = _part(problem.observations, device, len(devices))
                return [
                    case_study_cuda.radians(*map(cp.asarray, points))
                    for points in (problem.references, part)
                ]

            inputs = everywhere(to_device)

            def search(device: int) -> Any:
                rows, _ = case_study_cuda.nearest(*inputs[device])
                cp.cuda.Device(device).synchronize()
                return rows

            def to_host(rows: list[Any]) -> np.ndarray:
                return np.concatenate(everywhere(lambda device: cp.asnumpy(rows[device])))

            return Prepared(lambda: everywhere(search), to_host)

        yield prepare


@contextmanager
def dask_pair() -> Iterator[Prepare]:
    """The pair on all GPUs, by `map_partitions` on a LocalCUDACluster."""
    with _gpu_cluster() as client:
        yield lambda problem: spread(client, problem, pair_of_part, _PAIR_ANSWER)


@contextmanager
def all_gpus() -> Iterator[Prepare]:
    """Ours on all GPUs, in the same way."""
    with _gpu_cluster() as client:
        yield lambda problem: spread(client, problem, ours_of_part, _ANSWER)


@contextmanager
def _gpu_cluster() -> Iterator[Client]:
    settings = ClusterSettings(device="cuda", connect_seconds=60, dashboard_address="127.0.0.1:0")
    with open_cluster(settings) as cluster:
        yield cluster.client


def spread(
    client: Client,
    problem: Problem,
    resolve: Callable[[Frame, Path], Frame],
    meta: pd.DataFrame = _ANSWER,
) -> Prepared:
    """Lay a problem out over the workers of a cluster, one partition each, as a dataframe.

    The references lie on every worker, as arrays, before the clock starts.
    """
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    parts = [
        client.submit(load_part, problem.folder, i, len(workers), workers=[worker], pure=False)
        for i, worker in enumerate(workers)
    ]
    with client.as_current():
        wait(parts)
        observations = dd.from_delayed(parts, meta=_POINTS, verify_meta=False)

    def run() -> Any:
        with client.as_current():
            # A name of its own: Dask would give what it knows by the same one.
            answer = observations.map_partitions(
                resolve,
                problem.folder,
                meta=meta,
                enforce_metadata=False,
                token=f"{resolve.__name__}-{secrets.token_hex(4)}",
            ).persist()
            wait(answer)
        return answer

    def rows(answer: Any) -> np.ndarray:
        # As arrays of numpy: a frame of cudf never leaves its worker.
        with client.as_current():
            arrays = [delayed(rows_of)(part) for part in answer.to_delayed()]
            return np.concatenate(client.gather(client.compute(arrays)))

    return Prepared(run, rows)


def load_part(folder: Path, i: int, n: int) -> Frame:
    """On a worker: one of n parts of the observations, as a frame."""
    both = np.load(folder / "observations.npy", mmap_mode="r")
    lat, lon = _part((both[0], both[1]), i, n)
    library = import_module(dask.config.get("dataframe.backend"))
    to_device = backend().to_device
    frame = library.DataFrame(
        {"lat_deg": to_device(np.array(lat)), "lon_deg": to_device(np.array(lon))}
    )
    backend().synchronize()
    return frame


def ours_of_part(frame: Frame, folder: Path) -> Frame:
    """On a worker: what ours finds for a part."""
    index = kernels.build_index(*_references(folder))
    answer = kernels.nearest(index, frame["lat_deg"].values, frame["lon_deg"].values)
    backend().synchronize()
    return type(frame)({"reference": answer.reference, "distance_m": answer.distance_m})


def pair_of_part(frame: Frame, folder: Path) -> Frame:
    """On a worker: what the pair finds for a part."""
    from georesolve.benchmarks import case_study_cuda

    references = case_study_cuda.radians(*_references(folder))
    observations = case_study_cuda.radians(frame["lat_deg"].values, frame["lon_deg"].values)
    row, distance_m = case_study_cuda.nearest(references, observations)
    backend().synchronize()
    return type(frame)({"reference": row, "distance_m": distance_m})


def rows_of(frame: Frame) -> np.ndarray:
    """On a worker: the rows of references that were found."""
    return backend().to_host(frame["reference"].values)


@functools.lru_cache(maxsize=1)
def _references(folder: Path) -> list[Any]:
    """On a worker: the references in degrees, on its device."""
    lat, lon = np.load(folder / "references.npy")
    return [backend().to_device(lat), backend().to_device(lon)]


def _part(points: Pair, i: int, n: int) -> Pair:
    size = points[0].size
    part = slice(size * i // n, size * (i + 1) // n)
    return points[0][part], points[1][part]
