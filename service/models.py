"""What the service takes and gives, as pydantic models."""

from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from georesolve.intake.columns import (
    EVERY,
    LONGEST_NAME,
    PREFIXES,
    OnInvalid,
    Reading,
    Role,
    Trust,
    reading_for,
)
from georesolve.service.database.rows import LIVE, DatasetRow, JobState, JobStatus, ProcessId
from georesolve.service.links import OGC_RELATION, Link
from georesolve.service.point_sets import POINT_SET
from georesolve.workers.datasets import Dataset
from georesolve.workers.jobs import How, MatchOptions

_UNKNOWN_SHOWN = 10
ColumnName = Annotated[str, Field(max_length=LONGEST_NAME)]


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


class Parameters(BaseModel):
    """What a client may say, and nothing else."""

    # An option that does not exist must not pass as if it had worked.
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _name_what_is_allowed(cls, given: Any) -> Any:
        fields = cls.model_fields
        unknown = [name for name in given if name not in fields] if isinstance(given, dict) else []
        if unknown:
            missing = [
                InitErrorDetails(type="missing", loc=(name,), input=None)
                for name, field in fields.items()
                if field.is_required() and name not in given
            ]
            errors = [_unknown(name, list(fields)) for name in unknown[:_UNKNOWN_SHOWN]]
            raise ValidationError.from_exception_data(cls.__name__, missing + errors)
        return given


def _unknown(name: str, known: list[str]) -> InitErrorDetails:
    close = get_close_matches(name[:80].lower(), known, 1)
    meant = f" (did you mean {close[0]!r}?)" if close else ""
    error = PydanticCustomError(
        "unknown_name",
        "there is no such name here{meant}; allowed are {known}",
        {"meant": meant, "known": ", ".join(known)},
    )
    return InitErrorDetails(type=error, loc=(name,), input=None)


class TableParameters(Parameters):
    """How to read a table of points."""

    lat: ColumnName | None = Field(None, description="name of the column of latitudes")
    lon: ColumnName | None = Field(None, description="name of the column of longitudes")
    geometry: ColumnName | None = Field(
        None, description="name of a column of points (WKB or GeoArrow)"
    )
    id: ColumnName | None = Field(None, description="name of the id column")
    on_invalid: OnInvalid = Field(
        "error", description="error: refuse invalid coordinates; null: keep them with a status"
    )
    coordinates: Trust = Field(
        "check",
        description="check: refuse a table whose coordinates prove to be metres, radians or "
        "swapped; trust: they are degrees, whatever they look like",
    )

    def reading(self) -> Reading:
        """The same as the readers of files want it."""
        return Reading(
            self.lat, self.lon, self.id, self.geometry, self.on_invalid, self.coordinates
        )


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

    def naming_all(self, observations: Dataset | None, references: Dataset | None) -> Self:
        """The same with the names of all columns where `*` stands for them.

        A set that is not there yet, of which only the number of rows is known, has no columns.
        """
        sets = {"observation_columns": observations, "columns": references}
        names = {
            option: list(one.columns) if one else []
            for option, one in sets.items()
            if getattr(self, option) == EVERY
        }
        return self.model_copy(update=names)

    def reading_of(self, role: Role) -> Reading:
        """How to read one of the two tables."""
        prefix = PREFIXES[role]
        own = {name: getattr(self, prefix + name) for name in ("lat", "lon", "geometry", "id")}
        return reading_for(self.reading(), own, prefix)

    def options(self) -> MatchOptions:
        """The options as the workers want them; `naming_all` goes before."""
        return MatchOptions(
            k=self.k,
            max_distance_m=self.max_distance_m,
            exclude_self=self.exclude_self,
            algorithm=self.algorithm,
            how=self.how,
            columns=tuple(self.columns),
            observation_columns=tuple(self.observation_columns),
        )


