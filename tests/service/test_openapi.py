"""The description of the API: it is complete, and the service answers as its examples say."""

import jsonschema_rs
import pytest

from georesolve.service.app import create_app
from georesolve.service.errors import PROBLEM_JSON, Problem
from georesolve.service.settings import Settings
from tests.conftest import finished

DOCUMENT = create_app(Settings()).openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}
# Bytes that are no text cannot stand in a description; `test_clients.py` reads them.
BINARY = {
    "application/vnd.apache.parquet",
    "application/vnd.apache.arrow.stream",
    "multipart/byteranges",
    "image/png",
}


STATUS_OF = {kind.title: kind.status for kind in Problem.__subclasses__()}


def examples_of(thing):
    """The examples of a media type or parameter, wherever OpenAPI lets them stand."""
    named = [example["value"] for example in thing.get("examples", {}).values()]
    own = [thing["example"]] if "example" in thing else []
    return [*own, *named, *thing.get("schema", {}).get("examples", [])]


def check(example, schema, place):
    whole = {**schema, "components": DOCUMENT["components"]}
    errors = [error.message for error in jsonschema_rs.validator_for(whole).iter_errors(example)]
    assert not errors, f"{place}: {errors}"


def check_content(content, place):
    for media_type, about in content.items():
        if media_type in BINARY:
            continue
        assert examples_of(about), f"{place}: no example as {media_type}"
        for example in examples_of(about):
            check(example, about.get("schema", {}), f"{place} as {media_type}")


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_described(name):
    operation = OPERATIONS[name]
    for word in ("summary", "description", "operationId", "tags"):
        assert operation.get(word), f"it has no {word}"
    assert "_" not in operation["operationId"], "FastAPI made it up"
    for parameter in operation.get("parameters", []):
        place = f"the parameter {parameter['name']}"
        assert parameter.get("description"), place
        # The documentation in a browser sends the example of a parameter with every request.
        has_example = bool(examples_of(parameter))
        assert has_example == (parameter["in"] == "path"), place
        for example in examples_of(parameter):
            check(example, parameter["schema"], place)
    check_content(operation.get("requestBody", {}).get("content", {}), "the body")
    answers = operation["responses"]
    assert any(status.startswith("2") for status in answers)
    assert "default" not in answers, "it names no refusal"
    for status, answer in answers.items():
        assert answer["description"]
        if status[0] != "2" or status == "206":
            continue
        has_body = status != "204"
        assert bool(answer.get("content")) == has_body, status
        check_content(answer.get("content", {}), status)


@pytest.mark.parametrize("name", OPERATIONS)
def test_refusals_are_problems_of_their_status(name):
    for status, answer in OPERATIONS[name]["responses"].items():
        if int(status) < 400 or "application/json" in answer["content"]:
            continue
        schema = {"$ref": "#/components/schemas/Problem"}
        assert answer["content"] == {PROBLEM_JSON: {"schema": schema}}
        titles = {title for title, its_status in STATUS_OF.items() if its_status == int(status)}
        assert set(answer["description"].split("; ")) <= titles
        assert ("headers" in answer) == (status in ("429", "503", "507"))


def test_nothing_is_described_that_fastapi_only_supposes():
    assert not {"ValidationError", "HTTPValidationError"} & set(DOCUMENT["components"]["schemas"])
    assert "422" not in OPERATIONS["GET /jobs"]["responses"]


def answer_of(name, status="200", media_type="application/json"):
    (example, *_) = examples_of(OPERATIONS[name]["responses"][status]["content"][media_type])
    return example


def body_of(name, media_type="application/json"):
    (example, *_) = examples_of(OPERATIONS[name]["requestBody"]["content"][media_type])
    return example


def test_the_service_answers_as_the_examples_say(service):
    nearest = "POST /processes/nearest/execution"
    for accept in ("application/json", "application/geo+json", "text/csv"):
        answer = service.post(
            "/processes/nearest/execution", json=body_of(nearest), headers={"Accept": accept}
        )
        expected = answer_of(nearest, media_type=accept)
        assert (answer.json() if accept.endswith("json") else answer.text) == expected
    answer = service.post("/nearest", json=body_of("POST /nearest"))
    assert answer.json() == answer_of("POST /nearest")
    form = body_of("POST /resolve", "multipart/form-data")
    files = {role: (f"{role}.csv", content) for role, content in form.items()}
    answer = service.post("/resolve", files=files, headers={"Accept": "text/csv"})
    assert answer.text == answer_of("POST /resolve", media_type="text/csv")
    answer = service.post(
        "/processes/echo/execution", json=body_of("POST /processes/echo/execution")
    )
    assert answer.json() == answer_of("POST /processes/echo/execution")
    for body in examples_of(
        OPERATIONS["POST /estimate"]["requestBody"]["content"]["application/json"]
    ):
        estimate = service.post("/estimate", json=body).raise_for_status().json()
        assert estimate.keys() == answer_of("POST /estimate").keys()


def test_a_dataset_and_a_job_as_the_examples_say(service):
    csv = body_of("POST /datasets", "text/csv")
    answer = service.post("/datasets", content=csv, headers={"Content-Type": "text/csv"})
    vary = ("id", "created", "expires")
    assert without(answer.json(), *vary) == without(answer_of("POST /datasets", "201"), *vary)
    references = {"dataset": answer.json()["id"]}
    execution = {"inputs": {**body_of("POST /nearest"), "references": references}}
    accepted = service.post(
        "/processes/nearest/execution", json=execution, headers={"Prefer": "respond-async"}
    )
    expected = answer_of("POST /processes/nearest/execution", "201")
    assert accepted.json().keys() == expected.keys()
    job = accepted.headers["location"]
    info, expected = finished(service, job), answer_of("GET /jobs/{id}")
    for name in ("status", "message", "progress", "rows", "rows_done", "type", "processID"):
        assert info[name] == expected[name]
    assert [link["rel"] for link in info["links"]] == [link["rel"] for link in expected["links"]]
    report, expected = service.get(f"{job}/report").json(), answer_of("GET /jobs/{id}/report")
    assert report.keys() == expected.keys()
    for name in ("counts", "rows", "observations_sha256", "references_sha256"):
        assert report[name] == expected[name]
    assert report["seconds"].keys() == expected["seconds"].keys()
    removed, expected = service.delete(job).json(), answer_of("DELETE /jobs/{id}")
    assert without(removed, *TIMES) == without(expected, *TIMES)


def test_an_upload_as_the_examples_say(service):
    content = body_of("PATCH /uploads/{id}", "application/offset+octet-stream").encode()
    length = {"Upload-Length": str(len(content))}
    begun = service.post("/uploads", headers=length)
    expected = answer_of("POST /uploads", "201")
    assert without(begun.json(), *TIMES) == without(expected, *TIMES)
    assert begun.json().keys() == expected.keys()
    headers = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    address = begun.headers["location"]
    assert service.patch(address, content=content, headers=headers).status_code == 204
    assert service.get(address).json()["offset"] == len(content)


TIMES = ("id", "jobID", "created", "started", "finished", "updated", "expires", "links")


def without(document, *names):
    """A document but for what differs from one to the next."""
    return {name: value for name, value in document.items() if name not in names}
