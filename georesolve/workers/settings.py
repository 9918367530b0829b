"""What a cluster can be told: see `ClusterSettings`."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from georesolve.workers.gpus import DeviceChoice
from georesolve.workers.logs import LogFormat


class ClusterSettings(BaseModel):
    """How to open a cluster: one of one's own, unless an existing scheduler is named."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: DeviceChoice = "auto"
    """``auto`` takes GPUs when there are any."""
    scheduler: str | None = None
    """Address of an existing scheduler to connect to."""
    scheduler_file: Path | None = None
    """File that an existing scheduler has written its address to."""
    connect_seconds: float = Field(default=10.0, gt=0)
    """How long to wait for an existing scheduler and its first worker. A process that is told to
    end meanwhile waits as long."""
    dashboard_address: str = "127.0.0.1:8787"
    """Where the dashboard of one's own cluster listens."""
    workers: int | None = Field(default=None, ge=1)
    """Processes of one's own cluster; None for one a GPU or core."""
    references_a_piece: int | None = Field(default=None, ge=1)
    """References that a worker indexes and searches at a time; None for as many as 0.4 of its
    memory holds. A larger set is searched in pieces, and the answer is the same."""
    scratch: Path | None = None
    """Folder for what workers spill."""
    log_format: LogFormat | None = None
    """How the workers of one's own cluster log; None leaves it to Dask."""

    @property
    def is_existing(self) -> bool:
        """Whether the cluster is an existing one, which belongs to somebody else."""
        return self.scheduler is not None or self.scheduler_file is not None
