"""The two point sets of a request: made of files or arrays, or found among the datasets."""

from pathlib import Path
from typing import Any, NamedTuple

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from service.bounds import media_type
from service.columns import listed
from service.context import Service
from service.errors import InvalidRequest, UnsupportedFormat, invalid_request
from service.ingest import Ingested, Upload
from service.models import InlineRequest, TableParameters
from service.store import DatasetRow

ROLES = ("observations", "references")


class Inputs(NamedTuple):
    """Both sets: those just made are kept or go with their folder, the others were here before."""

    observations: Ingested | DatasetRow
    references: Ingested | DatasetRow


async def inputs_of_body(
    request: Request, service: Service, parameters: TableParameters, folder: Path
) -> Inputs:
    """Make or find both sets of a request, whose body is a form or JSON.

    Raises
    ------
    Problem
        When the body is neither, or what it holds is no table of points.
    """
    given = media_type(request.headers)
    if given == "multipart/form-data":
        async with request.form(max_files=2, max_fields=2) as form:
            names = [name for name, _ in form.multi_items()]
            if sorted(names) != sorted(ROLES):
                raise InvalidRequest(
                    f"the form must have the parts {' and '.join(ROLES)}, once each; it has "
                    f"{listed(names)} (options are query parameters)"
                )
            return Inputs(
                *[await _from_part(form, role, service, parameters, folder) for role in ROLES]
            )
    if given == "application/json":
        try:
            inline = InlineRequest.model_validate_json(await request.body())
        except ValidationError as error:
            raise invalid_request(error.errors(include_url=False, include_input=False)) from None
        return await inputs_of_json(inline, service, parameters, folder)
    raise UnsupportedFormat(
        f"the media type {given[:80] or 'none'} is not supported here: send multipart/form-data "
        "with the parts 'observations' and 'references', or application/json"
    )


async def inputs_of_json(
    inline: InlineRequest, service: Service, parameters: TableParameters, folder: Path
) -> Inputs:
    """Make or find both sets that stand in a JSON document."""
    return Inputs(
        *[
            await _from_json(getattr(inline, role), role, service, parameters, folder)
            for role in ROLES
        ]
    )


async def _from_part(
    form: FormData, role: str, service: Service, parameters: TableParameters, folder: Path
) -> Ingested | DatasetRow:
    part = form[role]
    if isinstance(part, str):
        return _registered(part, role, service)
    assert isinstance(part, UploadFile)
    upload = Upload(part.file, part.content_type, part.filename, role)
    return await service.ingest.from_upload(
        upload, parameters.names(), parameters.on_invalid, folder
    )


async def _from_json(
    value: dict[str, list[Any]] | str,
    role: str,
    service: Service,
    parameters: TableParameters,
    folder: Path,
) -> Ingested | DatasetRow:
    if isinstance(value, str):
        return _registered(value, role, service)
    return await service.ingest.from_arrays(
        value, parameters.names(), parameters.on_invalid, folder, f"/{role}"
    )


def _registered(text: str, role: str, service: Service) -> DatasetRow:
    kind, _, id = text.strip().partition(":")
    if kind != "dataset" or not id:
        raise InvalidRequest(f"{role}: {text[:80]!r} is neither a file nor 'dataset:<id>'")
    return service.library.get(id)
