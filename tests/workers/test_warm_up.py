"""After a rehearsal a job finds compiled what it needs."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import dask
import pytest

from georesolve.engine.memory import set_memory
from georesolve.engine.plan import Chunk
from georesolve.query import MatchOptions
from georesolve.workers.job import Job
from georesolve.workers.partitions import resolve
from georesolve.workers.warm_up import A_PIECE, rehearse
from tests.conftest import points, store_points

# A GPU's lists are compiled for each length that is asked for, and only one is rehearsed.
SEVERAL = {"cpu": 7, "cuda": 2}


def jobs(device):
    """Sets of references and options, by what is special."""
    return {
        "k = 1": (2_000, MatchOptions()),
        "by the other algorithm": (2_000, MatchOptions(algorithm="brute")),
        "several": (5_000, MatchOptions(k=SEVERAL[device], max_distance_m=1e6)),
        "without itself": (5_000, MatchOptions(exclude_self=True)),
        "near": (3_000, MatchOptions(near=True)),
        "in pieces": (A_PIECE + 5_000, MatchOptions(k=2)),
    }


def signatures():
    """What every compiled function of the kernels is compiled for, or loaded from the cache."""
    return {
        f"{module}.{name}": [str(signature) for signature in value.overloads]
        for module in list(sys.modules)
        if module.startswith("georesolve.kernels.")
        for name, value in vars(sys.modules[module]).items()
        if hasattr(value, "overloads")
    }


def before_and_after_jobs(device, folder):
    dask.config.set({"dataframe.backend": "cudf" if device == "cuda" else "pandas"})
    set_memory(device, None, A_PIECE)
    rehearse(device)
    before = signatures()
    observations = store_points(points(3_000, 1), folder / "observations.parquet")
    for name, (n_references, options) in jobs(device).items():
        references = store_points(points(n_references, 2), folder / f"{name}.parquet")
        job = Job(observations, references, options, id=name, folder=folder)
        resolve(Chunk(0, 3_000), job)
    return before, signatures()


@pytest.mark.timeout(300)
def test_a_job_compiles_nothing_that_a_rehearsal_has_not(device, tmp_path):
    # A process of its own: in this one other tests have compiled.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as fresh:
        before, after = fresh.submit(before_and_after_jobs, device, tmp_path).result()
    assert any(before.values())
    assert after == before
