"""What a cluster can be told: see `ClusterSettings`."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DeviceChoice = Literal["auto", "cpu", "cuda"]


class ClusterSettings(BaseModel):
    """How to open a cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: DeviceChoice = "auto"
    scheduler: str | None = None
    dashboard_address: str = "127.0.0.1:8787"
    workers: int | None = Field(default=None, ge=1)
    scratch: Path | None = None
