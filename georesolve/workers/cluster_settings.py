"""What a cluster can be told: see `ClusterSettings`."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from georesolve.engine.gpus import DeviceChoice
from georesolve.workers.logs import LogFormat


def _is_scheduler(given: str) -> str:
    # It is connected to again and again, and what is no address never answers.
    if not re.fullmatch(r"((tcp|tls|ucxx?|wss?)://)?([^][:/\s]+|\[[^][/\s]+\]):\d+", given):
        raise ValueError(
            "a scheduler has an address of host and port, such as tcp://host:8786 or "
            "tls://host:8786: give one of these"
        )
    return given


class ClusterOptions(BaseModel):
    """What a user says of a cluster, an own one unless an existing scheduler is named."""

    device: DeviceChoice = Field(default="auto", description="auto, cpu or cuda")
    scheduler: Annotated[str, AfterValidator(_is_scheduler)] | None = Field(
        default=None, description="address of an existing Dask scheduler, e.g. tcp://host:8786"
    )
    scheduler_file: Path | None = Field(
        default=None, description="file that an existing Dask scheduler has written its address to"
    )
    dashboard_address: str = Field(
        default="127.0.0.1:8787", description="where the Dask dashboard of an own cluster listens"
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="worker processes of an own cluster; one a GPU or core by default",
    )
    references_a_piece: int | None = Field(
        default=None,
        ge=1,
        description="references that a worker indexes and searches at a time; by default as many "
        "as 0.4 of its memory holds",
    )


class ClusterSettings(ClusterOptions):
    """How to open a cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect_seconds: float = Field(default=10.0, gt=0)
    """How long to wait for an existing scheduler and its first worker. A process that is told to
    end meanwhile waits as long."""
    scratch: Path | None = None
    """Folder for what workers spill."""
    log_format: LogFormat | None = None
    """How the workers of one's own cluster log; None leaves it to Dask."""

    @property
    def is_existing(self) -> bool:
        """Whether the cluster is an existing one, which belongs to somebody else."""
        return self.scheduler is not None or self.scheduler_file is not None
