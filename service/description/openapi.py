"""The description of the API: FastAPI's, without what that only supposes."""

from typing import Any

from fastapi import FastAPI

from georesolve.service.description.refusals import PROBLEM_SCHEMA

_SUPPOSED = ("HTTPValidationError", "ValidationError")
_METHODS = ("get", "post", "delete")


class DescribedApp(FastAPI):
    """An application whose description names the refusals that it answers with, and no others."""

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            schemas["Problem"] = PROBLEM_SCHEMA
            # FastAPI supposes that a query which it does not take is answered 422.
            for name in _SUPPOSED:
                schemas.pop(name, None)
            for item in document["paths"].values():
                for operation in (item[method] for method in _METHODS if method in item):
                    if _is_supposed(operation["responses"].get("422", {})):
                        del operation["responses"]["422"]
        return self.openapi_schema or {}


def _is_supposed(answer: dict[str, Any]) -> bool:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).endswith(_SUPPOSED[0])
