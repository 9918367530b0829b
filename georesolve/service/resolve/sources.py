"""What a set of points comes from, and what JSON may be in its place.

The classes of pydantic here describe JSON to those who write it: `_source` reads it. So a client
hears what is wrong with what it meant, and not of each kind that it did not mean.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    RootModel,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from georesolve.intake.addresses import LONGEST, is_href
from georesolve.service.parameters import FeatureCollection
from georesolve.service.receiving.receiving import Upload
from georesolve.service.store.names import FORM

_MOST_ROWS = 1 << 40


class Arrays(NamedTuple):
    """Arrays by column name; `place` is where they stand in the value of the point set."""

    columns: dict[str, list[Any]]
    place: str


class GeoJson(NamedTuple):
    """A FeatureCollection, as a document; `place` as in `Arrays`."""

    document: dict[str, Any]
    place: str


class Registered(NamedTuple):
    """A registered dataset, by its id or its name."""

    id: str


class Elsewhere(NamedTuple):
    """Files that stay where they are."""

    href: str


PointSource = Arrays | GeoJson | Registered | Elsewhere | Upload


_Scalar = Annotated[
    Any, WithJsonSchema({"not": {"anyOf": [{"type": "array"}, {"type": "object"}]}})
]


class PointColumns(RootModel[dict[str, list[_Scalar]]]):
    """Arrays by column name, all of one length; coordinates are numbers."""


_ID_OR_NAME = f"([0-9a-f]{{32}}|{FORM})$"
_Address = Annotated[str, Field(pattern="^(file|s3|https)://", max_length=LONGEST)]


class DatasetReference(BaseModel):
    """A registered dataset, by its id or its name."""

    model_config = ConfigDict(extra="forbid")

    dataset: str = Field(pattern=f"^{_ID_OR_NAME}")


class SourceReference(BaseModel):
    """A Parquet file, a pattern of them, or a folder, which stay where they are."""

    model_config = ConfigDict(extra="forbid")

    href: _Address
    # Links of OGC API say what is there; the files themselves do.
    type: str = ""


_Plain = (
    Annotated[str, Field(pattern=f"^dataset:{_ID_OR_NAME}")]
    | _Address
    | DatasetReference
    | SourceReference
    | PointColumns
    | FeatureCollection
)


class QualifiedPointSet(BaseModel):
    """A point set in an object, as OGC API - Processes wraps objects that stand for an input."""

    model_config = ConfigDict(extra="forbid")

    value: _Plain
    # What these say the value itself tells.
    mediaType: Any = None
    format: Any = None
    encoding: Any = None
    schema_: Any = Field(None, alias="schema")


_BESIDE_VALUE = {"mediaType", "format", "encoding", "schema"}


class PointSet(RootModel[_Plain | QualifiedPointSet]):
    """A set of points."""


class RowsOrPointSet(RootModel[Annotated[int, Field(ge=0, le=_MOST_ROWS)] | PointSet]):
    """How many rows a set will have, or the set."""


def _source(given: Any, steps: tuple[str, ...] = ()) -> PointSource:
    """One of the sources; a validator of the whole, as a union tells of each that it is not."""
    match given:
        case Upload():
            return given
        case str():
            return _named(given, steps)
        # OGC API wraps an object that stands for an input in another.
        case {"value": str() | dict() as value, **rest} if rest.keys() <= _BESIDE_VALUE:
            return _source(value, (*steps, "value"))
        case {"dataset": str(id), **rest} if not rest:
            return _named(f"dataset:{id}", steps)
        case {"href": str(href), **rest} if rest.keys() <= {"type"}:
            return _named(href, steps)
        case {"type": "FeatureCollection"}:
            return GeoJson(given, _place(steps))
        case dict():
            for name, column in given.items():
                if not isinstance(column, list):
                    raise _error(
                        (*steps, name[:80]),
                        'not an array: give a dataset as {"dataset": "<id>"}, files as '
                        '{"href": "s3://..."}, arrays by column name, or a GeoJSON '
                        "FeatureCollection",
                    )
            return Arrays(given, _place(steps))
    kinds = {list: "an array", bool: "true or false", type(None): "null"}
    raise _error(
        steps,
        "{kind} is no point set: give one array for each column, as in {example}, a registered "
        "dataset, or a GeoJSON FeatureCollection",
        kind=kinds.get(type(given), "a number"),
        example='{"lat": [52.5], "lon": [13.4]}',
    )


def _named(text: str, steps: tuple[str, ...]) -> PointSource:
    kind, _, id = text.strip().partition(":")
    if kind == "dataset" and id:
        return Registered(id)
    if is_href(text):
        return Elsewhere(text.strip())
    raise _error(
        steps,
        "{text} is neither a file nor 'dataset:<id>' or an address",
        text=repr(text[:80]),
    )


def _error(steps: Sequence[str], template: str, **values: str) -> ValidationError:
    error = PydanticCustomError("point_set", template, values)
    details = InitErrorDetails(type=error, loc=tuple(steps), input=None)
    return ValidationError.from_exception_data("PointSet", [details])


def _place(steps: Sequence[str]) -> str:
    return "".join(f"/{one}" for one in steps)


def _rows_or_source(given: Any) -> int | PointSource:
    if type(given) is not int:
        return _source(given)
    if not 0 <= given <= _MOST_ROWS:
        raise PydanticCustomError(
            "rows", "{given} rows: give from 0 to {most}", {"given": given, "most": _MOST_ROWS}
        )
    return given


Source = Annotated[PointSource, PlainValidator(_source, json_schema_input_type=PointSet)]
RowsOrSource = Annotated[
    int | PointSource, PlainValidator(_rows_or_source, json_schema_input_type=RowsOrPointSet)
]
