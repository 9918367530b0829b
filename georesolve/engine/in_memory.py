"""The search of a reference set: on all cores, on a GPU, or on a cluster for all GPUs."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from georesolve import kernels
from georesolve.engine.backends import backend_on
from georesolve.engine.cost_model import rows_a_second
from georesolve.engine.filter_encoding import Keys, Narrowed
from georesolve.engine.gpus import DeviceChoice, choose_device, count_gpus
from georesolve.engine.plan import Chunk
from georesolve.engine.questions import (
    MADE_PAIRS,
    Batch,
    Nearest,
    Within,
    WithinShapes,
)
from georesolve.engine.result_rows import with_carried, with_near
from georesolve.io.index_files import map_index, write_index
from georesolve.io.points import Points
from georesolve.io.validation import refuse_filters
from georesolve.kernels.cache import TELLING_ROWS, note_compiled
from georesolve.kernels.query import Degrees, is_valid
from georesolve.query import Earth, FilterOptions, MatchOptions

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with the number of observations that are resolved, and of all."""

RESULT_ROWS = 2**22
"""Result rows that are made at a time at most, and so how often progress is told."""
_PAIRS_ON_GPU = 2**26
"""They take 40 bytes each of its memory."""
_CLUSTER_SECONDS = 30.0
"""Work that one GPU does in less time is not worth a cluster, which takes 6 to 20 s to open."""

_making = RLock()
"""Of threads that search, one makes what is searched: it takes all cores."""


def _renew() -> None:
    # A forked process has not the thread that may hold it.
    global _making
    _making = RLock()


os.register_at_fork(after_in_child=_renew)


def _once(made: dict[Any, T], key: Any, make: Callable[[], T]) -> T:
    # What is there does not wait for what another thread makes.
    if key not in made:
        with _making:
            if key not in made:
                made[key] = make()
    return made[key]


def deserves_all_gpus(n_observations: int, n_references: int, options: MatchOptions) -> bool:
    """Whether a search is worth a cluster of all GPUs, where there are several."""
    rate = rows_a_second(n_references, options, "cuda")
    return n_observations > _CLUSTER_SECONDS * rate and count_gpus() > 1


