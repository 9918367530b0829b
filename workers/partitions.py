"""What runs on one partition: read a chunk, resolve it, write its part file."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from distributed import get_worker

import kernels
from kernels.coordinates import is_valid
from workers.datasets import read_rows
from workers.files import durable
from workers.frames import Frame, backend
from workers.jobs import Job
from workers.plan import Chunk
from workers.references import resident

STATUSES = ("matched", "beyond_max_distance", "invalid_coordinate", "no_reference")
_MATCHED, _BEYOND, _INVALID, _NO_REFERENCE = range(len(STATUSES))

RECORD = pd.DataFrame({"record": pd.Series(dtype="str")})
"""Empty frame like those that `write_part` returns, for Dask's `meta`."""

# Seconds by stage of the chunk that this worker has in hand. The three functions of a chunk run one
# after the other in one fused task on a worker with one thread, and the frames that pass between
# them have nowhere to put it.
_seconds: dict[str, float] = {}


class Cancelled(Exception):
    """The job was cancelled while one of its chunks ran."""


@contextmanager
def _stage(name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    backend().synchronize()
    _seconds[name] = time.perf_counter() - start


def _stop_if_cancelled(job: Job) -> None:
    # Cancelling a future does not stop a running task: looking is the only way.
    if job.cancel_flag.exists():
        raise Cancelled(job.id)


def part_path(job: Job, chunk: Chunk) -> Path:
    """The part file of a chunk; its name sorts by row."""
    return job.parts / f"{chunk.start:012d}-{chunk.stop:012d}.arrow"


def read_chunk(chunk: Chunk, attempt: int, job: Job) -> Frame:
    """Read the coordinates of a chunk as a frame of pandas or cudf.

    Parameters
    ----------
    attempt
        Number of the attempt. Dask names tasks by their arguments, and a new attempt is a new task.
    """
    _seconds.clear()
    _stop_if_cancelled(job)
    with _stage("read"):
        lat, lon = job.observations.lat, job.observations.lon
        frame = backend().read(job.observations.path, *chunk, [lat, lon])
        frame = frame.rename(columns={lat: "lat_deg", lon: "lon_deg"})
        frame.index = frame.index + chunk.start
    return frame


def resolve(frame: Frame, job: Job) -> Frame:
    """Find the nearest reference of every row of a chunk.

    Returns
    -------
    frame
        With `observation` (int64 row), `reference` (int64 row, -1 where none), `distance_m`
        (float64, NaN where none) and `status` (int8 index into `STATUSES`).
    """
    with _stage("index"):
        index = resident(job.references).index
    with _stage("resolve"):
        lat_deg, lon_deg = frame["lat_deg"].values, frame["lon_deg"].values
        answer = kernels.nearest(
            index,
            lat_deg,
            lon_deg,
            max_distance_m=job.options.max_distance_m,
            algorithm=job.options.algorithm,  # type: ignore[arg-type]
        )
        unmatched = _BEYOND if index.n_valid else _NO_REFERENCE
        status = (answer.reference < 0).astype("int8") * np.int8(unmatched)
        status[~is_valid(lat_deg, lon_deg)] = _INVALID
        return type(frame)(
            {
                "observation": frame.index.values,
                "reference": answer.reference,
                "distance_m": answer.distance_m,
                "status": status,
            }
        )


def write_part(frame: Frame, job: Job) -> pd.DataFrame:
    """Write the part file of a resolved chunk, carried columns included.

    The file is an uncompressed Arrow file with the record of the chunk in its metadata: once it
    stands, the chunk is done, whatever happens to the worker or to the future.

    Returns
    -------
    frame
        One row: as JSON the record of the chunk, with the worker and its seconds by stage.
    """
    _stop_if_cancelled(job)
    start = time.perf_counter()
    answer = backend().to_arrow(frame)
    start_row = answer["observation"][0].as_py() if answer.num_rows else 0
    chunk = Chunk(start_row, start_row + answer.num_rows)
    status = answer["status"].to_numpy()
    table = result_table(job, chunk, answer)
    if job.options.how == "inner":
        table = table.filter(pa.array(status == _MATCHED))
    counts = np.bincount(status, minlength=len(STATUSES)).tolist()
    done = {
        "start": chunk.start,
        "rows": chunk.stop - chunk.start,
        "result_rows": table.num_rows,
        "counts": dict(zip(STATUSES, counts, strict=True)),
    }
    schema = table.schema.with_metadata({"record": json.dumps(done)})
    with (
        durable(part_path(job, chunk)) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    _seconds["write"] = time.perf_counter() - start
    record = {**done, "worker": str(get_worker().name), "seconds": _seconds}
    return pd.DataFrame({"record": [json.dumps(record)]})


def read_record(path: Path) -> dict[str, Any]:
    """The record of a chunk that an earlier run of the job has done, from its part file."""
    with pa.OSFile(str(path), "rb") as source:
        record: dict[str, Any] = json.loads(pa.ipc.open_file(source).schema.metadata[b"record"])
    return record


def result_table(job: Job, chunk: Chunk, answer: pa.Table) -> pa.Table:
    """The result rows of a chunk, in the types and with the columns that the user sees."""
    status = answer["status"].to_numpy()
    nothing = status != _MATCHED
    reference = pa.array(answer["reference"].to_numpy(), mask=nothing)
    distance_m = pa.array(answer["distance_m"].to_numpy(), mask=nothing)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "observation": answer["observation"].combine_chunks(),
        "reference": reference,
        "distance_m": distance_m,
        "status": pa.DictionaryArray.from_arrays(pa.array(status, pa.int8()), list(STATUSES)),
    }
    of_observations, of_references = job.carried()
    if of_observations:
        carried = read_rows(job.observations.path, *chunk, of_observations)
        columns |= {f"observation_{name}": carried[name] for name in of_observations}
    if of_references:
        references = resident(job.references)
        for name in of_references:
            columns[f"reference_{name}"] = references.column(name).take(reference)
    return pa.table(columns)
