"""A client of a georesolve service, over HTTP alone."""

from georesolve.client.client import AsyncClient, Client, Dataset
from georesolve.client.errors import (
    DamagedTransfer,
    ServiceError,
    ServiceRefused,
    ServiceUnreachable,
)
from georesolve.client.jobs import AsyncJob, Job

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "DamagedTransfer",
    "Dataset",
    "Job",
    "ServiceError",
    "ServiceRefused",
    "ServiceUnreachable",
]
