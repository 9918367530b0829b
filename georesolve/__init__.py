"""The exact nearest reference points of geospatial observations, and all within a distance.

What is public is loaded when it is first asked for: the processes of the service import this
package, too, and need none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from georesolve.version import __version__ as __version__

if TYPE_CHECKING:
    from georesolve.api import Index as Index
    from georesolve.api import nearest as nearest
    from georesolve.api import within as within
    from georesolve.client import AsyncClient as AsyncClient
    from georesolve.client import Client as Client
    from georesolve.client import DamagedTransfer as DamagedTransfer
    from georesolve.client import ServiceError as ServiceError
    from georesolve.client import ServiceRefused as ServiceRefused
    from georesolve.client import ServiceUnreachable as ServiceUnreachable
    from georesolve.files import Plan as Plan
    from georesolve.files import Summary as Summary
    from georesolve.files import plan as plan
    from georesolve.files import resolve as resolve
    from georesolve.io.errors import InvalidInput as InvalidInput
    from georesolve.io.errors import InvalidOption as InvalidOption
    from georesolve.io.errors import TooLarge as TooLarge
    from georesolve.io.errors import UnsupportedFormat as UnsupportedFormat
    from georesolve.joins import sjoin as sjoin
    from georesolve.joins import sjoin_nearest as sjoin_nearest
    from georesolve.options import Options as Options
    from georesolve.options import WithinOptions as WithinOptions

_PUBLIC = {
    "client": (
        "AsyncClient",
        "Client",
        "DamagedTransfer",
        "ServiceError",
        "ServiceRefused",
        "ServiceUnreachable",
    ),
    "files": ("Plan", "Summary", "plan", "resolve"),
    "io.errors": ("InvalidInput", "InvalidOption", "TooLarge", "UnsupportedFormat"),
    "joins": ("sjoin", "sjoin_nearest"),
    "options": ("Options", "WithinOptions"),
    "api": ("Index", "nearest", "within"),
}
"""What each module has for users."""
__all__ = sorted(name for names in _PUBLIC.values() for name in names)


def __getattr__(name: str) -> Any:
    module = next((one for one, names in _PUBLIC.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if module == "client":
        extras = import_module(f"{__name__}.io.extras")
        extras.needed("httpx", "client", f"georesolve.{name}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
