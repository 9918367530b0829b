"""The request to match two sets of points: one model for forms, queries, JSON, streams and OGC.

Schemas, the form and the descriptions of the processes follow from `MatchInputs`, and what the
options are from `MatchOptions`.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    RootModel,
    StrictBool,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, from_json

from georesolve.io import columns
from georesolve.io.datasets import Dataset
from georesolve.io.errors import InvalidOption
from georesolve.io.result_formats import FORMATS, LINES
from georesolve.io.storage import is_url
from georesolve.io.tables import NoRecord, columns_of
from georesolve.io.urls import LONGEST
from georesolve.options import FILTERS, Options, WithinOptions
from georesolve.query import QUESTION_OF, MatchOptions, Question
from georesolve.service import errors
from georesolve.service.http.parameters import LISTS, Parameters, Title, with_fields
from georesolve.service.receiving.models import ColumnName, FeatureCollection, TableParameters
from georesolve.service.receiving.uploads import Upload
from georesolve.service.store.names import FORM
from georesolve.service.store.rows import Delivery

ROLES: tuple[columns.Role, columns.Role] = ("observations", "references")
_MOST_ROWS = 1 << 40
_OPTIONS = {one.name: one for one in fields(MatchOptions) if one.name != "filters"} | FILTERS
_CHECKED: dict[Question, tuple[Any, dict[str, Any]]] = {
    "nearest": (Options, {}),
    "within": (WithinOptions, {"distance_m": None}),
}
"""What checks the options of a question, and what it must be told at least."""
_COLUMN_LISTS = {"observations": "observation_columns", "references": "columns"}


class Arrays(NamedTuple):
    """Arrays by column name; `place` is where they stand in the value of the point set.

    `by_row`, because they came as records.
    """

    columns: dict[str, list[Any]]
    place: str
    by_row: bool = False


class GeoJson(NamedTuple):
    """A FeatureCollection, as a document; `place` as in `Arrays`."""

    document: dict[str, Any]
    place: str


# What JSON may stand for a point set. These classes tell clients; `_source` finds out which of them
# is meant, so that a client hears what is wrong with that, and not with each of the others.

_Cell = Annotated[Any, WithJsonSchema({"not": {"anyOf": [{"type": "array"}, {"type": "object"}]}})]
_ID_OR_NAME = f"([0-9a-f]{{32}}|{FORM})$"
_Address = Annotated[str, Field(pattern="^(file|s3|https)://", max_length=LONGEST)]


class PointColumns(RootModel[dict[str, list[_Cell]]]):
    """Arrays by column name, all of one length; coordinates are numbers."""


class PointRecords(RootModel[list[dict[str, _Cell]]]):
    """An object for each point, all of the same keys; coordinates are numbers.

    An empty array is a set without rows, with the columns that the options name.
    """


class DatasetReference(Parameters):
    """A registered dataset, by its id or its name."""

    dataset: str = Field(pattern=f"^{_ID_OR_NAME}")


class SourceReference(Parameters):
    """A Parquet file, a pattern of them, or a folder, which stay where they are."""

    href: _Address
    # Links of OGC API say what is there; the files themselves do.
    type: str = ""


PointSource = Arrays | GeoJson | DatasetReference | SourceReference | Upload
_Plain = (
    Annotated[str, Field(pattern=f"^dataset:{_ID_OR_NAME}")]
    | _Address
    | DatasetReference
    | SourceReference
    | PointColumns
    | PointRecords
    | FeatureCollection
)


class QualifiedPointSet(Parameters):
    """A point set in an object, as OGC API - Processes wraps objects that stand for an input."""

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
        case {"value": (str() | dict() | [] | [dict(), *_]) as value, **rest} if (
            rest.keys() <= _BESIDE_VALUE
        ):
            return _source(value, (*steps, "value"))
        case {"dataset": str(id), **rest} if not rest:
            return _named(f"dataset:{id}", steps)
        case {"href": str(href), **rest} if rest.keys() <= {"type"}:
            return _named(href, steps)
        case {"type": "FeatureCollection"}:
            return GeoJson(given, "/value" * len(steps))
        case dict():
            for name, column in given.items():
                if not isinstance(column, list):
                    raise _error(
                        (*steps, name[:80]),
                        'not an array: give a dataset as {"dataset": "<id>"}, files as '
                        '{"href": "s3://..."}, arrays by column name, or a GeoJSON '
                        "FeatureCollection",
                    )
            return Arrays(given, "/value" * len(steps))
        case []:
            return Arrays({}, "/value" * len(steps), by_row=True)
        case [dict(), *_]:
            try:
                return Arrays(columns_of(given), "/value" * len(steps), by_row=True)
            except NoRecord as error:
                place = (str(error.row), *filter(None, [error.column]))
                raise _error((*steps, *place), error.detail) from None
    kinds = {list: "an array", bool: "true or false", type(None): "null"}
    raise _error(
        steps,
        "{kind} is no point set: give one array for each column, as in {example}, records, a "
        "registered dataset, or a GeoJSON FeatureCollection",
        kind=kinds.get(type(given), "a number"),
        example='{"lat": [52.5], "lon": [13.4]}',
    )


def _named(text: str, steps: tuple[str, ...]) -> PointSource:
    kind, _, id = text.strip().partition(":")
    if kind == "dataset" and id:
        # Whether there is such a one the library knows better than a pattern.
        return DatasetReference.model_construct(dataset=id)
    if is_url(text):
        return SourceReference.model_construct(href=text.strip())
    raise _error(
        steps,
        "{text} is neither a file nor 'dataset:<id>' or an address: write {example} if it is a "
        "registered dataset",
        text=repr(text[:80]),
        example=repr(f"dataset:{text.strip()[:80]}"),
    )


def _error(steps: Sequence[str], template: str, **values: str) -> ValidationError:
    error = PydanticCustomError("point_set", template, values)
    details = InitErrorDetails(type=error, loc=tuple(steps), input=None)
    return ValidationError.from_exception_data("PointSet", [details])


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


def _column_names(given: Any) -> list[str] | Literal["*"]:
    if given == columns.EVERY:
        return columns.EVERY
    # By itself: a union tells of each type that it is not.
    if isinstance(given, list) and all(
        isinstance(name, str) and len(name) <= columns.LONGEST_NAME for name in given
    ):
        # Each once: all of them stand in the row of a job.
        return [*dict.fromkeys(given)]
    raise PydanticCustomError(
        "column_names",
        "give a list of column names, each of {most} characters at most, or {every} for all",
        {"most": columns.LONGEST_NAME, "every": f'"{columns.EVERY}"'},
    )


class ColumnNames(RootModel[list[ColumnName] | Literal["*"]]):
    """Names of columns, or `*` for all."""


_Columns = Annotated[
    list[str] | Literal["*"], PlainValidator(_column_names, json_schema_input_type=ColumnNames)
]
_Summary = Annotated[
    dict[ColumnName, Literal[True] | list[str]],
    # In a form or a query it is a text.
    BeforeValidator(lambda given: from_json(given) if isinstance(given, str) else given),
]
_By = Annotated[
    list[ColumnName],
    BeforeValidator(
        lambda given: [given] if isinstance(given, str) else given,
        json_schema_input_type=ColumnName | list[ColumnName],
    ),
]
_MaxTime = Annotated[
    # True is refused with what else is no length of time, in the same words.
    StrictBool | int | float | str,
    Field(union_mode="left_to_right"),
    # A whole number is a number, too.
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "[a-z]"}]}),
]


def _options() -> dict[str, Any]:
    """The options of `MatchOptions`, and for each of both tables those that name columns."""
    added: dict[str, Any] = {
        f"{prefix}{name}": (
            TableParameters.model_fields[name].annotation,
            Field(None, description=f"`{name}` of the {role} alone"),
        )
        for role, prefix in columns.PREFIXES.items()
        for name in columns.NAMED
    }
    types = get_type_hints(Options) | get_type_hints(MatchOptions)
    types |= {name: _By | None if name in FILTERS else _Columns for name in LISTS}
    types |= {name: ColumnName | None for name in FILTERS if name.endswith("time")}
    types["max_time"] = _MaxTime | None
    types["summary"] = _Summary
    types["distance_m"] = Annotated[float | ColumnName, Field(union_mode="left_to_right")] | None
    return added | {name: (types[name], one) for name, one in _OPTIONS.items()}


@with_fields(**_options())
class MatchParameters(TableParameters):
    """How to match, and how to read both tables.

    What names a column of one table (`observation_lat`) counts for that one, and before what names
    it for both (`lat`).
    """

    question: Question = "nearest"
    distance_m: float | str | None = None

    def reading_of(self, role: columns.Role) -> columns.Reading:
        """How to read one of the two tables."""
        both = self.reading(takes_shapes=role == "references")
        return columns.reading_for(role, both, self)

    def named_columns(self, role: columns.Role) -> list[str]:
        """The columns of one of the two tables that the options name, coordinates first."""
        reading = self.reading_of(role)
        attributes = getattr(self, _COLUMN_LISTS[role])
        names = [reading.lat or "lat", reading.lon or "lon", reading.id]
        names += attributes if isinstance(attributes, list) else []
        for name in ("by", "time"):
            value = getattr(self, columns.PREFIXES[role] + name) or getattr(self, name)
            names += [value] if isinstance(value, str) else value or []
        return [*dict.fromkeys(filter(None, names))]

    def options(self, observations: Dataset | None, references: Dataset | None) -> MatchOptions:
        """The options as the workers want them, with the names of all columns where `*` is.

        A set that is not there yet, of which only the number of rows is known, has no columns.
        Those of the other question are refused, unless they are left at their defaults, which
        generated clients send.
        """
        given = {name: getattr(self, name) for name in _OPTIONS}
        for name in sorted(QUESTION_OF.keys() & self.model_fields_set):
            is_said = given[name] != _OPTIONS[name].default
            if (other := QUESTION_OF[name]) != self.question and is_said:
                raise self._refusal(name, f"is for question={other}: leave it out, or ask for that")
        for name, of in (("columns", references), ("observation_columns", observations)):
            every = of.columns if of else ()
            given[name] = every if given[name] == columns.EVERY else tuple(given[name])
        filters = None
        is_filtered = any(given[name] != one.default for name, one in FILTERS.items())
        if self.question == "within" or given["summary"] or is_filtered:
            kind, required = _CHECKED[self.question]
            names = {one.name for one in fields(kind)} & _OPTIONS.keys()
            own = {name: given[name] for name in self.model_fields_set & names}
            try:
                checked = kind(**{**required, **own})
            except InvalidOption as refused:
                # What it says begins with the name of the option.
                name, _, detail = str(refused).partition(" ")
                raise self._refusal(name.partition("=")[0], detail) from None
            given |= {name: getattr(checked, name) for name in names}
            filters = checked.filters
        match = {name: one for name, one in given.items() if name not in FILTERS}
        return MatchOptions(**match, filters=filters)

    def ask(self, question: Question) -> None:
        """Take the question from where the request was sent to; within is refused elsewhere."""
        # Generated clients send the default.
        if self.question not in (question, "nearest"):
            raise self._refusal("question", f"must be {question} here: leave it out")
        self.question = question

    def _refusal(self, name: str, detail: str) -> errors.Problem:
        return errors.misplaced(self.pointer(name), detail)


class JobParameters(MatchParameters):
    """How to match, where the result of a job is written, and what the job is called."""

    name: Title | None = Field(
        None, description="what the job is called, if one is made: else what it is made of"
    )

    output: str | None = Field(
        None,
        max_length=LONGEST,
        description="address of an empty folder below a prefix that the operator listed, such as "
        "s3://bucket/results/today/: the parts of the result are written there, not kept here",
    )


_POINTS = (
    'a registered dataset as {"dataset": "<id>"} or "dataset:<id>", Parquet files below a prefix '
    'that the operator listed as {"href": "s3://bucket/folder/*.parquet"}, arrays by column name '
    'such as {"lat": [52.5], "lon": [13.4]}, records such as [{"lat": 52.5, "lon": 13.4}], or a '
    "GeoJSON FeatureCollection; also as the member 'value' of an object"
)


class PointSources(Parameters):
    """Two point sets."""

    observations: Source = Field(description=f"points, what was seen: {_POINTS}")
    references: Source = Field(
        description=f"points, lines or polygons, where things are: {_POINTS}"
    )


class MatchInputs(MatchParameters, PointSources):
    """Two point sets, and how to match them."""


class ResolveForm(MatchInputs, JobParameters):
    """Two point sets as files or names, how to match them, and where the result is written."""

    def delivery(self) -> Delivery | None:
        """How the result is wanted; None for the bare result, of which a small one needs no job."""
        return None if self.output is None else Delivery(output=self.output)


class EstimateInputs(MatchParameters):
    """Two point sets, or as many rows as they will have."""

    observations: RowsOrSource = Field(description="rows, or a point set")
    references: RowsOrSource = Field(description="rows, or a point set")


_MEDIA_TYPES = [*(one.media_type for one in FORMATS), f"{LINES.media_type};geometry=line"]


def _known(media_type: str) -> str:
    known = media_type.replace(" ", "").lower()
    if known not in _MEDIA_TYPES:
        raise PydanticCustomError(
            "media_type", "allowed are {allowed}", {"allowed": ", ".join(_MEDIA_TYPES)}
        )
    return known


class OutputFormat(Parameters):
    """The format of the matches."""

    mediaType: Annotated[str, AfterValidator(_known), WithJsonSchema({"enum": _MEDIA_TYPES})]


class MatchesOutput(Parameters):
    """How the matches are wanted."""

    transmissionMode: Literal["value", "reference"] = "value"
    format: OutputFormat | None = None


class Output(Parameters):
    """Where the result of a job is written."""

    href: str = Field(
        max_length=LONGEST,
        description="address of an empty folder below a prefix that the operator listed",
        examples=["s3://bucket/results/today/"],
    )


class MatchExecution(Parameters):
    """A request to run a process."""

    inputs: MatchInputs
    outputs: dict[Literal["matches"], MatchesOutput] = Field({})
    output: Output | None = Field(
        None, description="where the parts of the result are written, instead of being kept here"
    )
    response: Literal["raw", "document"] = "raw"
    name: Title | None = Field(None, description="what the job is called: else what it is made of")

    def delivery(self) -> Delivery:
        """How the result is wanted."""
        wanted = self.outputs.get("matches", MatchesOutput())
        media_type = wanted.format.mediaType if wanted.format else None
        output = self.output.href if self.output else None
        return Delivery(self.response, wanted.transmissionMode, media_type, output=output)

    def model_post_init(self, _: Any) -> None:
        """Tell the inputs where they stand."""
        self.inputs.place = "/inputs"
