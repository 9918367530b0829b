"""A job from files where they lie to files where they are wanted, beside its floors.

    python -m georesolve.benchmarks.lake
        --device cuda --observations 28 --references 20 --place /data/lake
    python -m georesolve.benchmarks.lake
        --device cpu --workers 8 --observations 26 --references 20 --place s3://bucket/lake

Observations lie in files of up to 2^24 rows, references in one file, both with ids unless
``--without-ids``. The service is given their addresses, its workers read them there and write the
parts of the result beside them. Rows a second, the bytes of the result, what the folder of the
service's data grew by, and of each process its CPU seconds and the most memory of its own that it
held during a job; and what the threads of the workers did with their time: a control path that
limits shows as `waiting`. Two floors are those of `pipeline`; the lowest, on a disk, moves as many
bytes: a thread a core reads the files into memory that was touched before, writes parts as large as
those of the result, and syncs them as a job does. An object store is found as its other clients
find it (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``).
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.benchmarks.inputs import uniform
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.benchmarks.whole_jobs import (
    Sets,
    floor_of_dask,
    joined,
    our_floor,
    paths_of,
    plan_of,
)
from georesolve.engine.plan import CHUNKS_IN_HAND
from georesolve.io.columns import Reading
from georesolve.io.points import Bounds
from georesolve.io.source_files import SourceFiles
from georesolve.io.storage import Folder, Place, place_of
from georesolve.io.urls import Sources
from georesolve.workers.cluster import Cluster

_FILE_ROWS = 2**24
_ROW_GROUP = 2**20
_WRITERS = 8
_BLOCK_BYTES = 2**25
_LOOK_SECONDS = 0.2
_STAGES = ("read", "index", "resolve", "verify", "write")
"""What a chunk does, in the report of its job."""


def write_points(place: Place, rows: int, seed: int, *, with_ids: bool) -> None:
    """Write points, spread evenly over the sphere, as files of a place."""

    def write(start: int) -> None:
        n = min(_FILE_ROWS, rows - start)
        lat, lon = uniform(np.random.default_rng([seed, start]), n)
        ids = {"id": np.arange(start, start + n)} if with_ids else {}
        table = pa.table({**ids, "lat": lat, "lon": lon})
        with place.new(f"{start:012}.parquet") as file:
            # Random bits do not get smaller; ids do.
            pq.write_table(
                table,
                file,
                row_group_size=_ROW_GROUP,
                compression={**dict.fromkeys(ids, "zstd"), "lat": "none", "lon": "none"},
                use_dictionary=False,
                column_encoding=dict.fromkeys(ids, "DELTA_BINARY_PACKED"),
            )

    place.make()
    with ThreadPoolExecutor(_WRITERS) as threads:
        list(threads.map(write, range(0, rows, _FILE_ROWS)))


class Watch:
    """Looks at this process and those below it: their CPU time, and the memory that is theirs.

    Attributes
    ----------
    memory
        Bytes that one process held at most, by the name of what it does.
    """

    def __init__(self, workers: set[int]) -> None:
        self._workers = workers
        self.memory: dict[str, int] = {}

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        own = psutil.Process()
        yield "scheduler, and this benchmark", own
        for one in own.children(recursive=True):
            try:
                name = "worker" if one.pid in self._workers else one.name().rstrip(" 0123456789")
            except psutil.Error:
                continue
            yield (name if name in ("worker", "front", "runner") else "other"), one

    def cpu_seconds(self) -> dict[str, float]:
        """Until now, of all processes of a name together."""
        seconds: dict[str, float] = {}
        for name, one in self._processes():
            try:
                times = one.cpu_times()
            except psutil.Error:
                continue
            seconds[name] = seconds.get(name, 0.0) + times.user + times.system
        return seconds

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at the memory of each process meanwhile; the largest of a name is kept."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(_LOOK_SECONDS):
                for name, one in self._processes():
                    try:
                        info = one.memory_info()
                    except psutil.Error:
                        continue
                    self.memory[name] = max(self.memory.get(name, 0), info.rss - info.shared)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def run_job(client: httpx.Client, request: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """One job up to `successful`: its report, and the seconds that its client saw."""
    begin = time.perf_counter()
    headers = {"Prefer": "respond-async"}
    answer = client.post("/processes/nearest/execution", json=request, headers=headers)
    job = answer.raise_for_status().json()["jobID"]
    # Told when it ends, and not asked again and again, which takes time from who does the work.
    with client.stream("GET", f"/jobs/{job}/events", timeout=None) as events:
        for _ in events.iter_lines():
            pass
    seconds = time.perf_counter() - begin
    told = client.get(f"/jobs/{job}").raise_for_status().json()
    if told["status"] != "successful":
        raise SystemExit(f"the job is {told['status']}: {told['message']}")
    report: dict[str, Any] = client.get(f"/jobs/{job}/report").raise_for_status().json()
    report["parts"] = client.get(f"/jobs/{job}/results/parts").raise_for_status().json()
    client.delete(f"/jobs/{job}").raise_for_status()
    return report, seconds


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, write the JSON."""
    parser = benchmark_parser(__doc__, repeats=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--workers", type=int, help="processes; one a GPU or core by default")
    parser.add_argument("--observations", type=int, default=22, help="power of two")
    parser.add_argument("--references", type=int, default=14, help="power of two")
    parser.add_argument("--place", required=True, help="an empty folder, or s3://bucket/prefix")
    parser.add_argument("--without-ids", action="store_true", help="coordinates alone")
    options = parser.parse_args(arguments)
    base = options.place.rstrip("/")
    if "://" not in base:
        base = Path(base).resolve().as_uri()
    points = {name: place_of(f"{base}/{name}") for name in ("observations", "references")}
    try:
        for seed, (name, place) in enumerate(points.items()):
            rows, with_ids = 2 ** getattr(options, name), not options.without_ids
            write_points(place, rows, seed, with_ids=with_ids)
        figures = _measured(options, base)
    finally:
        for place in points.values():
            place.remove(place.names())
    _show(figures)
    write_figures(options.json, figures)


def _measured(options: argparse.Namespace, base: str) -> dict[str, Any]:
    hrefs = {name: f"{base}/{name}/" for name in ("observations", "references")}
    sources = Sources(f"{base}/", Bounds())
    observations, references = (sources.dataset(href, Reading(), "") for href in hrefs.values())
    sets = observations, references
    assert isinstance(observations.file, SourceFiles), "looked up, not copied"
    flags = ["--sources", f"{base}/", "--sinks", f"{base}/out/"]
    flags += ["--dataset-rows", str(max(observations.rows, references.rows))]
    with (
        tempfile.TemporaryDirectory() as name,
        joined(options, Path(name), *flags) as (
            cluster,
            client,
        ),
    ):
        pids = cluster.client.run(os.getpid)
        watch = Watch(set(pids.values()))
        seconds: dict[str, list[float]] = {}
        control: list[dict[str, float]] = []
        report: dict[str, Any] = {}
        for turn in range(1 + options.repeats):
            # As far as a service that has been used stands: the first turn does not count.
            output = f"{base}/out/{turn}/"
            before = watch.cpu_seconds()
            with watch.looking():
                report, took = run_job(
                    client,
                    {
                        "inputs": {name: {"href": href} for name, href in hrefs.items()},
                        "output": {"href": output},
                    },
                )
            used = {
                name: total - before.get(name, 0.0) for name, total in watch.cpu_seconds().items()
            }
            written = place_of(output)
            written.remove(written.names())
            size = report["parts"]["size_bytes"]
            timed = {"job": took, **_floors(cluster, sets, f"{base}/floor-{turn}", size)}
            if turn:
                for what, value in timed.items():
                    seconds.setdefault(what, []).append(value)
                control.append(used)
        chunks = len(plan_of(cluster, sets))
        kept = sum(path.stat().st_size for path in (Path(name) / "data").rglob("*"))
    return {
        "device": cluster.device,
        "workers": len(pids),
        "place": base.partition("://")[0],
        "observations": observations.rows,
        "references": references.rows,
        "chunks": chunks,
        "source bytes": observations.file.size_bytes,
        "result bytes": report["parts"]["size_bytes"],
        "digest": report["parts"]["digest"],
        "data bytes": kept,
        "stages": report["seconds"],
        "seconds": seconds,
        "cpu seconds": {
            name: [one.get(name, 0.0) for one in control] for one in control for name in one
        },
        "memory bytes": watch.memory,
    }


def move_bytes(files: list[Path], folder: Path, size: int, parts: int) -> float:
    """Seconds to read files, and to write so many bytes as parts, each synced."""
    blocks: SimpleQueue[bytearray] = SimpleQueue()
    cores = os.cpu_count() or 1
    for _ in range(cores):
        blocks.put(bytearray(os.urandom(_BLOCK_BYTES)))

    def read(path: Path, start: int, stop: int) -> None:
        block = blocks.get()
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            file.readinto(memoryview(block)[: stop - start])
        blocks.put(block)

    def write(number: int) -> None:
        block, left = blocks.get(), size // parts
        with (folder / f"{number}").open("wb", buffering=0) as file:
            while left:
                left -= file.write(memoryview(block)[:left])
            os.fsync(file.fileno())
        blocks.put(block)

    start = time.perf_counter()
    with ThreadPoolExecutor(cores) as threads:
        done = [
            threads.submit(read, path, start, min(start + _BLOCK_BYTES, path.stat().st_size))
            for path in files
            for start in range(0, path.stat().st_size, _BLOCK_BYTES)
        ]
        done += [threads.submit(write, number) for number in range(parts)]
        for one in done:
            one.result()
    return time.perf_counter() - start


def _floors(cluster: Cluster, sets: Sets, base: str, size: int) -> dict[str, float]:
    """Seconds of the floors of a result of so many bytes; two write to a folder only."""
    place = place_of(base)
    place.make()
    start = time.perf_counter()
    our_floor(cluster, sets, place)
    seconds = {"floor, our reader and writer": time.perf_counter() - start}
    place.remove(place.names())
    if isinstance(place, Folder):
        files = [Path(path) for one in sets for path in paths_of(one)]
        place.make()
        moved = move_bytes(files, place.path, size, len(plan_of(cluster, sets)))
        seconds["floor, moving the bytes"] = moved
        place.remove(place.names())
        place.make()
        start = time.perf_counter()
        floor_of_dask(cluster, sets, place.path, row_group=_ROW_GROUP)
        seconds["floor, Dask's dataframes"] = time.perf_counter() - start
        place.remove(place.names())
    return seconds


def _show(figures: dict[str, Any]) -> None:
    rows = figures["observations"]
    print(
        f"{rows:,} x {figures['references']:,} on {figures['device']}, {figures['place']}, "
        f"{figures['workers']} workers, {figures['chunks']} chunks, "
        f"{figures['result bytes'] / 2**30:.2f} GiB of result, "
        f"{figures['data bytes'] / 2**20:.1f} MiB kept by the service"
    )
    job = statistics.median(figures["seconds"]["job"])
    for name, values in figures["seconds"].items():
        median = statistics.median(values)
        print(
            f"{name:<34}{median:9.3f} s [{min(values):.3f}, {max(values):.3f}]"
            f"{job / median:8.3f} job / it{rows / median / 1e6:9.1f} M rows/s"
        )
    threads = figures["workers"] * CHUNKS_IN_HAND[figures["device"]]
    last, stages = figures["seconds"]["job"][-1], figures["stages"]
    done = {name: stages.get(name, 0.0) for name in _STAGES}
    waiting = threads * last - sum(done.values())
    shares = {**done, "waiting": waiting}
    print(f"of {threads} threads of workers in {last:.3f} s of the last job: ", end="")
    print(", ".join(f"{name} {each / threads / last:.0%}" for name, each in shares.items()))
    print(
        f"outside of chunks: queue {stages['queue']:.3f} s, after the last one "
        f"{stages['assemble']:.3f} s"
    )
    for name, values in figures["cpu seconds"].items():
        mib = figures["memory bytes"].get(name, 0) / 2**20
        print(f"{name:<34}{statistics.median(values):9.3f} CPU s{mib:9.0f} MiB at most")


if __name__ == "__main__":
    main()
