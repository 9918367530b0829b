"""Links between resources: always absolute, so that a client need not know where it asked."""

from fastapi import Request
from pydantic import BaseModel
from starlette.types import Scope

OGC_RELATION = "http://www.opengis.net/def/rel/ogc/1.0/"


class Link(BaseModel):
    """A link as OGC API has it."""

    href: str
    rel: str
    type: str = "application/json"
    title: str


def base_of(request: Request) -> str:
    """The address of the service as the client wrote it, without a slash at its end."""
    return str(request.base_url).rstrip("/")


def own_path(scope: Scope) -> str:
    """The path of a request below that of the service."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def links_of_page(request: Request, cursor: str | None) -> list[Link]:
    """The links of a list: to itself and, where it has a cursor, to the next page."""
    links = [Link(href=str(request.url), rel="self", title="this document")]
    if cursor is not None:
        url = request.url.include_query_params(cursor=cursor)
        links.append(Link(href=str(url), rel="next", title="the next page"))
    return links
