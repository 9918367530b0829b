"""What is asked of references, wherever these are held: the nearest, or those within a distance.

Of pairs it is how many there are, which, and what a summary makes of them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from georesolve import kernels
from georesolve.engine.backends import backend_on
from georesolve.engine.filter_encoding import Keys, Narrowed
from georesolve.engine.plan import Chunk, cut_by
from georesolve.engine.result_rows import (
    counted,
    filtered,
    matches,
    named,
    pairs,
    statuses,
)
from georesolve.engine.summaries import summarize
from georesolve.io.errors import InvalidInput
from georesolve.io.numbers import distances, summary_values
from georesolve.kernels.devices import Array, Device
from georesolve.kernels.query import is_valid
from georesolve.query import MatchOptions

MADE_PAIRS = 2**20
"""Pairs that are made at a time at most where they are not kept, unless one's own are more."""


class Batch(NamedTuple):
    """Some observations, `first_row` the first of them, and the distance of all or of each."""

    lat_deg: Any
    lon_deg: Any
    first_row: int
    distance_m: Any
    narrowed: Narrowed | None = None
    """What they may match by group and in time, if that is asked."""

    @classmethod
    def of(
        cls,
        lat_deg: Any,
        lon_deg: Any,
        first_row: int,
        columns: pa.Table,
        options: MatchOptions,
        keys: Keys | None = None,
    ) -> "Batch":
        """Observations, of which `columns` has those of the distances, groups and times, if any."""
        given = options.distance_m or 0.0
        metres = distances(columns[given], given, first_row) if isinstance(given, str) else given
        filters = None if keys is None else keys.bind(options, columns, first_row)
        return cls(lat_deg, lon_deg, first_row, metres, filters)

    @property
    def chunk(self) -> Chunk:
        """Their rows."""
        return Chunk(self.first_row, self.first_row + self.lat_deg.size)

    def on(self, device: Device) -> "Batch":
        """The same on a device, but for groups and times, which follow the index."""
        to_device = backend_on(device).to_device
        metres = to_device(self.distance_m) if np.ndim(self.distance_m) else self.distance_m
        degrees = to_device(self.lat_deg), to_device(self.lon_deg)
        return Batch(*degrees, self.first_row, metres, self.narrowed)

    def rows(self, start: int, stop: int) -> "Batch":
        """Those from `start` up to, not including, `stop`, counted from the first one here."""
        lat_deg, lon_deg, first_row, distance_m, narrowed = self
        if np.ndim(distance_m):
            distance_m = distance_m[start:stop]
        narrowed = narrowed and narrowed.rows(start, stop)
        here = lat_deg[start:stop], lon_deg[start:stop], first_row + start
        return Batch(*here, distance_m, narrowed)


