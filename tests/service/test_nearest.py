"""`/nearest`: a few observations as JSON or Arrow in, the answer at once, and no job of it."""

import io
import re
import shutil
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.engine.cost_model import QUICKLY_INDEXED
from tests.conftest import ROOT, finished, points, run_nearest, sphere, wait_until
from tests.oracle import nearest
from tests.service.test_jobs import PARQUET, files_of, parquet

README = (ROOT / "README.md").read_text()
ARROW = "application/vnd.apache.arrow.stream"
TINY = {"observations": {"lat": [1], "lon": [2]}, "references": {"lat": [1], "lon": [2]}}


@pytest.fixture
def kept(service):
    """What the service keeps, which is the same afterwards."""
    before = service.get("/jobs").json(), files_of(service)
    yield
    assert service.get("/jobs").json() == before[0]
    assert files_of(service) <= before[1]


def arrays(rows, seed):
    lat, lon = sphere(rows, seed)
    return {"lat": lat.tolist(), "lon": lon.tolist()}


def stream(table):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def register(service, table):
    made = service.post("/datasets", content=parquet(table), headers={"Content-Type": PARQUET})
    return made.raise_for_status().json()["id"]


def problem(answer, status, type):
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:georesolve:problem:{type}")
    return answer.json()["detail"]


