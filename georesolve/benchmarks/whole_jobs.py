"""A whole job in a warm service, Parquet to Parquet, beside its floor and beside cKDTree.

    python -m georesolve.benchmarks.whole_jobs
        --device cuda --workers 4 --observations 24 --references 14
    python -m georesolve.benchmarks.whole_jobs
        --device cpu --observations 22 --references places --ckdtree

Both sets are registered; a job is timed from the request to `successful`, as its client sees it and
by its own timestamps. The floor is what the same workers take to read the same Parquet in the same
chunks and to write a result of the same shape without resolving: once by our reader and writer,
once by `read_parquet` and `to_parquet` of Dask's dataframes, which cuDF encodes in its own way on a
GPU. On a CPU a bare script stands beside it: our
search between a read and a write of pyarrow, in one process, with nothing of a service. With
``--ckdtree`` a second service searches by scipy's tree instead of ours, and does all else as ours
does. All take turns.
"""

import argparse
import functools
import io
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.dataframe as dd
import httpx
import numba
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Worker, WorkerPlugin
from distributed.security import Security

from georesolve import kernels
from georesolve.benchmarks.inputs import cartesian, inputs
from georesolve.benchmarks.machine import benchmark_parser, machine, write_figures
from georesolve.benchmarks.service import ROOT, running, until_successful
from georesolve.engine.backends import Frame, backend, read_points
from georesolve.engine.plan import RESULT_ROW_GROUP, Chunk, chunks
from georesolve.engine.result_rows import STATUSES
from georesolve.io.datasets import ROW_GROUP, Dataset, read_rows, write_dataset
from georesolve.io.index_files import IndexFolder
from georesolve.io.source_files import SourceFiles
from georesolve.io.storage import Folder, Place
from georesolve.io.threads import encoders, side_by_side
from georesolve.kernels.devices import Device
from georesolve.kernels.query import EARTH_RADIUS_M
from georesolve.query import MatchOptions
from georesolve.workers.cluster import Cluster, open_cluster
from georesolve.workers.cluster_settings import ClusterSettings
from georesolve.workers.results.splice import Encoded, Splice, encode

_ENCODING: dict[str, dict[str, Any]] = {
    "cpu": {
        "compression": None,
        "use_dictionary": ["status"],
        "column_encoding": dict.fromkeys(["observation", "reference"], "DELTA_BINARY_PACKED"),
    },
    "cuda": {"compression": None},
}
"""How Dask's dataframes write a result: as we do where they are pyarrow's, else as cudf does."""

Sets = tuple[Dataset, Dataset]
"""Observations and references."""


class Stand(NamedTuple):
    """A service, the cluster that it works on, and the text that names a set of each kind there."""

    cluster: Cluster
    client: httpx.Client
    names: tuple[str, str]


@contextmanager
def _let_in(security: Security) -> Iterator[None]:
    """Let what is started meanwhile connect to an own cluster: Dask reads its key from these."""
    tls = security.get_tls_config_for_role("client")
    names = {"ca_file": "CA_FILE", "cert": "CLIENT__CERT", "key": "CLIENT__KEY"}
    keys = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": tls[own] for own, name in names.items()}
    os.environ.update(keys)
    try:
        yield
    finally:
        for name in keys:
            os.environ.pop(name, None)


@contextmanager
def joined(
    options: argparse.Namespace, folder: Path, *flags: str
) -> Iterator[tuple[Cluster, httpx.Client]]:
    """Open a cluster, and start a service that connects to it."""
    settings = ClusterSettings(
        device=options.device,
        workers=options.workers,
        connect_seconds=60,
        dashboard_address="127.0.0.1:0",
        scratch=folder / "scratch",
    )
    with open_cluster(settings) as cluster:
        scheduler = cluster.client.scheduler
        assert scheduler is not None, "an open cluster has a scheduler"
        address = str(scheduler.address)
        with (
            _let_in(cluster.client.security),
            running(
                options.device, folder / "data", folder / "log", "--scheduler", address, *flags
            ) as client,
        ):
            yield cluster, client


@contextmanager
def stand(options: argparse.Namespace, folder: Path, sets: Sets) -> Iterator[Stand]:
    """Open a cluster, start a service that connects to it, register both sets."""
    with joined(options, folder) as (cluster, client):
        observations, references = (register(client, dataset) for dataset in sets)
        yield Stand(cluster, client, (observations, references))


