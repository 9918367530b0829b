"""What a cluster can be told: see `ClusterSettings`."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from workers.logs import LogFormat

DeviceChoice = Literal["auto", "cpu", "cuda"]


class ClusterSettings(BaseModel):
    """How to open a cluster.

    Attributes
    ----------
    device
        What to compute on; ``auto`` takes GPUs when there are any.
    scheduler
        Address of an existing scheduler to connect to; None opens a cluster of one's own.
    connect_seconds
        How long to wait for an existing scheduler and its first worker. A process that is told to
        end meanwhile waits as long.
    dashboard_address
        Where the dashboard of one's own cluster listens.
    workers
        Processes of one's own cluster; None for one a GPU or core.
    references_a_piece
        References that a worker indexes and searches at a time; None for as many as 0.4 of its
        memory holds. A larger set is searched in pieces, and the answer is the same.
    scratch
        Folder for what workers spill.
    log_format
        How the workers of one's own cluster log; None leaves it to Dask.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: DeviceChoice = "auto"
    scheduler: str | None = None
    connect_seconds: float = Field(default=10.0, gt=0)
    dashboard_address: str = "127.0.0.1:8787"
    workers: int | None = Field(default=None, ge=1)
    references_a_piece: int | None = Field(default=None, ge=1)
    scratch: Path | None = None
    log_format: LogFormat | None = None
