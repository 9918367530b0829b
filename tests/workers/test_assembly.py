"""Results put together from parts: byte for byte what Arrow writes when it has all rows at once."""

import hashlib
import io
import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.workers import footers, plan, splice
from georesolve.workers.assembly import assembly
from georesolve.workers.jobs import Job, MatchOptions
from georesolve.workers.partitions import part_path
from georesolve.workers.plan import RESULT_ROW_GROUP, Chunk, observations_a_group
from georesolve.workers.result import provenance, write_rows
from georesolve.workers.splice import Splice
from tests.conftest import points, store_points

COUNTS = {"matched": 1}


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(plan, "RESULT_ROW_GROUP", 64)
    # So that parts are moved in several blocks, as large ones are.
    monkeypatch.setattr(splice, "_BLOCK_BYTES", 1_000)


def rows_of(n, k=1):
    """Result rows with every type that matters to their bytes: plain, dictionary, text, nested."""
    chance = np.random.default_rng(n)
    missing = chance.random(n * k) < 0.1
    columns = {
        "observation": pa.array(np.repeat(np.arange(n), k)),
        "reference": pa.array(chance.integers(0, 50, n * k), mask=missing),
        "distance_m": pa.array(chance.random(n * k), mask=missing),
        "status": pa.DictionaryArray.from_arrays(
            pa.array(missing.astype(np.int8)), ["matched", "beyond", "never"]
        ),
        "reference_code": pa.array(chance.integers(0, 9, n * k), pa.int32(), mask=missing),
        "reference_id": pa.array([f"place {i % 7}" for i in range(n * k)], mask=missing),
        "observation_tags": pa.array(
            [[i, i % 3] if i % 5 else None for i in range(n * k)],
            # As Parquet names what is in a list.
            pa.list_(pa.field("element", pa.int64())),
        ),
    }
    return pa.table(columns)


def make_job(folder, n, k=1):
    (folder / "job" / "parts").mkdir(parents=True)
    dataset = store_points(points(n, 1), folder / "points.parquet")
    return Job("job", folder / "job", dataset, dataset, MatchOptions(k=k))


def write_part(job, table, chunk):
    with part_path(job, chunk).open("wb") as file:
        splice = Splice(file)
        for group in chunk.row_groups(job.options.k):
            start, stop = np.searchsorted(table["observation"].to_numpy(), group)
            encoded = io.BytesIO()
            write_rows(encoded, table.slice(start, stop - start))
            splice.add(encoded.getbuffer())
        splice.finish(table.schema.with_metadata({"record": str(chunk)}))


def put_together(job, table, edges, *, seed=0):
    chunks = [Chunk(*edge) for edge in pairwise(edges)]
    for chunk in chunks:
        write_part(job, table, chunk)
    random.Random(seed).shuffle(chunks)
    with assembly(job) as growing:
        for chunk in chunks:
            growing.add(chunk)
        return growing.finish(COUNTS)


def at_once(job, table):
    """The same rows as Arrow writes them when it has all of them, a row group at a time."""
    encoded = io.BytesIO()
    plain = ("observation", "reference", "distance_m")
    others = [name for name in table.schema.names if name not in plain]
    schema = table.schema.with_metadata(provenance(job, COUNTS))
    of = table["observation"].to_numpy()
    size = observations_a_group(job.options.k)
    with pq.ParquetWriter(
        encoded,
        schema,
        compression=dict.fromkeys(plain, "none") | dict.fromkeys(others, "zstd"),
        use_dictionary=[name for name in others if name != "reference_code"],
        column_encoding=dict.fromkeys(["observation", "reference"], "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    ) as writer:
        for start in range(0, job.observations.rows, size):
            rows = table.filter(pa.array((of >= start) & (of < start + size)))
            if rows.num_rows:
                writer.write_table(rows.replace_schema_metadata(schema.metadata))
    return encoded.getvalue()


@pytest.mark.parametrize("edges", [[0, 1_000], [0, 64, 640, 1_000], [0, 10, 64, 129, 700, 1_000]])
def test_the_bytes_are_those_of_one_writer(tmp_path, small_groups, edges):
    job, table = make_job(tmp_path, 1_000), rows_of(1_000)
    result = put_together(job, table, edges)
    content = job.result.read_bytes()
    assert content == at_once(job, table)
    assert (result.rows, result.size_bytes) == (1_000, len(content))
    assert result.sha256.result() == hashlib.sha256(content).hexdigest()
    assert pq.read_table(job.result).equals(table)
    assert pq.read_metadata(job.result).num_row_groups == 16


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("seed", range(6))
def test_any_cut_in_any_order_gives_the_same_bytes(tmp_path, small_groups, k, seed):
    job, table = make_job(tmp_path, 500, k), rows_of(500, k)
    if seed % 2:
        table = table.filter(pa.array(table["status"].combine_chunks().indices.to_numpy() == 0))
    chance = random.Random(seed)
    edges = [0, *sorted(chance.sample(range(1, 500), chance.randrange(1, 20))), 500]
    put_together(job, table, edges, seed=seed)
    assert job.result.read_bytes() == at_once(job, table)
    pq.read_table(job.result, page_checksum_verification=True).validate(full=True)


@pytest.mark.parametrize("edges", [[0, 0], [0, 32, 64, 96]])
def test_no_rows_at_all(tmp_path, small_groups, edges):
    job = make_job(tmp_path, edges[-1])
    result = put_together(job, rows_of(10).slice(0, 0), edges)
    table = pq.read_table(job.result)
    assert (result.rows, table.num_rows) == (0, 0)
    assert table.schema.equals(rows_of(10).schema)


def test_nothing_appears_of_a_result_that_is_not_finished(tmp_path):
    job = make_job(tmp_path, 10)

    def without_its_part():
        with assembly(job) as growing:
            growing.add(Chunk(0, 10))
            growing.finish(COUNTS)

    with pytest.raises(FileNotFoundError):
        without_its_part()
    assert [path.name for path in job.folder.iterdir()] == ["parts"]


def test_a_row_group_is_a_range_of_observations():
    sizes = {k: observations_a_group(k) for k in range(1, 65)}
    assert sizes[1] == RESULT_ROW_GROUP
    assert all(size * k <= RESULT_ROW_GROUP < 2 * size * k for k, size in sizes.items())


def test_a_footer_is_kept_as_it_is(tmp_path):
    job = make_job(tmp_path, 10)
    for file in (at_once(job, rows_of(1_000)), job.observations.file.read_bytes()):
        content, footer = footers.split(memoryview(file))
        assert footers.MAGIC + bytes(content) + footers.ending(footer) == file


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100, b"PAR1" + bytes(8) + b"PARE"])
def test_what_is_no_parquet_is_refused(content):
    with pytest.raises(ValueError, match="do not end as a Parquet file"):
        footers.split(memoryview(content))
