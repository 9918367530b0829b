"""What clients are told of jobs: how far they are, and in the end what they did."""

from typing import Literal

from pydantic import BaseModel, Field

from georesolve.query import MatchOptions
from georesolve.service.links import OGC_RELATION, Link
from georesolve.service.store.rows import LIVE, JobState, JobStatus, ProcessId


class StatusInfo(BaseModel):
    """A job, with the names of OGC API - Processes 1.0 and of its successor."""

    jobID: str
    id: str
    name: str = Field(description="what it was made of, or what its client calls it")
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
        """What a client is told who finds the service at `base`; `waiting` is why all jobs wait."""
        here = f"{base}/jobs/{row.id}"
        links = [Link(href=here, rel="self", title="this document")]
        if row.status in LIVE:
            links.append(Link(href=here, rel="monitor", title="how far it is"))
        if row.status == "successful":
            kind = (row.delivery.media_type or "application/vnd.apache.parquet").partition(";")[0]
            kind = "application/json" if row.delivery.response == "document" else kind
            rel = f"{OGC_RELATION}results"
            links.append(Link(href=f"{here}/results", rel=rel, type=kind, title="the result"))
            links.append(Link(href=f"{here}/report", rel="about", title="the report"))
        done = row.rows_done / row.rows if row.rows else float(row.succeeded)
        # A job is at 100 % when its result stands, not when its last row is resolved.
        progress = int(100 * done) if row.succeeded else min(99, int(100 * done))
        rate = row.rows_a_second if row.status == "running" else None
        told = {
            "jobID": row.id,
            "processID": row.process,
            "message": waiting if waiting and row.status in LIVE else row.message,
            "progress": progress,
            "rows_a_second": rate,
            "seconds_left": (row.rows - row.rows_done) / rate if rate else None,
            "owner": owner,
            "links": links,
        }
        return cls.model_validate(vars(row) | told)


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


MEASURES = {
    "sphere": "great-circle metres on a sphere of radius 6371008.8 m, exact in float64",
    "wgs84": "metres of geodesics on the ellipsoid of WGS 84 in float64, within 1 um",
}
"""What distances are, on each earth."""


class Report(BaseModel):
    """What a finished job did."""

    counts: dict[str, int] = Field(description="result rows by status, unmatched ones included")
    seconds: dict[str, float] = Field(
        description="time by stage; read, index, resolve and write are summed over chunks, and so "
        "is compile, the making of code that was new to the machine"
    )
    rows: int = Field(description="rows of the result")
    size_bytes: int = Field(description="of the result as Parquet")
    digest: str = Field(
        description="of the result as Parquet, and its ETag: the SHA-256 of the SHA-256s of its "
        "row groups and of what stands behind them, which /jobs/ID/results/parts lists"
    )
    observations_sha256: str
    references_sha256: str
    observations_bbox: tuple[float, float, float, float] | None = Field(
        None, description="west, south, east and north in degrees of their valid rows, if any"
    )
    references_bbox: tuple[float, float, float, float] | None = Field(
        None, description="the same of the references; not known of those by address"
    )
    verification: Verification = Verification(observations=0)
    device: str
    search: str = Field("", description="which search a chunk took, and why")
    geometry: str | None = Field(
        None, description="the column of lines and polygons, where one of the sets has any"
    )
    chunks_by_worker: dict[str, int]
    versions: dict[str, str]
    remarks: list[str] = Field(
        default=[], description="what looks wrong with the sets, which were resolved all the same"
    )
    measure: str = Field(
        default=MEASURES["sphere"], description="what `distance_m` is, and what nearest means"
    )
    time_unit: str | None = Field(
        None, description="of `time_apart`, which text has as a number: s, ms, us or ns, if any"
    )
    options: MatchOptions = Field(description="the match options of the job")
