"""What it takes until a dataset is accepted, beside one process of pyarrow that does it all.

    python -m georesolve.benchmarks.accepting --rows 22 --runs 7

The file has 2^ROWS points with ids. The floor reads it with all cores, checks that coordinates are
within their ranges, and writes the same columns as Parquet, without an upload, a sandbox, a digest
or a disk that is waited for. Both take turns in shuffled order.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from georesolve.benchmarks.inputs import uniform
from georesolve.benchmarks.machine import benchmark_parser, write_figures
from georesolve.benchmarks.service import running

_MEDIA_TYPES = {
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv",
    "arrows": "application/vnd.apache.arrow.stream",
}
_RANGES = {"lat": (-90, 90), "lon": (-180, 360)}
_PIECE_BYTES = 1 << 20


def write(path: Path, rows: int) -> None:
    """Write points with ids in the format that the name of the file tells."""
    lat, lon = uniform(np.random.default_rng(1), rows)
    table = pa.table({"id": np.arange(rows), "lat": lat, "lon": lon})
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    elif path.suffix == ".arrows":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=65_536)
    else:
        pq.write_table(table, path)


def floor(path: Path, target: Path) -> float:
    """Seconds that one process takes to read, check and write."""
    start = time.perf_counter()
    if path.suffix == ".csv":
        table = pa.csv.read_csv(path)
    elif path.suffix == ".arrows":
        table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    else:
        table = pq.read_table(path)
    for name, (low, high) in _RANGES.items():
        found = pc.min_max(table[name])
        assert low <= found["min"].as_py() <= found["max"].as_py() <= high
    # As the service writes them: coordinates as they are, ids compressed.
    compression = {name: "none" if name in _RANGES else "zstd" for name in table.column_names}
    pq.write_table(table, target, compression=compression, use_dictionary=False)
    return time.perf_counter() - start


def accept(client: httpx.Client, path: Path) -> float:
    """Seconds until a client has its 201; leaves nothing behind."""
    start = time.perf_counter()
    with path.open("rb") as file:
        headers = {"Content-Type": _MEDIA_TYPES[path.suffix[1:]]}
        answer = client.post("/datasets", content=_pieces(file), headers=headers)
    assert answer.status_code == 201, answer.text
    seconds = time.perf_counter() - start
    client.delete(f"/datasets/{answer.json()['id']}").raise_for_status()
    return seconds


def _pieces(file: BinaryIO) -> Iterable[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def main() -> None:
    """Run the benchmark and print its table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rows", type=int, default=22, help="power of two")
    parser.add_argument("--format", choices=sorted(_MEDIA_TYPES), default="parquet")
    parser.add_argument("--runs", type=int, default=7, help="turns after one that does not count")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / f"points.{options.format}"
        write(path, 1 << options.rows)
        with (
            running("cpu", folder / "data", folder / "log", "--workers", "1") as client,
            ProcessPoolExecutor(1, get_context("spawn")) as process,
        ):
            turns: dict[str, Callable[[], float]] = {
                "accepted": lambda: accept(client, path),
                "floor": lambda: process.submit(floor, path, folder / "floor").result(),
            }
            seconds: dict[str, list[float]] = {name: [] for name in turns}
            for _ in range(1 + options.runs):
                for one in random.sample(sorted(turns), len(turns)):
                    seconds[one].append(turns[one]())
    print(f"2^{options.rows} rows, {options.format}, seconds of {options.runs} turns")
    for one, values in seconds.items():
        del values[0]
        print(
            f"{one:<10} median {statistics.median(values):.3f} "
            f"[{min(values):.3f}, {max(values):.3f}]"
        )
    ratio = statistics.median(seconds["accepted"]) / statistics.median(seconds["floor"])
    print(f"accepted / floor {ratio:.2f}")
    asked = {name: getattr(options, name) for name in ("rows", "format", "runs")}
    report = {"options": asked, "seconds": seconds}
    write_figures(options.json, report)


if __name__ == "__main__":
    main()
