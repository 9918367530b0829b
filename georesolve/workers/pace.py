"""Pace of a cluster: memory of its workers, and how long its jobs take beside the estimate."""

import asyncio
from collections import deque
from statistics import median

from distributed import Client

from georesolve.engine import memory
from georesolve.engine.estimate import Capacity, Size, estimate
from georesolve.engine.plan import widths
from georesolve.kernels.cache import kinds_compiled
from georesolve.kernels.devices import Device
from georesolve.workers.cluster import Cluster
from georesolve.workers.job import Job

_ANSWER_SECONDS = 5.0
OfWorker = tuple[int, int, int, tuple[str, ...]]
"""The last four fields of `Capacity`, as a worker answers them."""


async def asked_of_worker(client: Client, device: Device, address: str) -> OfWorker:
    """What a worker knows of itself, asked in the event loop of the caller.

    Raises OSError when it does not answer within some seconds.
    """
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            answers = await client.run(_of_this_worker, device, workers=[address])
        found: OfWorker = answers[address]
    except (TimeoutError, KeyError):
        raise OSError(
            f"the worker {address} was asked for its memory and did not answer within "
            f"{_ANSWER_SECONDS:g} s"
        ) from None
    return found


def _of_this_worker(device: Device) -> OfWorker:
    has = memory.references_at_once(device), memory.available_bytes(), memory.column_bytes()
    return *has, kinds_compiled()


class Pace:
    """How many times as long as the rates say jobs take here: the median of the last ones.

    It begins as three jobs that took as long as they should, so that a single one that was unlucky,
    above all the first, does not count.
    """

    def __init__(self) -> None:
        self._ratios = deque([1.0] * 3, maxlen=9)

    def note(self, cluster: Cluster, job: Job, seconds: float, compared: float) -> None:
        """Note how long a job took on a cluster, from its first chunk to its result."""
        sets = zip((job.observations, job.references), widths(job), strict=True)
        first, second = (Size(one.rows, 0, (), width, 0, one.as_points) for one, width in sets)
        capacity = Capacity(cluster.device, len(cluster.workers()), 1.0, 0, 0, 0)
        expected = estimate(capacity, first, second, job.options, compared)
        self._ratios.append(seconds / expected.seconds)

    @property
    def factor(self) -> float:
        """What to multiply a prediction by."""
        return median(self._ratios)
