"""Results in every format: the same rows, honest headers, ranges, conditions, and limits."""

import datetime
import decimal
import hashlib
import io
import json
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from georesolve.io.result_files import TableRows
from georesolve.io.result_formats import FORMATS
from georesolve.service.errors import TooLargeForFormat
from georesolve.service.resolve.outcome import CONVERTED_BYTES, converted
from tests.conftest import finished, points, wait_until

SUFFIXES = [one.suffix for one in FORMATS]
MADE = [one for one in FORMATS if one.pieces and not one.geometry]
VARY = "Accept, Authorization, X-API-Key"
STREAMED = [one for one in SUFFIXES if one != "parquet"]
MEDIA_TYPES = {one.suffix: one.media_type for one in FORMATS}


def no_sets(role):
    raise AssertionError("a format without coordinates needs no sets")


def parquet(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def resolve(client, observations, references, headers=None, **parameters):
    files = {
        "observations": ("observations.parquet", parquet(observations)),
        "references": ("references.parquet", parquet(references)),
    }
    return client.post("/resolve", files=files, params=parameters, headers=headers)


def finished_job(client, *tables, **parameters):
    """The path of a job that has a result."""
    answer = resolve(client, *tables, headers={"Prefer": "respond-async"}, **parameters)
    assert answer.status_code == 201, answer.text
    location = httpx.URL(answer.headers["location"]).path
    assert finished(client, location)["status"] == "successful"
    return location


def folder_of(service, job):
    return service.log.with_suffix("") / "jobs" / Path(job).name


@pytest.fixture(scope="module")
def job(service):
    """A job whose result has every status, nulls and a text that is hard to write."""
    names = np.array(['say "hi"', "a,b", "line\nbreak", "Köln", "back\\slash", ""])
    observations = points(20_000, 21).append_column("note", pa.array(np.resize(names, 20_000)))
    references = points(500, 22, name=np.resize(names, 500))
    options = {"max_distance_m": 500_000, "columns": "name", "observation_columns": "note"}
    location = finished_job(service, observations, references, **options)
    yield location
    assert service.delete(location).status_code == 200


def test_every_format_has_the_same_rows(service, job):
    whole = {s: service.get(f"{job}/results/matches.{s}").content for s in SUFFIXES}
    expected = pq.read_table(io.BytesIO(whole["parquet"]))
    rows = expected.to_pylist()
    assert {row["status"] for row in rows} == {"matched", "beyond_max_distance"}
    stream = pa.ipc.open_stream(whole["arrows"])
    assert stream.schema.metadata == expected.schema.metadata
    assert stream.read_all().to_pylist() == rows
    assert json.loads(whole["json"]) == rows
    features = json.loads(whole["geojson"])["features"]
    assert [one["properties"] for one in features] == rows
    read = pa.csv.read_csv(
        io.BytesIO(whole["csv"]),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    assert read.to_pylist() == rows


def test_pandas_reads_the_json(service, job):
    content = service.get(f"{job}/results/matches.json").content
    frame = pd.read_json(io.BytesIO(content), precise_float=True)
    expected = pq.read_table(io.BytesIO(service.get(f"{job}/results").content)).to_pandas()
    np.testing.assert_array_equal(frame["reference"], expected["reference"])
    np.testing.assert_allclose(frame["distance_m"], expected["distance_m"], rtol=1e-15)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_accept_chooses_and_the_answer_says_so(service, job, suffix):
    named = service.get(f"{job}/results/matches.{suffix}", headers={"Accept": "text/html"})
    assert named.status_code == 200, "an address that names a format is not negotiated"
    assert "Accept" not in named.headers["vary"].split(", ")
    chosen = service.get(f"{job}/results", headers={"Accept": MEDIA_TYPES[suffix]})
    assert chosen.content == named.content
    assert chosen.headers["vary"] == VARY
    assert chosen.headers["content-type"].partition(";")[0] == MEDIA_TYPES[suffix]
    location = chosen.headers["content-location"].partition("?")[0]
    assert location.endswith(f"{job}/results/matches.{suffix}")
    assert f'filename="matches.{suffix}"' in chosen.headers["content-disposition"]
    assert chosen.headers.get("etag") == named.headers.get("etag")


@pytest.mark.parametrize("suffix", STREAMED)
def test_what_is_made_as_it_is_sent_has_no_length_and_no_ranges(service, job, suffix):
    url = f"{job}/results/matches.{suffix}"
    whole = service.get(url)
    assert not {"etag", "content-length", "last-modified"} & set(whole.headers)
    assert whole.headers["accept-ranges"] == "none"
    part = service.get(url, headers={"Range": "bytes=10-19", "If-None-Match": "*"})
    assert (part.status_code, part.content) == (200, whole.content)
    head = service.head(url)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "accept-ranges", "content-disposition"):
        assert head.headers[name] == whole.headers[name]


OLD, NEW = "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"


def test_a_result_is_given_only_where_the_precondition_holds(service, job):
    parquet = f"{job}/results/matches.parquet"
    tag = service.get(parquet).headers["etag"]
    part = service.get(f"{job}/results/parts").json()["parts"][0]["href"]
    tag_of_part = service.get(part).headers["etag"]
    tags = {f"{job}/results": tag, parquet: tag, part: tag_of_part}
    for url, matching in tags.items():
        true_values = [matching, f'"other", {matching}', "*"]
        false_values = ['"other"', f"W/{matching}", matching.strip('"'), ""]
        for value in true_values:
            assert service.get(url, headers={"If-Match": value}).status_code == 200
            # A date counts only without If-Match.
            both = {"If-Match": value, "If-Unmodified-Since": OLD}
            assert service.get(url, headers=both).status_code == 200
        for value in false_values:
            for more in ({}, {"Range": "bytes=0-1"}, {"If-None-Match": matching}):
                refused = service.get(url, headers={"If-Match": value, **more})
                assert refused.status_code == 412, (url, value, more)
                assert refused.json()["type"].endswith(":precondition-failed")
        assert service.get(url, headers={"If-Unmodified-Since": NEW}).status_code == 200
        assert service.get(url, headers={"If-Unmodified-Since": "soon"}).status_code == 200
        assert service.get(url, headers={"If-Unmodified-Since": OLD}).status_code == 412
    # Formats without a stored file have no ETag.
    for suffix in STREAMED:
        url = f"{job}/results/matches.{suffix}"
        assert service.get(url, headers={"If-Match": tag}).status_code == 412
        assert service.get(url, headers={"If-Match": "*"}).status_code == 200


def test_ranges_and_conditions(service, job):
    url = f"{job}/results/matches.parquet"
    whole = service.get(url)
    tag, size = whole.headers["etag"], len(whole.content)

    def get(**headers):
        return service.get(
            url, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    head = service.head(url, headers={"Range": "bytes=0-9"})
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-length", "content-type", "accept-ranges"):
        assert head.headers[name] == whole.headers[name]
    assert head.headers["content-length"] == str(size)

    part = get(Range="bytes=10-19", If_Range=tag)
    assert (part.status_code, part.content) == (206, whole.content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{size}"
    assert get(Range="bytes=-8").content == whole.content[-8:]
    for other in ('"other"', f"W/{tag}"):
        assert get(Range="bytes=10-19", If_Range=other).content == whole.content
    assert get(Range="rows=1-2").content == whole.content, "a unit that nobody knows"

    for known in (tag, f'"other", W/{tag}', "*"):
        assert get(If_None_Match=known, Range="bytes=0-1").status_code == 304
    assert get(If_None_Match='"other"').status_code == 200

    modified = whole.headers["last-modified"]
    for known, status in ((modified, 304), ("Thu, 01 Jan 1970 00:00:00 GMT", 200), ("soon", 200)):
        assert get(If_Modified_Since=known).status_code == status
        # If-None-Match counts before a date.
        assert get(If_None_Match=tag, If_Modified_Since=known).status_code == 304
    assert get(If_None_Match='"other"', If_Modified_Since=modified).status_code == 200

    beyond = get(Range=f"bytes={size}-")
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    assert beyond.json()["type"].endswith(":range-not-satisfiable")
    assert f"has {size} bytes" in beyond.json()["detail"]
    bad = get(Range="bytes=5-2")
    assert (bad.status_code, bad.json()["type"].rpartition(":")[2]) == (400, "bad-range")
    assert bad.headers["content-type"] == "application/problem+json"


def test_a_format_that_there_is_not(service, job):
    answer = service.get(f"{job}/results", headers={"Accept": "image/png"})
    assert (answer.status_code, answer.headers["vary"]) == (406, VARY)
    assert answer.headers["content-type"] == "application/problem+json"
    assert all(media_type in answer.json()["detail"] for media_type in MEDIA_TYPES.values())
    assert service.get(f"{job}/results/matches.xlsx").status_code == 404


@pytest.mark.parametrize("rows", [100, 70_000], ids=["at hand", "job"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_synchronous_answer_in_every_format(service, suffix, rows):
    headers = {"Accept": MEDIA_TYPES[suffix]}
    answer = resolve(service, points(rows, 23), points(50, 24), headers=headers)
    if rows > 100:
        assert service.delete(
            answer.headers["content-location"].rpartition("/results/")[0]
        ).is_success
    else:
        assert "content-location" not in answer.headers, "a small one leaves no job"
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == MEDIA_TYPES[suffix]
    if rows == 100:
        assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert answer.headers["vary"] == VARY


def test_a_synchronous_answer_in_no_format_costs_no_job(service):
    before = service.get("/jobs", params={"limit": 1000}).json()["jobs"]
    answer = resolve(service, points(9, 1), points(9, 2), headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["vary"]) == (406, VARY)
    assert service.get("/jobs", params={"limit": 1000}).json()["jobs"] == before


def test_no_format_takes_room_on_the_disk(service):
    job = finished_job(service, points(30_000, 25), points(50, 26))
    folder = folder_of(service, job)
    wait_until(lambda: result_files(folder))
    before = result_files(folder)
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: service.get(f"{job}/results/matches.csv"), range(6)))
    assert len({answer.content for answer in answers}) == 1
    assert result_files(folder) == before
    service.delete(job)
    assert not folder.exists()
    assert service.get(f"{job}/results/matches.csv").status_code == 410


def result_files(folder):
    """What is left of a job once the service has removed what it needs no more; else nothing."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    manifest = (folder / "manifest.json").read_text()
    parts = [Path(name).name for name in names if name.startswith("parts/0")]
    return names if all(name in manifest for name in parts) else []


@pytest.mark.parametrize("answer", ["results", *(f"results/matches.{one}" for one in SUFFIXES)])
def test_a_result_that_goes_while_it_is_asked_for_is_gone(service, answer):
    job = finished_job(service, points(10, 29), points(5, 30))
    folder = folder_of(service, job)
    # The service still removes what it needs no more.
    wait_until(lambda: result_files(folder))
    shutil.rmtree(folder)
    problem = service.get(f"{job}/{answer}")
    assert problem.status_code == 410, problem.text
    assert problem.json()["type"] == "urn:georesolve:problem:job-dismissed"


def test_a_result_that_goes_while_it_is_sent_arrives_whole(service):
    job = finished_job(service, points(200_000, 29), points(5, 30))
    url = f"{job}/results/matches.parquet"
    whole = service.get(url).content
    with service.stream("GET", url) as answer:
        pieces = answer.iter_bytes(1 << 16)
        first = next(pieces)
        assert service.delete(job).status_code == 200
        assert first + b"".join(pieces) == whole


def test_empty_results(service):
    none = points(10, 27).slice(0, 0)
    job = finished_job(service, none, points(5, 28))
    assert service.get(f"{job}/results/matches.json").json() == []
    for address in ("matches.geojson", "matches.geojson?geometry=line"):
        features = service.get(f"{job}/results/{address}").json()
        assert features == {"type": "FeatureCollection", "features": []}
    header = '"observation","reference","distance_m","status","observation_id","reference_id"\n'
    assert service.get(f"{job}/results/matches.csv").text == header
    stream = service.get(f"{job}/results/matches.arrows").content
    assert pa.ipc.open_stream(stream).read_all().num_rows == 0


@pytest.mark.parametrize("format", MADE, ids=[one.suffix for one in MADE])
def test_a_limit_on_what_parquet_holds_in_little(format):
    """One long name in every row, 400 MB of text."""
    name = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 20_000])
    result = TableRows(pa.table({"reference_name": name.cast("string")}))
    with pytest.raises(TooLargeForFormat, match=f"limit of {CONVERTED_BYTES} bytes: take it as"):
        converted(result, format, no_sets)


UTC = datetime.UTC
SOME_UUID = uuid.UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
UUIDS = pa.array([SOME_UUID.bytes, None], pa.uuid())
KINDS = {
    "integer": (pa.array([2**63 - 1, None]), 2**63 - 1, "9223372036854775807"),
    "float": (pa.array([0.1, None]), 0.1, "0.1"),
    "float16": (pa.array([1.5, None], pa.float16()), 1.5, "1.5"),
    "float32": (pa.array([1.1, None], pa.float32()), 1.1, "1.1"),
    "not a number": (pa.array([float("nan"), None]), None, "nan"),
    "infinity": (pa.array([float("inf"), None]), None, "inf"),
    "boolean": (pa.array([True, None]), True, "true"),
    "text": (pa.array(['"\\\n\x01é', None]), '"\\\n\x01é', '"""\\\n\x01é"'),
    "category": (pa.array(["x", None]).dictionary_encode(), "x", '"x"'),
    "numbers": (pa.array([7, None]).dictionary_encode(), 7, "7"),
    "time": (
        pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None]),
        "2026-01-02T03:04:05.000000Z",
        '"2026-01-02T03:04:05.000000Z"',
    ),
    "date": (pa.array([datetime.date(2026, 1, 2), None]), "2026-01-02", '"2026-01-02"'),
    "decimal": (pa.array([decimal.Decimal("1.10"), None]), "1.10", '"1.10"'),
    "bytes": (pa.array([b"\xff\0", None]), "/wA=", '"/wA="'),
    "uuid": (UUIDS, str(SOME_UUID), f'"{SOME_UUID}"'),
    "uuids": (
        pa.ListArray.from_arrays([0, 1, 1], UUIDS.slice(0, 1), mask=pa.array([False, True])),
        [str(SOME_UUID)],
        f'"[""{SOME_UUID}""]"',
    ),
    "extension": (pa.array(['{"a": 1}', None], pa.json_()), '{"a": 1}', '"{""a"": 1}"'),
    "extension of a list": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), [2]), pa.array([[1, 2], None], pa.list_(pa.int8(), 2))
        ),
        [1, 2],
        '"[1, 2]"',
    ),
    "time in a zone": (
        pa.array([0, None], pa.timestamp("s", "Asia/Kolkata")),
        "1970-01-01T05:30:00.000+05:30",
        '"1970-01-01T05:30:00.000+05:30"',
    ),
    "time in a zone west of Greenwich": (
        pa.array([0, None], pa.timestamp("us", "-03:30")),
        "1969-12-31T20:30:00.000000-03:30",
        '"1969-12-31T20:30:00.000000-03:30"',
    ),
    "time in UTC": (
        pa.array([0, None], pa.timestamp("s", "UTC")),
        "1970-01-01T00:00:00.000Z",
        '"1970-01-01T00:00:00.000Z"',
    ),
    "time without a zone": (
        pa.array([0, None], pa.timestamp("s")),
        "1970-01-01T00:00:00.000",
        '"1970-01-01T00:00:00.000"',
    ),
    "list": (pa.array([[1.5, float("nan")], None]), [1.5, None], '"[1.5, null]"'),
    "record": (
        pa.array([{"day": datetime.date(2026, 1, 2)}, None]),
        {"day": "2026-01-02"},
        '"{""day"": ""2026-01-02""}"',
    ),
    "nothing": (pa.array([None, None], pa.null()), None, ""),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_carried_column(kind):
    column, as_json, as_csv = KINDS[kind]
    file = io.BytesIO()
    pq.write_table(pa.table({"row": [0, 1], 'the "column"': column}), file)
    made = {}
    for format in MADE:
        made[format.suffix] = b"".join(format.pieces(pq.ParquetFile(file), no_sets))
    assert json.loads(made["json"], parse_constant=pytest.fail) == [
        {"row": 0, 'the "column"': as_json},
        {"row": 1, 'the "column"': None},
    ]
    assert made["csv"].decode() == f'"row","the ""column"""\n0,{as_csv}\n1,\n'
    stream = pa.ipc.open_stream(made["arrows"]).read_all()
    assert stream.column(1).type == pq.read_schema(file).field(1).type


