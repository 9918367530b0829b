"""`/processes`: what can be run, what it takes and gives, and how it is run."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from service.context import ServiceContext
from service.execution import answer, echo, refuse_unready, terms_of
from service.inputs import inputs_of_json, json_body
from service.links import EXAMPLE_BASE, Link, base_of
from service.models import StatusInfo
from service.processes import (
    NEAREST_EXAMPLE,
    PROCESSES,
    EchoExecution,
    NearestExecution,
    Process,
    ProcessSummary,
    process,
)
from service.representations import FORMATS
from service.schemas import json_answer, json_request

router = APIRouter(tags=["processes"])


class ProcessList(BaseModel):
    """The processes on offer."""

    processes: list[ProcessSummary]
    links: list[Link]


def _process_list(base: str, limit: int = 100) -> ProcessList:
    return ProcessList(
        processes=[process(id, base) for id in list(PROCESSES)[:limit]],
        links=[Link(href=f"{base}/processes", rel="self", title="this document")],
    )


@router.get(
    "/processes", operation_id="getProcesses", responses=json_answer(_process_list(EXAMPLE_BASE))
)
def list_processes(
    request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> ProcessList:
    """The processes on offer."""
    return _process_list(base_of(request), limit)


@router.get(
    "/processes/{id}",
    operation_id="getProcessDescription",
    responses=json_answer(process("echo", EXAMPLE_BASE)),
)
def show_process(id: str, request: Request) -> Process:
    """What a process takes and gives."""
    return process(id, base_of(request))


_TAKEN: dict[int | str, dict[str, Any]] = {
    201: {
        "description": "accepted, with `Prefer: respond-async`, or when `wait=N` seconds are over",
        "model": StatusInfo,
    }
}
_MATCHES: dict[int | str, dict[str, Any]] = {
    **_TAKEN,
    200: {
        "description": "the matches; as JSON with `response: document`",
        "content": {one.media_type: {} for one in FORMATS},
    },
    204: {"description": "where the matches are, as a link: raw by reference"},
}
_MESSAGE: dict[int | str, dict[str, Any]] = {
    **_TAKEN,
    200: {"description": "the message", "content": {"application/json": {}}},
}


@router.post(
    "/processes/nearest/execution",
    operation_id="executeNearest",
    response_class=Response,
    responses=_MATCHES,
    openapi_extra=json_request(NearestExecution, NEAREST_EXAMPLE),
)
async def execute_nearest(request: Request, service: ServiceContext) -> Response:
    """Find the nearest reference of every observation, as `/resolve` does."""
    with terms_of(request, service) as terms, service.ingest.folder() as folder:
        refuse_unready(service, terms.preference)
        execution = await json_body(request, NearestExecution)
        terms = replace(terms, delivery=execution.delivery())
        inputs = await inputs_of_json(
            execution.inputs, service, execution.inputs, folder, "/inputs"
        )
        return await answer(request, service, inputs, execution.inputs, terms)


@router.post(
    "/processes/echo/execution",
    operation_id="executeEcho",
    response_class=Response,
    responses=_MESSAGE,
    openapi_extra=json_request(EchoExecution, {"inputs": {"message": "hello"}}),
)
async def execute_echo(request: Request, service: ServiceContext) -> Response:
    """Give back what was sent."""
    with terms_of(request, service) as terms:
        execution = await json_body(request, EchoExecution)
        terms = replace(terms, delivery=execution.delivery())
        return await echo(request, service, execution.inputs.options(), terms)


@router.post("/processes/{id}/execution", include_in_schema=False)
def execute_unknown(id: str, request: Request) -> None:
    """Say which processes there are."""
    process(id, base_of(request))
