"""`/docs`: the API to read and try in a browser, with all that its page loads.

The page is FastAPI's. What it would have from a server on the internet comes from a package that
has the same files, so it opens in a closed network, too.
"""

from importlib.resources import files

from fastapi import APIRouter, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from georesolve.service import pools
from georesolve.service.auth.access import DOCUMENTATION
from georesolve.service.errors import NotThere

router = APIRouter(include_in_schema=False)

_SCRIPT, _STYLE, _ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"
_MEDIA_TYPES = {_SCRIPT: "text/javascript", _STYLE: "text/css", _ICON: "image/png"}


@router.get(DOCUMENTATION)
async def show_documentation() -> HTMLResponse:
    """The page; its addresses are relative, for whatever a proxy puts in front of them."""
    here = DOCUMENTATION.strip("/")
    return get_swagger_ui_html(
        openapi_url="api",
        title="georesolve",
        swagger_js_url=f"{here}/{_SCRIPT}",
        swagger_css_url=f"{here}/{_STYLE}",
        swagger_favicon_url=f"{here}/{_ICON}",
    )


@router.get(f"{DOCUMENTATION}/{{name}}")
@pools.disk.handler
def show_part(name: str) -> Response:
    """What the page loads."""
    if name not in _MEDIA_TYPES:
        raise NotThere(f"{name[:80]!r} is no part of the documentation")
    content = (files("fastapi_offline") / "static" / name).read_bytes()
    caching = {"Cache-Control": "private, max-age=3600"}
    return Response(content, media_type=_MEDIA_TYPES[name], headers=caching)
