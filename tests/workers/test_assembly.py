"""Results put together from parts: byte for byte what Arrow writes when it has all rows at once."""

import hashlib
import io
import json
import os
import random
import stat
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.engine import plan
from georesolve.engine.plan import (
    RESULT_ROW_GROUP,
    Chunk,
    observations_a_group,
    rows_a_group,
)
from georesolve.engine.provenance import provenance
from georesolve.engine.result_rows import STATUSES
from georesolve.io.footers import Footer
from georesolve.query import MatchOptions
from georesolve.workers.assembly import Assembly
from georesolve.workers.job import Job
from georesolve.workers.results.manifest import MANIFEST_NAME, open_matches, read_manifest
from georesolve.workers.results.parts import COMPLETE, is_whole, part_name
from georesolve.workers.results.splice import Splice, encode
from tests.conftest import points, store_points

COUNTS = {"matched": 1}


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(plan, "RESULT_ROW_GROUP", 64)


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
    return Job(dataset, dataset, MatchOptions(k=k), id="job", folder=folder / "job")


def write_part(job, table, chunk):
    """The part of a chunk as a worker writes it, and its record."""
    name = part_name(*chunk)
    with job.place.new(name) as file:
        splice = Splice(file)
        edges = np.searchsorted(table["observation"].to_numpy(), chunk.cut(rows_a_group(job)))
        tables = [table.slice(start, stop - start) for start, stop in edges]
        for at in range(0, len(tables), 3):
            splice.add(encode(tables[at : at + 3]))
        part, groups = splice.finish(table.schema.with_metadata({"chunk": str(chunk)}), name)
    counts = dict.fromkeys(STATUSES, 0)
    footer = json.loads(json.dumps([group.as_json() for group in groups]))
    return {"part": part, "footer": footer, "counts": counts}


def put_together(job, table, edges, *, seed=0):
    chunks = [Chunk(*edge) for edge in pairwise(edges)]
    records = {chunk: write_part(job, table, chunk) for chunk in chunks}
    random.Random(seed).shuffle(chunks)
    growing = Assembly(job)
    for chunk in chunks:
        growing.add(chunk, records[chunk])
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


def content_of(result):
    return open_matches(result.place.path.parent).read()


@pytest.mark.parametrize("edges", [[0, 1_000], [0, 64, 640, 1_000], [0, 10, 64, 129, 700, 1_000]])
def test_the_bytes_are_those_of_one_writer(tmp_path, small_groups, edges):
    job, table = make_job(tmp_path, 1_000), rows_of(1_000)
    result = put_together(job, table, edges)
    content = content_of(result)
    assert content == at_once(job, table)
    assert (result.rows, result.size_bytes) == (1_000, len(content))
    read = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
    assert read.read().equals(table)
    assert read.num_row_groups == 16


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("seed", range(6))
def test_any_cut_in_any_order_gives_the_same_bytes(tmp_path, small_groups, k, seed):
    job, table = make_job(tmp_path, 500, k), rows_of(500, k)
    if seed % 2:
        table = table.filter(pa.array(table["status"].combine_chunks().indices.to_numpy() == 0))
    chance = random.Random(seed)
    edges = [0, *sorted(chance.sample(range(1, 500), chance.randrange(1, 20))), 500]
    result = put_together(job, table, edges, seed=seed)
    content = content_of(result)
    assert content == at_once(job, table)
    assert digest_by_hand(content) == result.digest


def digest_by_hand(content):
    """As the documentation says: of where Parquet's own footer says that row groups lie."""
    metadata = pq.read_metadata(io.BytesIO(content))
    ends, start, each = [], 4, b""
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        columns = [group.column(j) for j in range(group.num_columns)]
        ends.append(start + sum(column.total_compressed_size for column in columns))
        start = ends[-1]
    for first, last in pairwise([4, *ends, len(content)]):
        each += hashlib.sha256(content[first:last]).digest()
    return hashlib.sha256(each).hexdigest()


@pytest.mark.parametrize("edges", [[0, 1_000], [0, 64, 640, 1_000], [0, 10, 64, 129, 700, 1_000]])
def test_each_part_is_a_file_of_its_own(tmp_path, small_groups, edges):
    job, table = make_job(tmp_path, 1_000), rows_of(1_000)
    result = put_together(job, table, edges)
    result.tidy()
    assert sorted(path.name for path in job.place.path.iterdir()) == [
        *(part.name for part in result.parts),
        "_ending",
    ]
    read = []
    for part in result.parts:
        content = (job.place.path / part.name).read_bytes()
        assert (len(content), digest_by_hand(content)) == (part.size_bytes, part.digest)
        read.append(pq.read_table(io.BytesIO(content)))
        assert read[-1].num_rows == part.rows
    assert pa.concat_tables(read).equals(table)


