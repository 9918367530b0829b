"""The description of the API: it is complete, and the service takes its examples."""

import json

import jsonschema_rs
import pytest

from georesolve.service.app import create_app
from georesolve.service.errors import PROBLEM_JSON
from georesolve.service.settings import Settings

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
    "application/geopackage+sqlite3",
    "application/vnd.flatgeobuf",
    "application/zip",
    "multipart/byteranges",
    "image/png",
}


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
    for status, answer in answers.items():
        assert answer["description"]
        if status[0] == "2" and status != "206":
            assert bool(answer.get("content")) == (status != "204"), status


@pytest.mark.parametrize("name", OPERATIONS)
def test_refusals_are_problems(name):
    refusals = {"4XX", "5XX"}
    answers = OPERATIONS[name]["responses"]
    assert refusals <= answers.keys()
    schema = {"$ref": "#/components/schemas/Problem"}
    for status in refusals:
        assert answers[status]["content"] == {PROBLEM_JSON: {"schema": schema}}
    is_open = name.removeprefix("GET ") in ("/livez", "/readyz", "/healthz")
    assert ("security" in OPERATIONS[name]) != is_open


def test_nothing_is_described_that_fastapi_only_supposes():
    assert not {"ValidationError", "HTTPValidationError"} & set(DOCUMENT["components"]["schemas"])
    assert "422" not in OPERATIONS["GET /jobs"]["responses"]


def body_of(name, media_type="application/json"):
    (example, *_) = examples_of(OPERATIONS[name]["requestBody"]["content"][media_type])
    return example


NEAREST = [("Berlin", "Frankfurt", 423438.402), ("Paris", "Frankfurt", 477749.026)]


def names_and_metres(rows):
    return [
        (row["observation_id"], row["reference_id"], pytest.approx(row["distance_m"], abs=1e-3))
        for row in rows
    ]


def test_the_service_takes_the_examples(service):
    answer = service.post("/nearest", json=body_of("POST /nearest"))
    assert names_and_metres(answer.raise_for_status().json()) == NEAREST
    in_json = {"Accept": "application/json"}
    execution = body_of("POST /processes/{id}/execution")
    answer = service.post("/processes/nearest/execution", json=execution, headers=in_json)
    assert names_and_metres(answer.raise_for_status().json()) == NEAREST
    form = body_of("POST /resolve", "multipart/form-data")
    files = {role: (f"{role}.csv", content) for role, content in form.items()}
    answer = service.post("/resolve", files=files, headers=in_json)
    assert names_and_metres(answer.raise_for_status().json()) == NEAREST
    for body in examples_of(
        OPERATIONS["POST /estimate"]["requestBody"]["content"]["application/json"]
    ):
        service.post("/estimate", json=body).raise_for_status()
    for media_type in ("text/csv", "application/geo+json"):
        content = body_of("POST /datasets", media_type)
        content = content if isinstance(content, str) else json.dumps(content)
        headers = {"Content-Type": media_type}
        made = service.post("/datasets", content=content, headers=headers).raise_for_status()
        assert (made.json()["rows"], made.json()["id_column"]) == (2, "id")


@pytest.mark.parametrize(
    ("named", "is_allowed"),
    [
        ("0" * 32, True),
        ("sites", True),
        ("sites-of.2026_b@12", True),
        ("Sites", False),
        ("sites@0", False),
        ("", False),
    ],
)
def test_a_dataset_is_named_by_its_id_or_a_name(named, is_allowed):
    content = OPERATIONS["POST /nearest"]["requestBody"]["content"]["application/json"]
    schema = {**content["schema"], "components": DOCUMENT["components"]}
    validator = jsonschema_rs.validator_for(schema)
    for one in (f"dataset:{named}", {"dataset": named}):
        body = {"observations": {"lat": [1.0], "lon": [2.0]}, "references": one}
        assert validator.is_valid(body) == is_allowed
