"""The search of a reference set: on all cores, on a GPU, or on a cluster for all GPUs."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from georesolve import kernels
from georesolve.extras import needed
from georesolve.intake.delimited import cleaned
from georesolve.intake.errors import InvalidInput, InvalidOption
from georesolve.intake.points import Points, as_numbers, write_points
from georesolve.kernels.devices import Device
from georesolve.workers.evidence import valid_rows
from georesolve.workers.frames import backend_on
from georesolve.workers.gpus import count_gpus
from georesolve.workers.index_files import map_index, write_index
from georesolve.workers.jobs import PAIRS, Job, MatchOptions, PairOptions, of_references, with_id
from georesolve.workers.manifest import open_matches
from georesolve.workers.matches import answered, matches, pairs, summaries, with_carried
from georesolve.workers.plan import Chunk
from georesolve.workers.rates import rows_a_second
from georesolve.workers.summaries import Values, summarised

Progress = Callable[[int, int], None]
"""Called with the number of observations that are resolved, and of all."""

Distances = float | np.ndarray
"""Metres within which pairs are, of all observations or of each."""

RESULT_ROWS = 2**22
"""Result rows that are made at a time at most, and so how often progress is told."""
MADE_PAIRS = 2**20
"""Pairs that are made at a time at most where they are not kept, unless one's own are more."""
_PAIRS_ON_GPU = 2**26
"""They take 40 bytes each of its memory."""
_CLUSTER_SECONDS = 30.0
"""Work that one GPU does in less time is not worth a cluster, which takes 6 to 20 s to open."""


def deserves_all_gpus(n_observations: int, n_references: int, options: MatchOptions) -> bool:
    """Whether a search is worth a cluster of all GPUs, where there are several."""
    if isinstance(options, PairOptions):
        return False
    rate = rows_a_second(n_references, options, "cuda")
    return n_observations > _CLUSTER_SECONDS * rate and count_gpus() > 1


def distances(observations: pa.Table, options: MatchOptions, first_row: int = 0) -> Distances:
    """The distance of the pairs of all observations, or of each; refused where one is none.

    `observations` has the column of them, from `first_row` on. It is 0 where none is asked for.
    """
    name = getattr(options, "distance_m", 0.0)
    if not isinstance(name, str):
        return name
    metres = as_numbers(observations[name], "observations", name, "metres")
    bad = ~((metres >= 0) & (metres < np.inf))
    _refuse("observations", observations[name], name, bad, first_row, "0 or more metres")
    return metres


def summed(column: pa.ChunkedArray, name: str) -> Values:
    """A column as it is summed: whole numbers as they are, others as float64."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    numbers = as_numbers(column, "summary", name, "what is summed")
    # Unsigned ones may be beyond what sums are made in.
    bad = np.isinf(numbers) | ((numbers >= 2.0**63) & pa.types.is_uint64(column.type))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        # A sum without such as "1,5" would look like one of all.
        bad |= np.isnan(numbers) & cleaned(column, ".").is_valid().to_numpy()
    _refuse("summary", column, name, bad, 0, "a finite number of 64 bits, or nothing")
    if pa.types.is_integer(column.type):
        whole = column.fill_null(0).cast(pa.int64()).to_numpy()
        return Values(whole, column.is_valid().to_numpy())
    return Values(numbers, ~np.isnan(numbers))


def _refuse(
    file: str, column: pa.ChunkedArray, name: str, bad: np.ndarray, first_row: int, allowed: str
) -> None:
    if bad.any():
        place = int(bad.argmax())
        row, detail = first_row + place, f"holds {column[place].as_py()!r:.80}"
        raise InvalidInput(
            f"{file}: the column {name!r} {detail} in row {row}, where it must hold {allowed}",
            [{"file": file, "column": name, "row": row, "detail": detail}],
        )


def batches(each: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Cut observations that have so many pairs `each`: `most` together, or those of one."""
    ends, start, before = np.cumsum(each), 0, 0
    while start < each.size:
        stop = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
        yield start, stop
        start, before = stop, int(ends[stop - 1])
    if not each.size:
        yield 0, 0


