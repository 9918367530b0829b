"""The search of a reference set in this process: on all cores, or on a GPU."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from georesolve import kernels
from georesolve.intake.points import Points
from georesolve.kernels.devices import Device
from georesolve.workers.datasets import valid_rows
from georesolve.workers.frames import backend_on
from georesolve.workers.gpus import count_gpus
from georesolve.workers.index_files import map_index, write_index
from georesolve.workers.jobs import MatchOptions, with_id
from georesolve.workers.matches import answered, matches, with_carried
from georesolve.workers.plan import Chunk, rows_a_second

Progress = Callable[[int, int], None]
"""Called with the number of observations that are resolved, and of all."""

RESULT_ROWS = 2**22
"""Result rows that are made at a time at most, and so how often progress is told."""
_CLUSTER_SECONDS = 30.0
"""Work that one GPU does in less time is not worth a cluster, which takes 6 to 20 s to open."""


def deserves_all_gpus(n_observations: int, n_references: int, options: MatchOptions) -> bool:
    """Whether a search is worth a cluster of all GPUs, where there are several."""
    rate = rows_a_second(n_references, options, "cuda")
    return n_observations > _CLUSTER_SECONDS * rate and count_gpus() > 1


class Search:
    """References that are searched on a device; their index is built on first need.

    Attributes
    ----------
    references
        The references.
    device
        Where they are searched.
    """

    def __init__(self, references: Points, device: Device) -> None:
        self.references, self.device = references, device

    @cached_property
    def index(self) -> kernels.ReferenceIndex:
        """What the kernels search."""
        return kernels.build_index(
            *self.on_device(self.references.lat_deg, self.references.lon_deg)
        )

    def save_index(self, path: Path) -> None:
        """Write the index to a file, from a CPU; a GPU builds one sooner than it reads one."""
        if self.device == "cpu":
            write_index(self.index, path, self.references.sha256)

    def open_index(self, path: Path) -> None:
        """Map the index of the same references from a file, if there is one that can be used."""
        if self.device == "cpu" and path.exists():
            mapped = map_index(path, self.references.sha256)
            if mapped is not None:
                self.index = mapped

    def on_device(self, lat_deg: np.ndarray, lon_deg: np.ndarray) -> tuple[object, object]:
        """Coordinates on the device of the search."""
        to_device = backend_on(self.device).to_device
        return to_device(lat_deg), to_device(lon_deg)

    def answer(
        self, lat_deg: Any, lon_deg: Any, first_row: int, options: MatchOptions
    ) -> kernels.Answer:
        """What the kernels find for some observations, on the device of the search.

        Parameters
        ----------
        lat_deg, lon_deg : float64 array, shape (n,)
            The observations, on that device.
        first_row
            Row of the first of them.
        """
        return kernels.nearest(
            self.index,
            lat_deg,
            lon_deg,
            k=options.k,
            max_distance_m=options.max_distance_m,
            exclude_self=options.exclude_self,
            first_row=first_row,
            algorithm=options.algorithm,
        )

    def found(
        self, lat_deg: np.ndarray, lon_deg: np.ndarray, first_row: int, options: MatchOptions
    ) -> tuple[pa.Table, dict[str, int]]:
        """The rows of a result for some observations, and how many there are of each status.

        Parameters
        ----------
        lat_deg, lon_deg : float64 array, shape (n,)
            The observations.
        first_row
            Row of the first of them.
        """
        answer = self.answer(*self.on_device(lat_deg, lon_deg), first_row, options)
        on_host = kernels.Answer(*map(backend_on(self.device).to_host, answer))
        rows = answered(on_host, valid_rows(lat_deg, lon_deg), self.references.valid_rows, options)
        return matches(options.k, Chunk(first_row, first_row + lat_deg.size), rows)

    def carry(self, rows: pa.Table, observations: pa.Table, options: MatchOptions) -> pa.Table:
        """The same rows with the columns that they carry.

        Parameters
        ----------
        observations
            What is carried of the observations of these rows.
        """
        kept = self.references.kept
        columns = ((name, kept[name]) for name in with_id(self.references, options.columns))
        return with_carried(rows, options, observations, columns)

    def resolve(
        self, observations: Points, options: MatchOptions, progress: Progress | None
    ) -> pa.Table:
        """The result for a set of observations in memory."""
        of_observations = observations.kept.select(
            with_id(observations, options.observation_columns)
        )
        step = RESULT_ROWS // options.k
        tables = []
        # No observations are one empty piece: their result has columns, too.
        for start in range(0, max(1, observations.rows), step):
            piece = slice(start, start + step)
            lat_deg, lon_deg = observations.lat_deg[piece], observations.lon_deg[piece]
            rows, _ = self.found(lat_deg, lon_deg, start, options)
            tables.append(self.carry(rows, of_observations.slice(start, lat_deg.size), options))
            if progress is not None:
                progress(start + lat_deg.size, observations.rows)
        return pa.concat_tables(tables)