@pytest.mark.usefixtures("kept")
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_answer_is_that_of_the_first_page(service):
    blocks = re.findall(r"```\w*\n(.*?)```", README, re.DOTALL)
    (place,) = [i for i, one in enumerate(blocks) if "localhost:8000/nearest" in one]
    command, answer = blocks[place : place + 2]
    command = command.replace("http://localhost:8000", str(service.base_url).rstrip("/"))
    done = subprocess.run(["/bin/sh", "-ec", command], capture_output=True, text=True, check=True)
    assert done.stdout == answer


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/*;q=0.5, text/html"])
def test_the_answer_is_json(service, accept):
    body = {"observations": arrays(50, 51), "references": arrays(30, 52)}
    answer = service.post("/nearest", json=body, headers={"Accept": accept})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    rows, metres = nearest(*sphere(50, 51), *sphere(30, 52))
    found = answer.json()
    assert [row["observation"] for row in found] == list(range(50))
    assert [row["reference"] for row in found] == rows.tolist()
    np.testing.assert_allclose([row["distance_m"] for row in found], metres, rtol=1e-12, atol=1e-3)


@pytest.mark.usefixtures("kept")
def test_the_answer_has_the_format_that_is_accepted(service):
    body = {**TINY, "k": 1}
    table = pq.read_table(
        io.BytesIO(service.post("/nearest", json=body, headers={"Accept": PARQUET}).content)
    )
    assert table["reference"].to_pylist() == [0]
    text = service.post("/nearest", json=body, headers={"Accept": "text/csv"}).text
    assert text.splitlines()[1] == '0,0,0,"matched"'
    refused = service.post("/nearest", json=body, headers={"Accept": "text/html"})
    assert "leave the header out for application/json" in problem(refused, 406, "not-acceptable")


def records(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("rows", [1, 40, 13_000])
def test_records_are_the_arrays_that_they_make(service, rows):
    sets = {"observations": arrays(rows, 62), "references": arrays(30, 63)}
    sets["observations"]["id"] = [f"observation {row}" for row in range(rows)]
    sets["references"]["name"] = [None if row % 3 else f"site {row}" for row in range(30)]
    options = {"columns": ["name"]}
    as_records = {role: records(columns) for role, columns in sets.items()}
    wrapped = {role: {"value": one} for role, one in as_records.items()}
    expected = service.post("/nearest", json=sets | options).raise_for_status().content
    for body in (as_records, wrapped):
        assert service.post("/nearest", json=body | options).raise_for_status().content == expected
    found = run_nearest(service, as_records | options, headers={"Accept": "application/json"})
    assert found.content == expected
    pairs = {"distance_m": 2_000_000}
    expected = service.post("/within", json=sets | pairs).raise_for_status().content
    assert service.post("/within", json=as_records | pairs).content == expected


EMPTY_SETS = {
    "records": [],
    "records in an object": {"value": []},
    "arrays": {"lat": [], "lon": [], "id": [], "name": []},
    "GeoJSON": {"type": "FeatureCollection", "features": []},
}


@pytest.mark.parametrize("form", EMPTY_SETS)
def test_a_set_without_rows_gives_a_result_without_rows(service, form):
    """In every form, for every question, at once and as a job."""
    full, empty = arrays(3, 64), EMPTY_SETS[form]
    full |= {"name": ["a", "b", "c"], "id": ["x", "y", "z"]}
    questions = [
        ("nearest", {}, "observation,reference,distance_m,status"),
        ("nearest", {"k": 3}, "observation,rank,reference,distance_m,status"),
        ("within", {"distance_m": 5}, "observation,reference,distance_m,status"),
        ("within", {"distance_m": 5, "summary": {"count": True}}, "observation,count,status"),
    ]
    if form != "GeoJSON":
        columns = {"observation_columns": ["name"], "observation_id": "id"}
        named = "observation,reference,distance_m,status,observation_id,observation_name"
        questions += [("nearest", columns, named), ("nearest", {"by": ["name"]}, "reference")]
    for question, options, header in questions:
        body = {"observations": empty, "references": full, **options}
        rows = service.post(f"/{question}", json=body)
        assert (rows.status_code, rows.json()) == (200, []), rows.text
        text = service.post(f"/{question}", json=body, headers={"Accept": "text/csv"}).text
        assert len(text.splitlines()) == 1
        assert {*header.split(",")} <= {*text.strip().replace('"', "").split(",")}
        job = service.post(f"/processes/{question}/execution", json={"inputs": body})
        assert job.status_code == 200, job.text
        assert pq.read_table(io.BytesIO(job.content)).num_rows == 0
        assert service.post("/estimate", json={**body, "question": question}).json()["rows"] == 0
    body = {"observations": full, "references": empty}
    refused = service.post("/nearest", json=body)
    assert refused.status_code == 400
    assert refused.json()["detail"].startswith("references: "), refused.text


@pytest.mark.usefixtures("kept")
def test_options_stand_beside_the_sets(service):
    body = {
        "observations": {"type": "FeatureCollection", "features": []},
        "references": {"lat": [0.0, 0.0], "lon": [0.0, 1.0], "name": ["a", "b"]},
        "k": 2,
        "columns": ["name"],
    }
    body["observations"] = {"lat": [0.0], "lon": [0.2]}
    found = service.post("/nearest", json=body).json()
    assert [(row["rank"], row["reference_name"]) for row in found] == [(1, "a"), (2, "b")]
    refused = service.post("/nearest", params={"k": 2}, json=TINY)
    assert problem(refused, 400, "invalid-request").startswith("/query/k: with a JSON body")
    refused = service.post("/nearest", json={**TINY, "max_distance": 5})
    assert "did you mean 'max_distance_m'?" in problem(refused, 400, "invalid-request")


def test_a_stream_of_observations(service):
    id = register(service, points(2_000, 53))
    before = service.get("/jobs").json()
    observations = points(100, 54).rename_columns(["id", "north", "east"])
    options = {
        "references": f"dataset:{id}",
        "k": 2,
        "observation_lat": "north",
        "observation_lon": "east",
    }
    answer = service.post(
        "/nearest",
        params=options,
        content=stream(observations),
        headers={"Content-Type": ARROW, "Accept": ARROW},
    )
    assert answer.status_code == 200, answer.text
    table = pa.ipc.open_stream(answer.content).read_all()
    rows, _ = nearest(*sphere(100, 54), *sphere(2_000, 53))
    np.testing.assert_array_equal(table["reference"].to_numpy()[::2], rows)
    assert service.get("/jobs").json() == before
    for query, message in (
        ({}, "/references: Field required"),
        ({"references": "none"}, "neither a file nor 'dataset:<id>'"),
        ({"references": "sites"}, "write 'dataset:sites' if it is a registered dataset"),
        ({**options, "k": 65}, "/query/k: "),
    ):
        headers = {"Content-Type": ARROW}
        refused = service.post("/nearest", params=query, content=b"", headers=headers)
        assert message in problem(refused, 400, "invalid-request")
    damaged = stream(observations)[:-40]
    refused = service.post("/nearest", params=options, content=damaged, headers=headers)
    assert "the body: " in problem(refused, 400, "invalid-input")
    service.delete(f"/datasets/{id}").raise_for_status()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("observations", "options", "limit"),
    [(1_025, {"k": 64}, 1_024), (4_000, {"algorithm": "brute"}, r"\d+")],
)
def test_what_is_not_small_goes_elsewhere(service, observations, options, limit):
    references = arrays(200_000, 55) if "algorithm" in options else arrays(70, 55)
    body = {"observations": arrays(observations, 56), "references": references, **options}
    detail = problem(service.post("/nearest", json=body), 413, "too-large")
    assert f"{observations} observations are more than the limit of" in detail
    assert "send files to /resolve" in detail


@pytest.mark.usefixtures("kept")
def test_what_is_carried_is_little(service):
    table = {"lat": [0.5], "lon": [0.5], "wide": ["x" * 8_000]}
    body = {"observations": arrays(10_000, 57), "references": table, "columns": ["wide"]}
    detail = problem(service.post("/nearest", json=body), 413, "too-large")
    assert "the columns that the result would carry take" in detail
    assert "send files to /resolve" in detail


def test_references_that_take_long_to_index_are_waited_for(service):
    id = register(service, points(QUICKLY_INDEXED + 1, 58))
    before = service.get("/jobs").json()
    body = {"observations": {"lat": [1], "lon": [2]}, "references": {"dataset": id}}
    refused = service.post("/nearest", json=body)
    detail = problem(refused, 503, "not-ready")
    assert f"the {QUICKLY_INDEXED + 1} references are being read and indexed" in detail
    assert int(refused.headers["retry-after"]) > 0
    wait_until(lambda: service.post("/nearest", json=body).status_code == 200)
    assert service.get("/jobs").json() == before
    service.delete(f"/datasets/{id}").raise_for_status()


@pytest.mark.usefixtures("kept")
def test_a_body_is_json_or_a_stream_and_small(service):
    files = dict.fromkeys(TINY, ("one.csv", b"lat,lon\n1,2\n"))
    refused = service.post("/nearest", files=files)
    assert "files go to /resolve" in problem(refused, 415, "unsupported-format")
    large = b" " * (17 << 20)
    for media_type in ("application/json", ARROW):
        headers = {"Content-Type": media_type}
        query = {"references": "dataset:none"} if media_type == ARROW else {}
        refused = service.post("/nearest", params=query, content=large, headers=headers)
        assert refused.status_code in (404, 413)


def test_the_first_answer_and_those_of_the_event_loop_are_the_same_bytes(service):
    lat, lon = sphere(2_000, 56)
    names = [f"place {row}" for row in range(2_000)]
    id = register(service, pa.table({"name": names, "lat": lat, "lon": lon}))
    body = {"observations": arrays(300, 57), "references": f"dataset:{id}", "columns": ["name"]}
    ways = {
        "a thread": body,
        "the event loop": body,
        "a thread, for all candidates": {**body, "algorithm": "brute"},
    }
    for accept in (PARQUET, ARROW, "application/json"):
        answers = {
            way: service.post("/nearest", json=sent, headers={"Accept": accept}).raise_for_status()
            for way, sent in ways.items()
        }
        assert len({answer.content for answer in answers.values()}) == 1, accept
    found = [row["reference"] for row in answers["the event loop"].json()]
    assert found == nearest(*sphere(300, 57), lat, lon)[0].tolist()
    service.delete(f"/datasets/{id}").raise_for_status()
    # It was used a moment ago, and is not there any more.
    gone = service.post("/nearest", json=body)
    assert id in problem(gone, 404, "no-such-dataset")


@pytest.mark.parametrize(
    "options",
    [{}, {"k": 3, "columns": ["name"]}, {"max_distance_m": 300_000}, {"columns": ["kind", "when"]}],
)
def test_an_arrow_stream_is_that_of_a_job(service, options):
    kinds = pa.array(["a", "b"] * 1_000).dictionary_encode()
    times = pa.array([None, 86_400_000] * 1_000, pa.date64())
    table = points(2_000, 64, name=[f"site {i}" for i in range(2_000)], kind=kinds, when=times)
    id = register(service, table)
    body = {"observations": arrays(3_000, 65), "references": f"dataset:{id}", **options}
    answer = service.post("/nearest", json=body, headers={"Accept": ARROW}).raise_for_status()
    job = run_nearest(service, body, {"Prefer": "respond-async"}).raise_for_status().json()["id"]
    assert finished(service, f"/jobs/{job}")["status"] == "successful"
    whole = service.get(f"/jobs/{job}/results/matches.arrows").raise_for_status()
    assert answer.content == whole.content
    service.delete(f"/jobs/{job}").raise_for_status()
    service.delete(f"/datasets/{id}").raise_for_status()


def test_one_point_is_asked_for_by_its_address(service):
    content = parquet(points(50, 61, name=[f"site {i}" for i in range(50)]))
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    sites = service.put("/datasets/sites-of-a-point", content=content, headers=headers).json()
    point = {"lat": 52.5, "lon": 13.4}
    posted = {
        "observations": {name: [value] for name, value in point.items()},
        "references": f"dataset:{sites['id']}",
    }
    expected = service.post("/nearest", json={**posted, "k": 3, "columns": ["name"]})
    for name in ("sites-of-a-point", sites["id"], f"dataset:{sites['id']}"):
        asked = {**point, "references": name, "k": 3, "columns": "name"}
        answer = service.get("/nearest", params=asked)
        assert answer.status_code == 200
        assert answer.content == expected.content
        tag = answer.headers["etag"]
        assert answer.headers["cache-control"] == "private, no-cache"
        for known in (tag, f'"other", W/{tag}', "*"):
            again = service.get("/nearest", params=asked, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert "content-length" not in again.headers
        again = service.get("/nearest", params=asked, headers={"If-None-Match": '"other"'})
        assert (again.status_code, again.content) == (200, answer.content)
        refused = service.get("/nearest", params=asked, headers={"If-Match": '"other"'})
        assert refused.status_code == 412
    text = service.get(
        "/nearest", params={**point, "references": name}, headers={"Accept": "text/csv"}
    )
    assert len(text.text.splitlines()) == 2
    for wrong, status, said in (
        ({"lat": 91}, 400, "/query/lat"),
        ({"lat": "nan"}, 400, "/query/lat"),
        ({"lon": "east"}, 400, "/query/lon"),
        ({"k": 0}, 400, "/query/k"),
        ({"kk": 1}, 400, "/query/kk"),
        ({"distance_m": 5}, 400, "/query/distance_m"),
        ({"references": "no-such-set"}, 404, "no-such-set"),
    ):
        refused = service.get("/nearest", params={**point, "references": name, **wrong})
        assert (refused.status_code, said in refused.text) == (status, True), refused.text
    assert service.delete("/datasets/sites-of-a-point").is_success
