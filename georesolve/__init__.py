"""The exact nearest reference points of geospatial observations, and all within a distance.

What is public is loaded when it is first asked for: the processes of the service import this
package, too, and need none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from georesolve.client import (
        AsyncClient,
        Client,
        DamagedTransfer,
        ServiceError,
        ServiceRefused,
        ServiceUnreachable,
    )
    from georesolve.files import Plan, Summary, plan, resolve
    from georesolve.intake.errors import InvalidInput, InvalidOption, TooLarge, UnsupportedFormat
    from georesolve.joins import sjoin, sjoin_nearest
    from georesolve.options import Options, WithinOptions
    from georesolve.resolution import Index, nearest, within

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "DamagedTransfer",
    "Index",
    "InvalidInput",
    "InvalidOption",
    "Options",
    "Plan",
    "ServiceError",
    "ServiceRefused",
    "ServiceUnreachable",
    "Summary",
    "TooLarge",
    "UnsupportedFormat",
    "WithinOptions",
    "nearest",
    "plan",
    "resolve",
    "sjoin",
    "sjoin_nearest",
    "within",
]

_MODULES = {
    "intake.errors": ("InvalidInput", "InvalidOption", "TooLarge", "UnsupportedFormat"),
    "files": ("Plan", "Summary", "plan", "resolve"),
    "joins": ("sjoin", "sjoin_nearest"),
    "options": ("Options", "WithinOptions"),
    "resolution": ("Index", "nearest", "within"),
}
"""What each module has of these; the others are of the client."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((one for one, names in _MODULES.items() if name in names), "client")
    if module == "client":
        extras = import_module(f"{__name__}.extras")
        extras.needed("httpx", "client", f"georesolve.{name}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
