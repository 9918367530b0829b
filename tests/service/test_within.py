"""All references within a distance over HTTP: the bytes of files, and what is refused."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from georesolve import files
from georesolve.options import Options, WithinOptions
from tests.conftest import finished, points, running_service
from tests.service.test_jobs import parquet

SETS = {
    "observations": points(500, 1, radius=np.linspace(0, 2e7, 500)),
    "references": points(300, 2, size=np.arange(300)),
}
SENT = {role: parquet(table) for role, table in SETS.items()}
ASKED = {
    "pairs": {"distance_m": 5e6, "columns": ["size"]},
    "left": {"distance_m": "radius", "how": "left", "near": True},
    "sums": {"distance_m": 5e5, "summary": {"count": True, "size": ["sum", "max"]}},
    "by reference": {"distance_m": 5e5, "summary": {"count": True}, "summary_by": "reference"},
    "of the nearest": {"k": 3, "max_distance_m": 2e6, "summary": {"size": ["sum", "min"]}},
}
ASYNC = {"Prefer": "respond-async"}
WITHIN = "/processes/within/execution"


@pytest.fixture(scope="module")
def ids(service):
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    answers = [service.post("/datasets", content=one, headers=headers) for one in SENT.values()]
    return {role: {"dataset": one.json()["id"]} for role, one in zip(SENT, answers, strict=True)}


def expected(tmp_path, **asked):
    paths = [tmp_path / f"{role}.parquet" for role in SETS]
    for path, table in zip(paths, SETS.values(), strict=True):
        pq.write_table(table, path)
    options = (WithinOptions if "distance_m" in asked else Options)(**asked)
    files.resolve(*paths, tmp_path / "out.parquet", options, device="cpu")
    return (tmp_path / "out.parquet").read_bytes()


def texts(asked):
    """Options as fields of a form."""
    return {name: json.dumps(one) if isinstance(one, dict) else one for name, one in asked.items()}


@pytest.mark.parametrize("asked", ASKED)
def test_the_bytes_are_those_of_files(service, ids, tmp_path, asked):
    options = ASKED[asked]
    wanted = expected(tmp_path, **options)
    question = "within" if "distance_m" in options else "nearest"
    form = {"question": question, **texts(options)}
    assert service.post("/resolve", files=SENT, params=form).content == wanted
    in_form = service.post("/resolve", files=SENT, data=form)
    assert in_form.content == wanted
    url = f"/processes/{question}/execution"
    answer = service.post(url, json={"inputs": {**ids, **options}}, headers=ASYNC)
    location = answer.headers["Location"]
    info = finished(service, location)
    assert (info["status"], info["processID"]) == ("successful", question)
    assert info["rows_done"] == info["rows"]
    assert service.get(f"{location}/results/matches.parquet").content == wanted
    report = service.get(f"{location}/report").json()
    assert report["options"].get("distance_m") == options.get("distance_m")
    assert report["verification"]["observations"] > 0
    rows = service.get(f"{location}/results/matches.json").json()
    assert len(rows) == report["rows"]
    on_map = service.get(f"{location}/distances").status_code
    assert on_map == (200 if "count" in options.get("summary", {"count": True}) else 404)


def test_few_pairs_come_at_once(service, tmp_path):
    inline = {role: table.to_pydict() for role, table in SETS.items()}
    few = {"distance_m": 5e5, "columns": ["size"], "how": "left"}
    parquet_please = {"Accept": "application/vnd.apache.parquet"}
    for asked in (few, ASKED["sums"], ASKED["by reference"]):
        answer = service.post("/within", json={**inline, **asked}, headers=parquet_please)
        assert answer.content == expected(tmp_path, **asked)
    answer = service.post("/within", json={**inline, "distance_m": 2e7})
    assert (answer.status_code, answer.json()["type"][-10:]) == (413, ":too-large")
    assert "pairs are more than the limit of 65536 without a job" in answer.json()["detail"]


def test_a_set_against_itself(service, ids):
    inputs = {"observations": ids["references"], "references": ids["references"]}
    inputs |= {"distance_m": 1e6, "once": True}
    headers = {"Accept": "application/json"}
    rows = service.post(WITHIN, json={"inputs": inputs}, headers=headers).json()
    assert rows
    assert all(row["observation"] < row["reference"] for row in rows)


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"distance_m": 5}, "/query/distance_m: is for question=within: leave it out"),
        ({"summary_by": "reference"}, "/query/summary_by: is for question=within"),
        ({"question": "within"}, "or the name of a column of the observations, got None"),
        ({"question": "within", "distance_m": 5, "k": 2}, "/query/k: is for question=nearest"),
        ({"question": "within", "distance_m": -5}, "a finite number of metres, 0 or more"),
        ({"question": "within", "distance_m": "wide"}, "there is no column 'wide'"),
        (
            {"question": "within", "distance_m": 5, "summary": "n"},
            "/query/summary: Value error, EOF while parsing a value",
        ),
        (
            {"question": "within", "distance_m": 5, "summary": "[" * 5000},
            "/query/summary: Value error, recursion limit exceeded",
        ),
        ({"question": "within", "distance_m": 5, "summary": '{"size": ["most"]}'}, "sum, mean"),
        (
            {"question": "within", "distance_m": 5, "summary": '{"count": true}', "near": True},
            "/query/near: is for pairs, and a summary has none: leave one out",
        ),
        ({"question": "within", "distance_m": 5, "once": True}, "observations and references"),
        ({"question": "all"}, "/query/question"),
    ],
)
def test_what_is_refused(service, asked, refusal):
    answer = service.post("/resolve", files=SENT, params=asked)
    assert (answer.status_code, answer.json()["type"][-15:]) == (400, "invalid-request")
    assert refusal in answer.json()["detail"]


def test_inputs_of_the_other_process_are_refused(service, ids):
    answer = service.post(WITHIN, json={"inputs": {**ids, "distance_m": 5, "k": 2}})
    assert answer.status_code == 400
    assert "/inputs/k: is for question=nearest" in answer.json()["detail"]
    answer = service.post(WITHIN, json={"inputs": ids})
    assert answer.status_code == 400
    assert "/inputs/distance_m: must be a finite number of metres" in answer.json()["detail"]
    assert answer.json()["errors"][0]["pointer"] == "/inputs/distance_m"
    inputs = {**ids, "question": "within", "distance_m": 5}
    answer = service.post("/processes/nearest/execution", json={"inputs": inputs})
    assert answer.status_code == 400
    assert "/inputs/question: must be nearest here" in answer.json()["detail"]


def test_a_row_without_a_distance(service):
    bad = SENT | {
        "observations": parquet(
            SETS["observations"].set_column(3, "radius", [np.where(np.arange(500) == 7, -1.0, 1.0)])
        )
    }
    asked = {"question": "within", "distance_m": "radius", "summary": '{"count": true}'}
    for form in (asked, {**asked, "summary": ""}):
        answer = service.post("/resolve", files=bad, data=form)
        assert (answer.status_code, answer.json()["errors"][0]["row"]) == (400, 7)
        assert "holds -1.0 in row 7, where it must hold 0 or more metres" in answer.json()["detail"]


def test_an_estimate_is_a_sample_with_its_spread(service, ids):
    inputs = {**ids, "distance_m": 5e6}
    told = service.post("/estimate", json={"inputs": inputs}).json()
    rows = service.post(WITHIN, json={"inputs": inputs}, headers={"Accept": "text/csv"}).text
    # All of these sets is in the sample.
    assert told["rows"] == rows.count("\n") - 1
    assert 0 < told["rows_spread"] < told["rows"]
    assert told["fits"] is True
    counted = {**ids, "question": "within", "distance_m": 5e6, "summary": {"count": True}}
    assert service.post("/estimate", json=counted).json()["rows"] == 500
    of_numbers = {"observations": 5, "references": 7, "question": "within", "distance_m": 5}
    answer = service.post("/estimate", json=of_numbers)
    assert (answer.status_code, "give both sets" in answer.json()["detail"]) == (400, True)


def test_a_result_that_is_too_large(tmp_path, shared_cluster):
    many = {role: parquet(points(600_000, seed)) for seed, role in enumerate(SETS)}
    with running_service(tmp_path / "data", *shared_cluster, "--result-bytes", 300_000) as client:
        form = {"question": "within", "distance_m": 2e7}
        answer = client.post("/resolve", files=SENT, params=form, headers=ASYNC)
        assert (answer.status_code, answer.json()["type"][-16:]) == (413, "result-too-large")
        assert "a sample of both sets has 150000 pairs, which take" in answer.json()["detail"]
        # A sample does not show it: most pairs are between rows that are not in it.
        form = {"question": "within", "distance_m": 6e3}
        answer = client.post("/resolve", files=many, params=form, headers=ASYNC)
        assert answer.status_code == 201, answer.text
        location = answer.headers["Location"]
        info = finished(client, location)
        assert info["status"] == "failed"
        answer = client.get(f"{location}/results")
        assert (answer.status_code, answer.json()["type"][-16:]) == (413, "result-too-large")
        assert "300000 are allowed: ask for a shorter distance" in answer.json()["detail"]
        folder = tmp_path / "data" / "jobs" / location.rpartition("/")[2]
        assert not list(folder.glob("*.parquet"))
        form["summary"] = '{"count": true}'
        answer = client.post("/resolve", files=many, params=form, headers=ASYNC)
        assert finished(client, answer.headers["Location"])["status"] == "successful"