def canonical(table: pa.Table, path: Path) -> Dataset:
    """Write a table as the service would keep it."""
    id = "id" if "id" in table.schema.names else None
    return write_dataset(table.schema, table.to_batches(), path, lat="lat", lon="lon", id=id)


def register(client: httpx.Client, dataset: Dataset) -> str:
    """Register a set; the service keeps the bytes that it is sent."""
    assert isinstance(dataset.file, Path), "the sets of a benchmark are files"
    with dataset.file.open("rb") as content:
        media_type = {"Content-Type": "application/vnd.apache.parquet"}
        answer = client.post("/datasets", content=content, headers=media_type)
    registered = answer.raise_for_status().json()
    assert registered["sha256"] == dataset.sha256, "the floor reads what the service reads"
    return f"dataset:{registered['id']}"


def run_job(where: Stand, *, compare: bool = False) -> tuple[dict[str, float], np.ndarray | None]:
    """One job: its seconds by its own timestamps, and as its client saw them; on demand its rows.

    Its result is not downloaded for its time.
    """
    job, seen = until_successful(where.client, *where.names)
    url = f"/jobs/{job['id']}"
    report = where.client.get(f"{url}/report").raise_for_status().json()
    created, finished = (datetime.fromisoformat(job[n]) for n in ("created", "finished"))
    found = None
    if compare:
        content = where.client.get(f"{url}/results").raise_for_status().content
        found = pq.read_table(io.BytesIO(content), columns=["reference"])["reference"].to_numpy()
    where.client.delete(url).raise_for_status()
    return {
        "job": sum(seen.values()),
        "accepted to successful": (finished - created).total_seconds(),
        **{
            f"stage {stage}": seconds
            for stage, seconds in report["seconds"].items()
            # What was registered was received and decoded before.
            if not stage.endswith(("_observations", "_references"))
        },
    }, found


def our_floor(cluster: Cluster, sets: Sets, place: Place) -> None:
    """Read and write, by our reader and writer, one file a chunk."""
    observations, references = sets
    copy = functools.partial(copy_chunk, observations, references, place)
    cluster.client.gather(cluster.client.map(copy, plan_of(cluster, sets), pure=False))


def plan_of(cluster: Cluster, sets: Sets) -> list[Chunk]:
    """The chunks that the service cuts a job into."""
    observations, references = sets
    workers = len(cluster.workers())
    return chunks(observations.rows, references.rows, MatchOptions(), cluster.device, workers)


def copy_chunk(observations: Dataset, references: Dataset, place: Place, chunk: Chunk) -> None:
    """On a worker: read a chunk and write what looks like its result.

    Latitudes stand in for distances, because they have as many random bits, and numbers of rows for
    the references.
    """
    read = pa.array(backend().to_host(read_points(observations, *chunk)[0].lat_deg))
    rows = np.arange(chunk.start, chunk.stop)
    table = like_result(rows, rows % references.rows, read, references)
    if observations.id:
        own = read_rows(observations.file, *chunk, [observations.id])[observations.id]
        table = table.append_column("observation_id", own)

    def encoded(group: Chunk) -> Encoded:
        return encode([table.slice(group.start - chunk.start, group.stop - group.start)])

    with place.new(f"{chunk.start}.parquet") as file:
        splice = Splice(file)
        for group in side_by_side(encoded, chunk.cut(RESULT_ROW_GROUP), encoders()):
            splice.add(group)
        splice.finish(table.schema)


def like_result(
    rows: np.ndarray,
    found: np.ndarray,
    distance_m: pa.Array | pa.ChunkedArray,
    references: Dataset,
) -> pa.Table:
    """Columns as a result has them, of rows that are all matched."""
    columns = {
        "observation": pa.array(rows),
        "reference": pa.array(found),
        "distance_m": distance_m,
        "status": pa.DictionaryArray.from_arrays(np.zeros(rows.size, np.int8), list(STATUSES)),
    }
    if references.id:
        columns["reference_id"] = ids(references).take(columns["reference"])
    return pa.table(columns)


@functools.lru_cache(maxsize=1)
def ids(references: Dataset) -> pa.ChunkedArray:
    """On a worker: the ids that a result carries, read once."""
    assert references.id is not None, "only asked of sets that have ids"
    return read_rows(references.file, 0, references.rows, [references.id])[references.id]


