"""`/processes`: what can be run, what it takes and gives, and how it is run."""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from georesolve.service.description import examples
from georesolve.service.description.operations import (
    IN_DOCUMENT,
    TAKEN,
    Answers,
    ProcessName,
    headers,
    json_request,
    matches_answer,
)
from georesolve.service.links import Link, base_of
from georesolve.service.processes.offers import PROCESSES, Process, ProcessSummary, process
from georesolve.service.resolve.models import NearestExecution
from georesolve.service.resolve.requests import in_document, json_content, parsed
from georesolve.service.resolve.router import answer
from georesolve.service.resolve.service import ServiceContext
from georesolve.service.resolve.sets import Asked, asked_by
from georesolve.service.store.rows import Delivery

router = APIRouter(tags=["processes"])


class ProcessList(BaseModel):
    """The processes on offer."""

    processes: list[ProcessSummary]
    links: list[Link]


@router.get("/processes", summary="All processes")
async def get_processes(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000, description="processes on a page")] = 100,
) -> ProcessList:
    """The processes on offer."""
    base = base_of(request)
    return ProcessList(
        processes=[process(id, base) for id in list(PROCESSES)[:limit]],
        links=[Link(href=f"{base}/processes", rel="self", title="this document")],
    )


@router.get("/processes/{id}", summary="What a process takes and gives")
async def get_process_description(id: ProcessName, request: Request) -> Process:
    """The description of a process, with the schemas of its inputs and outputs."""
    return process(id, base_of(request))


_MATCHES: Answers = {
    **TAKEN,
    **matches_answer("the matches; as JSON with `response: document`", IN_DOCUMENT),
    204: {"description": "where the matches are, as a link: raw by reference"},
}


@router.post(
    "/processes/nearest/execution",
    response_class=Response,
    responses=_MATCHES,
    summary="Run `nearest`",
    openapi_extra=json_request((NearestExecution, examples.EXECUTION))
    | headers("Prefer", "Idempotency-Key"),
)
async def execute_nearest(request: Request, service: ServiceContext) -> Response:
    """Find the nearest reference of every observation, as `/resolve` does."""

    async def ask(folder: Path) -> tuple[Asked, Delivery]:
        async with json_content(request, service) as content:
            execution = await parsed(service, content, NearestExecution)
            output = execution.output.href if execution.output else None
            pointer = in_document("/inputs")
            asked = await asked_by(execution.inputs, pointer, service, folder, output)
            return asked, execution.delivery()

    return await answer(request, service, ask)


@router.post("/processes/{id}/execution", include_in_schema=False)
async def execute_unknown(id: str, request: Request) -> None:
    """Say which processes there are."""
    process(id, base_of(request))
