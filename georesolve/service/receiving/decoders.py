"""The processes that decode files of strangers: they are bounded, and their answers are data.

They answer with JSON. The digest of a dataset is counted here: of each part once the process has
ended that decoded it. What joins the parts reads footers alone, in Python.
"""

import logging
import os
import signal
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from georesolve.io.columns import Columns
from georesolve.io.datasets import Dataset, Facts
from georesolve.io.errors import Refused
from georesolve.io.evidence import Evidence
from georesolve.io.footers import footer_start
from georesolve.io.formats import Range, Source
from georesolve.io.local_files import Digest
from georesolve.io.normalized import Decoded, joined
from georesolve.io.validation import Findings
from georesolve.service.errors import TooLarge, problem_of
from georesolve.service.receiving import decoding, sandbox
from georesolve.service.receiving.children import Child, Children
from georesolve.service.receiving.decoding import REFUSALS, Limits, Task

logger = logging.getLogger(__name__)

# Not GDAL and PROJ: they keep a file open, whose number would be that of another in a child.
PRELOADED = ["georesolve.service.receiving.decoding", "georesolve.io.outlines"]
"""In the sandbox no module of ours can be loaded."""
LEFT_OUT = "pandas"
"""pyarrow loads it, where it finds it, with the first array that it makes, and nothing is decoded
with it: without it decoders are ready in a little more than half of the time."""
_ANSWER_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16
_LOG_LENGTH = 20_000
_LARGE_BYTES = 8 << 20
"""Files from this size on are decoded by several processes."""
_MOST_PROCESSES = 16
"""As many for one file: several files are decoded at a time, and each process takes its memory."""


class DecoderFailed(RuntimeError):
    """A process ended without an answer, or with a defect of ours: no fault of the file."""


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Decoded(_Answer):
    facts: Facts
    types: list[str]
    points: str | None
    evidence: Evidence

    def of(self, target: Path) -> Decoded:
        dataset = Dataset(file=target, digest=None, **vars(self.facts))
        columns = Columns(dataset.lat, dataset.lon, dataset.id)
        return Decoded(dataset, Findings(columns, self.points, self.evidence))


class _Cut(_Answer):
    ranges: list[Range] = Field(max_length=_MOST_PROCESSES)


_KINDS = {one.__name__: one for one in REFUSALS}


class _Refused(_Answer):
    problem: str = Field(pattern=f"^({'|'.join(_KINDS)})$")
    detail: str
    errors: list[dict[str, str | int | list[dict[str, str | None]]]]


class _Failed(_Answer):
    stack: str


_A = TypeVar("_A", bound=BaseModel)
_NO_ANSWERS: TypeAdapter[_Refused | _Failed] = TypeAdapter(_Refused | _Failed)


def open_decoders() -> Children:
    """Processes that decode, of which one is ready, so that the first upload need not wait."""
    has = sandbox.available()
    if not all(has):
        logger.warning("files of strangers are decoded in half a sandbox, the kernel has %s", has)
    children = Children(decoding.serve, PRELOADED, LEFT_OUT)
    children.make_ready()
    return children


def decode_in_child(
    source: Source, target: Path, limits: Limits, children: Children
) -> tuple[Dataset, Digest]:
    """Decode a file to `target`; blocks. Raises a problem of the file, NotReady, DecoderFailed."""
    budget = _Budget(source, limits, time.monotonic() + limits.seconds, children)
    try:
        if (most := _most_for(source)) > 1:
            # While one looks for ranges, those that will decode them start.
            children.make_ready(1 + most)
            looking = Task(decoding.cut, source, (most,), [source.path], [])
            ranges = _answer_to(looking, _Cut, budget).ranges
            # One process looks at all of a file that is too large.
            is_cut = len(ranges) > 1 and ranges[-1].stop <= limits.rows
            if is_cut and (made := _in_ranges(ranges, budget, target)):
                return made
        return _answer_to(_decoding(source, target), _Decoded, budget).of(target).dataset, Digest()
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        if source.unpacked is not None:
            source.unpacked.unlink(missing_ok=True)


class _Budget(NamedTuple):
    """What a file may take, and until when."""

    source: Source
    limits: Limits
    deadline: float
    children: Children

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def share(self, number: int) -> "_Budget":
        """That of one of several processes, whose files are joined afterwards."""
        limits = replace(
            self.limits,
            memory_bytes=self.limits.memory_bytes // number,
            written_bytes=self.limits.written_bytes // number,
        )
        return self._replace(limits=limits)


