"""`/processes`: what can be run, what it takes and gives, and how it is run."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from service.context import ServiceContext
from service.execution import answer, echo, refuse_unready
from service.inputs import inputs_of_json, json_body
from service.links import Link, base_of
from service.models import StatusInfo
from service.preferences import preference_of
from service.processes import (
    NEAREST_EXAMPLE,
    PROCESSES,
    EchoExecution,
    NearestExecution,
    Process,
    ProcessSummary,
    process,
)
from service.results import PARQUET
from service.schemas import json_request

router = APIRouter(tags=["processes"])


class ProcessList(BaseModel):
    """The processes on offer."""

    processes: list[ProcessSummary]
    links: list[Link]


@router.get("/processes", operation_id="getProcesses")
def list_processes(
    request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> ProcessList:
    """The processes on offer."""
    base = base_of(request)
    return ProcessList(
        processes=[process(id, base) for id in list(PROCESSES)[:limit]],
        links=[Link(href=f"{base}/processes", rel="self", title="this document")],
    )


@router.get("/processes/{id}", operation_id="getProcessDescription")
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
        "content": {PARQUET: {}, "application/json": {}},
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
    preference = preference_of(request.headers)
    refuse_unready(service, preference)
    execution = await json_body(request, NearestExecution)
    parameters = execution.inputs
    with service.ingest.folder() as folder:
        inputs = await inputs_of_json(parameters, service, parameters, folder, "/inputs")
        return await answer(request, service, inputs, parameters, preference, execution.delivery())


@router.post(
    "/processes/echo/execution",
    operation_id="executeEcho",
    response_class=Response,
    responses=_MESSAGE,
    openapi_extra=json_request(EchoExecution, {"inputs": {"message": "hello"}}),
)
async def execute_echo(request: Request, service: ServiceContext) -> Response:
    """Give back what was sent."""
    execution = await json_body(request, EchoExecution)
    preference = preference_of(request.headers)
    return await echo(
        request, service, execution.inputs.options(), preference, execution.delivery()
    )


@router.post("/processes/{id}/execution", include_in_schema=False)
def execute_unknown(id: str, request: Request) -> None:
    """Say which processes there are."""
    process(id, base_of(request))