class Batch(NamedTuple):
    """Some observations, `first_row` the first of them, and the distance of all or of each."""

    lat_deg: np.ndarray
    lon_deg: np.ndarray
    first_row: int
    distance_m: Distances

    def rows(self, start: int, stop: int) -> "Batch":
        """Those from `start` up to, not including, `stop`, counted from the first one here."""
        lat_deg, lon_deg, first_row, distance_m = self
        if isinstance(distance_m, np.ndarray):
            distance_m = distance_m[start:stop]
        return Batch(lat_deg[start:stop], lon_deg[start:stop], first_row + start, distance_m)


class Search:
    """References that are searched on a device; their index is built on first need."""

    def __init__(self, references: Points, device: Device) -> None:
        self.references, self.device = references, device

    @cached_property
    def index(self) -> kernels.ReferenceIndex:
        """What the kernels search."""
        return kernels.build_index(
            *self.on_device(self.references.lat_deg, self.references.lon_deg)
        )

    @cached_property
    def whole_index(self) -> kernels.ReferenceIndex:
        """An index of all references: the other one may lack some of those at one place."""
        if self.index.whole:
            return self.index
        degrees = self.on_device(self.references.lat_deg, self.references.lon_deg)
        return kernels.build_index(*degrees, copies=True)

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

    def on_device(self, lat_deg: np.ndarray, lon_deg: np.ndarray) -> tuple[Any, Any]:
        """Coordinates on the device of the search."""
        to_device = backend_on(self.device).to_device
        return to_device(lat_deg), to_device(lon_deg)

    def answer(
        self, lat_deg: Any, lon_deg: Any, first_row: int, options: MatchOptions
    ) -> kernels.Answer:
        """What the kernels find for observations on the device, `first_row` the first of them."""
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

    def within(self, batch: Batch, options: PairOptions) -> kernels.Pairs:
        """The pairs of some observations, on the host."""
        found = kernels.within(**self._asked(batch, options))
        return kernels.Pairs(*map(backend_on(self.device).to_host, found))

    def count_within(self, batch: Batch, options: PairOptions) -> np.ndarray:
        """How many pairs each of some observations has, on the host."""
        return backend_on(self.device).to_host(kernels.count_within(**self._asked(batch, options)))

    def _asked(self, batch: Batch, options: PairOptions) -> dict[str, Any]:
        to_device, asked = backend_on(self.device).to_device, batch._asdict()
        arrays = {name: to_device(one) for name, one in asked.items() if np.ndim(one)}
        named = {name: getattr(options, name) for name in ("exclude_self", "once", "algorithm")}
        return {"index": self.whole_index, **asked, **arrays, **named}

    def parts(self, batch: Batch, options: PairOptions, most: int) -> Iterator[Batch]:
        """A batch in parts that have so many pairs together: they are counted first."""
        for start, stop in batches(self.count_within(batch, options), most):
            yield batch.rows(start, stop)

    def _fitting(self, batch: Batch, options: MatchOptions) -> Iterable[Batch]:
        """A batch in parts whose pairs a GPU holds; on a CPU they lie where the result does."""
        if self.device == "cpu" or not isinstance(options, PairOptions) or options.summary:
            return [batch]
        return self.parts(batch, options, _PAIRS_ON_GPU)

    def found(self, batch: Batch, options: MatchOptions) -> tuple[pa.Table, dict[str, int]]:
        """The rows of a result for some observations, and how many there are by status."""
        lat_deg, lon_deg, first_row, _ = batch
        valid, n_valid = valid_rows(lat_deg, lon_deg), self.references.valid_rows
        chunk = Chunk(first_row, first_row + lat_deg.size)
        if isinstance(options, PairOptions) and options.summary:
            each = self.count_within(batch, options)
            made = self._made(batch, each, valid, options)
            return summaries(chunk, each, made, valid, n_valid, options)
        if isinstance(options, PairOptions):
            return pairs(chunk, self.within(batch, options), valid, n_valid, options)
        answer = self.answer(*self.on_device(lat_deg, lon_deg), first_row, options)
        on_host = kernels.Answer(*map(backend_on(self.device).to_host, answer))
        return matches(options.k, chunk, answered(on_host, valid, n_valid, options))

    def _made(
        self, batch: Batch, each: np.ndarray, valid: np.ndarray, options: PairOptions
    ) -> dict[str, pa.ChunkedArray]:
        """The columns of a summary, made of pairs that are let go of again."""
        made: dict[str, list[pa.Array]] = {
            f"{name}_{kind}" if name else kind: []
            for name, kinds in options.summary.items()
            for kind in kinds
        }
        carried = (f"{options.summary_by}_{name}" for name in options.observation_columns)
        if twice := made.keys() & carried:
            raise InvalidOption(
                f"the result would have two columns {min(twice)!r}, one of the summary and one "
                "that it carries: leave one out"
            )
        if PAIRS in options.summary:
            made["count"] = [pa.array(each, mask=~valid)]
        values = {name: summed(self.references.kept[name], name) for name in options.summarised}
        for start, stop in batches(each, MADE_PAIRS) if values else ():
            found = self.within(batch.rows(start, stop), options)
            for name, column in values.items():
                try:
                    of_batch = summarised(column, options.summary[name], found, valid[start:stop])
                except OverflowError:
                    raise InvalidInput(
                        f"summary: a sum of the column {name!r} is beyond 64 bits: sum fewer, "
                        "within a shorter distance, or leave it out"
                    ) from None
                for kind, array in of_batch.items():
                    made[f"{name}_{kind}"].append(array)
        return {name: pa.chunked_array(arrays) for name, arrays in made.items()}

    def carry(
        self, rows: pa.Table, observations: pa.Table, first_row: int, options: MatchOptions
    ) -> pa.Table:
        """The same rows with what they carry of both sets; of `observations` it is given."""
        kept = self.references.kept
        columns = ((name, kept[name]) for name in of_references(self.references, options))
        return with_carried(rows, options, observations, columns, first_row)

    def resolve(
        self, observations: Points, options: MatchOptions, progress: Progress | None
    ) -> pa.Table:
        """The result for a set of observations in memory."""
        of_observations = observations.kept.select(
            with_id(observations, options.observation_columns)
        )
        distance_m = distances(observations.kept, options)
        everything = Batch(observations.lat_deg, observations.lon_deg, 0, distance_m)
        step = RESULT_ROWS // options.k
        tables = []
        # No observations are one empty batch: their result has columns, too.
        for start in range(0, max(1, observations.rows), step):
            stop = min(start + step, observations.rows)
            for batch in self._fitting(everything.rows(start, stop), options):
                rows, _ = self.found(batch, options)
                own = of_observations.slice(batch.first_row, batch.lat_deg.size)
                tables.append(self.carry(rows, own, batch.first_row, options))
            if progress is not None:
                progress(stop, observations.rows)
        return pa.concat_tables(tables)


