"""What a worker does before it takes work: choose its backend, pass the known-answer check."""

import logging

import dask
import numba
import numpy as np
from distributed import Worker, WorkerPlugin

import kernels
from kernels.devices import Device
from workers.gpus import choose_device
from workers.settings import DeviceChoice

logger = logging.getLogger(__name__)

# Places far from ties, and their distances by the haversine formula in 40 digits.
_REFERENCES_DEG = ([52.520, 48.857, -33.869, 90.0], [13.405, 2.352, 151.209, 0.0])
_OBSERVATIONS_DEG = ([50.110, -36.848, 89.0, np.nan], [8.682, 174.763, -120.0, 0.0])
_KNOWN_REFERENCE = [0, 2, 3, -1]
_KNOWN_DISTANCE_M = [423_599.70775974633, 2_155_893.5760072444, 111_195.08023353291, np.nan]


class WorkerCheckError(RuntimeError):
    """A worker's device gave a wrong answer to a question whose answer is known."""


class Warmup(WorkerPlugin):
    """Prepares a worker for its device; a worker that fails the known-answer check does not start.

    Parameters
    ----------
    device
        ``cpu``, ``cuda``, or ``auto`` for what the worker finds.
    """

    name = "georesolve-warmup"

    def __init__(self, device: DeviceChoice) -> None:
        self.choice = device

    def setup(self, worker: Worker) -> None:
        """Called by Dask in every worker, before it takes work."""
        device = choose_device(self.choice)
        # Dask sets a worker's environment after its process has started, which may have imported
        # numba by then: NUMBA_NUM_THREADS must count before the first parallel kernel.
        numba.config.reload_config()
        if device == "cuda":
            _allocate_from_rmm()
            dask.config.set({"dataframe.backend": "cudf"})
        else:
            dask.config.set({"dataframe.backend": "pandas"})
        check_known_answer(device)
        logger.info("worker %s answers right on %s", worker.name, device)


def _allocate_from_rmm() -> None:
    # One allocator a process: CuPy's own pool and RMM's would each keep what they freed.
    import cupy
    from rmm.allocators.cupy import rmm_cupy_allocator

    cupy.cuda.set_allocator(rmm_cupy_allocator)


def check_known_answer(device: Device) -> None:
    """Resolve four observations whose answers are known; compiles the kernels on the way.

    Raises
    ------
    WorkerCheckError
        When an answer is wrong. A damaged device, or a poisoned CUDA context, must not take work.
    """
    if device == "cuda":
        import cupy as arrays
    else:
        arrays = np
    index = kernels.build_index(*(arrays.asarray(a) for a in _REFERENCES_DEG))
    answer = kernels.nearest(index, *(arrays.asarray(a) for a in _OBSERVATIONS_DEG))
    reference, distance_m = answer.reference.tolist(), np.array(answer.distance_m.tolist())
    if reference != _KNOWN_REFERENCE or not np.allclose(
        distance_m, _KNOWN_DISTANCE_M, rtol=1e-12, atol=1e-3, equal_nan=True
    ):
        raise WorkerCheckError(
            f"the {device} answered {reference} at {distance_m.tolist()} m to a question whose "
            f"answer is {_KNOWN_REFERENCE} at {_KNOWN_DISTANCE_M} m: replace the device"
        )
