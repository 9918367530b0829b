"""What OpenAPI says of operations: what they take, what they answer, and schemas of models."""

from typing import Any

from pydantic import BaseModel

Answers = dict[int | str, dict[str, Any]]
_SHA256 = "sha-256=:k4RnCkMbG1h+LXSYZDSY1QvwwBmdQcT2Qk3LK3C1iO4=:"
_HEADERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Prefer": (
        "`respond-async`: a job to ask again; `wait=N`: the result if it is there within N "
        "seconds, and else the job",
        "respond-async",
        {},
    ),
    "Idempotency-Key": (
        "a request with the same key, sets and options is the same job",
        "5bd5d52c-5cf1-4b1c-8d6c-7d1d2c1f0b1e",
        {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    ),
    "Content-Digest": (
        "sha-256 or sha-512 of the body as RFC 9530 has it; what comes otherwise is refused",
        _SHA256,
        {},
    ),
    "Range": ("the part of the file that is wanted, in bytes", "bytes=0-499", {}),
    "If-Range": (
        "the ETag of what the client has a part of: if the file has another one, it comes whole",
        '"23ce787a"',
        {},
    ),
    "If-Match": (
        "the ETag of the version that may be replaced, or `*` for any that there is: 412 if it is "
        "another one",
        '"23ce787a"',
        {},
    ),
    "If-None-Match: *": ("`*`: 412 if there is a dataset of that name already", "*", {}),
    "If-None-Match": (
        "the ETag of what the client has: 304 if that is still it",
        '"23ce787a"',
        {},
    ),
}
"""What they mean, an example, and what their texts must be."""


def headers(*names: str) -> dict[str, Any]:
    """Headers that an operation heeds; `If-None-Match: *` is that of one that makes something."""
    # The example stands in words: `/docs` would send an example of OpenAPI with every request.
    return {
        "parameters": [
            {
                "name": name.partition(":")[0],
                "in": "header",
                "required": False,
                "description": f"{description}; for example `{example}`",
                "schema": {"type": "string", **rules},
            }
            for name in names
            for description, example, rules in [_HEADERS[name]]
        ]
    }


FILE_HEADERS = headers("Range", "If-Range", "If-None-Match")


def json_request(*alternatives: tuple[type[BaseModel], Any]) -> dict[str, Any]:
    """A request whose body is JSON: one of some models, each with an example."""
    schemas = [schema_of(model) for model, _ in alternatives]
    content = {
        "schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas},
        "examples": {model.__name__: {"value": example} for model, example in alternatives},
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def header(description: str, kind: str = "string") -> dict[str, Any]:
    """A header of an answer."""
    return {"description": description, "schema": {"type": kind}}


_ETAG = {"ETag": header("strong: other bytes have another one")}
_OF_FILES = {
    **_ETAG,
    "Accept-Ranges": header("bytes; none of a result that is not Parquet"),
}
BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
"""The content of an answer or a request that is bytes."""


def answer_of(content: dict[str, Any], description: str) -> Answers:
    """A successful answer with one of some contents."""
    return {200: {"description": description, "content": content}}


UNCHANGED: Answers = {304: {"description": "the client has it already", "headers": _ETAG}}


def file_answers(content: dict[str, Any], description: str) -> Answers:
    """A file, whole or in part, or the word that the client has it already."""
    return {
        200: {"description": description, "content": content, "headers": _OF_FILES},
        206: {
            "description": "the range that was asked for",
            "content": {name: {} for name in (*content, "multipart/byteranges")},
            "headers": _OF_FILES,
        },
        **UNCHANGED,
    }


def created(description: str) -> dict[str, Any]:
    """The header that says where something new is."""
    schema = {"type": "string", "format": "uri"}
    return {"Location": {"description": description, "required": True, "schema": schema}}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a model in one piece: nothing in it refers to definitions elsewhere."""
    schema = model.model_json_schema()
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


def as_texts(properties: dict[str, Any]) -> dict[str, Any]:
    """Properties of a model as the fields of a form: what is optional is left out, not null.

    Nor is there a default: a generated client would send it, and where the query says something
    else that would be another value. Of several kinds it is the first: all of them are texts.
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
