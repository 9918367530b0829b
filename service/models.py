"""What the service takes and gives, as pydantic models."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.columns import ColumnNames
from service.ingest import OnInvalid
from service.store import DatasetRow, JobRow, JobStatus
from workers.jobs import How, MatchOptions


class _Parameters(BaseModel):
    # An option that does not exist must not pass as if it had worked.
    model_config = ConfigDict(extra="forbid")


class TableParameters(_Parameters):
    """How to read a table of points."""

    lat: str | None = Field(None, description="name of the latitude column")
    lon: str | None = Field(None, description="name of the longitude column")
    geometry: str | None = Field(None, description="name of a column of points (WKB or GeoArrow)")
    id: str | None = Field(None, description="name of the id column")
    on_invalid: OnInvalid = Field(
        "error", description="error: refuse invalid coordinates; null: keep them with a status"
    )

    def names(self) -> ColumnNames:
        """The column names given."""
        return ColumnNames(self.lat, self.lon, self.id, self.geometry)


class MatchParameters(TableParameters):
    """How to match, and how to read both tables."""

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
    columns: list[str] = Field([], description="reference columns to carry into the result")
    observation_columns: list[str] = Field([], description="likewise of the observations")

    def options(self) -> MatchOptions:
        """The options as the workers want them."""
        return MatchOptions(
            k=self.k,
            max_distance_m=self.max_distance_m,
            exclude_self=self.exclude_self,
            algorithm=self.algorithm,
            how=self.how,
            columns=tuple(self.columns),
            observation_columns=tuple(self.observation_columns),
        )


class InlineRequest(_Parameters):
    """Two point sets as JSON: each `dataset:<id>` or arrays by column name."""

    observations: dict[str, list[Any]] | str
    references: dict[str, list[Any]] | str


class Link(BaseModel):
    """A link as OGC API has it."""

    href: str
    rel: str
    type: str = "application/json"
    title: str


class DatasetInfo(BaseModel):
    """A registered dataset."""

    id: str
    rows: int
    invalid_rows: int
    bbox: tuple[float, float, float, float] | None
    columns: list[str]
    lat: str
    lon: str
    id_column: str | None
    sha256: str
    created: str

    @classmethod
    def of(cls, row: DatasetRow) -> "DatasetInfo":
        """What a client is told of a dataset."""
        dataset = row.dataset
        return cls(
            id=row.id,
            rows=dataset.rows,
            invalid_rows=dataset.invalid_rows,
            bbox=dataset.bbox,
            columns=list(dataset.columns),
            lat=dataset.lat,
            lon=dataset.lon,
            id_column=dataset.id,
            sha256=dataset.sha256,
            created=row.created,
        )


class DatasetList(BaseModel):
    """Registered datasets, the newest first."""

    datasets: list[DatasetInfo]


class StatusInfo(BaseModel):
    """A job, with the names of OGC API - Processes 1.0 and of its successor."""

    jobID: str
    id: str
    processID: str = "nearest"
    type: Literal["process"] = "process"
    status: JobStatus
    message: str
    created: str
    started: str | None
    finished: str | None
    updated: str
    progress: int = Field(ge=0, le=100)
    links: list[Link]

    @classmethod
    def of(cls, row: JobRow) -> "StatusInfo":
        """What a client is told of a job."""
        links = [Link(href=f"/jobs/{row.id}", rel="self", title="this document")]
        if row.status == "successful":
            links += [
                Link(
                    href=f"/jobs/{row.id}/results",
                    rel="http://www.opengis.net/def/rel/ogc/1.0/results",
                    type="application/vnd.apache.parquet",
                    title="the result",
                ),
                Link(href=f"/jobs/{row.id}/report", rel="about", title="the report"),
            ]
        done = row.rows_done / row.rows if row.rows else float(row.status == "successful")
        # A job is at 100 % when its result stands, not when its last row is resolved.
        progress = int(100 * done) if row.status == "successful" else min(99, int(100 * done))
        return cls(
            jobID=row.id,
            id=row.id,
            status=row.status,
            message=row.message,
            created=row.created,
            started=row.started,
            finished=row.finished,
            updated=row.updated,
            progress=progress,
            links=links,
        )


class JobList(BaseModel):
    """Jobs, the newest first."""

    jobs: list[StatusInfo]
    links: list[Link]


class Report(BaseModel):
    """What a finished job did."""

    counts: dict[str, int] = Field(description="result rows by status, unmatched ones included")
    seconds: dict[str, float] = Field(
        description="time by stage; read, index, resolve and write are summed over workers"
    )
    rows: int = Field(description="rows of the result")
    size_bytes: int
    sha256: str = Field(description="of the result file")
    observations_sha256: str
    references_sha256: str
    device: str
    chunks_by_worker: dict[str, int]
    versions: dict[str, str]


class Check(BaseModel):
    """One thing that must be right for the service to be ready."""

    name: str
    ok: bool
    detail: str


class Health(BaseModel):
    """Whether the service is ready, a line a check."""

    status: Literal["ok", "unavailable"]
    checks: list[Check]
