"""The description of the API: FastAPI's, without what that only supposes."""

import re
from typing import Annotated, Any, NotRequired

from fastapi import FastAPI
from fastapi.routing import APIRoute, APIRouter
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import Field
from starlette.routing import BaseRoute
from typing_extensions import TypedDict

from georesolve.service.auth.access import OPEN_PATHS
from georesolve.service.errors import PROBLEM_JSON
from georesolve.service.http import openapi

_VALUES = ("example", "examples")
"""No schemas stand in these."""
_KEYS = {
    one.scheme_name: one.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    for one in (
        HTTPBearer(description="the key, where the service asks for one"),
        APIKeyHeader(name="X-API-Key", description="the same"),
    )
}
"""The two ways to send a key: `service.auth.access` reads it."""


class _Fault(TypedDict, total=False):
    detail: str
    pointer: Annotated[str, Field(description="JSON pointer into the request")]
    file: str
    column: str
    row: Annotated[int, Field(description="counted from 0")]
    line: Annotated[int, Field(description="of a text, counted from 1")]
    layer: Annotated[str, Field(description="one that the file has")]


class Problem(TypedDict):
    """What is wrong, as RFC 9457 has it."""

    type: Annotated[str, Field(description="which problem it is, as a URI")]
    title: Annotated[str, Field(description="the same for people")]
    status: Annotated[int, Field(description="the status of the answer")]
    detail: Annotated[str, Field(description="what was given, what is allowed and what to do")]
    instance: Annotated[str, Field(description="the path that was asked")]
    errors: NotRequired[Annotated[list[_Fault], Field(description="where it is wrong")]]


_REFUSED = {"content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_REFUSALS: openapi.Answers = {
    "4XX": {"description": "refused, for what the detail says: change the request", **_REFUSED},
    "5XX": {
        "description": "not possible now, for what the detail says",
        "headers": {
            "Retry-After": {
                "description": "seconds after which to try again, where waiting helps",
                "schema": {"type": "integer", "minimum": 1},
            }
        },
        **_REFUSED,
    },
}
_MODEL = re.compile("([A-Z][a-z]+){2,}")
"""The title of a model; pydantic's titles of fields have blanks, or one capital."""


def _operation_id(route: APIRoute) -> str:
    """The name of a handler in the way of OGC API: `get_processes` answers `getProcesses`."""
    first, *others = route.name.split("_")
    return first + "".join(map(str.title, others))


class DescribedApp(FastAPI):
    """An application whose description tells of keys and refusals, always with a problem."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Where it knows other refusals, FastAPI does not suppose that any query is answered 422.
        self._rooms = APIRouter(responses=_REFUSALS, generate_unique_id_function=_operation_id)

    def include_router(self, router: APIRouter, **settings: Any) -> None:
        """Add the routes of a room: a request finds them at once, and not by way of their room."""
        self._rooms.include_router(router, **settings)
        self.router.routes.extend(router.routes)

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes as they are described."""
        return self._rooms.routes

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            schemas["Problem"] = openapi.schema_of(Problem)
            document["paths"] = _with_references(document["paths"], schemas)
            document["components"]["securitySchemes"] = _KEYS
            for path, item in document["paths"].items():
                for operation in item.values():
                    if path not in OPEN_PATHS:
                        operation["security"] = [{name: []} for name in _KEYS]
        return self.openapi_schema or {}


def _with_references(node: Any, schemas: dict[str, Any]) -> Any:
    """A part of the document in which schemas that have a name are references to it.

    Those who generate clients make a type of each, once and under its name.
    """
    if isinstance(node, list):
        return [_with_references(one, schemas) for one in node]
    if not isinstance(node, dict):
        return node
    whole = {
        key: value if key in _VALUES else _with_references(value, schemas)
        for key, value in node.items()
        # FastAPI describes events with a word of OpenAPI 3.2 in a document of 3.1.
        if key != "itemSchema"
    }
    name = node.get("title")
    if not isinstance(name, str) or not _MODEL.fullmatch(name):
        return whole
    description = {key: whole.pop(key) for key in ("description",) if key in whole}
    assert schemas.setdefault(name, whole) == whole, f"two schemas are called {name}"
    return {"$ref": f"#/components/schemas/{name}", **description}