class Search:
    """References that are searched on a device; their index is built on first need, by one thread.

    Where what searches them are `asking` lines and polygons, they look for these instead. Another
    process gets the references, chooses a device of its own and builds the index anew: that is
    sooner done than sent.
    """

    def __init__(
        self,
        references: Points,
        device: DeviceChoice,
        asking: Points | None = None,
        earth: Earth = "sphere",
    ) -> None:
        self.references, self.device, self.earth = references, choose_device(device), earth
        self._sent = references, device, asking, earth
        self._index: kernels.ReferenceIndex | kernels.ShapeIndex | None = None
        self._keys: dict[Any, Keys] = {}
        self._filtered: dict[Any, kernels.FilteredIndex] = {}
        self._asking = asking if asking is not None and asking.shapes is not None else None

    def __reduce__(self) -> Any:
        return Search, self._sent

    def index(self, *, copies: bool = False) -> Any:
        """The `kernels.ReferenceIndex`, of lines and polygons the `ShapeIndex`.

        With `copies` it has all of the references at one place.
        """
        index = self._index
        if index is None or (copies and not index.whole):
            with _making:
                index = self._index or self._built()
                if copies and not index.whole:
                    index = self._built(copies=True)
                self._index = index
        return index

    def _built(self, *, copies: bool = False) -> kernels.ReferenceIndex | kernels.ShapeIndex:
        shaped = self._asking or self.references
        if shaped.shapes is not None:
            return kernels.ShapeIndex(shaped.rows, shaped.shapes, self.device)
        return kernels.build_index(*self._degrees(), copies=copies, earth=self.earth)

    def save_index(self, path: Path) -> None:
        """Write the index to a file, from a CPU; a GPU builds one sooner than it reads one."""
        if self.device == "cpu" and self.earth == "sphere":
            write_index(self.index(), path, self.references.sha256)

    def open_index(self, path: Path) -> None:
        """Map the index of the same references from a file, if there is one that can be used."""
        if self.device == "cpu" and self.earth == "sphere" and path.exists():
            self._index = map_index(path, self.references.sha256)

    def _degrees(self, some: slice = slice(None)) -> Degrees:
        """The references on the device of the search, or some of them."""
        axes = self.references.lat_deg[some], self.references.lon_deg[some]
        return Degrees(*map(backend_on(self.device).to_device, axes))

    def keys(self, options: MatchOptions) -> Keys:
        """The groups and times of the references, as options name them."""
        references, asked = self.references, options.filters or FilterOptions()
        refuse_filters(self.earth, are_shapes=references.shapes is not None)
        names = asked.reference_by, asked.reference_time

        def made() -> Keys:
            valid = is_valid(references.lat_deg, references.lon_deg)
            return Keys(asked, references.kept, valid)

        return _once(self._keys, names, made)

    def filtered(self, narrowed: Narrowed) -> kernels.FilteredIndex:
        """The index of the references by group and in time."""
        # Without the window, by which a worker tells some apart: another finds the same.
        key = narrowed.how[:3]
        return _once(self._filtered, key, lambda: narrowed.built(self._degrees(), self.device))

    def batch(self, observations: Points, first_row: int, options: MatchOptions) -> Batch:
        """Observations, with what each may match."""
        lat_deg, lon_deg, columns = observations.lat_deg, observations.lon_deg, observations.kept
        keys = None if options.filters is None else self.keys(options)
        return Batch.of(lat_deg, lon_deg, first_row, columns, options, keys)

    def nearest(self, options: MatchOptions) -> Nearest:
        """What finds the nearest references of observations."""

        def indexes(narrowed: Narrowed | None) -> Iterator[tuple[int, Any]]:
            yield 0, self.index() if narrowed is None else self.filtered(narrowed)

        to_host = backend_on(self.device).to_host
        return Nearest(indexes, options, self.references.valid_rows, to_host)

    def answer(
        self, lat_deg: np.ndarray, lon_deg: np.ndarray, options: MatchOptions
    ) -> kernels.Answer:
        """The nearest references of observations, and how far they are, on the host."""
        asked = Batch(lat_deg, lon_deg, 0, 0.0).on(self.device)
        return kernels.Answer(
            *map(backend_on(self.device).to_host, self.nearest(options).answer(asked))
        )

    def within(self, options: MatchOptions, narrowed: Narrowed | None = None) -> Within:
        """What finds pairs: all references within a distance, or the nearest for a summary."""
        known = options, self.references.valid_rows, self.references.kept.__getitem__
        if narrowed is not None:
            return Within(self.filtered(narrowed), *known)
        index = self.index(copies=options.question == "within")
        if self._asking is not None:
            return WithinShapes(*known, index=index, points=self._points)
        return Within(index, *known)

    def _points(self) -> Iterator[tuple[Any, Any]]:
        """All references, some at a time, as lines and polygons ask for them."""
        for chunk in Chunk(0, self.references.rows).pieces(MADE_PAIRS):
            yield self._degrees(slice(*chunk))

    def _fitting(self, batch: Batch, options: MatchOptions) -> Iterable[Batch]:
        """A batch in parts whose pairs a GPU holds; on a CPU they lie where the result does."""
        if self.device == "cpu" or not options.has_pairs:
            return [batch]
        return self.within(options, batch.narrowed).parts(batch, _PAIRS_ON_GPU)

    def found(self, batch: Batch, options: MatchOptions) -> tuple[pa.Table, dict[str, int]]:
        """The rows of a result for some observations, and how many there are by status."""
        if options.of_pairs:
            rows, counts = self.within(options, batch.narrowed).found(batch)
        else:
            rows, counts = self.nearest(options).found(batch.on(self.device))
        if self.device == "cpu" and batch.lat_deg.size >= TELLING_ROWS:
            note_compiled(options.kind(self.references, self._asking or self.references))
        if options.near:
            here, there = Degrees(batch.lat_deg, batch.lon_deg), self.references
            known = [pa.array(one) for one in (there.lat_deg, there.lon_deg)]
            found = known if there.shapes is None else self.index()
            rows = with_near(rows, here, found, batch.first_row, self.earth)
        return rows, counts

    def carry(
        self, rows: pa.Table, observations: pa.Table, first_row: int, options: MatchOptions
    ) -> pa.Table:
        """The same rows with what they carry of both sets; of `observations` it is given."""
        kept = self.references.kept
        columns = ((name, kept[name]) for name in options.of_references(self.references))
        return with_carried(rows, options, observations, columns, first_row)

    def resolve(
        self,
        observations: Points,
        options: MatchOptions,
        progress: Progress | None,
        first_row: int = 0,
    ) -> pa.Table:
        """The result for observations in memory, which calls the first of them `first_row`."""
        carried = observations.kept.select(options.of_observations(observations))
        everything = self.batch(observations, first_row, options)
        # They are in memory together at the end.
        step = 2 * RESULT_ROWS // options.k
        tables = []
        # No observations are one empty batch: their result has columns, too.
        for chunk in Chunk(0, observations.rows).pieces(step):
            for batch in self._fitting(everything.rows(*chunk), options):
                rows, _ = self.found(batch, options)
                own = carried.slice(batch.first_row - first_row, batch.lat_deg.size)
                tables.append(self.carry(rows, own, batch.first_row, options))
            if progress is not None:
                progress(chunk.stop, observations.rows)
        return pa.concat_tables(tables)
