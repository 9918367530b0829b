"""`/`, `/conformance`: where everything is, and which standards hold."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from georesolve.service import pools
from georesolve.service.http.answers import prefers_page
from georesolve.service.links import OGC_RELATION, Link, base_of
from georesolve.service.page.router import page_response

router = APIRouter(tags=["capabilities"])

# Not "core": that asks for inputs by reference (`href`) from any address, not listed ones alone.
_CLASSES = ("ogc-process-description", "json", "job-list", "dismiss")


class LandingPage(BaseModel):
    """Where everything is."""

    title: str
    description: str
    links: list[Link]


class Conformance(BaseModel):
    """The classes of standards that the service conforms to."""

    conformsTo: list[str]


_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "links to everything, or the page",
        "content": {"text/html": {"schema": {"type": "string"}}},
    }
}


@router.get("/", summary="Where everything is", response_model=LandingPage, responses=_ANSWER)
@pools.disk.handler
def get_landing_page(request: Request, response: Response) -> LandingPage | Response:
    """The landing page: links to the API, its processes, jobs and datasets.

    A browser, which accepts `text/html`, gets a page to match files and look at jobs with.
    """
    if prefers_page(request.headers):
        return page_response(request)
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
