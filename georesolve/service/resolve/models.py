"""What clients give to be matched, and how: point sets in JSON, and the options."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from georesolve.intake.addresses import LONGEST
from georesolve.intake.columns import EVERY, LONGEST_NAME, PREFIXES, Reading, Role, reading_for
from georesolve.service.parameters import ColumnName, Parameters
from georesolve.service.receiving.models import TableParameters
from georesolve.service.resolve.point_sets import POINT_SET
from georesolve.workers.datasets import Dataset
from georesolve.workers.jobs import How, MatchOptions


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


ColumnNames = Annotated[
    list[str] | Literal["*"],
    PlainValidator(_column_names),
    WithJsonSchema(
        {
            "title": "ColumnNames",
            "anyOf": [
                {"type": "array", "items": {"type": "string", "maxLength": LONGEST_NAME}},
                {"type": "string", "enum": [EVERY]},
            ],
        }
    ),
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
    columns: ColumnNames = Field(
        [], description="reference columns to carry into the result; `*` for all"
    )
    observation_columns: ColumnNames = Field([], description="likewise of the observations")

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
            columns=_named(self.columns, references),
            observation_columns=_named(self.observation_columns, observations),
        )


def _named(columns: list[str] | Literal["*"], one: Dataset | None) -> tuple[str, ...]:
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


def point_set(given: Any) -> dict[str, Any] | str:
    """What JSON may be as a point set, as far as that shows at once.

    Raises
    ------
    PydanticCustomError
        When it is neither an object nor a text.
    """
    if isinstance(given, dict | str):
        return given
    kinds = {list: "an array", bool: "true or false", type(None): "null"}
    raise PydanticCustomError(
        "point_set",
        "{kind} is no point set: give one array for each column, as in {example}, a registered "
        "dataset, or a GeoJSON FeatureCollection",
        {"kind": kinds.get(type(given), "a number"), "example": '{"lat": [52.5], "lon": [13.4]}'},
    )


# A validator of its own: a union tells of each type that it is not.
PointSet = Annotated[dict[str, Any] | str, PlainValidator(point_set), WithJsonSchema(POINT_SET)]


class PointSets(Parameters):
    """Two point sets as JSON."""

    observations: PointSet = Field(description=f"what was seen: {_POINTS}")
    references: PointSet = Field(description=f"where things are: {_POINTS}")


class NearestInputs(MatchParameters, PointSets):
    """Two point sets as JSON, and how to match them."""


class NearestQuery(MatchParameters):
    """What stands in the query beside a stream of observations."""

    references: str = Field(description="a registered dataset, as `dataset:<id>`, or an address")
