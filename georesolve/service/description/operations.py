"""What OpenAPI says of operations: what they take, and what they answer with success."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel

from georesolve.intake.representations import FORMATS, PARQUET, Format
from georesolve.service.description import examples
from georesolve.service.description.schemas import schema_of
from georesolve.service.jobs.models import StatusInfo

Answers = dict[int | str, dict[str, Any]]
JobId = Annotated[str, Path(description="the id of the job", examples=[examples.JOB_ID])]
DatasetId = Annotated[
    str,
    Path(
        description="the id of the dataset, or its name: `places`, or a version of it: `places@3`",
        examples=[examples.DATASET_ID],
    ),
]
DatasetName = Annotated[
    str,
    Path(
        description="a letter, then up to 63 letters, digits, `.`, `_` and `-`, all lower case",
        openapi_examples={"places": {"value": "places"}},
    ),
]
# This one `/docs` fills in. Other ids are each user's own, and it would send those of an example.
ProcessName = Annotated[
    str,
    Path(description="the id of the process", openapi_examples={"nearest": {"value": "nearest"}}),
]
_SHA256 = "sha-256=:k4RnCkMbG1h+LXSYZDSY1QvwwBmdQcT2Qk3LK3C1iO4=:"
_HEADERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Prefer": (
        "`respond-async`: a job to ask again; `wait=N`: the result if it is there within N "
        "seconds, and else the job",
        "respond-async",
        {},
    ),
    "Idempotency-Key": (
        "a request with the same key, sets and options is the same job",
        "5bd5d52c-5cf1-4b1c-8d6c-7d1d2c1f0b1e",
        {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    ),
    "Content-Digest": (
        "sha-256 or sha-512 of the body as RFC 9530 has it; what comes otherwise is refused",
        _SHA256,
        {},
    ),
    "Range": ("the part of the file that is wanted, in bytes", "bytes=0-499", {}),
    "If-Range": (
        "the ETag of what the client has a part of: if the file has another one, it comes whole",
        '"23ce787a"',
        {},
    ),
    "If-Match": (
        "the ETag of the version that may be replaced, or `*` for any that there is: 412 if it is "
        "another one",
        '"23ce787a"',
        {},
    ),
    "If-None-Match: *": ("`*`: 412 if there is a dataset of that name already", "*", {}),
    "If-None-Match": (
        "the ETag of what the client has: 304 if that is still it",
        '"23ce787a"',
        {},
    ),
}
"""What they mean, an example, and what their texts must be."""


def headers(*names: str) -> dict[str, Any]:
    """Headers that an operation heeds; `If-None-Match: *` is that of one that makes something."""
    # The example stands in words: `/docs` would send an example of OpenAPI with every request.
    return {
        "parameters": [
            {
                "name": name.partition(":")[0],
                "in": "header",
                "required": False,
                "description": f"{description}; for example `{example}`",
                "schema": {"type": "string", **rules},
            }
            for name in names
            for description, example, rules in [_HEADERS[name]]
        ]
    }


FILE_HEADERS = headers("Range", "If-Range", "If-None-Match")


def json_request(*alternatives: tuple[type[BaseModel], Any]) -> dict[str, Any]:
    """A request whose body is JSON: one of some models, each with an example."""
    schemas = [schema_of(model) for model, _ in alternatives]
    content = {
        "schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas},
        "examples": {model.__name__: {"value": example} for model, example in alternatives},
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def header(description: str, kind: str = "string") -> dict[str, Any]:
    """A header of an answer."""
    return {"description": description, "schema": {"type": kind}}


_ETAG = {"ETag": header("strong: other bytes have another one")}
_OF_FILES = {
    **_ETAG,
    "Accept-Ranges": header("bytes; none of a result that is not Parquet"),
}
BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
"""The content of an answer or a request that is bytes."""
_ROWS: dict[str, Any] = {
    "type": "array",
    "items": {
        "title": "MatchRow",
        "type": "object",
        "required": ["observation", "reference", "distance_m", "status"],
        "properties": {
            "observation": {"type": "integer", "description": "row of the observation, from 0"},
            "rank": {"type": "integer", "description": "1 to k; only when k is more than 1"},
            "reference": {"type": ["integer", "null"], "description": "row of the reference"},
            "distance_m": {"type": ["number", "null"], "description": "metres between them"},
            "status": {
                "enum": ["matched", "beyond_max_distance", "invalid_coordinate", "no_reference"]
            },
        },
    },
}
_FEATURES: dict[str, Any] = {
    "type": "object",
    "description": "a point a row: the observation; with `geometry=line` a line from there to the "
    "reference, in two pieces where it crosses the antimeridian; null where there is none",
    "required": ["type", "features"],
    "properties": {
        "type": {"enum": ["FeatureCollection"]},
        "features": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "geometry", "properties"],
                "properties": {
                    "type": {"enum": ["Feature"]},
                    "geometry": {"type": ["object", "null"]},
                    "properties": _ROWS["items"],
                },
            },
        },
    },
}
_TEXT = {"type": "string"}
IN_DOCUMENT: dict[str, Any] = {
    "title": "MatchesDocument",
    "type": "object",
    "description": "with `response: document`: the value as JSON, GeoJSON or CSV, or where it is: "
    "if it is binary or large, or that was asked for",
    "required": ["matches"],
    "properties": {
        "matches": {
            "type": "object",
            "properties": {"value": {}} | dict.fromkeys(("mediaType", "href", "type"), _TEXT),
        }
    },
}
"""The matches in a document, as OGC API - Processes has it."""


def answer_of(content: dict[str, Any], description: str) -> Answers:
    """A successful answer with one of some contents."""
    return {200: {"description": description, "content": content}}


def matches_content(
    *formats: Format, others: tuple[dict[str, Any], ...] = ()
) -> dict[str, dict[str, Any]]:
    """The matches in some formats, and `others` that JSON may also be."""
    by_suffix: dict[str, dict[str, Any]] = {
        "parquet": BYTES,
        "arrows": BYTES,
        "csv": {"schema": _TEXT},
        "json": {"schema": {"anyOf": [_ROWS, *others]} if others else _ROWS},
        "geojson": {"schema": _FEATURES},
    }
    return {one.media_type: by_suffix[one.suffix] for one in formats}


def matches_answer(description: str, *others: dict[str, Any], first: Format = PARQUET) -> Answers:
    """The matches in all formats, and `others` that JSON may also be.

    Parameters
    ----------
    first
        What comes if nothing is asked for: what generated clients take the answer for.
    """
    formats = [first, *(one for one in FORMATS if one != first)]
    return answer_of(matches_content(*formats, others=others), description)


UNCHANGED: Answers = {304: {"description": "the client has it already", "headers": _ETAG}}


def file_answers(content: dict[str, Any], description: str) -> Answers:
    """A file, whole or in part, or the word that the client has it already."""
    return {
        200: {"description": description, "content": content, "headers": _OF_FILES},
        206: {
            "description": "the range that was asked for",
            "content": {name: {} for name in (*content, "multipart/byteranges")},
            "headers": _OF_FILES,
        },
        **UNCHANGED,
    }


def created(description: str) -> dict[str, Any]:
    """The header that says where something new is."""
    schema = {"type": "string", "format": "uri"}
    return {"Location": {"description": description, "required": True, "schema": schema}}


TAKEN: Answers = {
    201: {
        "description": "accepted, with `Prefer: respond-async`, or when `wait=N` seconds are over",
        "model": StatusInfo,
        "headers": created("the job"),
    }
}
"""The answer to a request that became a job."""
