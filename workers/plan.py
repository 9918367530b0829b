"""The plan of a job: how its observations are cut into chunks."""

from typing import NamedTuple

from kernels.devices import Device
from workers.datasets import ROW_GROUP

PAIRS_A_SECOND: dict[Device, float] = {"cpu": 2.5e9, "cuda": 1.0e12}
"""Comparisons a second of the brute-force search on one core and on one GPU, roughly."""
_CHUNK_SECONDS = 1.0
"""How long a chunk takes at most: a cancel stops a job within that time."""
_LARGEST_CHUNK = 2**22
_SMALLEST_CHUNK = 2**10
_CHUNKS_A_WORKER = 2


class Chunk(NamedTuple):
    """A range of observation rows, `stop` not included."""

    start: int
    stop: int


def chunks(n_observations: int, n_references: int, device: Device, n_workers: int) -> list[Chunk]:
    """Cut the observations into chunks.

    A chunk is short enough to take about a second, and there are enough of them to keep every
    worker busy. Large chunks are whole row groups, so that no row group is decoded twice.
    """
    pairs = PAIRS_A_SECOND[device] * _CHUNK_SECONDS
    size = min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, int(pairs / max(1, n_references))))
    size = min(size, max(_SMALLEST_CHUNK, -(-n_observations // (_CHUNKS_A_WORKER * n_workers))))
    if size > ROW_GROUP:
        size = size // ROW_GROUP * ROW_GROUP
    # No observations are one empty chunk: their result has columns, too.
    starts = range(0, max(1, n_observations), size)
    return [Chunk(start, min(start + size, n_observations)) for start in starts]
