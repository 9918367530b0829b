"""All references within a distance of observations: how many, which, and what is made of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from georesolve import kernels
from georesolve.workers.evidence import valid_rows
from georesolve.workers.frames import backend_on
from georesolve.workers.jobs import MatchOptions
from georesolve.workers.matches import named, of_each, pairs
from georesolve.workers.numbers import distances, summed
from georesolve.workers.plan import Chunk, cut_by
from georesolve.workers.refusals import InvalidInput
from georesolve.workers.summaries import summarised

MADE_PAIRS = 2**20
"""Pairs that are made at a time at most where they are not kept, unless one's own are more."""


class Batch(NamedTuple):
    """Some observations, `first_row` the first of them, and the distance of all or of each."""

    lat_deg: Any
    lon_deg: Any
    first_row: int
    distance_m: float | np.ndarray

    @classmethod
    def of(
        cls, lat_deg: Any, lon_deg: Any, first_row: int, columns: pa.Table, options: MatchOptions
    ) -> "Batch":
        """Observations, of which `columns` has that of the distances if there is one."""
        given = options.distance_m or 0.0
        metres = distances(columns[given], given, first_row) if isinstance(given, str) else given
        return cls(lat_deg, lon_deg, first_row, metres)

    def rows(self, start: int, stop: int) -> "Batch":
        """Those from `start` up to, not including, `stop`, counted from the first one here."""
        lat_deg, lon_deg, first_row, distance_m = self
        if isinstance(distance_m, np.ndarray):
            distance_m = distance_m[start:stop]
        return Batch(lat_deg[start:stop], lon_deg[start:stop], first_row + start, distance_m)


@dataclass(frozen=True)
class Within:
    """References that observations may be near, and how they are matched.

    The index is whole, `n_valid` references are valid, and `column` gives one of theirs by its
    name. What is found lies on the host.
    """

    index: kernels.ReferenceIndex
    options: MatchOptions
    n_valid: int
    column: Callable[[str], pa.ChunkedArray]

    def pairs(self, batch: Batch) -> kernels.Pairs:
        """The pairs of some observations."""
        found = kernels.within(**self._asked(batch))
        return kernels.Pairs(*map(backend_on(self.index.device).to_host, found))

    def counts(self, batch: Batch) -> np.ndarray:
        """How many pairs each of some observations has."""
        return backend_on(self.index.device).to_host(kernels.count_within(**self._asked(batch)))

    def _asked(self, batch: Batch) -> dict[str, Any]:
        to_device, asked = backend_on(self.index.device).to_device, batch._asdict()
        arrays = {name: to_device(one) for name, one in asked.items() if np.ndim(one)}
        named = {
            name: getattr(self.options, name) for name in ("exclude_self", "once", "algorithm")
        }
        return {"index": self.index, **asked, **arrays, **named}

    def parts(self, batch: Batch, most: int) -> Iterator[Batch]:
        """A batch in parts of so many pairs, and no more observations: they are counted first."""
        return (batch.rows(*part) for part in cut_by(np.maximum(self.counts(batch), 1), most))

    def found(self, batch: Batch) -> tuple[pa.Table, dict[str, int]]:
        """The rows of a result for some observations, and how many there are by status."""
        valid = valid_rows(batch.lat_deg, batch.lon_deg)
        # Those of a GPU come from it, unless all are valid.
        valid = valid if isinstance(valid, np.ndarray) else valid.get()
        chunk = Chunk(batch.first_row, batch.first_row + valid.size)
        found = self.pairs(batch) if self.options.has_pairs else None
        each = self.counts(batch) if found is None else np.diff(found.starts)
        status, counts = of_each(each, valid, self.n_valid, self.options)
        if found is not None:
            # An observation without a pair counts once.
            counts["matched"] = found.reference.size
            return pairs(chunk, found, status, self.options.how), counts
        made: dict[str, Any] = {self.options.summary_by: pa.array(np.arange(*chunk))}
        made |= self._summary(batch, each, valid)
        return pa.table({**made, "status": named(status)}), counts

    def _summary(self, batch: Batch, each: np.ndarray, valid: np.ndarray) -> dict[str, Any]:
        """The columns of a summary, made of pairs that are let go of again."""
        made: dict[str, list[pa.Array]] = {
            name: [pa.array(each, mask=~valid)] if name == "count" else []
            for name in self.options.made
        }
        values = {name: summed(self.column(name), name) for name in self.options.summarised}
        for start, stop in cut_by(each, MADE_PAIRS) if values else ():
            found = self.pairs(batch.rows(start, stop))
            for name, kinds in self.options.summarised.items():
                try:
                    of_part = summarised(values[name], kinds, found, valid[start:stop])
                except OverflowError:
                    raise InvalidInput(
                        f"summary: a sum of the column {name!r} is beyond 64 bits: sum fewer, "
                        "within a shorter distance, or leave it out"
                    ) from None
                for kind, array in of_part.items():
                    made[f"{name}_{kind}"].append(array)
        return {name: pa.chunked_array(arrays) for name, arrays in made.items()}
