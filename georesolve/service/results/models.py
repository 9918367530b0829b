"""What clients are told of results: their parts, and what matches are in each format."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field, WithJsonSchema, with_config
from typing_extensions import TypedDict

from georesolve.engine.result_rows import FILTERED
from georesolve.io.result_formats import FORMATS, PARQUET, Format
from georesolve.service.http import openapi


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


class MatchRow(TypedDict):
    """A row of a result, as JSON has it."""

    observation: Annotated[int, Field(description="row of the observation, from 0")]
    rank: NotRequired[Annotated[int, Field(description="1 to k; only when k is more than 1")]]
    reference: Annotated[int | None, Field(description="row of the reference")]
    distance_m: Annotated[float | None, Field(description="metres between them")]
    near_lat: NotRequired[Annotated[float | None, Field(description="of the reference; with near")]]
    near_lon: NotRequired[Annotated[float | None, Field(description="of the reference; with near")]]
    bearing_deg: NotRequired[
        Annotated[float | None, Field(description="clockwise from north; null at no distance")]
    ]
    time_apart: NotRequired[
        Annotated[int | None, Field(description="reference less observation, in the finer unit")]
    ]
    status: Annotated[str, WithJsonSchema({"enum": FILTERED})]


class _Feature(TypedDict):
    type: Literal["Feature"]
    geometry: Annotated[Any, WithJsonSchema({"type": ["object", "null"]})]
    properties: MatchRow


@with_config(title="GeoJSON")
class _Features(TypedDict):
    """A point a row, the observation; with `geometry=line` a line from there to the reference.

    The line is in two pieces where it crosses the antimeridian, and null where there is none.
    """

    type: Literal["FeatureCollection"]
    features: list[_Feature]


class _Matches(TypedDict, total=False):
    value: Any
    mediaType: str
    href: str
    type: str


class MatchesDocument(TypedDict):
    """With `response: document`: the value as JSON, GeoJSON or CSV, or where it is.

    It is a link if the value is binary or large, or if that was asked for.
    """

    matches: _Matches


_ROWS, _FEATURES, IN_DOCUMENT = map(openapi.schema_of, (list[MatchRow], _Features, MatchesDocument))


def matches_content(
    *formats: Format, others: tuple[dict[str, Any], ...] = ()
) -> dict[str, dict[str, Any]]:
    """The matches in some formats, and `others` that JSON may also be."""
    by_suffix: dict[str, dict[str, Any]] = {
        "parquet": openapi.BYTES,
        "arrows": openapi.BYTES,
        "csv": {"schema": {"type": "string"}},
        "json": {"schema": {"anyOf": [_ROWS, *others]} if others else _ROWS},
        "geojson": {"schema": _FEATURES},
    }
    return {one.media_type: by_suffix[one.suffix] for one in formats}


def matches_route(
    description: str, answers: openapi.Answers, *others: dict[str, Any], first: Format = PARQUET
) -> dict[str, Any]:
    """As `openapi.route`, of the matches in all formats, and `others` that JSON may also be.

    The `first` comes if nothing is asked for: generated clients take the answer for it.
    """
    formats = [first, *(one for one in FORMATS if one != first)]
    return openapi.route(matches_content(*formats, others=others), description, answers)
