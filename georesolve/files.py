"""Files to files: observations are read, resolved and written piece by piece, however many."""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from georesolve.intake.canonical import canonicalise
from georesolve.intake.columns import Role
from georesolve.intake.matching import check_match
from georesolve.intake.points import Points
from georesolve.options import Options
from georesolve.paths import UNBOUNDED, Paths, chained, files_at, sources_of
from georesolve.searches import RESULT_ROWS, Progress, Search, deserves_all_gpus
from georesolve.workers.datasets import Dataset, read_rows
from georesolve.workers.files import complete, sha256_of
from georesolve.workers.gpus import DeviceChoice, choose_device
from georesolve.workers.jobs import CarriedTooLong, Job, with_id
from georesolve.workers.plan import Chunk, observations_a_group, too_wide
from georesolve.workers.result import provenance, write_rows
from georesolve.workers.splice import Splice
from georesolve.workers.threads import side_by_side


@dataclass(frozen=True)
class Summary:
    """What was resolved.

    Attributes
    ----------
    observations, references
        Number of rows of both sets.
    counts
        Number of result rows by status, those that an inner result leaves out included.
    seconds
        Time by stage: `read` until both sets are checked, `resolve` from then on.
    """

    observations: int
    references: int
    counts: dict[str, int]
    seconds: dict[str, float]


def resolve(
    observations: Paths,
    references: Paths,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    device: DeviceChoice = "auto",
    progress: Progress | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Summary:
    """Resolve files to a Parquet file: the bytes that the service answers with.

    Observations may be more than fit into memory, in Parquet or Arrow, or in many files: they go
    through memory in pieces. The references, and a single CSV or GeoJSON file, must fit.

    Parameters
    ----------
    observations, references
        A file, a folder or a glob, or several of these: Parquet, Arrow, CSV or GeoJSON, be they
        packed with gzip.
    out
        The Parquet file that is written; it is complete or absent, whatever happens meanwhile.
    options
        How to match and how to read; None for the defaults.
    device
        ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
    progress
        Called with the number of observations that are resolved, and of all, when both sets have
        been read and then a few times a second.
    scratch
        A folder with room for both sets; None for the one that `out` lies in.

    Raises
    ------
    InvalidInput, UnsupportedFormat
        When a file is not a table of points in degrees, in the words of the service.
    InvalidOption
        When an option does not fit the tables.
    CarriedTooLong
        When the columns that the result would carry take too much memory.
    NoGpuError
        When ``cuda`` is asked for and there is no GPU.
    OSError
        When a file cannot be read or written.
    """
    options = options or Options()
    chosen = choose_device(device)
    target = Path(out)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(
        prefix=".georesolve-", dir=target.parent if scratch is None else scratch
    ) as name:
        folder = Path(name)
        job = Job(
            "matches",
            folder,
            _canonical(observations, "observations", options, folder),
            _canonical(references, "references", options, folder),
            options.match(),
        )
        check_match(job.observations, job.references, job.options, options.on_invalid)
        if obstacle := too_wide(job.observations.rows, job.options.k, job.widths()):
            raise CarriedTooLong(obstacle)
        read = time.perf_counter()
        if progress is not None:
            progress(0, job.observations.rows)
        with complete(target) as temporary:
            if chosen == "cuda" and deserves_all_gpus(
                job.observations.rows, job.references.rows, job.options
            ):
                from georesolve.clusters import run_on_cluster

                counts = run_on_cluster(job, progress)
                shutil.move(job.result, temporary)
            else:
                search = Search(_in_memory(job.references, job.options.columns), chosen)
                counts = _write(job, search, temporary, progress)
    seconds = {"read": read - start, "resolve": time.perf_counter() - read}
    return Summary(job.observations.rows, job.references.rows, counts, seconds)


def _canonical(paths: Paths, role: Role, options: Options, folder: Path) -> Dataset:
    reading = options.reading(role)
    sources = sources_of(files_at(paths, role), reading, role, folder)
    target = folder / f"{role}.parquet"
    dataset = canonicalise(chained(sources), reading, role, target, UNBOUNDED)
    return replace(dataset, sha256=sha256_of(target))


def _in_memory(dataset: Dataset, columns: tuple[str, ...]) -> Points:
    carried = with_id(dataset, columns)
    names = list(dict.fromkeys([dataset.lat, dataset.lon, *carried]))
    table = read_rows(dataset.file, 0, dataset.rows, names)
    return Points(
        lat_deg=table[dataset.lat].to_numpy(),
        lon_deg=table[dataset.lon].to_numpy(),
        kept=table.select(carried).combine_chunks(),
        columns=dataset.columns,
        rows=dataset.rows,
        invalid_rows=dataset.invalid_rows,
        first_invalid=dataset.first_invalid,
        lat=dataset.lat,
        lon=dataset.lon,
        id=dataset.id,
    )


class _Encoded(NamedTuple):
    """A row group of the result, as a file of its own in memory."""

    parquet: memoryview
    schema: pa.Schema


def _write(job: Job, search: Search, target: Path, progress: Progress | None) -> dict[str, int]:
    """Write the result of a job; returns the number of its rows by status."""
    observations, options = job.observations, job.options
    of_observations, _ = job.carried()
    widths = job.widths()
    counts: Counter[str] = Counter()

    def groups() -> Iterator[tuple[Chunk, pa.Table]]:
        # Whole row groups, so that each is encoded once.
        group = observations_a_group(options.k, widths)
        step = max(1, RESULT_ROWS // options.k // group) * group
        for start in range(0, max(1, observations.rows), step):
            chunk = Chunk(start, min(start + step, observations.rows))
            table = read_rows(observations.file, *chunk, [observations.lat, observations.lon])
            lat_deg, lon_deg = (column.to_numpy() for column in table.columns)
            rows, of_chunk = search.found(lat_deg, lon_deg, start, options)
            counts.update(of_chunk)
            for one in chunk.row_groups(options.k, widths):
                first = (one.start - start) * options.k
                yield one, rows.slice(first, (one.stop - one.start) * options.k)
            if progress is not None:
                progress(chunk.stop, observations.rows)

    def encode(item: tuple[Chunk, pa.Table]) -> _Encoded:
        group, rows = item
        own = (
            read_rows(observations.file, *group, of_observations)
            if of_observations
            else pa.table({})
        )
        table = search.carry(rows, own, options)
        encoded = pa.BufferOutputStream()
        write_rows(encoded, table)
        return _Encoded(memoryview(encoded.getvalue()).cast("B"), table.schema)

    with target.open("wb") as file:
        splice = Splice(file)
        for encoded in side_by_side(encode, groups()):
            splice.add(encoded.parquet)
        splice.finish(encoded.schema.with_metadata(provenance(job, dict(counts))))
    return dict(counts)
