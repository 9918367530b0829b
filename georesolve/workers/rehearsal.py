"""A job before the first one: what it imports, compiles and loads, those that count find there.

It calls what a job calls: nobody could keep a list of the kernels that a library of a GPU compiles.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from georesolve.kernels.cache import note_compiled
from georesolve.kernels.devices import Device
from georesolve.workers.jobs import Job, MatchOptions
from georesolve.workers.machine.memory import in_pieces
from georesolve.workers.partitions import resolve
from georesolve.workers.plan import Chunk
from georesolve.workers.searches.references import forget_all
from georesolve.workers.searches.search import rehearsing
from georesolve.workers.sets.datasets import ROW_GROUP, Dataset, held_dataset, write_dataset
from georesolve.workers.sets.evidence import Evidence

A_PIECE = ROW_GROUP
"""References that are to be searched at a time in a rehearsal."""
# The second set is searched in pieces; the first at once, and what is found is verified.
_REFERENCES = (3_000, A_PIECE + 1)
# As many as a GPU sorts before it searches.
_OBSERVATIONS: dict[Device, int] = {"cpu": 1_000, "cuda": 1 << 17}
_OPTIONS = (MatchOptions(), MatchOptions(k=2, max_distance_m=100_000.0, near=True))


@cache
def rehearse(device: Device) -> None:
    """Resolve points as a chunk of a job is, in each of the ways that use code of their own.

    Once in a process. Of the lists of a GPU, which are compiled by their length, only the shortest
    is rehearsed: the first job that asks for another takes one or two seconds more.
    """
    with rehearsing(), in_pieces(A_PIECE), TemporaryDirectory() as name:
        folder = Path(name)
        observations = spiral_set(_OBSERVATIONS[device], folder)
        for n_references in _REFERENCES:
            references = spiral_set(n_references, folder)
            for options in _OPTIONS:
                job = Job("rehearsal", folder, observations, references, options)
                resolve(Chunk(0, observations.rows), job)
                note_compiled(job.kind)
    forget_all()


def spiral(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points spread evenly over the sphere along a spiral: latitudes and longitudes in degrees."""
    i = np.arange(n) + 0.5
    golden_deg = 180.0 * (3.0 - 5.0**0.5)
    return np.degrees(np.arcsin(2 * i / n - 1)), (golden_deg * i) % 360.0


def spiral_set(n: int, folder: Path | None = None) -> Dataset:
    """The same points as a dataset, in memory or in a folder."""
    degrees = spiral(n)
    batch = pa.record_batch([*degrees], names=["lat", "lon"])
    if folder is None:
        return held_dataset(batch, {"id": None, "lat": "lat", "lon": "lon"}, Evidence.of(*degrees))
    path = folder / f"{n}.parquet"
    return write_dataset(batch.schema, [batch], path, lat="lat", lon="lon", id=None)