@dataclass(frozen=True)
class Nearest:
    """The nearest references of observations, and how they are matched.

    `indexes` gives the index of each piece of the references, of which there are `n_pieces`, and
    the row that it begins with: that they are several does not show in the answer. What is found
    goes `to_host`. MemoryError says that memory does not suffice for so many observations,
    StepsSpent that a piece took more than `most_steps`.
    """

    indexes: Callable[[Narrowed | None], Iterable[tuple[int, Any]]]
    options: MatchOptions
    n_valid: int
    to_host: Callable[[Any], np.ndarray]
    n_pieces: int = 1
    most_steps: int | None = None

    def answer(self, batch: Batch) -> kernels.Answer:
        """What is found for some observations, as `kernels.nearest` has it, on their device."""
        lat_deg, lon_deg, first_row, _, narrowed = batch
        options, found = self.options, None
        for start, index in self.indexes(narrowed):
            asked: dict[str, Any] = {
                "k": options.k,
                "exclude_self": options.exclude_self,
                "first_row": first_row - start,
                "algorithm": options.algorithm,
                "most_steps": self.most_steps,
                "filters": narrowed and narrowed.on(index),
            }
            if self.n_pieces == 1:
                limit = options.max_distance_m
                return kernels.nearest(index, lat_deg, lon_deg, max_distance_m=limit, **asked)
            part = kernels.find(index, lat_deg, lon_deg, **asked)
            # Merged as they come: no more than two answers are held.
            found = kernels.merge([(part, start)] if found is None else [(found, 0), (part, start)])
        assert found is not None, "there is a piece, if an empty one"
        return kernels.measure(found, max_distance_m=options.max_distance_m, earth=options.earth)

    def answered(self, batch: Batch) -> tuple[Array, Array, Array]:
        """References, metres and statuses of all ranks of some observations, on their device."""
        options, (reference, distance_m) = self.options, self.answer(batch)
        valid, each = is_valid(batch.lat_deg, batch.lon_deg), reference.reshape(-1, options.k)
        status = statuses(each, valid, self.n_valid, exclude_self=options.exclude_self)
        return reference.reshape(-1), distance_m.reshape(-1), status.reshape(-1)

    def found(self, batch: Batch) -> tuple[pa.Table, dict[str, int]]:
        """The rows of a result for some observations, and how many there are by status."""
        reference, distance_m, status = map(self.to_host, self.answered(batch))
        return matches(self.options.k, batch.chunk, reference, distance_m, status, batch.narrowed)


@dataclass(frozen=True)
class Within:
    """References that observations may be near, and how they are matched.

    The index is whole, `n_valid` references are valid, and `column` gives one of theirs by its
    name. What is found lies on the host; a search of the nearest may take `most_steps`.
    """

    index: Any
    options: MatchOptions
    n_valid: int
    column: Callable[[str], pa.ChunkedArray]
    most_steps: int | None = None
    made_pairs: ClassVar[int] = MADE_PAIRS

    def pairs(self, batch: Batch) -> kernels.Pairs:
        """The pairs of some observations."""
        to_host = backend_on(self.index.device).to_host
        if self.options.question == "within":
            return kernels.Pairs(*map(to_host, kernels.within(**self._asked(batch))))
        known = self.options, self.n_valid, to_host
        nearest = Nearest(lambda _: [(0, self.index)], *known, most_steps=self.most_steps)
        reference, distance_m = map(to_host, nearest.answer(batch.on(self.index.device)))
        is_found = reference >= 0
        each = is_found.reshape(-1, self.options.k).sum(axis=1)
        starts = np.concatenate([[0], np.cumsum(each)])
        return kernels.Pairs(starts, reference[is_found], distance_m[is_found])

    def counts(self, batch: Batch) -> np.ndarray:
        """How many pairs each of some observations has."""
        if self.options.question == "nearest":
            return np.diff(self.pairs(batch).starts)
        return backend_on(self.index.device).to_host(kernels.count_within(**self._asked(batch)))

    def _asked(self, batch: Batch) -> dict[str, Any]:
        asked = {"index": self.index, **batch.on(self.index.device)._asdict()}
        narrowed = asked.pop("narrowed")
        own = {one: getattr(self.options, one) for one in ("exclude_self", "once", "algorithm")}
        return asked | own | {"filters": narrowed and narrowed.on(self.index)}

    def parts(self, batch: Batch, most: int) -> Iterator[Batch]:
        """A batch in parts of so many pairs, and no more observations: they are counted first."""
        return (batch.rows(*part) for part in cut_by(np.maximum(self.counts(batch), 1), most))

    def found(self, batch: Batch) -> tuple[pa.Table, dict[str, int]]:
        """The rows of a result for some observations, and how many there are by status."""
        batch, to_host = batch.on(self.index.device), backend_on(self.index.device).to_host
        valid = to_host(is_valid(batch.lat_deg, batch.lon_deg))
        # Those of all within a distance may be too many to hold, and are counted without them.
        is_counted = self.options.question == "within" and bool(self.options.summary)
        found = None if is_counted else self.pairs(batch)
        each = self.counts(batch) if found is None else np.diff(found.starts)
        own = self.options.exclude_self or self.options.once
        best = np.where(each == 0, -1, 0)[:, None]
        status = statuses(best, valid, self.n_valid, exclude_self=own)[:, 0]
        if batch.narrowed is not None:
            status = filtered(status, batch.narrowed, 1, batch.first_row)
        counts = counted(status)
        if found is not None and self.options.has_pairs:
            # An observation without a pair counts once.
            counts["matched"] = found.reference.size
            rows = pairs(batch.chunk, found, status, self.options.how)
            if batch.narrowed is not None:
                rows = batch.narrowed.with_apart(rows, batch.first_row)
            return rows, counts
        made: dict[str, Any] = {self.options.summary_by: pa.array(np.arange(*batch.chunk))}
        made |= self._summary(batch, each, valid, found)
        return pa.table({**made, "status": named(status)}), counts

    def _summary(
        self, batch: Batch, each: np.ndarray, valid: np.ndarray, all_pairs: kernels.Pairs | None
    ) -> dict[str, Any]:
        """The columns of a summary, of pairs that are made for it and let go of, or are there."""
        made: dict[str, list[pa.Array]] = {
            name: [pa.array(each, mask=~valid)] if name == "count" else []
            for name in self.options.made
        }
        values = {name: summary_values(self.column(name), name) for name in self.options.summarised}
        parts = cut_by(each, self.made_pairs) if all_pairs is None else [(0, each.size)]
        for start, stop in parts if values else ():
            found = all_pairs or self.pairs(batch.rows(start, stop))
            for name, kinds in self.options.summarised.items():
                try:
                    of_part = summarize(values[name], kinds, found, valid[start:stop])
                except OverflowError as limit:
                    raise InvalidInput(
                        f"summary: a sum of the column {name!r} is beyond {limit}: sum fewer, "
                        "within a shorter distance, or leave it out"
                    ) from None
                for kind, array in of_part.items():
                    made[f"{name}_{kind}"].append(array)
        return {name: pa.chunked_array(arrays) for name, arrays in made.items()}


