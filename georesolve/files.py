"""Files to files: observations are read, resolved and written piece by piece, however many."""

import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from georesolve.engine.compilation import compiling
from georesolve.engine.cost_model import rows_a_second
from georesolve.engine.gpus import DeviceChoice, choose_device
from georesolve.engine.in_memory import (
    RESULT_ROWS,
    Progress,
    Search,
    deserves_all_gpus,
)
from georesolve.engine.match_sets import CarriedTooLong, MatchSets
from georesolve.engine.plan import Chunk, rows_a_group, too_wide, way_of, widths
from georesolve.engine.provenance import provenance
from georesolve.engine.questions import MADE_PAIRS, Batch
from georesolve.engine.sampling import sampled
from georesolve.io.columns import PREFIXES, Role
from georesolve.io.datasets import Dataset, PointSet, read_rows, recut
from georesolve.io.errors import InvalidInput, InvalidOption
from georesolve.io.extras import needed
from georesolve.io.layer_files import LAYERS, write_layer
from georesolve.io.local_files import complete, sha256_of
from georesolve.io.normalized import written
from georesolve.io.opener import open_table
from georesolve.io.outlines import JoinedShapes, ShapeReader
from georesolve.io.points import Points
from georesolve.io.result_formats import FORMATS
from georesolve.io.storage import (
    File,
    Listed,
    Paths,
    files_at,
    refuse_as_target,
    target_of,
)
from georesolve.io.threads import side_by_side
from georesolve.io.validation import check_match, remarks
from georesolve.kernels.devices import Device
from georesolve.options import Options, WithinOptions
from georesolve.query import NEAR, FilterOptions
from georesolve.workers.own_cluster import run_on_cluster
from georesolve.workers.results.manifest import open_matches
from georesolve.workers.results.splice import Splice, encode