def _decoding(source: Source, target: Path) -> Task:
    unpacked = [] if source.unpacked is None else [source.unpacked]
    return Task(decoding.decode_to, source, (target,), [source.path], [target, *unpacked])


def _most_for(source: Source) -> int:
    """Processes that may decode a file: one a core for a large one."""
    is_small = source.unpacked is not None or source.path.stat().st_size < _LARGE_BYTES
    return 1 if is_small else min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def _in_ranges(ranges: list[Range], budget: _Budget, target: Path) -> tuple[Dataset, Digest] | None:
    """Decode a file in a process a range; None where it has to be read in one go."""
    source = budget.source
    targets = [target, *(target.with_suffix(f".{i}") for i in range(1, len(ranges)))]
    sources = [source._replace(range=one) for one in ranges]
    tasks = list(map(_decoding, sources, targets))
    share, digest = budget.share(len(tasks)), Digest()
    try:
        with ThreadPoolExecutor(len(tasks), "range") as threads:
            coming = threads.map(lambda task: _answer_to(task, _Decoded, share), tasks)
            answers = [next(coming)]
            # The first row groups stay where they are.
            counted = threads.submit(digest.count, target, footer_start(target))
            answers += coming
            # A column may hold numbers in one range, and text in another.
            if len({(one.facts.columns, *one.types) for one in answers}) > 1:
                return None
            joining = Task(decoding.join, source, (target, targets[1:]), targets[1:], [target])
            _answer_to(joining, _Answer, budget)
        counted.result()
    except REFUSALS:
        return None
    finally:
        for path in targets[1:]:
            path.unlink(missing_ok=True)
    decoded = joined([one.of(target) for one in answers], target)
    try:
        decoded.findings.refuse(decoded.dataset, source.reading, source.file)
    except Refused as refused:
        raise problem_of(refused) from None
    return decoded.dataset, digest


def _answer_to(task: Task, kind: type[_A], budget: _Budget) -> _A:
    """Have a process of its own do a task."""
    # The process may write these files, and make none.
    for path in task.writes:
        path.touch()
    with budget.children.child(budget.seconds_left) as child:
        # One that has ended meanwhile is told of below.
        with suppress(ConnectionError):
            child.connection.send((task, budget.limits))
        return _answer_of(_content(child, budget), kind, child, budget)


def _content(child: Child, budget: _Budget) -> bytes:
    """All that a process writes until it closes its end."""
    content = bytearray()
    while len(content) <= _ANSWER_BYTES:
        if not child.connection.poll(budget.seconds_left):
            raise TooLarge(
                f"{budget.source.file}: decoding took longer than the limit of "
                f"{budget.limits.seconds:g} s"
            )
        try:
            piece = os.read(child.connection.fileno(), _PIECE_BYTES)
        except ConnectionError:
            piece = b""
        if not piece:
            return bytes(content)
        content += piece
    raise DecoderFailed(f"the process answered more than {_ANSWER_BYTES} bytes")


def _answer_of(content: bytes, kind: type[_A], child: Child, budget: _Budget) -> _A:
    # Before the answer stands what libraries wrote to standard error.
    said, _, last = content.rpartition(b"\n")
    with suppress(ValidationError):
        return kind.model_validate_json(last, strict=True)
    try:
        answer = _NO_ANSWERS.validate_json(last)
    except ValidationError:
        budget.children.refuse_closed()
        code = budget.children.exit_code(child)
        if code == -signal.SIGKILL or b"std::bad_alloc" in said:
            raise TooLarge(
                f"{budget.source.file}: decoding took all memory that there was, at most the limit "
                f"of {budget.limits.memory_bytes / 2**20:.0f} MiB: send it in smaller pieces"
            ) from None
        raise DecoderFailed(
            f"the process that decoded a {budget.source.format} file ended with exit code {code} "
            f"and without an answer:\n{_quoted(content.decode(errors='replace'))}"
        ) from None
    if isinstance(answer, _Refused):
        raise _KINDS[answer.problem](answer.detail, list(answer.errors))
    raise DecoderFailed(f"the process failed:\n{_quoted(answer.stack)}")


def _quoted(text: str) -> str:
    """What a process wrote, for the log: indented, so that no line of it looks like ours."""
    plain = "".join(one if one.isprintable() or one == "\n" else "?" for one in text[:_LOG_LENGTH])
    return textwrap.indent(plain, "    | ")
