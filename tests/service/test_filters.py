"""By group and in time over HTTP: rows of an oracle, the bytes of the command, what is refused."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve import files
from georesolve.options import Options, WithinOptions
from tests.conftest import look_up, run_nearest
from tests.georesolve.test_filters import apart_of, expected, same, tables
from tests.service.test_jobs import parquet
from tests.service.test_within import texts

FRAMES = tables(300, 200)
SETS = [pa.Table.from_pandas(one, preserve_index=False) for one in FRAMES]
SENT = dict(zip(("observations", "references"), map(parquet, SETS), strict=True))
WINDOW = {"time": "t", "max_time": "1h"}
ASKED = {
    "nearest": {"by": ["country", "kind"], "k": 2, "columns": ["country"]},
    "by time": {"by": "country", "time": "t", "rank_by": "time", "time_direction": "forward"},
    "pairs": {"distance_m": 4e6, "by": "kind", **WINDOW, "allow_exact": False},
    "sums": {"distance_m": 4e6, "by": "country", "summary": {"count": True, "kind": ["sum"]}},
}
ASYNC = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def ids(service):
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    answers = [service.post("/datasets", content=one, headers=headers) for one in SENT.values()]
    return {role: f"dataset:{one.json()['id']}" for role, one in zip(SENT, answers, strict=True)}


@pytest.mark.parametrize("name", ASKED)
def test_the_bytes_are_those_of_files(service, ids, tmp_path, name):
    asked = ASKED[name]
    question = "within" if "distance_m" in asked else "nearest"
    paths = [tmp_path / f"{role}.parquet" for role in SENT]
    for path, content in zip(paths, SENT.values(), strict=True):
        path.write_bytes(content)
    out = tmp_path / "out.parquet"
    options = (Options if question == "nearest" else WithinOptions)(**asked)
    files.resolve(*paths, out, options, device="cpu")
    wanted = out.read_bytes()
    form = {"question": question, **texts(asked)}
    assert service.post("/resolve", files=SENT, data=form).content == wanted
    parquet_only = {"Accept": "application/vnd.apache.parquet"}
    at_once = service.post(f"/{question}", json={**ids, **asked}, headers=parquet_only)
    assert at_once.content == wanted
    url = f"/processes/{question}/execution"
    job = service.post(url, json={"inputs": {**ids, **asked}}, headers=ASYNC)
    with georesolve.Client(str(service.base_url)) as client:
        done = client.job(job.json()["id"])
        assert done.download(tmp_path / "job.parquet").read_bytes() == wanted
        report = done.report()
        told = report["options"]["filters"]
        by_client = getattr(client, question)(SETS[0], ids["references"], **asked)
    schema = pq.read_schema(out)
    durations = [one.type.unit for one in schema if one.name == "time_apart"]
    assert [report["time_unit"]] == (durations or [None])
    assert by_client.equals(pq.read_table(out))
    by = asked["by"]
    assert told["reference_by"] == ([by] if isinstance(by, str) else by)
    about = json.loads(schema.metadata[b"georesolve"])["options"]["filters"]
    assert about == told


def test_rows_are_those_of_the_oracle(service, ids):
    observations, references = FRAMES
    apart = apart_of(observations, references)
    able = same(observations, references, "country") & (abs(apart) <= 3600)
    answer = look_up(service, {**ids, "by": "country", **WINDOW})
    found = pq.read_table(io.BytesIO(answer.content)).to_pandas()
    want = expected(observations, references, able)
    np.testing.assert_array_equal(found["reference"].fillna(-1), want)
    missing = observations["country"].isna()
    status = np.where(missing, "missing_value", np.where(want < 0, "beyond_limits", "matched"))
    np.testing.assert_array_equal(found["status"], status)


def test_texts_of_json_and_csv_are_groups_and_numbers_times(service):
    there = {"lat": [0, 0, 0], "lon": [0, 1, 2], "g": ["a", "b", "b"], "n": [1, 2, 30]}
    here = {"lat": [0.0], "lon": [0.1], "g": ["b"], "n": [29]}
    asked = {"observations": here, "references": there, "by": "g", "time": "n", "max_time": 5}
    [row] = service.post("/nearest", json=asked).json()
    assert (row["reference"], row["time_apart"]) == (2, 1)
    files = {"observations": "lat,lon,g\n0,0.1,b\n", "references": "lat,lon,g\n0,0,a\n0,1,b\n"}
    sent = {role: (f"{role}.csv", content) for role, content in files.items()}
    answer = service.post("/resolve", files=sent, data={"by": "g"})
    assert pq.read_table(io.BytesIO(answer.content))["reference"].to_pylist() == [1]
    # As a client sends a name in which there may be a comma.
    twice = service.post("/resolve", files=sent, data={"by": ["g", "g"]})
    assert twice.content == answer.content
    refused = service.post("/resolve", files=sent, data={"time": "g", "max_time": "1h"})
    assert (refused.status_code, "time takes timestamps" in refused.text) == (400, True)


REFUSED = [
    {"by": "lat"},
    {"by": "nowhere"},
    {"by": []},
    {"observation_by": "country", "reference_by": "kind"},
    {"observation_by": ["country", "kind"], "reference_by": "kind"},
    {"time": "t"},
    {"rank_by": "time"},
    {"max_time": "1h"},
    {"observation_time": "t", "max_time": "1h"},
    {"time": "t", "max_time": "soon"},
    {"time": "t", "max_time": True},
    {"time": "t", "max_time": 5},
    {"time": "kind", "max_time": "5s"},
    {"observation_time": "t", "reference_time": "kind", "max_time": 5},
    {"by": "country", "earth": "wgs84"},
]


def test_a_client_takes_lengths_of_time_of_numpy(service):
    with georesolve.Client(str(service.base_url)) as client:
        lengths = "1h", np.timedelta64(1, "h"), np.timedelta64(3600 * 10**9, "ns")
        found = [client.nearest(*SETS, time="t", max_time=length) for length in lengths]
    assert found[1].equals(found[0], check_metadata=False)
    assert found[2].equals(found[0], check_metadata=False)


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_what_python_refuses_is_refused_in_its_words(service, ids, options):
    with pytest.raises((georesolve.InvalidInput, georesolve.InvalidOption)) as refused:
        georesolve.nearest(*map(pq.read_table, map(io.BytesIO, SENT.values())), **options)
    words = str(refused.value)
    for send in (look_up, run_nearest):
        answer = send(service, {**ids, **options})
        assert answer.status_code == 400, answer.text
        # The name of an option may stand in a pointer before what is said of it.
        assert answer.json()["detail"].endswith(words.partition(" ")[2]), answer.text


def test_what_belongs_elsewhere_is_refused(service, ids):
    query = {"lat": 0, "lon": 0, "by": "country", "references": ids["references"]}
    answer = service.get("/nearest", params=query)
    assert answer.status_code == 400
    assert "no column 'country' in the observations; found" in answer.text
    asked = {**ids, "distance_m": 5, "time": "t", "rank_by": "time"}
    answer = service.post("/within", json=asked)
    assert (answer.status_code, "/rank_by: is for question=nearest" in answer.text) == (400, True)


def test_estimates_and_shapes(service, ids):
    asked = {**ids, "by": "country", "distance_m": 4e6}
    told = service.post("/estimate", json=asked).raise_for_status().json()
    everything = service.post("/estimate", json={**ids, "distance_m": 4e6}).json()
    assert 0 < told["rows"] < everything["rows"]
    line = '{"type":"FeatureCollection","features":[{"type":"Feature","properties":{"country":"a"},"geometry":{"type":"LineString","coordinates":[[0,0],[1,1]]}}]}'  # fmt: skip  # noqa: E501
    sent = {**SENT, "references": ("r.geojson", line)}
    answer = service.post("/resolve", files=sent, data={"by": "country"})
    assert (answer.status_code, "by and time are for points" in answer.text) == (400, True)
