"""`/`, `/conformance`: where everything is, and which standards hold; and what browsers show.

All that a page loads comes from here: its policy (CSP) allows scripts and styles of the service
alone. The page has no state but its address. `/docs` is FastAPI's, with files of a package.
"""

import hashlib
import html
import mimetypes
from functools import cache
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from georesolve.service import errors, pools
from georesolve.service.auth.access import DOCUMENTATION
from georesolve.service.http import openapi
from georesolve.service.http.answers import prefers_page, unchanged
from georesolve.service.links import OGC_RELATION, Link, base_of

router = APIRouter(tags=["capabilities"])

# Not "core": that asks for inputs by reference (`href`) from any address, not listed ones alone.
_CLASSES = ("ogc-process-description", "json", "job-list", "dismiss")
_SAFETY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'self'; form-action 'none'; "
    "frame-src 'none'; object-src 'none'",
    "Referrer-Policy": "same-origin",
}
"""Besides what every answer of a front has: no frames of other sites, no guessed media types."""
_SCRIPT, _STYLE, _ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"


class LandingPage(BaseModel):
    """Where everything is."""

    title: str
    description: str
    links: list[Link]


class Conformance(BaseModel):
    """The classes of standards that the service conforms to."""

    conformsTo: list[str]


_HTML = {"text/html": {"schema": {"type": "string"}}}
_ANSWER: openapi.Answers = {
    200: {"description": "links to everything, or the page", "content": _HTML}
}


@cache
def _static() -> tuple[str, dict[str, bytes]]:
    """The digest of all files of the page, and the files by name."""
    folder = Path(__file__).with_name("static")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
    sums = "".join(hashlib.sha256(content).hexdigest() for content in contents.values())
    return hashlib.sha256(sums.encode()).hexdigest()[:16], contents


@router.get("/", summary="Where everything is", response_model=LandingPage, responses=_ANSWER)
@pools.disk.handler
def get_landing_page(request: Request, response: Response) -> LandingPage | Response:
    """The landing page: links to the API, its processes, jobs and datasets.

    A browser, which accepts `text/html`, gets a page to match files and look at jobs with.
    """
    if prefers_page(request.headers):
        digest, contents = _static()
        # Addresses are relative to the path below which a proxy shows the service. They name files
        # by the digest of their content, so a browser keeps them for good.
        here = html.escape(f"{request.scope.get('root_path', '')}/", quote=True)
        text = contents["page.html"].decode().replace("{here}", here).replace("{digest}", digest)
        headers = {**_SAFETY, "Cache-Control": "private, no-cache", "Vary": "Accept"}
        return Response(text, media_type="text/html", headers=headers)
    response.headers["Vary"] = "Accept"

    def link(path: str, rel: str, title: str, type: str = "application/json") -> Link:
        return Link(href=base_of(request) + path, rel=rel, title=title, type=type)

    return LandingPage(
        title="georesolve",
        description="The exact nearest reference point of every geospatial observation, by OGC "
        "API - Processes 1.0, except that inputs by reference (href) must lie below a prefix that "
        "the operator listed, so it does not claim its core.",
        links=[
            link("/", "self", "this document"),
            link("/", "alternate", "the page to look at", "text/html"),
            link("/api", "service-desc", "the API", "application/vnd.oai.openapi+json;version=3.1"),
            link("/docs", "service-doc", "the API to read and try", "text/html"),
            link("/conformance", f"{OGC_RELATION}conformance", "standards that hold"),
            # The long names are those of the standard, the short one is what its tests look for.
            link("/processes", f"{OGC_RELATION}processes", "what can be run"),
            link("/processes", "processes", "what can be run"),
            link("/jobs", f"{OGC_RELATION}job-list", "what was run"),
            link("/datasets", "data", "registered point sets"),
        ],
    )


@router.get("/conformance", summary="Standards that hold")
async def get_conformance_classes() -> Conformance:
    """The classes of OGC API - Processes 1.0 that the service conforms to.

    `core` is not among them: it asks for inputs by reference (`href`) from any address, and the
    service reads only what lies below a prefix that the operator listed.
    """
    standard = "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf"
    return Conformance(conformsTo=[f"{standard}/{one}" for one in _CLASSES])


@router.get("/page/{digest}/{name:path}", include_in_schema=False)
@pools.disk.handler
def show_file(digest: str, name: str, request: Request) -> Response:
    """A file that the page loads."""
    current, contents = _static()
    if digest != current or name not in contents:
        raise errors.NotThere(f"{name[:80]!r} is no file of this page any more: load it again")
    tag = f'"{hashlib.sha256(contents[name]).hexdigest()}"'
    headers = {**_SAFETY, "Cache-Control": "private, max-age=31536000, immutable", "ETag": tag}
    if (known := unchanged(request, headers)) is not None:
        return known
    return Response(contents[name], media_type=_media_type(name), headers=headers)


def _media_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


@router.get(DOCUMENTATION, include_in_schema=False)
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


@router.get(f"{DOCUMENTATION}/{{name}}", include_in_schema=False)
@pools.disk.handler
def show_part_of_documentation(name: str) -> Response:
    """What the page loads."""
    if name not in (_SCRIPT, _STYLE, _ICON):
        raise errors.NotThere(f"{name[:80]!r} is no part of the documentation")
    content = (files("fastapi_offline") / "static" / name).read_bytes()
    caching = {"Cache-Control": "private, max-age=3600"}
    return Response(content, media_type=_media_type(name), headers=caching)