def run_on_cluster(job: Job, progress: Progress | None, device: Device = "cuda") -> dict[str, int]:
    """Resolve a job whose sets are files on a cluster of its own; returns result rows by status.

    The processes of the cluster import the main module of the program again: what a script does
    belongs below ``if __name__ == "__main__"``.
    """
    for module in ("distributed", "pydantic"):
        needed(module, "service", "work for several GPUs")
    from georesolve.workers import pipeline
    from georesolve.workers.cluster import open_cluster
    from georesolve.workers.settings import ClusterSettings

    def report(done: pipeline.Progress) -> None:
        if progress is not None:
            progress(done.rows_done, done.rows)

    assert isinstance(job.folder, Path), "a cluster of its own has a folder of its own"
    settings = ClusterSettings(
        device=device, dashboard_address="127.0.0.1:0", scratch=job.folder / "spilled"
    )
    with open_cluster(settings) as cluster:
        _, done = pipeline.run(cluster, job, report, cancelled=lambda: False)
    return dict(done.counts)


def resolve_on_all_gpus(
    observations: Points,
    references: Points,
    options: MatchOptions,
    progress: Progress | None,
    device: Device = "cuda",
) -> pa.Table:
    """The result for two sets in memory."""
    with tempfile.TemporaryDirectory(prefix="georesolve-") as folder:
        here = Path(folder)
        job = Job(
            "matches",
            here,
            write_points(observations, here / "observations.parquet"),
            write_points(references, here / "references.parquet"),
            options,
        )
        run_on_cluster(job, progress, device)
        with open_matches(here) as file:
            return pq.read_table(file)
