"""`georesolve nearest` and `georesolve within`: files in, a file out, here or by a service."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from georesolve.engine.compilation import compiling
from georesolve.engine.gpus import NoGpuError
from georesolve.engine.match_sets import CarriedTooLong
from georesolve.files import Summary, plan, resolve
from georesolve.io.columns import Role
from georesolve.io.errors import (
    InvalidInput,
    InvalidOption,
    Refused,
    UnsupportedFormat,
)
from georesolve.io.extras import needed
from georesolve.io.formats import format_of
from georesolve.io.progress import progress_bar
from georesolve.io.result_formats import FORMATS
from georesolve.io.storage import Listed, files_at, is_url, refuse_as_target, target_of
from georesolve.options import Options, WithinOptions

_STANDARD_OUTPUT = "matches.csv"
"""What standard output would be called as a file: its suffix is its format without --to."""


def run(given: argparse.Namespace) -> int:
    """Resolve files as the command line says; returns the exit code."""
    if given.output is None and not given.plan:
        given.parser.error("-o FILE says where the result goes; - is standard output")
    if given.server and given.to and is_url(given.output):
        given.parser.error("at an address a service writes Parquet files: leave --to out")
    if given.output == "-" and given.to == "shp":
        given.parser.error("a shapefile is several files: standard output is one")
    if given.input_format and "-" not in given.observations:
        given.parser.error("--from is the format of standard input: a file's name says its own")
    try:
        with ExitStack() as stack:
            # What ends a job of the night sends this. Copies of both sets would stay behind.
            # Who calls this in a thread, or handles the signal, ends it in another way.
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                stack.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)
            stack.enter_context(warnings.catch_warnings())
            warnings.showwarning = _show_warning
            given.observations = [_input_file(one, given, stack) for one in given.observations]
            if given.plan:
                _plan(given)
            elif given.server:
                _ask(given)
            else:
                _resolve(given)
    except (Refused, CarriedTooLong) as error:
        return _failed(1, str(error))
    except KeyboardInterrupt:
        return _failed(130, "interrupted; nothing was written")
    except (NoGpuError, OSError, ImportError, MemoryError) as error:
        return _failed(3, str(error) or type(error).__name__)
    return 0


def _input_file(given: str, arguments: argparse.Namespace, stack: ExitStack) -> str:
    """The path of an input: standard input is kept in a file, as Parquet is read from its end."""
    if given != "-":
        return given
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="georesolve-")))
    suffix = f".{arguments.input_format}" if arguments.input_format else ""
    path = folder / f"stdin{suffix}"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    try:
        if not suffix:
            format_of(path, None, path.name, "standard input")
    except UnsupportedFormat as error:
        if error.errors:
            # They do: it is one that is not read.
            raise
        raise UnsupportedFormat(
            "standard input: nothing tells its format: say it with --from, as in --from csv"
        ) from error
    return str(path)


def _asked(given: argparse.Namespace) -> Options | WithinOptions:
    """The options as the command line says them."""
    summary: dict[str, Any] = {"count": ["count"]} if given.count else {}
    for column, _, kinds in (one.rpartition(":") for one in given.summary):
        name = column or kinds
        summary[name] = [*summary.get(name, []), *kinds.split(",")]
    found = {one.name: getattr(given, one.name) for one in fields(given.options)}
    asked: Options | WithinOptions = given.options(**found | {"summary": summary or None})
    return asked


def _resolve(given: argparse.Namespace) -> None:
    shown = False if given.quiet else None
    with (
        _output(given) as path,
        compiling(shown),
        progress_bar(shown, "rows", "georesolve") as show,
    ):
        summary = resolve(
            given.observations,
            given.references,
            path if given.output == "-" else given.output,
            _asked(given),
            format=given.to,
            device=given.device,
            progress=show,
        )
    _warn(summary.remarks)
    if not given.quiet:
        _tell(summary, given)


def _ask(given: argparse.Namespace) -> None:
    """Have a service resolve two files, which may lie where it reads them itself."""
    needed("httpx", "client", "--server")
    from georesolve.client import Client, ServiceError, ServiceRefused

    if len(given.observations) > 1:
        given.parser.error("--server takes one file of observations")
    asked = _asked(given)
    options = {name: one for name, one in asdict(asked).items() if one is not None and one != {}}
    options["question"] = asked.question
    sets = (
        _for_service(given.observations[0], "observations"),
        _for_service(given.references, "references"),
    )
    if not is_url(given.output):
        _refuse_output(given, [one for one in sets if isinstance(one, Listed)])
    sent = [one if isinstance(one, str) else str(one.file) for one in sets]
    key = given.key or os.environ.get("GEORESOLVE_KEY")
    try:
        service = Client(given.server, key, progress=False if given.quiet else None)
    except ValueError as error:
        given.parser.error(f"--server: {error}")
    try:
        with service as client:
            output = given.output if is_url(given.output) else None
            job = client.submit(*sent, output=output, **options)
            if output is None:
                with _output(given) as path:
                    # The suffix of what is received says its format.
                    received = path.with_name(f"{path.name}.{given.to}") if given.to else path
                    job.download(received).replace(path)
            report = job.report()
            job.dismiss()
    except ServiceRefused as error:
        how = ": set GEORESOLVE_KEY to a key of the service" if error.status == 401 else ""
        raise Refused(f"{error}{how}") from error
    except ServiceError as error:
        raise ConnectionError(str(error)) from error
    _warn(report["remarks"])
    if not given.quiet:
        print(*_counted(report["counts"]), sep="\n", file=sys.stderr)


def _for_service(given: str, role: Role) -> str | Listed:
    """A set that the service has or reads itself, or the one file to send."""
    if is_url(given) or given.startswith("dataset:"):
        return given
    file, *others = files_at(given, role)
    if others:
        raise InvalidInput(
            f"{role}: --server takes one file, and at {given!r} are {len(others) + 1}: make one of "
            "them, or name an address that the service reads"
        )
    return file


def _refuse_output(given: argparse.Namespace, sources: list[Listed]) -> None:
    """Refuse an output that a service does not give, or that cannot be written."""
    target = target_of(_STANDARD_OUTPUT if given.output == "-" else given.output)
    suffix = given.to or Path(target.name).suffix.removeprefix(".").lower() or "parquet"
    formats = [one.suffix for one in FORMATS]
    if suffix not in formats:
        raise InvalidOption(
            f"a service gives no result as {suffix!r}: name one of {', '.join(formats)}, or leave "
            "--server out"
        )
    if given.output != "-":
        refuse_as_target(target, sources)


@contextmanager
def _output(given: argparse.Namespace) -> Iterator[Path]:
    """Where the result is written: a file beside, copied to standard output when it is complete."""
    if given.output != "-":
        yield Path(given.output)
        return
    with tempfile.TemporaryDirectory(prefix="georesolve-") as folder:
        path = Path(folder) / f"matches.{given.to or 'csv'}"
        yield path
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
        sys.stdout.buffer.flush()


def _tell(summary: Summary, given: argparse.Namespace) -> None:
    """Write what came out to standard error."""
    resolving = summary.seconds["resolve"]
    print(
        f"{summary.observations:,} observations, {summary.references:,} references: "
        f"read in {summary.seconds['read']:.1f} s, resolved and written in {resolving:.1f} s "
        f"({summary.observations / max(resolving, 1e-9):,.0f} rows/s)",
        *_counted(summary.counts),
        sep="\n",
        file=sys.stderr,
    )
    if compiled := summary.seconds["compile"]:
        print(f"  compiled the kernels, once for this machine: {compiled:.1f} s", file=sys.stderr)
    if summary.distances_m:
        told_of = ", ".join(f"{name} {told(value)}" for name, value in summary.distances_m.items())
        print(f"  distances: {told_of}", file=sys.stderr)
    if summary.cut:
        print(
            f"  {summary.cut:,} observations have all {given.k}, and may have more within "
            f"{told(given.max_distance_m)}: `georesolve within` finds all",
            file=sys.stderr,
        )


def _counted(counts: Mapping[str, int]) -> list[str]:
    return [f"  {status:<20} {rows:>14,}" for status, rows in sorted(counts.items()) if rows]


def _plan(given: argparse.Namespace) -> None:
    """Write what the work would take to standard output."""
    is_folder = given.server and is_url(given.output)
    planned = plan(
        given.observations,
        given.references,
        _asked(given),
        out=_STANDARD_OUTPUT if given.output == "-" else given.output or "",
        format="parquet" if is_folder else given.to,
        device=given.device,
    )
    _warn(planned.remarks)
    stages = ", ".join(f"{name} {seconds:,.2f} s" for name, seconds in planned.seconds.items())
    spread = planned.result_rows_spread
    sure = f"by a sample, give or take {spread:,}" if spread else "at most"
    print(
        f"observations  {planned.observations:,} rows, {planned.invalid_observations:,} invalid",
        f"references    {planned.references:,} rows, {planned.invalid_references:,} invalid",
        f"result        {planned.result_rows:,} rows {sure}",
        f"columns       {', '.join(planned.columns)}",
        f"device        {planned.device}",
        f"search        {planned.search}",
        f"time          about {sum(planned.seconds.values()):,.2f} s: {stages}",
        sep="\n",
    )


def _warn(remarks: list[str]) -> None:
    for remark in remarks:
        print(f"georesolve: warning: {remark}", file=sys.stderr)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _warn([str(message)])


def _failed(exit_code: int, message: str) -> int:
    print(f"georesolve: {message}", file=sys.stderr)
    return exit_code


def told(distance_m: float) -> str:
    """A distance in the unit that people would take for it."""
    if distance_m < 1000:
        return f"{distance_m:.3g} m" if distance_m < 100 else f"{distance_m:.0f} m"
    return f"{distance_m / 1000:,.1f} km"
