"""Small requests, answered at once by a worker: no job is made of them, and nothing is kept."""

import asyncio
import hashlib
import time

from fastapi import Response

from georesolve.intake.representations import Format
from georesolve.service.clock import new_id
from georesolve.service.context import Service
from georesolve.service.database.rows import DatasetRow
from georesolve.service.datasets.ingest import Ingested
from georesolve.service.errors import NotReady, Problem
from georesolve.service.jobs.exports import CONVERTED_BYTES
from georesolve.service.jobs.room import carried_bytes
from georesolve.service.web.bounds import off_the_loop
from georesolve.service.web.inputs import ROLES, Asked
from georesolve.workers.express import NotAtOnce
from georesolve.workers.jobs import Job
from georesolve.workers.plan import QUICKLY_INDEXED, most_at_once


def refuse_without_cluster(service: Service, advice: str = "try again") -> None:
    """Refuse what asks the cluster, while there is none that answers; raises NotReady."""
    if (trouble := service.supervisor.trouble) is not None:
        raise NotReady(f"{trouble}: {advice}", headers={"Retry-After": "2"})


def why_too_large(service: Service, asked: Asked) -> str | None:
    """Why a request is not small, with both numbers; None where it is.

    Raises
    ------
    NotReady
        When there is no cluster to ask.
    """
    refuse_without_cluster(service)
    cluster = service.supervisor.cluster
    assert cluster is not None, "without one there is trouble"
    observations, references = (one.dataset for one in asked.inputs)
    options = asked.parameters.options()
    if isinstance(asked.inputs.references, Ingested) and references.rows > QUICKLY_INDEXED:
        # No worker holds what has just come.
        return (
            f"{references.rows} references came with the request, and {QUICKLY_INDEXED} may: "
            "register them as a dataset"
        )
    most = most_at_once(references.rows, options, cluster.device)
    if observations.rows > most:
        return (
            f"{observations.rows} observations are more than the limit of {most} for an answer "
            f"without a job (k is {options.k}, the algorithm {options.algorithm!r})"
        )
    # Where few references are wider than the others, a worker finds out that it is too much.
    carried = carried_bytes(observations, references, options)
    if carried > CONVERTED_BYTES:
        return (
            f"the columns that the result would carry take {carried} bytes, and "
            f"{CONVERTED_BYTES} may be carried without a job"
        )
    return None


async def lookup_response(service: Service, asked: Asked, format: Format) -> Response:
    """The result of a small request in a format.

    Raises
    ------
    NotAtOnce, NotResident
        When only a job can give it, or the references are being loaded first.
    NotReady
        When no worker answers.
    QueueFull, TooManyJobs
        When too many small requests wait: of all owners, or of this one.
    NotAcceptable, ResultTooLarge
        When the format cannot have it.
    """
    start = time.perf_counter()
    lane = service.supervisor.express
    assert lane is not None, "the lane is there as long as the cluster"
    inputs, id = asked.inputs, new_id()
    job = Job(
        id,
        service.store.job_folder(id),
        inputs.observations.dataset,
        inputs.references.dataset,
        asked.parameters.options(),
    )
    try:
        answer = await lane.resolve(job, service.owner)
    except (NotAtOnce, Problem):
        raise
    except Exception:
        # A dataset may be damaged, or removed meanwhile.
        for one in inputs:
            if isinstance(one, DatasetRow):
                await asyncio.to_thread(service.library.whole, one.id, every_byte=True)
        raise
    service.metrics.count_rows("express", job.observations.rows, answer.counts)
    content = await service.exports.converted(
        answer.content, format, lambda role: getattr(inputs, role).dataset
    )
    digest = await off_the_loop(hashlib.sha256, content)
    seconds = {"lane": time.perf_counter() - start, **answer.seconds}
    for role, one in zip(ROLES, inputs, strict=True):
        if isinstance(one, Ingested):
            seconds |= {f"{stage}_{role}": value for stage, value in one.seconds.items()}
    timing = ", ".join(f"{stage};dur={1e3 * value:.2f}" for stage, value in seconds.items())
    return Response(
        content,
        media_type=format.media_type,
        headers={
            "ETag": f'"{digest.hexdigest()}"',
            "Content-Disposition": f'attachment; filename="{format.name}"',
            "Vary": "Accept",
            "Server-Timing": timing,
        },
    )
