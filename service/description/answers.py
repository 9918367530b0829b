"""What OpenAPI says of the answers that come with success."""

from typing import Any

from georesolve.intake.representations import FORMATS, PARQUET, Format
from georesolve.service.jobs.models import StatusInfo

Answers = dict[int | str, dict[str, Any]]

_HEADERS = {
    "ETag": {"description": "strong: other bytes have another one", "schema": {"type": "string"}},
}
_FILE_HEADERS = {
    **_HEADERS,
    "Accept-Ranges": {
        "description": "bytes; none of a result that is not Parquet",
        "schema": {"type": "string"},
    },
    "Repr-Digest": {
        "description": "the sha256 of the whole file, if it was wanted",
        "schema": {"type": "string"},
    },
}
_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
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
    "description": "with `response: document`: the value, which is readable as JSON, GeoJSON and "
    "CSV and base64 else, or where it is if it is large or that was asked for",
    "required": ["matches"],
    "properties": {
        "matches": {
            "type": "object",
            "properties": {"value": {}}
            | dict.fromkeys(("mediaType", "encoding", "href", "type"), _TEXT),
        }
    },
}
"""The matches in a document, as OGC API - Processes has it."""
MESSAGES: tuple[dict[str, Any], ...] = (
    _TEXT,
    {"type": "object", "required": ["message"], "properties": {"message": _TEXT}},
)
"""What the process `echo` gives back: raw, and in a document."""


def answer_of(content: dict[str, Any], description: str) -> Answers:
    """A successful answer with one of some contents."""
    return {200: {"description": description, "content": content}}


def matches_content(
    *formats: Format, others: tuple[dict[str, Any], ...] = ()
) -> dict[str, dict[str, Any]]:
    """The matches in some formats, and `others` that JSON may also be."""
    by_suffix: dict[str, dict[str, Any]] = {
        "parquet": _BYTES,
        "arrows": _BYTES,
        "csv": {"schema": _TEXT},
        "json": {"schema": _any_of(_ROWS, *others)},
        "geojson": {"schema": _FEATURES},
    }
    return {one.media_type: by_suffix[one.suffix] for one in formats}


def _any_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)} if len(schemas) > 1 else schemas[0]


def matches_answer(description: str, *others: dict[str, Any], first: Format = PARQUET) -> Answers:
    """The matches in all formats, and `others` that JSON may also be.

    Parameters
    ----------
    first
        What comes if nothing is asked for: what generated clients take the answer for.
    """
    formats = [first, *(one for one in FORMATS if one != first)]
    return answer_of(matches_content(*formats, others=others), description)


def message_answer(description: str) -> Answers:
    """The message of the process `echo`."""
    return answer_of({"application/json": {"schema": _any_of(*MESSAGES)}}, description)


def file_answers(content: dict[str, Any], description: str) -> Answers:
    """A file, whole or in part, or the word that the client has it already."""
    return {
        200: {"description": description, "content": content, "headers": _FILE_HEADERS},
        206: {
            "description": "the range that was asked for",
            "content": {name: {} for name in (*content, "multipart/byteranges")},
            "headers": _FILE_HEADERS,
        },
        304: {"description": "the client has it already", "headers": _HEADERS},
    }


def bytes_of(media_type: str) -> dict[str, Any]:
    """The content of an answer that is bytes."""
    return {media_type: _BYTES}


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
