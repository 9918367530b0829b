"""JSON schemas of models, in the shape that a document needs them in."""

from typing import Any

from pydantic import BaseModel


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
