"""Wide values that a result would carry: bounded before a job is accepted, and in every format."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.io.datasets import streamed
from georesolve.io.errors import RowTooWide
from georesolve.io.result_formats import CSV, FORMATS, JSON
from tests.conftest import look_up, points, run_nearest
from tests.service.test_jobs import PARQUET, files_of, parquet
from tests.service.test_results import no_sets

LATER = {"Prefer": "respond-async"}
LISTS = pa.array([[0] * 600_000], pa.list_(pa.int8()))
TEXT = pa.array(["a" * 600_000])
ZEROS = pa.array([[0] * 200_000], pa.list_(pa.int8()))
WIDE = {
    "list": LISTS,
    "zeros": ZEROS,
    "text": TEXT,
    "dictionary": TEXT.dictionary_encode(),
    "id": TEXT,
}


@pytest.mark.parametrize("kind", WIDE)
def test_what_is_too_wide_is_refused_before_a_job_is_accepted(service, kind):
    name = "id" if kind == "id" else "wide"
    tables = {
        "observations": points(2_000, 1).drop("id"),
        "references": pa.table({"lat": [0.5], "lon": [0.5], name: WIDE[kind]}),
    }
    made = {}
    for role, table in tables.items():
        content = parquet(table)
        assert len(content) < 200_000
        answer = service.post("/datasets", content=content, headers={"Content-Type": PARQUET})
        made[role] = answer.raise_for_status().json()["id"]
    body = {role: f"dataset:{id}" for role, id in made.items()}
    before, jobs = files_of(service), service.get("/jobs").json()["jobs"]
    told = service.post("/estimate", json={**body, "columns": [name]}).json()
    assert told["fits"] is False
    (obstacle,) = told["obstacles"]
    assert f"may carry {2**29}: carry an id" in obstacle
    for headers in (LATER, {}):
        answer = run_nearest(service, {**body, "columns": [name]}, headers)
        assert (answer.status_code, answer.json()["detail"]) == (413, obstacle)
    if kind != "id":
        assert look_up(service, body).status_code == 200
    assert service.get("/jobs").json()["jobs"] == jobs
    assert files_of(service) == before
    for id in made.values():
        service.delete(f"/datasets/{id}").raise_for_status()


def test_few_wide_rows_fit(service):
    """What counts is what a row group carries, not how wide a value is."""
    references = pa.table({"lat": [0.5], "lon": [0.5], "wide": TEXT})
    files = {
        role: (f"{role}.parquet", parquet(table))
        for role, table in (("observations", points(50, 1)), ("references", references))
    }
    answer = service.post("/resolve", params={"columns": "wide"}, files=files)
    table = pq.read_table(io.BytesIO(answer.raise_for_status().content))
    assert set(table["reference_wide"].to_pylist()) == set(TEXT.to_pylist())


WIDE_ROWS = {
    "text": (pa.array(["x" * 200_000, "y"]), 120),
    "dictionary": (pa.array(["x" * 200_000, "y"]).dictionary_encode(), 120),
    "nothing": (pa.array([[None] * 200_000, []], pa.list_(pa.null())), 100),
    "records": (pa.array([[{"a": True}] * 5_000, []]), 300),
}


@pytest.mark.parametrize("format", [CSV, JSON], ids=["csv", "json"])
@pytest.mark.parametrize("kind", WIDE_ROWS)
def test_text_is_made_of_so_many_bytes_at_a_time(format, kind):
    values, rows = WIDE_ROWS[kind]
    table = pa.table({"wide": values.take(pa.array(np.arange(rows) % 2))})
    source = io.BytesIO()
    pq.write_table(table, source)
    pieces = list(format.pieces(streamed(source), no_sets))
    content = b"".join(pieces)
    assert 2 * max(map(len, pieces)) < len(content)
    # A line a row, after the header or within brackets.
    assert content.count(b"\n") == rows + {"csv": 1, "json": 2}[format.suffix]


@pytest.mark.parametrize("format", FORMATS[1:4], ids=["arrows", "csv", "json"])
def test_no_text_is_made_of_a_row_that_takes_much_memory(format):
    table = pa.table({"wide": pa.array([bytes(40 << 20)])})
    source = io.BytesIO()
    pq.write_table(table, source)
    pieces = format.pieces(streamed(source), no_sets)
    if format.suffix == "arrows":
        assert pa.ipc.open_stream(b"".join(pieces)).read_all().num_rows == 1
        return
    with pytest.raises(
        RowTooWide, match=f"takes {(40 << 20) + 4} bytes of memory.*Parquet or Arrow"
    ):
        b"".join(pieces)
