"""OGC API - Processes 1.0: what is on offer, how it is described, how it is run."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import finished, look_up, points, sphere
from tests.oracle import nearest
from tests.service.test_jobs import parquet
from tests.service.test_openapi import check

PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"
OGC = "http://www.opengis.net/def/rel/ogc/1.0"
EXCEPTIONS = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0"
TINY = {"observations": {"lat": [1], "lon": [2]}, "references": {"lat": [1], "lon": [2]}}


def inline(table):
    return {name: table[name].to_pylist() for name in ("lat", "lon")}


def table_of(content):
    return pq.read_table(io.BytesIO(content))


def named(reference):
    """The name of the schema that a reference leads to."""
    return reference["$ref"].rpartition("/")[2]


def execute(client, inputs, prefer=None, **wanted):
    headers = {"Prefer": prefer} if prefer else {}
    body = {"inputs": inputs, **wanted}
    return client.post("/processes/nearest/execution", json=body, headers=headers)


def test_every_link_of_the_landing_page_answers(service):
    page = service.get("/").raise_for_status().json()
    rels = {link["rel"] for link in page["links"]}
    assert {"self", "service-desc", "service-doc", f"{OGC}/conformance"} <= rels
    assert {f"{OGC}/processes", f"{OGC}/job-list"} <= rels
    for link in page["links"]:
        assert link["href"].startswith(str(service.base_url))
        answer = service.get(link["href"], headers={"Accept": link["type"]})
        assert answer.status_code == 200
        kind = (
            link["type"].partition(";")[0].replace("application/vnd.oai.openapi+", "application/")
        )
        assert answer.headers["content-type"].startswith(kind)
        assert service.head(link["href"]).content == b""


def test_conformance(service):
    standard = "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf"
    assert sorted(service.get("/conformance").json()["conformsTo"]) == [
        f"{standard}/{name}" for name in ("dismiss", "job-list", "json", "ogc-process-description")
    ]


def test_descriptions(service):
    summaries = service.get("/processes").json()["processes"]
    assert [one["id"] for one in summaries] == ["nearest", "within"]
    assert len(service.get("/processes", params={"limit": 1}).json()["processes"]) == 1
    for summary in summaries:
        own = next(link["href"] for link in summary["links"] if link["rel"] == "self")
        description = service.get(own).json()
        assert summary.items() <= description.items()
        assert description["jobControlOptions"] == ["sync-execute", "async-execute", "dismiss"]
        for one in (*description["inputs"].values(), *description["outputs"].values()):
            # The standard's schemas know no type null.
            assert "null" not in str(one["schema"].get("type", "")) + str(
                one["schema"].get("oneOf")
            )
    inputs = service.get("/processes/nearest").json()["inputs"]
    assert {name for name, one in inputs.items() if one["minOccurs"]} == {
        "observations",
        "references",
    }
    assert inputs["k"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 64, "default": 1}
    # One source: what can be given to /resolve in its form can be given here. Where a result is
    # written stands beside the inputs.
    api = service.get("/api").json()
    body = api["paths"]["/resolve"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert set(api["components"]["schemas"][named(body["schema"])]["properties"]) == {
        *inputs,
        *service.get("/processes/within").json()["inputs"],
        "question",
        "output",
        "name",
    }


def test_operations_and_their_examples(service):
    paths = service.get("/api").json()["paths"]
    operations = [(path, op) for path, ops in paths.items() for op in ops.values()]
    ids = [operation["operationId"] for _, operation in operations]
    assert len(ids) == len(set(ids))
    assert {
        "getLandingPage",
        "getProcesses",
        "getProcessDescription",
        "getJobs",
        "getStatus",
    } <= set(ids)
    for path in ("/", "/conformance", "/processes", "/processes/{id}"):
        answer = paths[path]["get"]["responses"]["200"]["content"]["application/json"]
        check(service.get(path.format(id="nearest")).json(), answer["schema"], path)
    for path in ("/processes/{id}/execution", "/nearest", "/within", "/estimate"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]
        assert "$defs" not in str(body["schema"])
        named = body.get("examples", {}).values()
        for example in [body["example"]] if "example" in body else [one["value"] for one in named]:
            assert service.post(path.format(id="nearest"), json=example).status_code == 200


@pytest.mark.parametrize("method", ["get", "post"])
def test_unknown_process(service, method):
    path = {"get": "/processes/none", "post": "/processes/none/execution"}[method]
    answer = getattr(service, method)(path)
    assert (answer.status_code, answer.json()["type"]) == (404, f"{EXCEPTIONS}/no-such-process")
    assert "there are 'nearest' and 'within'" in answer.json()["detail"]


def test_a_synchronous_execution(service):
    inputs = {
        "observations": inline(points(50, 31)),
        # As the standard has it, an object is the value of another object.
        "references": {"value": inline(points(30, 32)), "mediaType": "application/json"},
        "k": 2,
    }
    answer = execute(service, inputs)
    assert answer.status_code == 200, answer.text
    rows, metres = nearest(*sphere(50, 31), *sphere(30, 32))
    table = table_of(answer.content)
    np.testing.assert_array_equal(table["reference"].to_numpy()[::2], rows)
    np.testing.assert_allclose(table["distance_m"].to_numpy()[::2], metres, rtol=1e-12, atol=1e-3)
    same = {"observations": inputs["observations"], "references": inputs["references"]["value"]}
    assert look_up(service, {**same, "k": 2}).content == answer.content


def test_datasets_and_geojson(service):
    features = [
        {
            "type": "Feature",
            "id": f"p{i}",
            "geometry": {"type": "Point", "coordinates": [lon, lat]},
            "properties": {},
        }
        for i, (lat, lon) in enumerate([(10.0, 20.0), (-30.0, 100.0)])
    ]
    headers = {"Content-Type": "text/csv"}
    made = service.post("/datasets", content=b"lat,lon\n-31,101\n", headers=headers).json()
    references = {"type": "FeatureCollection", "features": features}
    for observations in ({"dataset": made["id"]}, f"dataset:{made['id']}"):
        answer = execute(service, {"observations": observations, "references": references})
        assert answer.status_code == 200, answer.text
        assert table_of(answer.content)["reference_id"].to_pylist() == ["p1"]
    assert service.delete(f"/datasets/{made['id']}").status_code == 204


def test_an_asynchronous_execution(service):
    answer = execute(service, TINY, "respond-async")
    assert (answer.status_code, answer.headers["preference-applied"]) == (201, "respond-async")
    assert answer.headers["location"].startswith(f"{service.base_url}/jobs/")
    info = finished(service, answer.headers["location"])
    assert (info["status"], info["processID"], info["type"]) == ("successful", "nearest", "process")
    assert None not in info.values()
    results = next(link for link in info["links"] if link["rel"] == f"{OGC}/results")
    result = service.get(results["href"])
    assert result.headers["content-type"] == results["type"] == PARQUET
    assert table_of(result.content)["reference"].to_pylist() == [0]


ROW = {"observation": 0, "reference": 0, "distance_m": 0.0, "status": "matched"}
POINT = {"type": "Point", "coordinates": [2, 1]}
FEATURES = {
    "type": "FeatureCollection",
    "features": [{"type": "Feature", "geometry": POINT, "properties": ROW}],
}
LINE = {"type": "LineString", "coordinates": [[2, 1], [2, 1]]}
LINES = {**FEATURES, "features": [{**FEATURES["features"][0], "geometry": LINE}]}
TEXT = '"observation","reference","distance_m","status"\n0,0,0,"matched"\n'
BY_REFERENCE = {"matches": {"transmissionMode": "reference"}}


@pytest.mark.parametrize("prefer", [None, "respond-async"])
def test_the_ways_to_give_a_result(service, prefer):
    def result(**wanted):
        answer = execute(service, TINY, prefer, **wanted)
        if prefer:
            info = finished(service, answer.headers["location"])
            return service.get(f"/jobs/{info['id']}/results")
        assert 'rel="monitor"' in answer.headers["link"]
        return answer

    def rows(content):
        return table_of(content)["reference"].to_pylist()

    assert rows(result(response="raw").content) == [0]
    by_reference = {"matches": {**BY_REFERENCE["matches"], "format": {"mediaType": PARQUET}}}
    document = result(response="document", outputs=by_reference).json()["matches"]
    assert document["type"] == PARQUET
    assert rows(service.get(document["href"]).content) == [0]
    for media_type in (PARQUET, ARROW):
        outputs = {"matches": {"format": {"mediaType": media_type}}}
        link = result(response="document", outputs=outputs).json()["matches"]
        assert (link.keys(), link["type"]) == ({"href", "type"}, media_type)
        content = service.get(link["href"]).content
        table = (
            table_of(content) if media_type == PARQUET else pa.ipc.open_stream(content).read_all()
        )
        assert table["reference"].to_pylist() == [0]
    assert result(response="document").json()["matches"] == {
        "value": [ROW],
        "mediaType": "application/json",
    }
    empty = result(outputs=BY_REFERENCE)
    assert (empty.status_code, empty.content) == (204, b"")
    assert document["href"].rpartition("/")[2] in empty.headers["link"]


@pytest.mark.parametrize("prefer", [None, "respond-async"])
@pytest.mark.parametrize("by", ["outputs", "Accept"])
@pytest.mark.parametrize(
    ("media_type", "expected"),
    [
        ("application/json", [ROW]),
        ("application/geo+json", FEATURES),
        ("application/geo+json; geometry=line", LINES),
        ("text/csv", TEXT),
    ],
)
def test_formats_that_people_read(service, prefer, by, media_type, expected):
    headers = {"Prefer": prefer} if prefer else {}
    body = {"inputs": TINY}
    if by == "outputs":
        # It counts before what a client accepts in general.
        headers["Accept"] = "application/json"
        body["outputs"] = {"matches": {"format": {"mediaType": media_type}}}
    else:
        headers["Accept"] = media_type
    for response in ("raw", "document"):
        path = "/processes/nearest/execution"
        answer = service.post(path, json={**body, "response": response}, headers=headers)
        if prefer:
            info = finished(service, answer.headers["location"])
            answer = service.get(f"/jobs/{info['id']}/results", headers=headers)
        assert answer.status_code == 200, answer.text
        given = media_type.partition(";")[0]
        if response == "document":
            assert answer.headers["content-type"] == "application/json"
            assert answer.json() == {"matches": {"value": expected, "mediaType": given}}
        else:
            assert answer.headers["content-type"].partition(";")[0] == given
            content = answer.text if given == "text/csv" else answer.json()
            assert content == expected


def test_a_large_value_is_a_link(service):
    content = parquet(points(160_000, 33))
    made = service.post("/datasets", content=content, headers={"Content-Type": PARQUET}).json()
    inputs = dict.fromkeys(("observations", "references"), f"dataset:{made['id']}")
    answer = execute(service, {**inputs, "exclude_self": True}, response="document")
    value = answer.json()["matches"]
    assert value.keys() == {"href", "type"}
    large = service.get(value["href"]).raise_for_status()
    assert len(large.content) > 16 << 20
    assert len(large.json()) == 160_000
    for address in (large.url.path.rpartition("/results/")[0], f"/datasets/{made['id']}"):
        assert service.delete(address).is_success


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "/inputs: Field required"),
        ({"invalid-execute-request": "true"}, "/inputs: Field required"),
        ({"inputs": {"observations": TINY["observations"]}}, "/inputs/references: Field required"),
        ({"inputs": {**TINY, "k": 65}}, "/inputs/k: "),
        (
            {"inputs": {**TINY, "max_distance": 1}},
            "/inputs/max_distance: there is no such name here (did you mean 'max_distance_m'?)",
        ),
        (
            {"inputs": {**TINY, "references": [[1, 2]]}},
            "/inputs/references: an array is no point set: give one array for each column",
        ),
        (
            {"inputs": {**TINY, "colour": 1}},
            "/inputs/colour: there is no such name here",
        ),
        ({"inputs": {**TINY, "references": 7}}, "/inputs/references"),
        ({"inputs": {**TINY, "references": {"dataset": 7}}}, "/inputs/references/dataset: not an"),
        ({"inputs": {**TINY, "references": {"lat": [1]}}}, "/inputs/references: no column"),
        (
            {"inputs": {**TINY, "references": {"lat": ["x"], "lon": [1]}}},
            "/inputs/references/lat/0",
        ),
        ({"inputs": {**TINY, "references": {"href": 7}}}, "not an array"),
        ({"inputs": {**TINY, "references": {"href": 7}}}, 'files as {"href": "s3://..."}, arrays'),
        ({"inputs": {**TINY, "references": {"type": "FeatureCollection"}}}, "not a GeoJSON"),
        ({"inputs": TINY, "response": "loud"}, "/response: "),
        ({"inputs": TINY, "outputs": {"other": {}}}, "/outputs/other"),
        (
            {"inputs": TINY, "outputs": {"matches": {"format": {"mediaType": "text/html"}}}},
            "/outputs/matches/format/mediaType: allowed are application/vnd.apache.parquet, ",
        ),
        (
            {"inputs": TINY, "subscriber": {"successUri": "http://x"}},
            "/subscriber: there is no such name here; allowed are inputs, outputs,",
        ),
    ],
)
def test_bad_executions(service, body, message):
    before = len(service.get("/jobs", params={"limit": 1000}).json()["jobs"])
    answer = service.post("/processes/nearest/execution", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert message in answer.json()["detail"]
    assert len(service.get("/jobs", params={"limit": 1000}).json()["jobs"]) == before


def test_an_execution_is_json(service):
    path = "/processes/nearest/execution"
    assert service.post(path, content=b"k=1").status_code == 415
    headers = {"Content-Type": "application/json"}
    assert service.post(path, content=b"{", headers=headers).status_code == 400
    unknown = execute(service, {**TINY, "references": {"dataset": "none"}})
    assert unknown.status_code == 404


def by_query(client, inputs, options):
    return client.post("/resolve", files=csv_of(inputs), params=options), "/query"


def by_form(client, inputs, options):
    return client.post("/resolve", files=csv_of(inputs), data=options), ""


def csv_of(inputs):
    """Points, one a set, as files of a form."""
    return {
        role: (f"{role}.csv", "lat,lon\n{lat[0]},{lon[0]}\n".format(**one))
        for role, one in inputs.items()
    }


def by_lookup(client, inputs, options):
    return look_up(client, {**inputs, **options}), ""


def by_execution(client, inputs, options):
    return execute(client, {**inputs, **options}), "/inputs"


def by_estimate(client, inputs, options):
    return client.post("/estimate", json={**inputs, **options}), ""


def by_estimate_of_an_execution(client, inputs, options):
    return client.post("/estimate", json={"inputs": {**inputs, **options}}), "/inputs"


@pytest.mark.parametrize(
    "send",
    [by_query, by_form, by_lookup, by_execution, by_estimate, by_estimate_of_an_execution],
)
@pytest.mark.parametrize(
    "options", [{"columns": ["none"]}, {"observation_columns": ["none"]}, {"exclude_self": True}]
)
def test_an_option_is_pointed_to_where_it_stands(service, send, options):
    other = {"lat": [3], "lon": [4]}
    answer, pointer = send(service, {**TINY, "references": other}, options)
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["pointer"] == f"{pointer}/{next(iter(options))}"
