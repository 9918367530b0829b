"""What carrying a value takes of memory: run as a program, it prints one figure a kind.

Each kind is measured in a fork of its own, whose peak is that of its own work.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from georesolve.engine.plan import Carried, carried_bytes
from georesolve.engine.result_rows import with_carried
from georesolve.io.datasets import read_rows, write_dataset
from georesolve.query import MatchOptions
from georesolve.workers.results.splice import encode

GROUP_BYTES = 2**26
_RECORD = pa.struct([("a", pa.int8()), ("b", pa.string())])
KINDS = {
    "zeros": pa.array([np.zeros(200_000, np.int8)], pa.list_(pa.int8())),
    "numbers": pa.array([np.arange(20_000.0)], pa.list_(pa.float64())),
    "vector": pa.array([np.arange(768)], pa.list_(pa.float32(), 768)),
    "nothing": pa.array([[None] * 20_000], pa.list_(pa.null())),
    "texts": pa.array([["a"] * 20_000], pa.list_(pa.string())),
    "lists": pa.array([[[0]] * 20_000], pa.list_(pa.list_(pa.int8()))),
    "records": pa.array([[{"a": 1, "b": "x"}] * 5_000], pa.list_(_RECORD)),
    "flags": pa.array([{f"f{i}": True for i in range(500)}]),
    "map": pa.array([[(str(i), 1) for i in range(5_000)]], pa.map_(pa.string(), pa.int8())),
    "text": pa.array(["x" * 100_000]),
    "words": pa.array(["one"]).dictionary_encode(),
}


def _peak():
    """The most memory that this process has had."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def measure(value, file):
    """Bytes counted for a row group of a result, and what it takes to make it and to read one."""
    column = {"lat": [0.0], "lon": [0.0], "own": value}
    batch = pa.record_batch(column)
    data = write_dataset(batch.schema, [batch], file, lat="lat", lon="lon", id=None)
    rows = GROUP_BYTES // data.width(["own"]).row
    rows = min(rows, 60_000)
    own = pa.table({"reference": np.zeros(rows, np.int64)})
    references = read_rows(file, 0, 1, ["own"])["own"]
    start = _peak()
    table = with_carried(own, MatchOptions(), pa.table({}), [("own", references)], 0)
    encode([table])
    made = _peak() - start
    wide = references.take(pa.array(np.zeros(rows, np.int64)))
    column = {"lat": np.zeros(rows), "lon": np.zeros(rows), "own": wide.combine_chunks()}
    batch = pa.record_batch(column)
    write_dataset(batch.schema, [batch], file, lat="lat", lon="lon", id=None)
    del column, batch, wide, table
    return carried_bytes(rows, 1, Carried(references=data.width(["own"]))), made


def read(rows, file):
    """What it takes to read the carried column of so many rows."""
    start = _peak()
    read_rows(file, 0, rows, ["own"])
    return _peak() - start


def in_fork(function, *arguments):
    """Call a function in a fork; returns what it returned."""
    back, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(there, json.dumps(function(*arguments)).encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(back) as pipe:
        answer = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, arguments
    return json.loads(answer)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for kind, value in KINDS.items():
        counted, made = in_fork(measure, value, folder / kind)
        took = in_fork(read, 60_000, folder / kind)
        sys.stdout.write(json.dumps([kind, counted, made, took]) + "\n")
        sys.stdout.flush()