_POINTS = (
    'a registered dataset as {"dataset": "<id>"} or "dataset:<id>", arrays by column name '
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

    def parameters(self) -> MatchParameters:
        """The same without the sets."""
        return MatchParameters(**self.model_dump(exclude=set(PointSets.model_fields)))


class NearestQuery(MatchParameters):
    """What stands in the query beside a stream of observations."""

    references: str = Field(description="a registered dataset, as `dataset:<id>`")


class DatasetInfo(BaseModel):
    """A registered dataset."""

    id: str
    rows: int
    invalid_rows: int
    bbox: Annotated[list[float], Field(min_length=4, max_length=4)] | None = Field(
        description="west, south, east and north of its valid points, in degrees"
    )
    columns: list[str]
    lat: str
    lon: str
    id_column: str | None
    sha256: str
    size_bytes: int = Field(description="of its file, as the service keeps it")
    created: str
    expires: str | None = Field(description="when it is removed unless it is used again")

    @classmethod
    def of(cls, row: DatasetRow) -> "DatasetInfo":
        """What a client is told of a dataset."""
        dataset = row.dataset
        return cls(
            id=row.id,
            rows=dataset.rows,
            invalid_rows=dataset.invalid_rows,
            bbox=list(dataset.bbox) if dataset.bbox else None,
            columns=list(dataset.columns),
            lat=dataset.lat,
            lon=dataset.lon,
            id_column=dataset.id,
            sha256=dataset.sha256,
            size_bytes=row.size_bytes,
            created=row.created,
            expires=row.expires,
        )


class DatasetList(BaseModel):
    """Registered datasets, the newest first."""

    datasets: list[DatasetInfo]
    used_bytes: int = Field(
        description="bytes that the datasets and results of the key take, and unfinished jobs are "
        "expected to"
    )
    quota_bytes: int | None = Field(description="how many they may; null without keys")
    links: list[Link]


class StatusInfo(BaseModel):
    """A job, with the names of OGC API - Processes 1.0 and of its successor."""

    jobID: str
    id: str
    processID: ProcessId
    type: Literal["process"] = "process"
    status: JobStatus
    message: str
    created: str
    started: str | None = None
    finished: str | None = None
    updated: str
    expires: str | None = Field(None, description="until when its result is kept")
    progress: int = Field(ge=0, le=100)
    rows: int = Field(description="observations of the job")
    rows_done: int = Field(description="of these, how many are resolved")
    rows_a_second: float | None = Field(None, description="how fast it goes")
    seconds_left: float | None = Field(None, description="what that makes for the rest")
    owner: str | None = Field(
        None, description="the name of the key that it was made with, told to the role admin"
    )
    links: list[Link]

    @classmethod
    def of(
        cls, row: JobState, base: str, waiting: str | None = None, owner: str | None = None
    ) -> "StatusInfo":
        """What a client is told of a job.

        Parameters
        ----------
        base
            Where the client finds the service.
        waiting
            Why no job gets on, if there is a reason.
        owner
            The name of its owner, if the client is told.
        """
        here = f"{base}/jobs/{row.id}"
        links = [Link(href=here, rel="self", title="this document")]
        if row.status in LIVE:
            links.append(Link(href=here, rel="monitor", title="how far it is"))
        if row.status == "successful":
            links += [
                Link(
                    href=f"{here}/results",
                    rel=f"{OGC_RELATION}results",
                    type=_media_type(row),
                    title="the result",
                ),
            ]
        if row.has_report:
            links.append(Link(href=f"{here}/report", rel="about", title="the report"))
        done = row.rows_done / row.rows if row.rows else float(row.has_succeeded)
        # A job is at 100 % when its result stands, not when its last row is resolved.
        progress = int(100 * done) if row.has_succeeded else min(99, int(100 * done))
        needs_workers = row.status in LIVE and row.process == "nearest"
        rate = row.rows_a_second if row.status == "running" else None
        return cls(
            jobID=row.id,
            id=row.id,
            processID=row.process,
            status=row.status,
            message=waiting if waiting and needs_workers else row.message,
            created=row.created,
            started=row.started,
            finished=row.finished,
            updated=row.updated,
            expires=row.expires,
            progress=progress,
            rows=row.rows,
            rows_done=row.rows_done,
            rows_a_second=rate,
            seconds_left=(row.rows - row.rows_done) / rate if rate else None,
            owner=owner,
            links=links,
        )


def _media_type(row: JobState) -> str:
    if row.process == "echo" or row.delivery.response == "document":
        return "application/json"
    return (row.delivery.media_type or "application/vnd.apache.parquet").partition(";")[0]


class JobList(BaseModel):
    """Jobs, the newest first."""

    jobs: list[StatusInfo]
    links: list[Link]


class Verification(BaseModel):
    """What of an answer was searched a second time."""

    observations: int = Field(
        description="how many, by another algorithm; the answers were the same to the last bit: a "
        "worker whose answers differ is replaced, and its rows are resolved again"
    )


class Account(BaseModel):
    """What a finished job did, as far as it is known when it ends."""

    counts: dict[str, int] = Field(description="result rows by status, unmatched ones included")
    seconds: dict[str, float] = Field(
        description="time by stage; read, index, resolve and write are summed over chunks"
    )
    rows: int = Field(description="rows of the result")
    size_bytes: int
    observations_sha256: str
    references_sha256: str
    verification: Verification = Verification(observations=0)
    device: str
    chunks_by_worker: dict[str, int]
    versions: dict[str, str]
    remarks: list[str] = Field(
        default=[], description="what looks wrong with the sets, which were resolved all the same"
    )


class Report(Account):
    """What a finished job did."""

    measure: str = Field(
        default="great-circle metres on a sphere of radius 6371008.8 m, exact in float64",
        description="what `distance_m` is, and what nearest means",
    )
    options: MatchOptions = Field(description="the match options of the job")
    sha256: str | None = Field(
        description="of the result file; null when that went before it had been counted"
    )


class Check(BaseModel):
    """One thing that must be right for the service to be ready."""

    name: str
    ok: bool
    detail: str


class Health(BaseModel):
    """Whether the service is ready.

    `full` is ready, too: it stores nothing more, but what makes room is done.
    """

    status: Literal["ok", "full", "unavailable"]
    checks: list[Check] = Field(description="one a line; none without a key where one is needed")
