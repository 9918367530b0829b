"""What OpenAPI says of operations: what they take, what they answer, and schemas of models."""

from collections.abc import Container
from typing import Any

from fastapi import Response
from pydantic import BaseModel, TypeAdapter, WithJsonSchema

Answers = dict[int | str, dict[str, Any]]
TEXT = WithJsonSchema({"type": "string"})
"""What a header is told to be, whether it is read as one text or as all that were sent."""
# These are read where they count; here they are told. Their examples stand in words: `/docs` would
# send those of OpenAPI with every request.
_RANGE = {
    "Range": "the part of the file that is wanted, in bytes; for example `bytes=0-499`",
    "If-Range": "the ETag of what the client has a part of: if the file has another one, it comes "
    'whole; for example `"23ce787a"`',
}
_KNOWN = {
    "If-None-Match": "the ETag of what the client has: 304 if that is still it; for example "
    '`"23ce787a"`'
}
_MATCH = {
    "If-Match": "the ETag that the resource must have: 412 if the ETag is another one; for example "
    '`"23ce787a"`'
}
_DIGEST = {
    "Content-Digest": "sha-256 or sha-512 of the body as RFC 9530 has it; what comes otherwise is "
    "refused; for example `sha-256=:k4RnCkMbG1h+LXSYZDSY1QvwwBmdQcT2Qk3LK3C1iO4=:`"
}


def _told(headers: dict[str, str]) -> dict[str, Any]:
    text = {"in": "header", "required": False, "schema": {"type": "string"}}
    told = [text | {"name": name, "description": about} for name, about in headers.items()]
    return {"parameters": told}


_FILE_HEADERS = _told(_RANGE | _KNOWN | _MATCH)
IF_NONE_MATCH, IF_MATCH, CONTENT_DIGEST = map(_told, (_KNOWN, _MATCH, _DIGEST))
"""Headers that operations heed: for the argument `openapi_extra` of a route."""


def json_request(*alternatives: tuple[type[BaseModel], Any]) -> dict[str, Any]:
    """A request whose body is JSON: one of some models, each with an example."""
    schemas = [schema_of(model) for model, _ in alternatives]
    content = {
        "schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas},
        "examples": {model.__name__: {"value": example} for model, example in alternatives},
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def form_request(
    model: type[BaseModel], file: dict[str, Any], example: dict[str, str]
) -> dict[str, Any]:
    """A request whose body is a form: what the example has are files, other fields are texts."""
    schema = schema_of(model)
    properties = _as_texts(schema["properties"]) | dict.fromkeys(example, file)
    content = {"schema": {**schema, "properties": properties}, "example": dict(example)}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": content}}}


def query(model: type[BaseModel], without: Container[str]) -> dict[str, Any]:
    """Parameters of a query: the fields of a model, as texts, but some of them."""
    texts = _as_texts(schema_of(model)["properties"])
    told = [
        {"in": "query", "name": name, "description": schema.pop("description"), "schema": schema}
        for name, schema in texts.items()
        if name not in without
    ]
    return {"parameters": told}


def header(description: str, kind: str = "string") -> dict[str, Any]:
    """A header of an answer."""
    return {"description": description, "schema": {"type": kind}}


_ETAG = {"ETag": header("strong: other bytes have another one")}
_OF_FILES = {**_ETAG, "Accept-Ranges": header("bytes; none of a result that is not Parquet")}
BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
"""The content of an answer or a request that is bytes."""


UNCHANGED: Answers = {304: {"description": "the client has it already", "headers": _ETAG}}


def route(
    content: dict[str, Any], description: str, others: Answers | None = None
) -> dict[str, Any]:
    """What a route is made with whose handler makes its answer itself, of one of some contents."""
    whole = {200: {"description": description, "content": content}}
    return {"response_class": Response, "responses": whole | (others or {})}


def file_route(
    content: dict[str, Any], description: str, others: Answers | None = None
) -> dict[str, Any]:
    """The same of a file: it comes whole or in part, or not to a client that has it already."""
    part = {
        "description": "the range that was asked for",
        "content": {name: {} for name in (*content, "multipart/byteranges")},
        "headers": _OF_FILES,
    }
    made = route(content, description, {206: part, **UNCHANGED} | (others or {}))
    made["responses"][200]["headers"] = _OF_FILES
    return made | {"openapi_extra": _FILE_HEADERS}


def created(description: str) -> dict[str, Any]:
    """The header that says where something new is."""
    schema = {"type": "string", "format": "uri"}
    return {"Location": {"description": description, "required": True, "schema": schema}}


def schema_of(model: Any) -> dict[str, Any]:
    """The schema of a type in one piece: nothing in it refers to definitions elsewhere."""
    schema = TypeAdapter(model).json_schema(union_format="primitive_type_array")
    definitions = schema.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, list):
            return [inlined(one) for one in node]
        if not isinstance(node, dict):
            return node
        name = str(node.get("$ref", "")).rpartition("/")[2]
        if name in definitions:
            # A field of a model that has a name is called by that.
            beside = {key: node[key] for key in node if key not in ("$ref", "title")}
            node = definitions[name] | beside
        if "const" in node:
            # OGC API - Processes 1.0 knows no other word for it.
            node = {key: node[key] for key in node if key != "const"} | {"enum": [node["const"]]}
        return {key: inlined(value) for key, value in node.items()}

    whole: dict[str, Any] = inlined(schema)
    return whole


def _as_texts(properties: dict[str, Any]) -> dict[str, Any]:
    """Properties of a model as the fields of a form, without null: all of them are texts.

    Nor is there a default: generated clients would send it beside another value in the query.
    """
    fields = {}
    for name, schema in properties.items():
        plain = without_null(schema)
        (kind, *_) = plain.pop("oneOf", [{}])
        # Without an example a browser fills in one of its own: `string` for the name of a column.
        example = plain.pop("default", "")
        described = {"description": schema["description"], "example": example}
        fields[name] = {**plain, **kind, **described}
    return fields


def without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema as OGC API - Processes 1.0 knows them: what is optional is left out, not null."""
    schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
    kinds = [kind for kind in schema.pop("anyOf", []) if kind != {"type": "null"}]
    if schema.get("default", 0) is None:
        del schema["default"]
    return schema | (kinds[0] if len(kinds) == 1 else {"oneOf": kinds} if kinds else {})