_FORMATS = {one.suffix: one.pieces for one in FORMATS}
_COPIED_BYTES = 8 << 20
_Shapes = ShapeReader | JoinedShapes | None
_COUNTED_ROWS = 2**20
"""Observations whose pairs are counted at a time, before any is made."""
_ENCODE_SECONDS = 2.2e-8
"""What one value of a result takes a core to be made and encoded: measured on two cores."""
_FORMAT_SECONDS = {
    "arrows": 3e-8,
    "csv": 5.5e-8,
    "json": 1.3e-7,
    "geojson": 2.5e-7,
    "fgb": 4e-7,
    "shp": 7e-7,
    "gpkg": 7e-7,
}
"""What it takes to write one in another format, which is made of the Parquet file."""
_SAMPLED_ROWS = 65_536
"""Rows of a result whose distances are ranked."""


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
        Time by stage: `read` until both sets are checked, `resolve` from then on, and apart from
        both `compile`, what kernels took that were not yet compiled on this machine for a CPU.
    distances_m
        Metres of the matched rows: `median` and `95 %` (of 65 536 rows spread over the result, if
        it has more), and `largest`; empty where no row matched.
    remarks
        What looks wrong with the sets, in words.
    cut
        Observations that have all of several neighbours within `max_distance_m`, where there may be
        more: `WithinOptions` asks for all.
    """

    observations: int
    references: int
    counts: dict[str, int]
    seconds: dict[str, float]
    distances_m: dict[str, float]
    remarks: list[str]
    cut: int = 0


@dataclass(frozen=True)
class Plan:
    """What it would take to resolve two sets.

    Attributes
    ----------
    observations, references, invalid_observations, invalid_references
        Number of rows of both sets, and of those among them whose coordinates are invalid.
    result_rows, result_rows_spread
        Rows of the result; an inner one may have fewer. Those of pairs, and two standard errors of
        them, are what a sample of both sets says.
    columns
        Names of its columns.
    device
        Where it would be searched.
    search
        By brute force, cells, packets or singles, and what decides that.
    seconds
        Time by stage, which `resolve` takes together: `read` is what reading both sets took just
        now; `search`, from a sample of both sets, and `write`, from the size and the format of the
        result, are orders of magnitude from figures of one machine. Kernels that are not yet
        compiled, and sending a result to an address, take longer.
    remarks
        What looks wrong with the sets, in words.
    """

    observations: int
    references: int
    invalid_observations: int
    invalid_references: int
    result_rows: int
    result_rows_spread: int
    columns: list[str]
    device: Device
    search: str
    seconds: dict[str, float]
    remarks: list[str]


def resolve(
    observations: Paths,
    references: Paths,
    out: str | os.PathLike[str],
    options: Options | WithinOptions | None = None,
    *,
    format: str | None = None,
    device: DeviceChoice = "auto",
    progress: Progress | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Summary:
    """Resolve files to a file: the bytes that the service answers with.

    Observations may be more than fit into memory, in Parquet or Arrow, or in many files: they go
    through memory in pieces. The references, and a single CSV or GeoJSON file, must fit.

    Parameters
    ----------
    observations, references
        A file, a folder or a glob, or several of these: Parquet, Arrow, CSV or GeoJSON, be they
        packed with gzip; GeoPackage, FlatGeobuf or a shapefile. Also at an address: ``s3://``,
        ``gs://``, ``az://`` or, one file, ``https://``. What folders are named by
        (``day=2026-11-22``) are columns.
    out
        The file that is written, none of the others, also of ``s3://``, ``gs://`` or ``az://``; it
        is complete or absent, whatever happens meanwhile.
    options
        How to match and how to read; None for the defaults.
    format
        ``parquet``, ``arrows`` (an Arrow stream), ``csv``, ``json``, or with a point an observation
        ``geojson``, ``gpkg``, ``fgb`` or ``shp``; None for what the suffix of `out` says; without a
        suffix Parquet.
    device
        ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
    progress
        Called with the number of observations that are resolved, and of all, when both sets have
        been read and then a few times a second.
    scratch
        A folder with room for both sets; None for the one that `out` lies in, or that of temporary
        files where it lies elsewhere.

    Raises
    ------
    InvalidInput, UnsupportedFormat
        When a file is not a table of points in degrees, in the words of the service.
    InvalidOption
        When an option does not fit the tables, the format is none of these, or `out` is one of the
        files that are read, lies where the next run would read it as one, or in no folder.
    NotRepresentable, RowTooWide
        When a value or a row of the result cannot be written in the format.
    CarriedTooLong
        When the columns that the result would carry take too much memory.
    MissingExtra
        When a library is needed that is not installed.
    NoGpuError
        When ``cuda`` is asked for and there is no GPU.
    OSError
        When a file cannot be read or written.
    """
    options = options or Options()
    target = target_of(out)
    suffix = _format_of(target.name, format)
    if suffix == "shp" and not isinstance(target, Path):
        raise InvalidOption(f"a shapefile is several files: {out} is one; write .gpkg or .fgb")
    chosen = choose_device(device)
    start = time.perf_counter()
    sets = files_at(observations, "observations"), files_at(references, "references")
    refuse_as_target(target, [*sets[0], *sets[1]])
    beside = target.parent if scratch is None and isinstance(target, Path) else scratch
    with (
        compiling(shown=False) as compiled,
        tempfile.TemporaryDirectory(prefix=".georesolve-", dir=beside) as name,
    ):
        by_shape = getattr(options, "summary_by", "observation") == "reference"
        matched, shapes = _match_sets(
            *sets, options, Path(name), whole=by_shape and suffix == "geojson"
        )
        rows = matched.options.in_order(matched.observations.rows, matched.references.rows)
        remarked = _remarks(matched, options)
        read = time.perf_counter() - start - compiled()
        if progress is not None:
            progress(0, matched.observations.rows)
        with _complete(target, Path(name)) as temporary:
            # Every other format is made of the Parquet file.
            parquet = temporary if suffix == "parquet" else Path(name) / "result.parquet"
            sizes = matched.observations.rows, matched.references.rows
            if chosen == "cuda" and shapes is None and deserves_all_gpus(*sizes, matched.options):
                counts = run_on_cluster(matched, Path(name), progress)
                with open_matches(Path(name)) as matches, parquet.open("wb") as file:
                    shutil.copyfileobj(matches, file, _COPIED_BYTES)
            else:
                counts = _write(matched, _search(matched, shapes, chosen), parquet, progress)
            distances_m, cut = _distances(parquet, matched)
            if suffix != "parquet":
                with pq.ParquetFile(parquet) as result:
                    if pieces := _FORMATS.get(suffix):
                        by_role = {
                            "observations": matched.observations,
                            "references": matched.references,
                        }
                        with temporary.open("wb") as sink:
                            sink.writelines(pieces(result, by_role.__getitem__))
                    else:
                        own = target if isinstance(target, Path) else temporary
                        write_layer(result, suffix, matched.observations, own, temporary)
    whole, compile = time.perf_counter() - start, compiled()
    seconds = {"read": read, "compile": compile, "resolve": whole - read - compile}
    return Summary(*rows, counts, seconds, distances_m, remarked, cut)


@contextmanager
def _complete(target: File, scratch: Path) -> Iterator[Path]:
    """A path to write to, whose file is then where it is wanted, complete or not at all."""
    if isinstance(target, Path):
        with complete(target) as temporary:
            yield temporary
    else:
        folder = scratch / "out"
        folder.mkdir()
        yield folder / target.name
        target.upload(folder / target.name)


def _format_of(target: str, name: str | None) -> str:
    """The format that a name or a suffix stands for: a suffix; raises InvalidOption for none."""
    formats = [*_FORMATS, *LAYERS]
    wanted = (Path(target).suffix.removeprefix(".").lower() or "parquet") if name is None else name
    if wanted not in formats:
        given = f"the suffix of {target!r}" if name is None else f"{name!r}"
        raise InvalidOption(
            f"{given} is no format of a result: there are {', '.join(formats)}"
            + ("; name one of them as the format" if name is None else "")
        )
    if wanted in LAYERS:
        # Before much is read and resolved.
        needed("pyogrio", "gis", f"a result as .{wanted}")
    return wanted


def plan(
    observations: Paths,
    references: Paths,
    options: Options | WithinOptions | None = None,
    *,
    out: str | os.PathLike[str] = "",
    format: str | None = None,
    device: DeviceChoice = "auto",
    scratch: str | os.PathLike[str] | None = None,
) -> Plan:
    """Read and check two sets, and say what it would take to resolve them.

    Parameters and errors are those of `resolve`; of `out` only its suffix counts.
    """
    options = options or Options()
    suffix, chosen = _format_of(str(out), format), choose_device(device)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="georesolve-", dir=scratch) as name:
        sets = files_at(observations, "observations"), files_at(references, "references")
        matched, shapes = _match_sets(*sets, options, Path(name))
        read = time.perf_counter() - start
        if shapes is not None:
            raise InvalidInput(
                "references: a plan is made for points, and they are lines or polygons: resolve "
                "them without one"
            )
        match, rows = matched.options, matched.observations.rows
        sample = sampled(matched.observations, matched.references, match)
    of_observations, of_references = matched.carried()
    first, second = match.in_order(matched.observations, matched.references)
    own = ["observation", *(["rank"] if match.k > 1 else []), "reference", "distance_m"]
    own += ["time_apart"] if match.filters and match.filters.observation_time else []
    own += NEAR if match.near else []
    own.append("status")
    own = [match.summary_by, *match.made, "status"] if match.summary else own
    columns = [
        *own,
        *(f"{match.summary_by}_{name}" for name in of_observations),
        *(PREFIXES["references"] + name for name in of_references),
    ]
    sizes = min(rows, RESULT_ROWS // match.k), matched.references.rows
    rate = rows_a_second(matched.references.rows, match, chosen, sample.compared)
    result_rows = rows * match.ranks if sample.rows is None else sample.rows
    cores = numba.config.NUMBA_NUM_THREADS
    encoding = _ENCODE_SECONDS / cores + _FORMAT_SECONDS.get(suffix, 0.0)
    return Plan(
        observations=first.rows,
        references=second.rows,
        invalid_observations=first.invalid_rows,
        invalid_references=second.invalid_rows,
        result_rows=result_rows,
        result_rows_spread=sample.spread or 0,
        columns=columns,
        device=chosen,
        search=str(way_of(sizes[0], matched.references, match, chosen)),
        seconds={
            "read": read,
            "search": rows / rate / (cores if chosen == "cpu" else 1),
            "write": result_rows * len(columns) * encoding,
        },
        remarks=_remarks(matched, options),
    )


def _remarks(matched: MatchSets, options: Options | WithinOptions) -> list[str]:
    sets = matched.options.in_order(matched.observations, matched.references)
    return remarks(*sets) if options.coordinates == "check" else []


def _match_sets(
    observations: list[Listed],
    references: list[Listed],
    options: Options | WithinOptions,
    folder: Path,
    *,
    whole: bool = False,
) -> tuple[MatchSets, _Shapes]:
    """Two sets that have been read and checked, how they are matched, and the references' shapes.

    These are None where the references are points. With `whole` these have all of their columns,
    as for features that are the shapes.
    """
    first, _ = _canonical(observations, "observations", options, folder)
    second, shapes = _canonical(references, "references", options, folder, whole=whole)
    sets = first, second
    match = options.match(*sets)
    check_match(*sets, match, options.on_invalid)
    matched = MatchSets(*match.in_order(*sets), match)
    if obstacle := too_wide(matched.observations.rows, matched.options.ranks, widths(matched)):
        raise CarriedTooLong(obstacle)
    return matched, shapes if second.outlines is not None else None


def _canonical(
    files: list[Listed],
    role: Role,
    options: Options | WithinOptions,
    folder: Path,
    *,
    whole: bool = False,
) -> tuple[Dataset, _Shapes]:
    reading, kept = options.reading(role), options.kept(role)
    is_own = options.exclude_self or getattr(options, "once", False)
    if kept is not None and not is_own and not whole:
        # A set against itself is compared with all columns.
        reading = reading._replace(kept=tuple(kept))
    target = folder / f"{role}.parquet"
    with open_table(files, reading, role, folder) as points:
        dataset = written(points, target).dataset
    return replace(dataset, digest=sha256_of(target)), points.shapes


def _search(matched: MatchSets, shapes: _Shapes, device: Device) -> Search:
    """The search of the references, or, for a row a shape, by the shapes."""
    filters = matched.options.filters or FilterOptions()
    carried = [*matched.carried()[1], *matched.options.summarised, *filters.of_references]
    references, asking = _in_memory(matched.references, carried), None
    if shapes is not None and matched.options.summary_by == "observation":
        own = shapes.shapes(references.lat_deg, references.lon_deg)
        references = replace(references, shapes=own)
    elif shapes is not None:
        asking = _in_memory(matched.observations, [])
        asking = replace(asking, shapes=shapes.shapes(asking.lat_deg, asking.lon_deg))
    return Search(references, device, asking, matched.options.earth)


def _in_memory(dataset: Dataset, kept: list[str], chunk: Chunk | None = None) -> Points:
    """A set, or some rows of it, with the columns that are kept."""
    kept = list(dict.fromkeys(kept))
    names = list(dict.fromkeys([dataset.lat, dataset.lon, *kept]))
    table = read_rows(dataset.file, *(chunk or (0, dataset.rows)), names)
    known = {one.name: getattr(dataset, one.name) for one in fields(PointSet)}
    lat_deg, lon_deg = (table[name].to_numpy() for name in (dataset.lat, dataset.lon))
    columns = table.select(kept).combine_chunks()
    return Points(lat_deg=lat_deg, lon_deg=lon_deg, kept=columns, **known)


def _distances(result: Path, matched: MatchSets) -> tuple[dict[str, float], int]:
    """Metres of the matched rows of a result: their median, 95th percentile and largest.

    And how many observations have a match of every rank, where more may be within the limit.
    """
    k, others = matched.options.k, matched.references.valid_rows - matched.options.exclude_self
    may_cut = matched.options.max_distance_m is not None and 1 < k < others
    with pq.ParquetFile(result) as file:
        step = max(1, file.metadata.num_rows // _SAMPLED_ROWS)
        largest, sampled, cut = -math.inf, [np.empty(0)], 0
        has_distances = "distance_m" in file.schema_arrow.names
        for group in range(file.num_row_groups if has_distances else 0):
            columns = ["distance_m", *(["rank"] if may_cut else [])]
            table = file.read_row_group(group, columns=columns)
            metres = table["distance_m"].drop_null().to_numpy()
            # A copy: a view would keep all of them.
            sampled.append(metres[::step].copy())
            largest = max(largest, metres.max(initial=-math.inf))
            if may_cut:
                last = table["distance_m"].filter(pc.equal(table["rank"], k))
                cut += len(last) - last.null_count
    sample = np.concatenate(sampled)
    if not sample.size:
        return {}, cut
    median, most = np.percentile(sample, [50, 95]).tolist()
    return {"median": median, "95 %": most, "largest": float(largest)}, cut


def _write(
    matched: MatchSets, search: Search, target: Path, progress: Progress | None
) -> dict[str, int]:
    """Write a result; returns the number of its rows by status."""
    observations, options = matched.observations, matched.options
    of_observations, _ = matched.carried()
    size = rows_a_group(matched)
    counts: Counter[str] = Counter()

    def read(step: int) -> Iterator[Batch]:
        for chunk in Chunk(0, observations.rows).pieces(step):
            points = _in_memory(observations, options.asked_of_observations, chunk)
            yield search.batch(points, chunk.start, options)
            if progress is not None:
                progress(chunk.stop, observations.rows)

    def found(batch: Batch) -> pa.Table:
        rows, of_batch = search.found(batch, options)
        counts.update(of_batch)
        return rows

    def carrying(chunk: Chunk, rows: pa.Table) -> pa.Table:
        own = read_rows(observations.file, *chunk, of_observations)
        return search.carry(rows, own, chunk.start, options)

    def groups() -> Iterator[Callable[[], pa.Table]]:
        # Whole row groups, so that each is encoded once.
        for batch in read(max(1, RESULT_ROWS // options.k // size) * size):
            rows = found(batch)
            for one in batch.chunk.cut(size):
                first = (one.start - batch.first_row) * options.ranks
                own = rows.slice(first, (one.stop - one.start) * options.ranks)
                yield partial(carrying, one, own)

    def groups_of_pairs() -> Iterator[Callable[[], pa.Table]]:
        most = min(size, MADE_PAIRS)

        def tables() -> Iterator[pa.Table]:
            for batch in read(_COUNTED_ROWS):
                # As many observations at a time as have so many pairs together.
                for part in search.within(options, batch.narrowed).parts(batch, most):
                    rows = found(part)
                    for first in range(0, max(1, rows.num_rows), most):
                        yield carrying(part.chunk, rows.slice(first, most))

        return (partial(pa.Table.combine_chunks, one) for one in recut(tables(), size))

    made = groups_of_pairs() if options.has_pairs else groups()
    with target.open("wb") as file:
        splice = Splice(file)
        for one in side_by_side(lambda make: encode([make()]), made):
            splice.add(one)
        splice.finish(one.schema.with_metadata(provenance(matched, dict(counts))))
    return dict(counts)