@dataclass(frozen=True, kw_only=True)
class WithinShapes(Within):
    """Lines and polygons and the points near them, for a summary with a row for each shape.

    Batches are rows of shapes. The index is of those from `first_row` on. It is as far from a shape
    to a point as back: `points` gives all of them, some at a time, and they look for the shapes.
    """

    index: kernels.ShapeIndex
    points: Callable[[], Iterable[tuple[Any, Any]]]
    first_row: int = 0
    made_pairs = 2**24
    """To make fewer at a time, all points are searched again."""

    def pairs(self, batch: Batch) -> kernels.Pairs:
        """The pairs of some shapes, the points of each by row."""
        first, stop = self._rows(batch)
        each, before = [], 0
        for degrees in self.points():
            found = kernels.within(self.index, *degrees, **self._query)
            starts, shape, distance_m = map(backend_on(self.index.device).to_host, found)
            point = np.arange(before, before + starts.size - 1).repeat(np.diff(starts))
            is_own = (shape >= first) & (shape < stop)
            each.append((point[is_own], shape[is_own] - first, distance_m[is_own]))
            before += starts.size - 1
        point, shape, distance_m = map(np.concatenate, zip(*each, strict=True))
        counts, order = np.bincount(shape, minlength=stop - first), np.argsort(shape, kind="stable")
        return kernels.Pairs(np.append(0, np.cumsum(counts)), point[order], distance_m[order])

    def counts(self, batch: Batch) -> np.ndarray:
        """How many points each of some shapes has."""
        counts = sum(kernels.count_near(self.index, *one, **self._query) for one in self.points())
        return backend_on(self.index.device).to_host(counts)[slice(*self._rows(batch))]

    def _rows(self, batch: Batch) -> tuple[int, int]:
        first = batch.first_row - self.first_row
        return first, first + batch.lat_deg.size

    @property
    def _query(self) -> dict[str, Any]:
        return {"distance_m": self.options.distance_m, "algorithm": self.options.algorithm}
