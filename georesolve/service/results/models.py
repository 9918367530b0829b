"""What clients are told of results: their parts, and what matches are in each format."""

from typing import Any

from pydantic import BaseModel, Field

from georesolve.intake.representations import FORMATS, PARQUET, Format
from georesolve.service.http.operations import BYTES, Answers, answer_of


class Bytes(BaseModel):
    """Bytes that stand one after the other in a file."""

    size_bytes: int
    sha256: str


class PartInfo(BaseModel):
    """A part of a result: a Parquet file of its own."""

    href: str
    rows: int
    size_bytes: int = Field(description="of its file")
    digest: str = Field(description="of its file, and its ETag")
    row_groups: list[Bytes]
    ending: Bytes = Field(description="what stands behind its row groups in its own file")


class Parts(BaseModel):
    """The parts of a result, in the order of their rows."""

    digest: str = Field(description="of matches.parquet, and its ETag")
    rows: int
    size_bytes: int = Field(description="of matches.parquet")
    parts: list[PartInfo]
    ending: Bytes = Field(description="what stands behind all row groups in matches.parquet")


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

    The `first` comes if nothing is asked for: generated clients take the answer for it.
    """
    formats = [first, *(one for one in FORMATS if one != first)]
    return answer_of(matches_content(*formats, others=others), description)
