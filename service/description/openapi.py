"""The description of the API: FastAPI's, without what that only supposes."""

import re
from typing import Any

from fastapi import FastAPI

from georesolve.service.description.refusals import PROBLEM_SCHEMA

_SUPPOSED = ("HTTPValidationError", "ValidationError")
_METHODS = ("get", "post", "put", "patch", "delete", "options")
_VALUES = ("example", "examples")
"""No schemas stand in these."""
_KEYS = {
    "HTTPBearer": {
        "type": "http",
        "description": "the key, where the service asks for one",
        "scheme": "bearer",
    },
    "APIKeyHeader": {
        "type": "apiKey",
        "description": "the same",
        "in": "header",
        "name": "X-API-Key",
    },
}
"""The two ways to send a key: `service.auth.access` reads it."""
_MODEL = re.compile("([A-Z][a-z]+){2,}")
"""The title of a model; pydantic's titles of fields have blanks, or one capital."""


class DescribedApp(FastAPI):
    """An application whose description names the refusals that it answers with, and no others."""

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            schemas["Problem"] = PROBLEM_SCHEMA
            document["paths"] = _with_references(document["paths"], schemas)
            # FastAPI supposes that a query which it does not take is answered 422.
            for name in _SUPPOSED:
                schemas.pop(name, None)
            document["components"]["securitySchemes"] = _KEYS
            for item in document["paths"].values():
                for operation in (item[method] for method in _METHODS if method in item):
                    if "401" in operation["responses"]:
                        operation["security"] = [{name: []} for name in _KEYS]
                    if _is_supposed(operation["responses"].get("422", {})):
                        del operation["responses"]["422"]
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


def _is_supposed(answer: dict[str, Any]) -> bool:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).endswith(_SUPPOSED[0])
