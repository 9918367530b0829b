"""What a worker does before it takes work: open its log, pass a check, rehearse a job."""

import asyncio
import logging
import os
from dataclasses import KW_ONLY, dataclass
from typing import Any

import dask
import numba
import numpy as np
from distributed import Worker, WorkerPlugin

from georesolve import kernels
from georesolve.engine.backends import backend_on
from georesolve.engine.gpus import DeviceChoice, choose_device
from georesolve.engine.inline import spiral
from georesolve.engine.memory import keep_what_is_loaded, set_memory
from georesolve.kernels.devices import Device
from georesolve.query import ALGORITHMS
from georesolve.workers.logs import LogFormat, configure_log
from georesolve.workers.warm_up import rehearse

logger = logging.getLogger(__name__)

# Places far from ties, and their distances by the haversine formula in 40 digits.
_REFERENCES_DEG = ([52.520, 48.857, -33.869, 90.0], [13.405, 2.352, 151.209, 0.0])
_OBSERVATIONS_DEG = ([50.110, -36.848, 89.0, np.nan], [8.682, 174.763, -120.0, 0.0])
_KNOWN_REFERENCE = [0, 2, 3, -1]
_KNOWN_DISTANCE_M = [423_599.70775974633, 2_155_893.5760072444, 111_195.08023353291, np.nan]
# Few observations and many take different ways through the same search, and from 2048 references a
# GPU cuts them into slices.
_CHECKED_REFERENCES, _CHECKED_OBSERVATIONS = 3_000, (100, 10_000)
_BEAT_SECONDS = 1.0
NICENESS = 5
READY = "georesolve-ready"
"""Events of workers that have passed their check."""


class WorkerCheckError(RuntimeError):
    """A worker's device is not fit for work: it answers wrongly, or fails."""


@dataclass(eq=False)
class Warmup(WorkerPlugin):
    """Prepares a worker for its device; one whose device fails the check is closed.

    One that takes work has rehearsed a job. One that `yields` leaves the cores to fronts of the
    same machine. With a `log_format` its log is one stream with that of the service.
    """

    name = "georesolve-warmup"

    choice: DeviceChoice
    references_a_piece: int | None
    _: KW_ONLY
    yields: bool
    log_format: LogFormat | None = None

    async def setup(self, worker: Worker) -> None:
        """Called by Dask in every worker, before it takes work.

        On a busy machine it takes minutes to compile all kernels. Dask gives a worker up that is
        silent for `worker-ttl`, and one that joins is silent until its plugins are set up.
        """
        if self.log_format:
            configure_log(self.log_format)
        if self.yields:
            # Threads that are started from here on are as nice.
            os.nice(NICENESS)
        preparing = asyncio.get_running_loop().run_in_executor(None, self.prepare, worker)
        try:
            while not (await asyncio.wait([preparing], timeout=_BEAT_SECONDS))[0]:
                await worker.heartbeat()
            await preparing
            worker.log_event(READY, {"address": worker.address})
        except Exception as error:
            # Of a worker that joins an open cluster Dask would log the error and give it work. With
            # its nanny: a device that fails now would fail again at once.
            logger.critical("worker %s takes no part: %s", worker.name, error)
            worker.loop.add_callback(worker.close, reason="its device failed the check")
            raise

    def prepare(self, worker: Worker) -> None:
        """Choose the device, check it and rehearse a job."""
        device = choose_device(self.choice)
        # Dask sets a worker's environment after its process has started, which may have imported
        # numba by then: NUMBA_NUM_THREADS must count before the first parallel kernel.
        numba.config.reload_config()
        if device == "cuda":
            # One allocator a process: CuPy's own pool and RMM's would each keep what they freed.
            import cupy
            from rmm.allocators.cupy import rmm_cupy_allocator

            cupy.cuda.set_allocator(rmm_cupy_allocator)
            dask.config.set({"dataframe.backend": "cudf"})
        else:
            dask.config.set({"dataframe.backend": "pandas"})
        set_memory(device, worker.memory_manager.memory_limit, self.references_a_piece)
        check_known_answer(device)
        try:
            rehearse(device)
        except Exception as error:
            raise WorkerCheckError(
                f"a job could not be rehearsed on the {device}: {type(error).__name__}: {error}"
            ) from error
        keep_what_is_loaded()
        logger.info("worker %s answers right on %s", worker.name, device)


def check_known_answer(device: Device) -> None:
    """Ask questions whose answers are known; raises WorkerCheckError when one is wrong.

    A few distances were computed in 40 digits; of some thousand points all algorithms must agree to
    the last bit.
    """
    index = kernels.build_index(*_on(device, _REFERENCES_DEG))
    answer = kernels.nearest(index, *_on(device, _OBSERVATIONS_DEG))
    reference, distance_m = answer.reference.tolist(), np.array(answer.distance_m.tolist())
    if reference != _KNOWN_REFERENCE or not np.allclose(
        distance_m, _KNOWN_DISTANCE_M, rtol=1e-12, atol=1e-3, equal_nan=True
    ):
        raise WorkerCheckError(
            f"the {device} answered {reference} at {distance_m.tolist()} m to a question whose "
            f"answer is {_KNOWN_REFERENCE} at {_KNOWN_DISTANCE_M} m: replace the device"
        )
    index = kernels.build_index(*_on(device, spiral(_CHECKED_REFERENCES)))
    for n in _CHECKED_OBSERVATIONS:
        observations = _on(device, spiral(n))
        for k in (1, 2):
            answers = {
                algorithm: kernels.nearest(index, *observations, k=k, algorithm=algorithm)
                for algorithm in ALGORITHMS
            }
            agreed = {
                (answer.reference.tobytes(), answer.distance_m.tobytes())
                for answer in answers.values()
            }
            if len(agreed) > 1:
                raise WorkerCheckError(
                    f"the algorithms {', '.join(answers)} disagree on the {device} about the "
                    f"{k} nearest of {n} points: replace the device"
                )


def _on(device: Device, coordinates_deg: Any) -> list[Any]:
    """Arrays on a device, as the workers get them there."""
    arrays = [np.asarray(values, np.float64) for values in coordinates_deg]
    for array in arrays:
        # Columns of Arrow cannot be written to, and numba compiles for such arrays apart.
        array.flags.writeable = False
    return [backend_on(device).to_device(array) for array in arrays]
