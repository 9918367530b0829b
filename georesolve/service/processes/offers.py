"""The processes on offer, described as OGC API - Processes 1.0 has it.

What they take is written down once, in the models of their inputs; the descriptions follow.
"""

from typing import Any

from pydantic import BaseModel, Field

from georesolve import __version__
from georesolve.intake.representations import FORMATS, JSON, POINTS, Format
from georesolve.service.description.schemas import schema_of, without_null
from georesolve.service.errors import NoSuchProcess
from georesolve.service.links import OGC_RELATION, Link
from georesolve.service.resolve.models import NearestInputs
from georesolve.service.store.rows import ProcessId


class ProcessSummary(BaseModel):
    """A process in a list."""

    id: ProcessId
    title: str
    description: str
    version: str = __version__
    jobControlOptions: list[str]
    outputTransmission: list[str]
    links: list[Link] = []


class OutputDescription(BaseModel):
    """What a process gives under one name."""

    title: str
    description: str
    schema_: dict[str, Any] = Field(serialization_alias="schema")


class InputDescription(OutputDescription):
    """What a process takes under one name."""

    minOccurs: int = Field(ge=0)
    maxOccurs: int = 1


class Process(ProcessSummary):
    """A process with all that it takes and gives."""

    inputs: dict[str, InputDescription]
    outputs: dict[str, OutputDescription]


_CONTROL = ["sync-execute", "async-execute", "dismiss"]


def _inputs(model: type[BaseModel]) -> dict[str, InputDescription]:
    schema = schema_of(model)
    required = schema.get("required", [])
    return {
        name: InputDescription(
            title=name,
            description=field["description"],
            minOccurs=int(name in required),
            schema_=without_null(field),
        )
        for name, field in schema["properties"].items()
    }


def _schema_of(format: Format) -> dict[str, Any]:
    """What the matches are in a format, as OGC API - Processes 1.0 describes an output."""
    about: dict[str, Any] = {"contentMediaType": format.media_type}
    if format is JSON:
        return {"type": "array", "items": {"type": "object"}, **about}
    if format is POINTS:
        return {"type": "object", **about}
    return {"type": "string", **about} | ({} if format.is_text else {"contentEncoding": "binary"})


PROCESSES: dict[str, Process] = {
    "nearest": Process(
        id="nearest",
        title="The nearest reference of every observation",
        description="For every observation the exactly nearest reference point on the globe, and "
        "how many metres away it is.",
        jobControlOptions=_CONTROL,
        outputTransmission=["value", "reference"],
        inputs=_inputs(NearestInputs),
        outputs={
            "matches": OutputDescription(
                title="matches",
                description="a row an observation and neighbour: row of the observation, row of "
                "the reference, metres between them, status",
                schema_={"oneOf": [_schema_of(one) for one in FORMATS]},
            )
        },
    ),
}


def process(id: str, base: str) -> Process:
    """The description of a process, with its links."""
    if id not in PROCESSES:
        raise NoSuchProcess(
            f"there is no process {id[:80]!r}: there are {', '.join(map(repr, PROCESSES))}"
        )
    here = f"{base}/processes/{id}"
    links = [
        Link(href=here, rel="self", title="this document"),
        Link(href=f"{here}/execution", rel=f"{OGC_RELATION}execute", title="run it"),
        Link(href=f"{base}/jobs?processID={id}", rel=f"{OGC_RELATION}job-list", title="its jobs"),
    ]
    return PROCESSES[id].model_copy(update={"links": links})
