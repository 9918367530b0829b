"""`/processes`: what can be run, what it takes and gives, and how it is run.

What a process takes is written down once, in the model of its inputs; its description follows.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from georesolve.io.result_formats import FORMATS, JSON, POINTS, Format
from georesolve.options import WithinOptions
from georesolve.query import QUESTION_OF
from georesolve.service import errors
from georesolve.service.http import examples, openapi
from georesolve.service.links import OGC_RELATION, Link, base_of
from georesolve.service.receiving.ingest import Folder
from georesolve.service.resolve.models import MatchExecution, MatchInputs
from georesolve.service.resolve.requests import TermsOfRequest, json_content, parsed
from georesolve.service.resolve.router import TAKEN, ServiceContext, answer
from georesolve.service.resolve.sets import Asked, asked_by
from georesolve.service.results.models import IN_DOCUMENT, matches_route
from georesolve.service.store.rows import ProcessId
from georesolve.version import __version__

router = APIRouter(tags=["processes"])

# This one `/docs` fills in. Other ids are each user's own, and it would send those of an example.
ProcessName = Annotated[
    str,
    Path(description="the id of the process", openapi_examples={"nearest": {"value": "nearest"}}),
]


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


class ProcessList(BaseModel):
    """The processes on offer."""

    processes: list[ProcessSummary]
    links: list[Link]


def _inputs(question: ProcessId) -> dict[str, InputDescription]:
    schema = openapi.schema_of(MatchInputs)
    required = [*schema["required"], *(["distance_m"] if question == "within" else [])]
    return {
        name: InputDescription(
            title=name,
            description=field["description"],
            minOccurs=int(name in required),
            schema_=openapi.without_null(field)
            | ({"default": WithinOptions.how} if (question, name) == ("within", "how") else {}),
        )
        for name, field in schema["properties"].items()
        if name != "question" and QUESTION_OF.get(name, question) == question
    }


def _schema_of(format: Format) -> dict[str, Any]:
    """What the matches are in a format, as OGC API - Processes 1.0 describes an output."""
    about: dict[str, Any] = {"contentMediaType": format.media_type}
    if format is JSON:
        return {"type": "array", "items": {"type": "object"}, **about}
    if format is POINTS:
        return {"type": "object", **about}
    return {"type": "string", **about} | ({} if format.is_text else {"contentEncoding": "binary"})


_TITLES: dict[ProcessId, str] = {
    "nearest": "The nearest reference of every observation",
    "within": "All references within a distance of every observation",
}
_PROCESSES = [
    Process(
        id=id,
        title=title,
        description=f"{title}, exactly, on the globe, and how many metres away it is.",
        jobControlOptions=["sync-execute", "async-execute", "dismiss"],
        outputTransmission=["value", "reference"],
        inputs=_inputs(id),
        outputs={
            "matches": OutputDescription(
                title="matches",
                description="a row an observation and reference: row of the observation, row of "
                "the reference, metres between them, status; or a row of a summary",
                schema_={"oneOf": [_schema_of(one) for one in FORMATS]},
            )
        },
    )
    for id, title in _TITLES.items()
]


def _process(id: str, base: str) -> Process:
    """The description of a process, with its links."""
    found = next((one for one in _PROCESSES if one.id == id), None)
    if found is None:
        names = " and ".join(map(repr, _TITLES))
        raise errors.NoSuchProcess(f"there is no process {id[:80]!r}: there are {names}")
    here = f"{base}/processes/{id}"
    links = [
        Link(href=here, rel="self", title="this document"),
        Link(href=f"{here}/execution", rel=f"{OGC_RELATION}execute", title="run it"),
        Link(href=f"{base}/jobs?processID={id}", rel=f"{OGC_RELATION}job-list", title="its jobs"),
    ]
    return found.model_copy(update={"links": links})


@router.get("/processes", summary="All processes")
async def get_processes(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000, description="processes on a page")] = 100,
) -> ProcessList:
    """The processes on offer."""
    base = base_of(request)
    return ProcessList(
        processes=[_process(id, base) for id in [*_TITLES][:limit]],
        links=[Link(href=f"{base}/processes", rel="self", title="this document")],
    )


@router.get("/processes/{id}", summary="What a process takes and gives")
async def get_process_description(id: ProcessName, request: Request) -> Process:
    """The description of a process, with the schemas of its inputs and outputs."""
    return _process(id, base_of(request))


_OTHERS = TAKEN | {204: {"description": "where the matches are, as a link: raw by reference"}}


@router.post(
    "/processes/{id}/execution",
    summary="Run a process",
    openapi_extra=openapi.json_request((MatchExecution, examples.EXECUTION)),
    **matches_route("the matches; as JSON with `response: document`", _OTHERS, IN_DOCUMENT),
)
async def execute(
    id: ProcessName, request: Request, service: ServiceContext, terms: TermsOfRequest
) -> Response:
    """Match every observation, as `/resolve` does."""
    question = _process(id, base_of(request)).id

    async def ask(folder: Folder) -> Asked:
        async with json_content(request, service) as content:
            execution = await parsed(service, content, MatchExecution)
            execution.inputs.ask(question)
            told = execution.delivery(), execution.name
            return await asked_by(execution.inputs, service, folder, *told)

    return await answer(request, service, terms, ask)
