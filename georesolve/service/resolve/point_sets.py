"""What JSON may be as a point set: schemas for the description of the API and of its processes."""

from typing import Any

from georesolve.intake.addresses import LONGEST
from georesolve.service.store.names import FORM

_POINT = {
    "title": "PointGeometry",
    "type": "object",
    "required": ["type", "coordinates"],
    "properties": {
        "type": {"enum": ["Point"]},
        "coordinates": {
            "description": "longitude and latitude in degrees, and a height that is passed over",
            "type": "array",
            "minItems": 2,
            "items": {"type": "number"},
        },
    },
}
FEATURES: dict[str, Any] = {
    "title": "FeatureCollection",
    "description": "points; their ids and properties become columns",
    "type": "object",
    "required": ["type", "features"],
    "properties": {
        "type": {"enum": ["FeatureCollection"]},
        "features": {
            "type": "array",
            "items": {
                "title": "PointFeature",
                "type": "object",
                # Without a point it is a row with invalid coordinates.
                "properties": {"geometry": {"anyOf": [_POINT, {"enum": [None]}]}},
            },
        },
    },
}
_ARRAYS = {
    "title": "PointColumns",
    "description": "arrays by column name, all of one length; coordinates are numbers",
    "type": "object",
    "additionalProperties": {
        "type": "array",
        "items": {"not": {"anyOf": [{"type": "array"}, {"type": "object"}]}},
    },
}
_ID_OR_NAME = f"([0-9a-f]{{32}}|{FORM})$"
_NAMED = {"type": "string", "pattern": f"^dataset:{_ID_OR_NAME}"}
_BY_ID = {
    "title": "DatasetReference",
    "type": "object",
    "required": ["dataset"],
    "properties": {"dataset": {"type": "string", "pattern": f"^{_ID_OR_NAME}"}},
    "additionalProperties": False,
}
_ADDRESS = {"type": "string", "pattern": "^(file|s3|https)://"}
_BY_ADDRESS = {
    "title": "SourceReference",
    "description": "a Parquet file, a pattern of them, or a folder, which stay where they are",
    "type": "object",
    "required": ["href"],
    "properties": {"href": {**_ADDRESS, "maxLength": LONGEST}, "type": {"type": "string"}},
    "additionalProperties": False,
}
_PLAIN = [
    _NAMED,
    {**_ADDRESS, "maxLength": LONGEST},
    _BY_ID,
    _BY_ADDRESS,
    _ARRAYS,
    FEATURES,
]
_WRAPPED = {
    "title": "QualifiedPointSet",
    "description": "as OGC API - Processes wraps an object that stands for an input",
    "type": "object",
    "required": ["value"],
    "properties": {
        "value": {"anyOf": _PLAIN},
        **{name: {} for name in ("mediaType", "format", "encoding", "schema")},
    },
    "additionalProperties": False,
}

POINT_SET: dict[str, Any] = {"title": "PointSet", "anyOf": [*_PLAIN, _WRAPPED]}
