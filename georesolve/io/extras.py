"""Libraries that are not part of every installation, asked for when they are needed."""

from importlib import import_module
from types import ModuleType


class MissingExtra(ImportError):
    """A library is not installed; the message says how to install it."""


def needed(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a library that an extra of georesolve installs; raises MissingExtra without it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtra(
            f"{purpose} needs {module}, which is not installed: pip install 'georesolve[{extra}]'",
            name=module,
        ) from None
