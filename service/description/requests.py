"""What OpenAPI says of requests: their bodies and headers."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel

from georesolve.service.description import examples
from georesolve.service.description.schemas import schema_of

JobId = Annotated[str, Path(description="the id of the job", examples=[examples.JOB_ID])]
DatasetId = Annotated[
    str,
    Path(
        description="the id of the dataset, or its name: `places`, or a version of it: `places@3`",
        examples=[examples.DATASET_ID],
    ),
]
DatasetName = Annotated[
    str,
    Path(
        description="a letter, then up to 63 letters, digits, `.`, `_` and `-`, all lower case",
        openapi_examples={"places": {"value": "places"}},
    ),
]
UploadId = Annotated[str, Path(description="the id of the upload", examples=[examples.UPLOAD_ID])]
# This one `/docs` fills in. Other ids are each user's own, and it would send those of an example.
ProcessName = Annotated[
    str,
    Path(description="the id of the process", openapi_examples={"nearest": {"value": "nearest"}}),
]


def _header(
    name: str, description: str, example: str, *, required: bool = False, **schema: Any
) -> dict[str, Any]:
    # The example stands in words: `/docs` would send an example of OpenAPI with every request.
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": f"{description}; for example `{example}`",
        "schema": {"type": "string", **schema},
    }


PREFER = _header(
    "Prefer",
    "`respond-async`: a job to ask again; `wait=N`: the result if it is there within N seconds, "
    "and else the job",
    "respond-async",
)
IDEMPOTENCY_KEY = _header(
    "Idempotency-Key",
    "a request with the same key, sets and options is the same job",
    "5bd5d52c-5cf1-4b1c-8d6c-7d1d2c1f0b1e",
    minLength=1,
    maxLength=255,
    pattern="^[!-~]([ -~]*[!-~])?$",
)
CONTENT_DIGEST = _header(
    "Content-Digest",
    "sha-256 or sha-512 of the body as RFC 9530 has it; what comes otherwise is refused",
    "sha-256=:k4RnCkMbG1h+LXSYZDSY1QvwwBmdQcT2Qk3LK3C1iO4=:",
)
REPR_DIGEST = _header(
    "Repr-Digest",
    "sha-256 or sha-512 of the whole file as RFC 9530 has it; an upload that has another one is "
    "refused when it is used",
    "sha-256=:k4RnCkMbG1h+LXSYZDSY1QvwwBmdQcT2Qk3LK3C1iO4=:",
)
UPLOAD_LENGTH = _header(
    "Upload-Length",
    "bytes of the whole file",
    "1000000",
    required=True,
    pattern="^[1-9][0-9]{0,17}$",
)
UPLOAD_METADATA = _header(
    "Upload-Metadata",
    "`filename` and `filetype` in base64, as tus has it: they tell the format where the first "
    "bytes of the file do not",
    "filename b2JzLmNzdg==,filetype dGV4dC9jc3Y=",
    maxLength=4096,
)
UPLOAD_OFFSET = _header(
    "Upload-Offset",
    "how many bytes were sent before",
    "0",
    required=True,
    pattern="^[0-9]{1,18}$",
)
RANGE = _header("Range", "the part of the file that is wanted, in bytes", "bytes=0-499")
IF_RANGE = _header(
    "If-Range",
    "the ETag of what the client has a part of: if the file has another one, it comes whole",
    '"23ce787a"',
)
IF_MATCH = _header(
    "If-Match",
    "the ETag of the version that may be replaced, or `*` for any that there is: 412 if it is "
    "another one",
    '"23ce787a"',
)
IF_NEW = _header("If-None-Match", "`*`: 412 if there is a dataset of that name already", "*")
IF_NONE_MATCH = _header(
    "If-None-Match", "the ETag of what the client has: 304 if that is still it", '"23ce787a"'
)
WANT_REPR_DIGEST = _header(
    "Want-Repr-Digest",
    "has the file compared with its checksum now, and that told in `Repr-Digest` as RFC 9530 has "
    "it; a large file takes a second a gigabyte",
    "sha-256=1",
)


def headers(*some: dict[str, Any]) -> dict[str, Any]:
    """Headers that an operation heeds."""
    return {"parameters": list(some)}


def json_request(*alternatives: tuple[type[BaseModel], Any]) -> dict[str, Any]:
    """A request whose body is JSON: one of some models, each with an example."""
    schemas = [schema_of(model) for model, _ in alternatives]
    content = {
        "schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas},
        "examples": {model.__name__: {"value": example} for model, example in alternatives},
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}