def floor_of_dask(
    cluster: Cluster, sets: Sets, folder: Path, *, row_group: int = ROW_GROUP
) -> None:
    """Read and write with Dask's dataframes, the same chunks, of files with such row groups."""
    observations, references = sets
    first = plan_of(cluster, sets)[0]
    library = {"cuda": "cudf", "cpu": "pandas"}[cluster.device]
    with cluster.client.as_current(), dask.config.set({"dataframe.backend": library}):
        dd.read_parquet(
            paths_of(observations),
            columns=[observations.lat, observations.lon, *filter(None, [observations.id])],
            split_row_groups=max(1, (first.stop - first.start) // row_group),
        ).map_partitions(shaped, references, lat=observations.lat, id=observations.id).to_parquet(
            str(folder), write_index=False, write_metadata_file=False, **_ENCODING[cluster.device]
        )


def paths_of(points: Dataset) -> list[str]:
    """The files that a set lies in."""
    if isinstance(points.file, SourceFiles):
        return [file.path for file in points.file.files]
    return [str(points.file)]


def shaped(frame: Frame, references: Dataset, lat: str, id: str | None) -> Frame:
    """On a worker: a frame with the columns of a result."""
    rows = np.arange(len(frame))
    answer = {"observation": rows, "reference": rows % references.rows}
    made = type(frame)(answer, index=frame.index).assign(distance_m=frame[lat])
    if isinstance(frame, pd.DataFrame):
        made["status"] = pd.Categorical.from_codes(np.zeros(rows.size, np.int8), pd.Index(STATUSES))
    else:
        made["status"] = STATUSES[0]
    if id:
        made["observation_id"] = frame[id]
    if references.id:
        carried = ids(references).take(pa.array(answer["reference"]))
        made["reference_id"] = type(frame[lat])(carried.to_numpy(), index=frame.index)
    return made


def script(sets: Sets) -> Callable[[Path], None]:
    """Our search between a read and a write, its index built beforehand."""
    observations, references = sets
    index = kernels.build_index(*degrees(references))

    def run(folder: Path) -> None:
        answer = kernels.nearest(index, *degrees(observations))
        rows = answer.reference.reshape(-1)
        table = like_result(
            np.arange(rows.size), rows, pa.array(answer.distance_m.reshape(-1)), references
        )
        pq.write_table(
            table,
            folder / "result.parquet",
            row_group_size=RESULT_ROW_GROUP,
            **_ENCODING["cpu"],
        )

    return run


def degrees(points: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes, read from the file."""
    table = pq.read_table(points.file, columns=[points.lat, points.lon])
    return table[points.lat].to_numpy(), table[points.lon].to_numpy()


class SearchByScipy(WorkerPlugin):
    """Lets a worker search by cKDTree, with as many threads as it has."""

    name = "benchmark-ckdtree"

    def setup(self, worker: Worker) -> None:
        """Called by Dask in every worker."""
        kernels.build_index = ScipyIndex  # type: ignore[assignment]
        kernels.nearest = nearest_by_scipy  # type: ignore[assignment]
        # A cKDTree is of no arrays that a file could hold: each worker builds its own.
        IndexFolder.index = lambda _folder, _sha256, build: build()  # type: ignore[assignment, method-assign]


class ScipyIndex:
    """References in a cKDTree of unit vectors."""

    device: Device = "cpu"

    def __init__(self, lat_deg: np.ndarray, lon_deg: np.ndarray, **_options: object) -> None:
        # It holds copies anyway, and knows the sphere alone.
        self.tree = import_module("scipy.spatial").cKDTree(cartesian((lat_deg, lon_deg)))
        self.n_valid = lat_deg.size
        self.nbytes = self.tree.data.nbytes


def nearest_by_scipy(
    index: ScipyIndex, lat_deg: np.ndarray, lon_deg: np.ndarray, **options: object
) -> kernels.Answer:
    """The nearest of valid references, whatever else is asked for."""
    chord, row = index.tree.query(cartesian((lat_deg, lon_deg)), workers=numba.get_num_threads())
    return kernels.Answer(row, 2 * EARTH_RADIUS_M * np.arcsin(np.minimum(chord / 2, 1.0)))


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, write the JSON."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.ckdtree and options.device != "cpu":
        parser.error("--ckdtree searches on a CPU: --device cpu")
    if options.ckdtree and not find_spec("scipy"):
        parser.error("--ckdtree needs scipy: pip install 'georesolve[bench]'")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        sets = _sets(options, folder)
        ours = stack.enter_context(stand(options, folder / "ours", sets))
        turns: dict[str, Callable[[Path], Any]] = {
            "job": lambda _: run_job(ours, compare=options.ckdtree),
            "floor, our reader and writer": lambda to: our_floor(ours.cluster, sets, Folder(to)),
            "floor, Dask's dataframes": lambda to: floor_of_dask(ours.cluster, sets, to),
        }
        if options.device == "cpu":
            turns["a bare script"] = script(sets)
        if options.ckdtree:
            peer = stack.enter_context(stand(options, folder / "peer", sets))
            peer.cluster.client.register_plugin(SearchByScipy())
            turns["job, cKDTree"] = lambda _: run_job(peer, compare=True)
        figures: dict[str, Any] = {
            "machine": machine(["scipy"]),
            "device": ours.cluster.device,
            "workers": len(ours.cluster.workers()),
            "observations": sets[0].rows,
            "references": sets[1].rows,
            "chunks": len(plan_of(ours.cluster, sets)),
            **_take_turns(turns, folder, options.repeats),
        }
    _show(figures)
    write_figures(options.json, figures)


def _parser() -> argparse.ArgumentParser:
    parser = benchmark_parser(__doc__, repeats=7)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--workers", type=int, help="processes; one a GPU or core by default")
    parser.add_argument("--observations", type=int, default=22, help="power of two")
    parser.add_argument("--references", default="14", help="power of two, or places (samples/)")
    parser.add_argument("--ckdtree", action="store_true", help="beside it cKDTree, on a CPU")
    parser.add_argument("--folder", type=Path, help="where files go; temporary by default")
    return parser


def _sets(options: argparse.Namespace, folder: Path) -> Sets:
    places = options.references == "places"
    log_n = 0 if places else int(options.references)
    drawn = [
        pa.table({"lat": lat, "lon": lon})
        for lat, lon in inputs("uniform", 2**options.observations, 2**log_n)
    ]
    references = pq.read_table(ROOT / "samples" / "places.parquet") if places else drawn[0]
    for name in ("ours", "peer"):
        (folder / name).mkdir()
    return (
        canonical(drawn[1], folder / "observations.parquet"),
        canonical(references, folder / "references.parquet"),
    )


def _take_turns(
    turns: dict[str, Callable[[Path], Any]], folder: Path, repeats: int
) -> dict[str, Any]:
    """Seconds of everything that was timed, after a turn of each that does not count."""
    seconds: dict[str, list[float]] = {}
    found: dict[str, np.ndarray] = {}
    failed: dict[str, str] = {}
    for turn in range(1 + repeats):
        # In another order each time: what one leaves behind, the next finds.
        for name, action in random.Random(turn).sample(list(turns.items()), len(turns)):
            if name in failed:
                continue
            with tempfile.TemporaryDirectory(dir=folder) as to:
                start = time.perf_counter()
                try:
                    outcome = action(Path(to))
                except Exception as error:
                    # Without something beside it the job is still worth its time.
                    if name == "job":
                        raise
                    failed[name] = f"{type(error).__name__}: {error}"
                    continue
                timed = {name: time.perf_counter() - start}
            if outcome is not None:
                own, rows = outcome
                timed = own if name == "job" else {name: own["job"]}
                if rows is not None:
                    found[name] = rows
            if turn:
                for key, value in timed.items():
                    seconds.setdefault(key, []).append(value)
    differing = {name: int((rows != found["job"]).sum()) for name, rows in found.items()}
    return {"seconds": seconds, "failed": failed, "rows unlike ours": differing}


def _show(figures: dict[str, Any]) -> None:
    print(
        f"{figures['observations']:,} x {figures['references']:,} on {figures['device']}, "
        f"{figures['workers']} workers, {figures['chunks']} chunks"
    )
    for name, reason in figures["failed"].items():
        print(f"{name}: {reason}")
    for name, rows in figures["rows unlike ours"].items():
        if name != "job":
            print(f"{name}: {rows:,} rows unlike ours, which takes the lowest row of equally near")
    seconds = figures["seconds"]
    job = statistics.median(seconds["job"])
    print(
        f"{'seconds':<34}{'median':>10}{'least':>10}{'largest':>10}{'job / it':>10}{'M rows/s':>10}"
    )
    for name, values in seconds.items():
        median = statistics.median(values)
        line = f"{name:<34}" + "".join(f"{v:10.4f}" for v in (median, min(values), max(values)))
        if not name.startswith("stage"):
            line += f"{job / median:10.3f}{figures['observations'] / median / 1e6:10.2f}"
        print(line)


if __name__ == "__main__":
    main()
