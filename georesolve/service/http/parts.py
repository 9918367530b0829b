"""What the handlers of one application share: its lifespan opens it, and rooms take their parts.

A dependency is async: FastAPI calls any other one in a thread.
"""

from typing import Any

from fastapi import Depends, Request


def part(name: str) -> Any:
    """A dependency that gives the part of the application with this name in `app.state`."""

    async def found(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(found)
