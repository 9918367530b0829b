"""Datasets and jobs as the database has them, and as the rest of the service does."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from pydantic import TypeAdapter

from georesolve.io.datasets import Dataset, Facts
from georesolve.io.source_files import SourceFiles
from georesolve.io.storage import Object
from georesolve.query import MatchOptions, Question
from georesolve.service.clock import now

JobStatus = Literal["accepted", "running", "successful", "failed", "dismissed"]
ProcessId = Question
LIVE: tuple[JobStatus, ...] = ("accepted", "running")
_FACTS, _FILES = TypeAdapter(Facts), TypeAdapter(SourceFiles)


class Kept(NamedTuple):
    """What is kept and has expired, whatever it is: see `schema.kept`."""

    id: str
    kind: Literal["dataset", "input", "result"]
    state: Literal["incoming", "whole", "going"]
    expires: str
    sha256: str | None


@dataclass(frozen=True)
class DatasetRow:
    """A set: a registered dataset, an input, which goes with its job, or one just made.

    That has no id, and its files go with the request unless it is kept. `seconds` are by stage.
    """

    dataset: Dataset
    seconds: dict[str, float]
    # Of one just made that of its file, empty where there is none.
    name: str = ""
    id: str = ""
    kind: Literal["dataset", "input"] = "input"
    owner: str = ""
    created: str = ""
    expires: str | None = None
    size_bytes: int = 0


@dataclass(frozen=True)
class Delivery:
    """How the result of a job is given, in the words of OGC API - Processes 1.0."""

    # The output as it is, or JSON with the output in it.
    response: Literal["raw", "document"] = "raw"
    # The output itself, or where it is.
    transmission: Literal["value", "reference"] = "value"
    # None for what the header Accept of who fetches it likes best.
    media_type: str | None = None
    # Whether the inputs are kept as long as the result, which has no coordinates of its own.
    keeps_sets: bool = False
    # The address that its parts are written to, with a slash at its end; None for the store.
    output: str | None = None


@dataclass(frozen=True)
class JobState:
    """How far a job is, as lists show it; `deaths` are those of runners since it last got on."""

    id: str
    owner: str
    name: str
    process: ProcessId
    status: JobStatus
    created: str
    started: str | None
    finished: str | None
    updated: str
    expires: str | None
    delivery: Delivery
    rows: int
    rows_done: int
    rows_a_second: float | None
    message: str
    deaths: int
    succeeded: bool
    """Whether the job came to its result, which may have been removed since."""


@dataclass(frozen=True)
class JobRow(JobState):
    """A job with all that the store knows of it; a runner has one that is `held`, or died so."""

    observations: str
    references: str
    options: MatchOptions
    problem: dict[str, Any] | None
    report: dict[str, Any] | None
    request: str = ""
    held: bool = False

    @property
    def has_expired(self) -> bool:
        """Whether its result is not given any more."""
        return self.expires is not None and self.expires <= now()


JOB, JOB_STATE = TypeAdapter(JobRow), TypeAdapter(JobState)
"""Make a job of a row of its table."""


def stored_dataset(dataset: Dataset) -> dict[str, Any]:
    """A dataset as JSON; where its file lies follows from its id, unless it stays elsewhere."""
    stored = {name: value for name, value in asdict(dataset).items() if name != "file"}
    stored["sha256"] = stored.pop("digest")
    if isinstance(dataset.file, SourceFiles):
        stored["manifest"] = asdict(dataset.file)
    return stored


def dataset_row(row: sa.RowMapping, file: Path | Object) -> DatasetRow:
    """A set as `schema.kept` has it, with its file."""
    stored = dict(row["dataset"])
    manifest = stored.pop("manifest", None)
    dataset = Dataset(
        file=file if manifest is None else _FILES.validate_python(manifest),
        digest=stored.pop("sha256"),
        **vars(_FACTS.validate_python(stored)),
    )
    own = {field.name: row[field.name] for field in fields(DatasetRow)}
    return DatasetRow(**{**own, "dataset": dataset})


class Repeat(NamedTuple):
    """The Idempotency-Key that a client chose, and what tells other content from the same."""

    key: str
    fingerprint: str