def test_it_is_read_from_anywhere(tmp_path, small_groups):
    job, table = make_job(tmp_path, 1_000), rows_of(1_000)
    put_together(job, table, [0, 64, 640, 1_000])
    whole, chance = at_once(job, table), random.Random(1)
    with open_matches(job.folder) as file:
        for _ in range(300):
            start, size = chance.randrange(len(whole) + 10), chance.randrange(5_000)
            file.seek(start)
            assert file.read(size) == whole[start : start + size]
        file.seek(-8, io.SEEK_END)
        assert file.read() == whole[-8:]


@pytest.mark.parametrize("edges", [[0, 0], [0, 32, 64, 96]])
def test_no_rows_at_all(tmp_path, small_groups, edges):
    job = make_job(tmp_path, edges[-1])
    result = put_together(job, rows_of(10).slice(0, 0), edges)
    table = pq.read_table(io.BytesIO(content_of(result)))
    assert (result.rows, table.num_rows) == (0, 0)
    assert table.schema.equals(rows_of(10).schema)


def test_nothing_appears_of_a_result_that_is_not_finished(tmp_path):
    job, table = make_job(tmp_path, 10), rows_of(10)
    growing = Assembly(job)
    growing.add(Chunk(0, 10), write_part(job, table, Chunk(0, 10)))
    (job.place.path / part_name(0, 10)).unlink()
    with pytest.raises(FileNotFoundError):
        growing.finish(COUNTS)
    assert [path.name for path in job.folder.iterdir()] == ["parts"]
    with pytest.raises(FileNotFoundError):
        read_manifest(job.folder)


@pytest.mark.parametrize("at", [0, 4, 900, -3])
def test_a_part_without_its_bytes_is_not_whole(tmp_path, at):
    job, table = make_job(tmp_path, 10), rows_of(10)
    part = write_part(job, table, Chunk(0, 10))["part"]
    assert is_whole(job.place, part)
    path = job.place.path / part.name
    content = bytearray(path.read_bytes())
    for damaged in (content[:-1], content + b"1"):
        path.write_bytes(damaged)
        assert not is_whole(job.place, part)
    content[at] ^= 1
    path.write_bytes(content)
    assert not is_whole(job.place, part)


def test_a_row_group_is_a_range_of_observations():
    sizes = {k: observations_a_group(k) for k in range(1, 65)}
    assert sizes[1] == RESULT_ROW_GROUP
    assert all(size * k <= RESULT_ROW_GROUP < 2 * size * k for k, size in sizes.items())


def test_a_footer_is_kept_as_it_is(tmp_path):
    job = make_job(tmp_path, 10)
    for file in (at_once(job, rows_of(1_000)), job.observations.file.read_bytes()):
        footer = Footer(memoryview(file))
        rows = sum(group.rows for group in footer.groups)
        groups = [group.placed(number, 0) for number, group in enumerate(footer.groups)]
        assert file[: footer.start] + footer.ending(rows, groups) == file


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100, b"PAR1" + bytes(8) + b"PARE"])
def test_what_is_no_parquet_is_refused(content):
    with pytest.raises(ValueError, match="do not end as a Parquet file"):
        Footer(memoryview(content))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_tells_of_a_result_comes_after_all_of_it_is_on_the_disk(
    tmp_path, small_groups, monkeypatch, elsewhere
):
    job = make_job(tmp_path, 1300)
    if elsewhere:
        (tmp_path / "out").mkdir()
        job = replace(job, output=f"file://{tmp_path}/out/")
    folder = job.place.path
    files, names, told, lost = set(), {}, [], []
    sync, rename = os.fsync, Path.replace

    def slow_sync(descriptor):
        about = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(about.st_mode)
        listed = {entry.name for entry in os.scandir(descriptor)} if is_folder else set()
        time.sleep(0.02)
        sync(descriptor)
        if is_folder:
            names[about.st_ino] = listed
        else:
            files.add(about.st_ino)

    def watched_rename(source, target):
        if target.name in (COMPLETE, MANIFEST_NAME):
            told.append(target.name)
            known = names.get(folder.stat().st_ino, set())
            lost.extend(
                (target.name, path.name)
                for path in folder.iterdir()
                if path != source and path.name not in pieces
                if path.stat().st_ino not in files or path.name not in known
            )
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", slow_sync)
    monkeypatch.setattr(Path, "replace", watched_rename)
    pieces = part_name(1216, 1290), part_name(1290, 1300)
    # A part for each row group, and one that is joined of two, which need not survive.
    put_together(job, rows_of(1300), [*range(0, 1280, 64), 1290, 1300])
    assert told == ([COMPLETE, MANIFEST_NAME] if elsewhere else [MANIFEST_NAME])
    assert lost == []
    assert part_name(1216, 1300) in names[folder.stat().st_ino]
    assert (job.folder / MANIFEST_NAME).stat().st_ino in files
