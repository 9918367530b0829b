"""The request to match two sets of points: one model for forms, queries, JSON, streams and OGC.

`NearestInputs` holds the options and two point sets. Each set is one of `PointSource`: arrays,
GeoJSON, a registered dataset, files at an address, or a file that came with the request. Schemas,
the form and the description of the process follow from these classes.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, RootModel, WithJsonSchema
from pydantic_core import PydanticCustomError

from georesolve.intake.addresses import LONGEST
from georesolve.intake.columns import EVERY, LONGEST_NAME, PREFIXES, Reading, Role, reading_for
from georesolve.intake.representations import FORMATS, LINES
from georesolve.service.parameters import ColumnName, Parameters, TableParameters
from georesolve.service.resolve.sources import RowsOrSource, Source
from georesolve.service.store.rows import Delivery
from georesolve.workers.datasets import Dataset
from georesolve.workers.jobs import How, MatchOptions

ROLES: tuple[Role, Role] = ("observations", "references")


def _column_names(given: Any) -> list[str] | Literal["*"]:
    if given == EVERY:
        return EVERY
    # By itself: a union tells of each type that it is not.
    if isinstance(given, list) and all(
        isinstance(name, str) and len(name) <= LONGEST_NAME for name in given
    ):
        # Each once: all of them stand in the row of a job.
        return [*dict.fromkeys(given)]
    raise PydanticCustomError(
        "column_names",
        "give a list of column names, each of {most} characters at most, or {every} for all",
        {"most": LONGEST_NAME, "every": f'"{EVERY}"'},
    )


class ColumnNames(RootModel[list[ColumnName] | Literal["*"]]):
    """Names of columns, or `*` for all."""


_Columns = Annotated[
    list[str] | Literal["*"], PlainValidator(_column_names, json_schema_input_type=ColumnNames)
]


class MatchParameters(TableParameters):
    """How to match, and how to read both tables.

    What names a column of one table (`observation_lat`) counts for that one, and before what names
    it for both (`lat`).
    """

    observation_lat: ColumnName | None = Field(None, description="`lat` of the observations alone")
    observation_lon: ColumnName | None = Field(None, description="`lon` of the observations alone")
    observation_geometry: ColumnName | None = Field(
        None, description="`geometry` of the observations alone"
    )
    observation_id: ColumnName | None = Field(None, description="`id` of the observations alone")
    reference_lat: ColumnName | None = Field(None, description="`lat` of the references alone")
    reference_lon: ColumnName | None = Field(None, description="`lon` of the references alone")
    reference_geometry: ColumnName | None = Field(
        None, description="`geometry` of the references alone"
    )
    reference_id: ColumnName | None = Field(None, description="`id` of the references alone")

    k: int = Field(1, ge=1, le=64, description="neighbours an observation, nearest first")
    max_distance_m: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="farther references do not match; inclusive"
    )
    exclude_self: bool = Field(
        False, description="no reference of the observation's own row: a set against itself"
    )
    algorithm: Literal["auto", "tree", "brute"] = Field(
        "auto", description="how to search; same answer"
    )
    how: How = Field("left", description="left: all observations; inner: matched ones only")
    columns: _Columns = Field(
        [], description="reference columns to carry into the result; `*` for all"
    )
    observation_columns: _Columns = Field([], description="likewise of the observations")

    def reading_of(self, role: Role) -> Reading:
        """How to read one of the two tables."""
        prefix = PREFIXES[role]
        own = {name: getattr(self, prefix + name) for name in ("lat", "lon", "geometry", "id")}
        return reading_for(self.reading(), own, prefix)

    def options(self, observations: Dataset | None, references: Dataset | None) -> MatchOptions:
        """The options as the workers want them, with the names of all columns where `*` is.

        A set that is not there yet, of which only the number of rows is known, has no columns.
        """
        return MatchOptions(
            k=self.k,
            max_distance_m=self.max_distance_m,
            exclude_self=self.exclude_self,
            algorithm=self.algorithm,
            how=self.how,
            columns=_all_named(self.columns, references),
            observation_columns=_all_named(self.observation_columns, observations),
        )


def _all_named(columns: list[str] | Literal["*"], one: Dataset | None) -> tuple[str, ...]:
    if columns != EVERY:
        return tuple(columns)
    return one.columns if one else ()


class JobParameters(MatchParameters):
    """How to match, and where the result of a job is written."""

    output: str | None = Field(
        None,
        max_length=LONGEST,
        description="address of an empty folder below a prefix that the operator listed, such as "
        "s3://bucket/results/today/: the parts of the result are written there, not kept here",
    )


_POINTS = (
    'a registered dataset as {"dataset": "<id>"} or "dataset:<id>", Parquet files below a prefix '
    'that the operator listed as {"href": "s3://bucket/folder/*.parquet"}, arrays by column name '
    'such as {"lat": [52.5], "lon": [13.4]}, or a GeoJSON FeatureCollection of points; also as '
    "the member 'value' of an object"
)


class PointSources(Parameters):
    """Two point sets."""

    observations: Source = Field(description=f"what was seen: {_POINTS}")
    references: Source = Field(description=f"where things are: {_POINTS}")


class NearestInputs(MatchParameters, PointSources):
    """Two point sets, and how to match them."""


class ResolveForm(NearestInputs, JobParameters):
    """Two point sets as files or names, how to match them, and where the result is written."""


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


class NearestExecution(Parameters):
    """A request to run the process `nearest`."""

    inputs: NearestInputs
    outputs: dict[Literal["matches"], MatchesOutput] = Field({})
    output: Output | None = Field(
        None, description="where the parts of the result are written, instead of being kept here"
    )
    response: Literal["raw", "document"] = "raw"

    def delivery(self) -> Delivery:
        """How the result is wanted."""
        wanted = self.outputs.get("matches", MatchesOutput())
        media_type = wanted.format.mediaType if wanted.format else None
        return Delivery(self.response, wanted.transmissionMode, media_type)
