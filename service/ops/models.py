"""What is told of a service's health."""

from typing import Literal

from pydantic import BaseModel, Field


class Check(BaseModel):
    """One thing that must be right for the service to be ready."""

    name: str
    ok: bool
    detail: str


class Health(BaseModel):
    """Whether the service is ready.

    `full` is ready, too: it stores nothing more, but what makes room is done.
    """

    status: Literal["ok", "full", "unavailable"]
    checks: list[Check] = Field(description="one a line; none without a key where one is needed")