def test_uuids_are_text_in_what_is_text(service):
    """As Parquet writers have them: a column of the logical type UUID, of which ids are made."""
    ids = [uuid.UUID(int=i << 96) for i in range(50)]
    column = pa.array([id.bytes for id in ids], pa.uuid())
    references = points(50, 29).set_column(0, "id", column)
    job = finished_job(service, points(70_000, 30), references, k=2, columns="id")
    table = pq.read_table(io.BytesIO(service.get(f"{job}/results").content))
    assert table.schema.field("reference_id").type == pa.uuid()
    expected = [str(ids[row]) for row in table["reference"].to_pylist()]
    assert [str(id) for id in table["reference_id"].to_pylist()] == expected
    rows = service.get(f"{job}/results/matches.json").raise_for_status().json()
    assert [row["reference_id"] for row in rows] == expected
    text = service.get(f"{job}/results/matches.csv").raise_for_status().content
    assert pa.csv.read_csv(io.BytesIO(text))["reference_id"].to_pylist() == expected
    service.delete(job)
    small = resolve(service, points(9, 31), references, headers={"Accept": "application/json"})
    assert {row["reference_id"] for row in small.json()} <= set(map(str, ids))


NO_TEXT = {
    "a zone that there is not": pa.array([0] * 9, pa.timestamp("us", "Mars/Olympus")),
    "a zone within a list": pa.array([[0]] * 9, pa.list_(pa.timestamp("us", "Mars/Olympus"))),
    "a time": pa.array([2**60] * 9, pa.timestamp("ms")),
    "a time in a zone": pa.array([2**60] * 9, pa.timestamp("ms", "Europe/Berlin")),
    "a time within a list": pa.array([[2**60]] * 9, pa.list_(pa.timestamp("ms"))),
    "a day within a list": pa.array([[2**30]] * 9, pa.list_(pa.date32())),
    "a duration within a record": pa.array(
        [{"took": 2**60}] * 9, pa.struct({"took": pa.duration("ms")})
    ),
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_what_no_text_can_be_made_of_names_its_column(service, kind):
    sink = io.BytesIO()
    observations = points(9, 32, seen=NO_TEXT[kind])
    with pa.ipc.new_stream(sink, observations.schema) as writer:
        writer.write_table(observations)
    files = {
        "observations": ("observations.arrows", sink.getvalue()),
        "references": ("references.parquet", parquet(points(5, 33))),
    }

    def send(**headers):
        parameters = {"observation_columns": "seen"}
        return service.post("/resolve", files=files, params=parameters, headers=headers)

    location = httpx.URL(send(Prefer="respond-async").headers["location"]).path
    assert finished(service, location)["status"] == "successful"
    for suffix in ("csv", "json"):
        for answer in (
            send(Accept=MEDIA_TYPES[suffix]),
            service.get(f"{location}/results/matches.{suffix}"),
        ):
            assert answer.status_code == 406, answer.text
            assert answer.json()["type"].endswith(":not-acceptable")
            assert "take the result as Parquet or Arrow" in answer.json()["detail"]
            assert answer.json()["errors"][0]["column"] == "observation_seen"
    for suffix in ("parquet", "arrows"):
        assert service.get(f"{location}/results/matches.{suffix}").status_code == 200
    service.delete(location)
