"""Uploads: the parts of a form, or a body that is a file, written while they stream.

What bounds them stands in front of all requests: see `service.http.bodies`.
"""

import sys
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from georesolve.io.columns import listed
from georesolve.io.errors import meant
from georesolve.service import errors, pools

_PIECE_BYTES = 1 << 20
"""So much is read and written at a time, by another thread; less takes no time worth one."""
_TEXT_BYTES = 1000
_FIELDS_BYTES = 64 << 10
"""Of all fields of a form together, with their names: as many as a query has room for."""


class Upload:
    """A file as it is received, until what decodes it removes it; errors call it `file`.

    A thread makes it, and writes to it.
    """

    def __init__(self, folder: Path, file: str, kind: str | None, name: str | None = None) -> None:
        self.file, self.media_type, self.name = file, kind, name
        self._start, self.seconds = time.perf_counter(), 0.0
        self.path = folder / f"{uuid.uuid4().hex}.received"
        folder.mkdir(exist_ok=True)
        self._handle = self.path.open("wb")
        self.write = self._handle.write

    def close(self) -> None:
        """Note that all of it is there, or that no more comes."""
        if not self._handle.closed:
            self._handle.close()
            self.seconds = time.perf_counter() - self._start


async def receive_body(request: Request, folder: Path) -> Upload:
    """Receive a body that is a file; raises ClientDisconnect when the client goes meanwhile."""
    media_type = request.headers.get("content-type")
    with closing(await pools.disk(Upload, folder, "the body", media_type)) as upload:
        await _receive(request, upload.write)
        await pools.disk(upload.close)
        return upload


async def _receive(request: Request, write: Callable[[bytes], object]) -> None:
    """Have a thread write a body, the first piece as it comes, to refuse it early.

    Later ones wait until they are worth a thread. They are not put together: to touch a large block
    of memory for the first time takes longer than all else of receiving.
    """
    waiting: list[bytes] = []
    size, least = 0, 1
    async for piece in request.stream():
        waiting.append(piece)
        size += sys.getsizeof(piece)
        if size >= least:
            await pools.disk(_write_all, write, waiting)
            waiting, size, least = [], 0, _PIECE_BYTES
    if waiting:
        await pools.disk(_write_all, write, waiting)


def _write_all(write: Callable[[bytes], object], pieces: list[bytes]) -> None:
    for piece in pieces:
        write(piece)


async def receive_form(
    request: Request, folder: Path, names: Collection[str], fields: Collection[str]
) -> "Form":
    """Receive a form that must have the parts `names` once each, and may have texts in `fields`."""
    _, options = parse_options_header(request.headers.get("content-type"))
    with closing(Form(folder, names, fields)) as form:
        try:
            parser = MultipartParser(options.get(b"boundary", b""), form.callbacks())
            await _receive(request, parser.write)
        except FormParserError as error:
            raise errors.InvalidRequest(f"the form cannot be read: {error}") from None
        if parser.state != MultipartState.END:
            raise errors.InvalidRequest("the form breaks off: no last boundary came; send it whole")
        form.refuse_partial()
        return form


def keep_upload(content: bytes, folder: Path, media_type: str, file: str) -> Upload:
    """A file that came within something else."""
    with closing(Upload(folder, file, media_type)) as upload:
        upload.write(content)
    return upload


class Form:
    """What has come of a form so far: `parts`, which are files or texts instead, and `fields`."""

    def __init__(self, folder: Path, names: Collection[str], fields: Collection[str]) -> None:
        self._folder = folder
        self._names = names
        self._field_names = fields
        self.parts: dict[str, Upload | str] = {}
        self.fields: list[tuple[str, str]] = []
        self._fields_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._field = self._value = b""
        self._name = ""
        self._file: Upload | None = None
        self._text = b""

    def callbacks(self) -> Any:
        """What the parser calls."""
        return {name[1:]: getattr(self, name) for name in dir(self) if name.startswith("_on_")}

    def close(self) -> None:
        """Let go of the file that has come in part."""
        if self._file is not None:
            self._file.close()

    def refuse_partial(self) -> None:
        """Refuse a form that has not all parts."""
        if len(self.parts) < len(self._names):
            raise self._refusal(list(self.parts))

    def _refusal(self, found: list[str], unknown: str = "") -> errors.Problem:
        return errors.InvalidRequest(
            f"{unknown}the form must have the parts {' and '.join(self._names)}, once each; it has "
            f"{listed(found) if found else 'none'} (as texts it may have the options "
            f"{', '.join(self._field_names)})"
        )

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name in self._field_names:
            if b"filename" in options:
                raise errors.InvalidRequest(f"{self._name}: an option is a text, not a file")
            self._count_field(len(self._name))
            return
        if self._name not in self._names or self._name in self.parts:
            known = (*self._names, *self._field_names)
            unknown = f"there is no field {self._name[:80]!r} here{meant(self._name, known)}: "
            found = [*self.parts, self._name]
            raise self._refusal(found, "" if self._name in known else unknown)
        if b"filename" in options:
            media_type = self._headers.get(b"content-type", b"").decode("latin-1") or None
            file_name = options[b"filename"].decode(errors="replace")
            self._file = Upload(self._folder, self._name, media_type, file_name)

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])
            return
        self._text += data[start:end]
        if self._name in self._field_names:
            self._count_field(end - start)
        elif len(self._text) > _TEXT_BYTES:
            raise errors.InvalidRequest(
                f"{self._name}: a text of more than {_TEXT_BYTES} bytes: send a file, which has a "
                "filename in its Content-Disposition, the text 'dataset:<id>', or an address"
            )

    def _count_field(self, size: int) -> None:
        self._fields_bytes += size
        if self._fields_bytes > _FIELDS_BYTES:
            raise errors.InvalidRequest(
                f"{self._name}: the options of the form have more than {_FIELDS_BYTES} bytes"
            )

    def _on_part_end(self) -> None:
        if self._name in self._field_names:
            self.fields.append((self._name, self._text.decode(errors="replace")))
        elif self._file is None:
            self.parts[self._name] = self._text.decode(errors="replace")
        else:
            self._file.close()
            self.parts[self._name], self._file = self._file, None
        self._headers, self._text = {}, b""
