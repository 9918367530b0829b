"""A job before the first one: what it imports, compiles and loads, those that count find there.

It calls what a job calls: nobody could keep a list of the kernels that a library of a GPU compiles.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from georesolve.engine.inline import spiral_set
from georesolve.engine.memory import in_pieces
from georesolve.engine.plan import Chunk
from georesolve.engine.resident import forget_all
from georesolve.engine.search import rehearsing
from georesolve.io.datasets import (
    ROW_GROUP,
)
from georesolve.kernels.cache import note_compiled
from georesolve.kernels.devices import Device
from georesolve.query import MatchOptions
from georesolve.workers.job import Job
from georesolve.workers.partitions import resolve

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
                job = Job(observations, references, options, id="rehearsal", folder=folder)
                resolve(Chunk(0, observations.rows), job)
                note_compiled(job.kind)
    forget_all()
