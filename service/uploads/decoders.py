"""The processes that decode files of strangers: they are bounded, and their answers are data.

What happens to such a process does not happen to the service. It answers with JSON: numbers and
names of a dataset, a problem of the file, or the stack of a defect of ours. The digest of the
dataset is counted here, after the end of the process: files of others are known by theirs.
"""

import logging
import os
import signal
import textwrap
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from georesolve.intake.sources import Source
from georesolve.service.errors import (
    InvalidInput,
    NotReady,
    Problem,
    StorageFull,
    TooLarge,
    stopping,
)
from georesolve.service.uploads import sandbox
from georesolve.service.uploads.children import Child, Children, NotStarted, Stopped
from georesolve.service.uploads.decoding import Limits, serve
from georesolve.workers.datasets import Dataset, InvalidRow, NullIsland
from georesolve.workers.files import sha256_of
from georesolve.workers.widths import Width

logger = logging.getLogger(__name__)

_ANSWER_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16
_LOG_LENGTH = 20_000
_RETRY = {"Retry-After": "60"}
# pyarrow loads pandas, where there is one, with the first array that it makes: 1 s for each child.
_children = Children(serve, preload=["georesolve.service.uploads.decoding", "pandas"])


class DecoderFailed(RuntimeError):
    """A process ended without an answer, or with a defect of ours: no fault of the file."""


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Decoded(_Answer):
    rows: int
    invalid_rows: int
    lat: str
    lon: str
    id: str | None
    columns: tuple[str, ...]
    bbox: tuple[float, float, float, float] | None
    first_invalid: tuple[InvalidRow, ...]
    widths: tuple[Width, ...]
    null_island: NullIsland


class _Refused(_Answer):
    problem: Literal["InvalidInput", "TooLarge", "StorageFull"]
    detail: str
    errors: list[dict[str, str | int]]

    def as_problem(self) -> Problem:
        kinds = {kind.__name__: kind for kind in (InvalidInput, TooLarge, StorageFull)}
        headers = _RETRY if self.problem == StorageFull.__name__ else {}
        return kinds[self.problem](self.detail, list(self.errors), headers)


class _Failed(_Answer):
    stack: str


_ANSWERS: TypeAdapter[_Decoded | _Refused | _Failed] = TypeAdapter(_Decoded | _Refused | _Failed)


def start_decoder() -> None:
    """Have a process ready, so that the first upload need not wait for one."""
    has = sandbox.available()
    if not all(has):
        logger.warning("files of strangers are decoded in half a sandbox, the kernel has %s", has)
    _children.make_ready()


def close_decoder() -> None:
    """Let go of a process that would keep the service from its end."""
    _children.close()


def decode_in_child(
    source: Source, target: Path, limits: Limits, stop: Connection | None = None
) -> Dataset:
    """Decode a file to the canonical dataset `target`, in a process of its own; blocks.

    Parameters
    ----------
    stop
        Once its other end is closed, this ends, and the process with it.

    Raises
    ------
    NotReady
        When it was stopped, or no process started in time.
    InvalidInput
        When the file is not what it says.
    TooLarge
        When it takes more memory, time, rows or columns than the limits allow.
    StorageFull
        When the dataset would be larger than they allow, or than the disk has room for.
    DecoderFailed
        When the process failed otherwise.
    """
    deadline = time.monotonic() + limits.seconds
    # The process may write these files, and make none.
    target.touch()
    if source.unpacked is not None:
        source.unpacked.touch()
    try:
        with _children.child(limits.seconds, stop) as child:
            child.connection.send((source, target, limits))
            content = _content(child, source.file, limits, deadline, stop)
            answer = _answer_of(content, child, source, limits)
            _children.kill(child)
        return Dataset(file=target, sha256=sha256_of(target), **dict(answer))
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, Stopped):
            raise stopping() from None
        if isinstance(error, NotStarted):
            raise NotReady(
                f"{source.file}: no process to decode it started within the limit of "
                f"{limits.seconds:g} s, so what starts them was replaced: send it again",
                headers={"Retry-After": "2"},
            ) from None
        raise
    finally:
        if source.unpacked is not None:
            source.unpacked.unlink()


def _content(
    child: Child, file: str, limits: Limits, deadline: float, stop: Connection | None
) -> bytes:
    """All that a process writes until it closes its end."""
    content = bytearray()
    ends = [child.connection] if stop is None else [child.connection, stop]
    while len(content) <= _ANSWER_BYTES:
        ready = wait(ends, max(0.0, deadline - time.monotonic()))
        if stop in ready:
            raise stopping()
        if not ready:
            raise TooLarge(f"{file}: decoding took longer than the limit of {limits.seconds:g} s")
        try:
            piece = os.read(child.connection.fileno(), _PIECE_BYTES)
        except ConnectionError:
            piece = b""
        if not piece:
            return bytes(content)
        content += piece
    raise DecoderFailed(f"the process answered more than {_ANSWER_BYTES} bytes")


def _answer_of(content: bytes, child: Child, source: Source, limits: Limits) -> _Decoded:
    # Before the answer stands what libraries wrote to standard error.
    said, _, last = content.rpartition(b"\n")
    try:
        answer = _ANSWERS.validate_json(last)
    except ValidationError:
        code = _children.exit_code(child)
        if code == -signal.SIGKILL or b"std::bad_alloc" in said:
            raise TooLarge(
                f"{source.file}: decoding took all memory that there was, at most the limit of "
                f"{limits.memory_bytes / 2**20:.0f} MiB: send it in smaller pieces"
            ) from None
        raise DecoderFailed(
            f"the process that decoded a {source.format} file ended with exit code {code} and "
            f"without an answer:\n{_quoted(content.decode(errors='replace'))}"
        ) from None
    if isinstance(answer, _Refused):
        raise answer.as_problem()
    if isinstance(answer, _Failed):
        raise DecoderFailed(f"the process failed:\n{_quoted(answer.stack)}")
    return answer


def _quoted(text: str) -> str:
    """What a process wrote, for the log: indented, so that no line of it looks like ours."""
    plain = "".join(one if one.isprintable() or one == "\n" else "?" for one in text[:_LOG_LENGTH])
    return textwrap.indent(plain, "    | ")
