"""`/estimate`: what a job would take, before anything is computed."""

import logging
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pyarrow import ArrowException
from pydantic import BaseModel, Field

from georesolve.engine.estimate import estimate, obstacle
from georesolve.engine.sampling import Sample, sampled
from georesolve.io.source_files import SourceFailed
from georesolve.io.validation import check_match, of_extents
from georesolve.query import MatchOptions
from georesolve.service import errors, pools
from georesolve.service.http import examples, openapi
from georesolve.service.resolve.context import Service
from georesolve.service.resolve.models import ROLES, EstimateInputs, MatchExecution, MatchInputs
from georesolve.service.resolve.outcome import refuse_without_cluster
from georesolve.service.resolve.requests import json_content, parsed
from georesolve.service.resolve.router import ServiceContext
from georesolve.service.resolve.sets import PlannedSet, bytes_of, check_types, planned, sizes_of

logger = logging.getLogger(__name__)
router = APIRouter(tags=["resolve"])


class _Either(BaseModel):
    """Enough of a body to see which of the two it is."""

    inputs: Any = None


class EstimateInfo(BaseModel):
    """What a job would take."""

    rows: int = Field(
        description="of the result, when every observation has its row; those of pairs by a sample"
    )
    rows_spread: int | None = Field(None, description="two standard errors of those of a sample")
    chunks: int = Field(description="pieces that the observations are cut into")
    bytes_in: int = Field(description="of both sets as the service keeps them")
    bytes_out: int = Field(description="of the result")
    device_memory: int = Field(
        description="bytes that one device needs at most, for all that it has in hand"
    )
    devices: int = Field(description="how many work on it")
    seconds: float = Field(description="from a free place to the result")
    seconds_warm: float = Field(
        description="the same where the workers have indexed the references before"
    )
    seconds_cold: float = Field(
        description="the same of the first job after the workers have started"
    )
    seconds_compiling: float = Field(
        description="of `seconds` and `seconds_cold` those for code that is new to the machine"
    )
    fits: bool = Field(description="whether memory, disk and the limits of the service allow it")
    obstacles: list[str] = Field(description="what does not fit, with both numbers")
    remarks: list[str] = Field([], description="what looks wrong with where the sets lie")


_EXAMPLE = {"observations": 1_000_000, "references": 20_000, "k": 3}


@router.post(
    "/estimate",
    operation_id="estimate",
    summary="What a job would take",
    openapi_extra=openapi.json_request(
        (EstimateInputs, _EXAMPLE), (MatchExecution, examples.EXECUTION)
    ),
)
async def estimate_job(request: Request, service: ServiceContext) -> EstimateInfo:
    """What a job would take: the inputs are those of an execution, or two numbers of rows."""
    refuse_without_cluster(service)
    async with json_content(request, service) as content, service.ingest.folder() as folder:
        inputs: EstimateInputs | MatchInputs
        if (await parsed(service, content, _Either)).inputs is None:
            inputs = await parsed(service, content, EstimateInputs)
        else:
            # The body of an execution can be sent as it is.
            inputs = (await parsed(service, content, MatchExecution)).inputs
        if inputs.distance_m is not None:
            inputs.ask("within")
        sets = [await planned(inputs, role, service, folder) for role in ROLES]
        datasets = [None if isinstance(one, int) else one.dataset for one in sets]
        options = inputs.options(*datasets)
        if datasets[0] and datasets[1]:
            check_match(datasets[0], datasets[1], options, inputs.on_invalid, inputs.pointer)
            await check_types(service, datasets[0], datasets[1], options)
        found = await _estimate(service, *options.in_order(*sets), options)
        if datasets[0] and datasets[1]:
            found.remarks = of_extents(datasets[0].bbox, datasets[1].bbox)
        return found


async def _sample(
    service: Service, observations: PlannedSet, references: PlannedSet, options: MatchOptions
) -> Sample:
    """What a sample says; nothing where a set is a number of rows, or cannot be looked at now."""
    if isinstance(observations, int) or isinstance(references, int):
        return Sample()
    datasets = observations.dataset, references.dataset
    sample = partial(sampled, *datasets, options)
    try:
        if any(one.lies_elsewhere for one in datasets):
            return await pools.remote(service.owner, sample)
        return await service.at_hand.answer(service.owner, sample)
    except (OSError, ArrowException, SourceFailed, errors.QueueFull, errors.TooManyJobs) as error:
        # A job will tell.
        logger.warning("an estimate knows no sample of its sets: %s", error)
        return Sample()


async def _estimate(
    service: Service, observations: PlannedSet, references: PlannedSet, options: MatchOptions
) -> EstimateInfo:
    sizes = await service.store.files(sizes_of, observations, references, options)
    capacity = service.cluster.state.capacity
    if capacity is None:
        raise errors.NotReady("no worker has told what it can take: try again")
    sample = await _sample(service, observations, references, options)
    if options.has_pairs and sample.rows is None:
        raise errors.InvalidRequest(
            "a sample of two sets tells of their pairs: give both sets, or ask for a summary"
        )
    datasets = [one.dataset for one in (observations, references) if not isinstance(one, int)]
    kind = options.kind(*datasets)
    found = estimate(capacity, *sizes, options, sample.compared, sample.rows, kind)
    on_disk, kept = (
        of_sets + found.bytes_out for of_sets in bytes_of(observations, references, sizes)
    )
    left = await pools.database(service.quotas.left, service.store)
    room = await pools.disk(service.disk.left) if service.disk.holds_all else on_disk
    rows, most = service.settings.dataset_rows, service.settings.result_bytes
    limits = [
        ("bytes of memory on a device", found.device_memory, capacity.available_memory),
        (
            "bytes of memory in a worker for one column of the references",
            sizes[1].widest_column,
            capacity.column_memory,
        ),
        ("bytes of a result", found.bytes_out if options.has_pairs else 0, most),
        ("bytes on the disk, without those that must stay free", on_disk, room),
        ("bytes of what this key may keep yet", kept, kept if left is None else left),
        *((f"rows of {role}", size.rows, rows) for role, size in zip(ROLES, sizes, strict=True)),
    ]
    obstacles = [
        f"{need} {what}, there are {max(has, 0)}" for what, need, has in limits if need > has
    ]
    if why := obstacle(*sizes, options):
        obstacles.append(why)
    told = {**found._asdict(), "rows_spread": sample.spread}
    return EstimateInfo(**told, fits=not obstacles, obstacles=obstacles)
