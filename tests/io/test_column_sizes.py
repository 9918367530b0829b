"""What it takes of memory to carry values: of every type, however cut and encoded."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from georesolve.engine.plan import Carried, observations_a_group, too_wide
from georesolve.io.column_sizes import Width, value_bytes
from georesolve.io.datasets import ROW_GROUP
from tests.conftest import ROOT, points, store_points

TEXT, LISTS = pa.string(), pa.list_(pa.string())
RECORD = pa.struct([("a", pa.string()), ("b", pa.list_(pa.int16()))])
PLAIN = [
    (pa.int8(), [1, None], 1),
    (pa.bool_(), [True, None], 1),
    (pa.float64(), [1.0], 8),
    (pa.null(), [None], 1),
    (pa.decimal128(20, 2), [None], 16),
    (pa.binary(7), [b"1234567"], 7),
    (pa.struct([("a", pa.bool_()), ("b", pa.float64())]), [{"a": True, "b": None}, None], 32),
    (pa.uuid(), [b"0123456789abcdef"], 16),
    (pa.list_(pa.int8(), 3), [[1, 2, 3]], [79]),
]
OF_ANY_LENGTH = [
    (TEXT, ["abc", "", None, "é"], [7, 4, 4, 6]),
    (pa.large_binary(), [b"abc", None], [7, 4]),
    (pa.string_view(), ["a text that is not kept in line", None], [35, 4]),
    (pa.dictionary(pa.int8(), TEXT), ["abc", None, "abc"], [7, 0, 7]),
    (pa.list_(pa.int8()), [[0] * 200_000, [], None], [5_000_004, 4, 4]),
    (pa.list_(pa.null()), [[None] * 9], [229]),
    (LISTS, [["abc", "d"], None, [], ["e"]], [64, 4, 4, 33]),
    (pa.list_(LISTS), [[["abc"], []], None], [91, 4]),
    (pa.list_(pa.dictionary(pa.int8(), TEXT)), [["abc"], ["abc", "abc"]], [35, 66]),
    (pa.map_(TEXT, pa.int64()), [[("k", 1)], None, [("key", 2), ("", 3)]], [60, 4, 116]),
    (RECORD, [{"a": "abc", "b": [1, 2]}, {"a": None, "b": None}, None], [80, 32, 32]),
    (pa.list_(RECORD), [[], [{"a": "abc", "b": [1, 2]}]], [4, 108]),
]


def short(value):
    """Of what is in the name of a test: some values have a hundred thousand items."""
    return str(value)[:40]


@pytest.mark.parametrize(("type", "values", "expected"), PLAIN + OF_ANY_LENGTH, ids=short)
def test_every_type(type, values, expected):
    array = pa.array(values, type)
    for start in range(len(array) + 1):
        found = value_bytes(array.slice(start))
        assert isinstance(found, int) == isinstance(expected, int)
        np.testing.assert_array_equal(
            np.broadcast_to(found, len(array) - start),
            np.broadcast_to(expected, len(array))[start:],
        )


def test_no_more_is_taken_than_is_counted(tmp_path):
    """Of a row group of a result that is made, and of one of a dataset that is read."""
    command = [sys.executable, "-m", "tests.workers.peaks", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for kind, counted, made, read in map(json.loads, done.stdout.splitlines()):
        # What Arrow and zstd have for themselves takes some megabytes, whatever the values.
        assert made < 1.1 * counted + 2**25, kind
        # Texts are put together while they are read.
        assert read < (3.5 if kind == "text" else 1.1) * counted + 2**25, kind


def test_a_dataset_knows_what_its_columns_take(tmp_path):
    rows = ROW_GROUP + 3000
    own = {
        f"own.{i}": pa.array([*np.resize(np.array(values, object), rows - 1), values[0]], type)
        for i, (type, values, _) in enumerate(OF_ANY_LENGTH)
        if type not in (pa.string_view(), pa.list_(pa.null())) and i != 4
    }
    dataset = store_points(points(rows, 1, **own), tmp_path / "d.parquet")
    assert dataset.width(["lat"]) == Width(8 * rows, 8 * ROW_GROUP, 8)
    sizes = [4 + len((text or "").encode()) for text in own["own.0"].to_pylist()]
    assert dataset.width(["own.0"]) == Width(sum(sizes), sum(sizes[:ROW_GROUP]), 7)
    assert dataset.width(["own.0", "lat"]).row == 15


def test_row_groups_have_fewer_rows_where_they_may_carry_much():
    def rows(k, row, of="references", group=0):
        return k * observations_a_group(k, Carried(**{of: Width(0, group, row)}))

    assert rows(1, 0) == rows(1, 4096) == 131_072
    assert rows(1, 4097) == 65_536
    assert rows(64, 4096) == rows(64, 0) == 131_072
    assert rows(1, 140_000) == 2048
    assert rows(1, 600_000) == rows(1, 2**40) == 1024
    assert 512 < rows(3, 2**40) <= 1024
    # Of the observations there is no more than their row groups hold, however wide one of them is.
    assert rows(1, 2**28, "observations", group=2**28) == 131_072
    assert rows(2, 2**28, "observations", group=2**29) == 1024


def test_what_is_too_wide_is_told_with_its_figures():
    wide = Carried(references=Width(row=600_000))
    assert too_wide(10**6, 1, Carried(references=Width(row=2**19))) is None
    assert too_wide(800, 1, wide) is None
    refusal = too_wide(10**6, 1, wide)
    for figure in (1024, 614_400_000, 600_000, 2**29):
        assert f" {figure} " in refusal.replace(",", " ").replace(":", " ")
    assert refusal.endswith("carry an id, and join the wide columns to it")
    refusal = too_wide(10, 1, Carried(observations=Width(group=2**30, row=1)))
    assert f"{2**30} bytes of memory in 65536 rows, and {2**29} may" in refusal
