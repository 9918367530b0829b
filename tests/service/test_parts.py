"""Results as parts: one file for all who read it, although no such file is on the disk."""

import hashlib
import io
import random
import subprocess
from itertools import accumulate, pairwise

import fsspec
import httpx
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import points
from tests.service.test_results import finished_job, folder_of

SECONDS = 60


@pytest.fixture(scope="module")
def job(service):
    """A job whose result has several parts."""
    location = finished_job(service, points(300_000, 41), points(200, 42), columns="id")
    yield location
    service.delete(location).raise_for_status()


@pytest.fixture(scope="module")
def whole(service, job):
    """Its bytes, in one answer."""
    return service.get(f"{job}/results").raise_for_status().content


@pytest.fixture(scope="module")
def told(service, job):
    """What is told of its parts."""
    return service.get(f"{job}/results/parts").raise_for_status().json()


def as_arrow_writes(content):
    """The same row groups, decoded and written by Arrow alone."""
    read = pq.ParquetFile(io.BytesIO(content))
    schema, sink = read.schema_arrow, io.BytesIO()
    own = ("observation", "reference", "distance_m")
    others = [name for name in schema.names if name not in own]
    with pq.ParquetWriter(
        sink,
        schema,
        compression=dict.fromkeys(own, "none") | dict.fromkeys(others, "zstd"),
        use_dictionary=["status"],
        column_encoding=dict.fromkeys(["observation", "reference"], "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    ) as writer:
        for i in range(read.num_row_groups):
            group = read.read_row_group(i)
            writer.write_table(group, group.num_rows)
    return sink.getvalue()


def test_it_is_byte_for_byte_what_arrow_writes(service, job, whole, told):
    assert len(told["parts"]) > 1
    assert whole == as_arrow_writes(whole)
    report = service.get(f"{job}/report").json()
    assert (
        (told["rows"], told["size_bytes"])
        == (300_000, len(whole))
        == (
            report["rows"],
            report["size_bytes"],
        )
    )
    assert report["digest"] == told["digest"]
    assert service.head(f"{job}/results").headers["etag"] == f'"{told["digest"]}"'


def is_as_told(content, row_groups, ending, digest):
    """Whether bytes have their digests, as the documentation says how."""
    assert content[:4] == b"PAR1"
    edges = list(accumulate((one["size_bytes"] for one in (*row_groups, ending)), initial=4))
    assert edges[-1] == len(content)
    each = [hashlib.sha256(content[a:b]) for a, b in pairwise(edges)]
    assert [one.hexdigest() for one in each] == [one["sha256"] for one in (*row_groups, ending)]
    return hashlib.sha256(b"".join(one.digest() for one in each)).hexdigest() == digest


def test_a_client_can_check_the_whole_and_each_part(service, whole, told):
    groups = [group for part in told["parts"] for group in part["row_groups"]]
    assert is_as_told(whole, groups, told["ending"], told["digest"])
    tables = []
    for part in told["parts"]:
        answer = service.get(part["href"])
        assert answer.headers["etag"] == f'"{part["digest"]}"'
        assert len(answer.content) == part["size_bytes"]
        assert is_as_told(answer.content, part["row_groups"], part["ending"], part["digest"])
        tables.append(pq.read_table(io.BytesIO(answer.content)))
        assert tables[-1].num_rows == part["rows"]
        piece = service.get(part["href"], headers={"Range": "bytes=-4"})
        assert (piece.status_code, piece.content) == (206, b"PAR1")
        known = {"If-None-Match": f'"{part["digest"]}"'}
        assert service.get(part["href"], headers=known).status_code == 304
    expected = pq.read_table(io.BytesIO(whole))
    assert (
        pa.concat_tables(tables)
        .replace_schema_metadata()
        .equals(expected.replace_schema_metadata())
    )
    wrong = service.get(f"{told['parts'][0]['href']}x")
    assert (wrong.status_code, wrong.json()["type"].rpartition(":")[2]) == (404, "not-found")


def edges_of(told):
    sizes = (sum(one["size_bytes"] for one in part["row_groups"]) for part in told["parts"])
    return list(accumulate(sizes, initial=4))


def test_ranges_cross_parts(service, job, whole, told):
    url, chance = f"{job}/results/matches.parquet", random.Random(7)
    ranges = [(edge - 3, edge + 5) for edge in edges_of(told)[:-1] if edge > 4]
    ranges += [(edges_of(told)[1] - 9, edges_of(told)[-1] + 9), (0, 1), (0, len(whole))]
    ranges += [sorted(chance.sample(range(len(whole) + 1), 2)) for _ in range(20)]
    for start, stop in ranges:
        answer = service.get(url, headers={"Range": f"bytes={start}-{stop - 1}"})
        assert answer.status_code == 206
        assert answer.content == whole[start:stop]
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(whole)}"
    first, last = edges_of(told)[1], len(whole)
    several = service.get(url, headers={"Range": f"bytes=0-3,{first - 2}-{first + 1},{last - 4}-"})
    assert several.status_code == 206
    for start, stop in ((0, 4), (first - 2, first + 2), (last - 4, last)):
        head = f"Content-Range: bytes {start}-{stop - 1}/{last}\r\n\r\n".encode()
        assert head + whole[start:stop] + b"\r\n" in several.content


def test_curl_duckdb_pandas_and_pyarrow_read_it(service, job, whole, told, tmp_path):
    url, target = f"{service.base_url}{job}/results/matches.parquet", tmp_path / "matches.parquet"
    half = edges_of(told)[1] + 100
    curl = ["curl", "--silent", "--show-error", "--fail", "--output", target]
    for more in (["--range", f"0-{half - 1}"], ["--continue-at", "-"]):
        subprocess.run([*curl, *more, url], check=True, timeout=SECONDS)
    assert target.read_bytes() == whole
    expected = pq.read_table(io.BytesIO(whole))
    with fsspec.filesystem("http").open(url, block_size=1 << 16) as file:
        read = pq.ParquetFile(file, page_checksum_verification=True)
        assert read.num_row_groups == sum(len(part["row_groups"]) for part in told["parts"])
        assert read.read().equals(expected)
    frame = pd.read_parquet(url, columns=["reference", "distance_m"])
    assert frame["distance_m"].equals(expected["distance_m"].to_pandas())
    duckdb = pytest.importorskip("duckdb")
    total = duckdb.sql(f"SELECT count(*), sum(observation), max(distance_m) FROM '{target}'")
    assert total.fetchone() == (
        300_000,
        300_000 * 299_999 // 2,
        max(expected["distance_m"].to_pylist()),
    )


def test_a_part_that_is_damaged_later_ends_the_connection(service, job, whole, told):
    """What is made as it is sent is cut off, and does not end as if it were whole."""
    folder = folder_of(service, job) / "parts"
    damaged = folder / told["parts"][-1]["href"].rpartition("/")[2]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b"0")
    try:
        first = service.get(f"{job}/results", headers={"Range": "bytes=0-99"})
        assert first.content == whole[:100], "the other parts are whole"
        assert service.get(f"{job}/results").json()["type"].endswith(":result-damaged")
        stream = service.get(f"{job}/results/matches.csv")
        assert stream.status_code == 200, "the rows of the part are as they were"
        middle = len(content) // 2
        damaged.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            service.get(f"{job}/results/matches.csv")
    finally:
        damaged.write_bytes(content)
    assert service.get(f"{job}/results").content == whole
