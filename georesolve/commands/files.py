"""`georesolve nearest` and `georesolve within`: files in, a file out, here or by a service."""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, Literal

from georesolve.compilation import compiling
from georesolve.elsewhere import is_address
from georesolve.extras import needed
from georesolve.files import Summary, plan, resolve
from georesolve.intake.columns import EVERY, PREFIXES, Reading, Role
from georesolve.intake.errors import InvalidInput, InvalidOption, Refused, UnsupportedFormat
from georesolve.intake.representations import FORMATS
from georesolve.intake.sources import format_of
from georesolve.options import Options, WithinOptions, fields_of
from georesolve.paths import files_at, refuse_as_target
from georesolve.progress import progress_bar
from georesolve.workers.gpus import NoGpuError
from georesolve.workers.jobs import CarriedTooLong

_EXIT_CODES = """
exit codes:
  0 resolved    1 a file or an option was refused    2 wrong usage
  3 the machine or the service could not do it       130 interrupted

Nothing is written unless the result is complete.
"""
_NEAREST = """\
examples:
  georesolve nearest shops.csv depots.geojson -o matches.parquet
  georesolve nearest shops.csv depots.geojson -o near.csv -k 3 --max-distance 50km --columns name
  georesolve nearest 'lake/2026-11/*.parquet' sites.parquet -o matches.parquet --plan
  georesolve nearest obs.parquet sites.parquet -o matches.parquet --server http://gpu-box:8000
  zcat fixes.csv.gz | georesolve nearest - sites.parquet --from csv -o - --to csv | head
"""
_WITHIN = """\
examples:
  georesolve within shops.csv depots.geojson -d 10km -o pairs.parquet --columns name
  georesolve within shops.csv depots.geojson -d radius_m -o pairs.parquet
  georesolve within ships.parquet ships.parquet -d 0.5nmi --once -o meetings.parquet
  georesolve within trips.parquet buildings.parquet -d 500m --count -o counts.parquet
  georesolve within sites.csv towns.csv -d 50km --count --summary population:sum,mean -o sums.csv
"""
_FILES = (
    "files, folders or globs (Parquet, Arrow, CSV, GeoJSON, also packed by gzip; GeoPackage, "
    "FlatGeobuf, shapefile), also at an address such as s3://bucket/folder/; - is standard input"
)
_OUTPUT = (
    "its suffix is its format: .parquet .arrows .csv .json .geojson .gpkg .fgb .shp; - is standard "
    "output; also an address such as s3://bucket/matches.parquet, with --server that of a folder "
    "which the service may write to"
)

METRES = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "nmi": 1852.0, "ft": 0.3048, "yd": 0.9144}
"""Metres of each unit: the international foot, yard and mile, and the nautical mile."""

_DISTANCE = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-z]*)\s*")


def add_to(commands: Mapping[str, argparse.ArgumentParser]) -> None:
    """Add to the parsers of both commands what they take."""
    nearest, within = commands["nearest"], commands["within"]
    nearest.description = (
        "Write the nearest reference of every observation to a file: exact, in metres, on a sphere "
        "or on the ellipsoid."
    )
    within.description = (
        "Write all references within a distance of every observation to a file, or how many there "
        "are: exact, in metres."
    )
    _add(nearest, Options, _NEAREST)
    _add(within, WithinOptions, _WITHIN)


def _add(
    parser: argparse.ArgumentParser, options: type[Options | WithinOptions], examples: str
) -> None:
    """Add what a command takes; its options are those of Python, with the words of these."""
    parser.epilog = examples + _EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(run=run, parser=parser, options=options)
    add = parser.add_argument
    add("observations", nargs="+", metavar="OBSERVATIONS", help=_FILES)
    add("references", metavar="REFERENCES", help="a file, a folder or a glob")
    add("-o", "--output", metavar="FILE", help=_OUTPUT)
    add("--to", metavar="FORMAT", help="format of the output instead of its suffix")
    add("--from", dest="input_format", metavar="FORMAT", help="of standard input")
    add("--quiet", action="store_true", help="no progress and no summary")
    add("--plan", action="store_true", help="say what it would take, and stop")
    add("--server", metavar="URL", help="have a service do it")
    add("--key", help="API key of the service (better: GEORESOLVE_KEY)")
    where = "where to search; auto: on a GPU where there is one"
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help=where)
    match = parser.add_argument_group(
        "how observations are matched",
        "A DISTANCE is a number of metres, or one with its unit: 800m, 50km, 3mi, 2nmi, 100ft, "
        "10yd. --observation-by, --reference-time and so on name columns of one of the two.",
    )
    read = parser.add_argument_group(
        "how files are read",
        "For one of the two, --observation-lat, --reference-id and so on name its columns, its "
        "layer or its CRS.",
    )
    for one in fields_of(options):
        is_of_one = one.name.startswith((*PREFIXES.values(),)) and one.name != "observation_columns"
        words = argparse.SUPPRESS if is_of_one else one.metadata["description"]
        if isinstance(one.default, int | str) and not (is_of_one or isinstance(one.default, bool)):
            words += f" (default: {one.default})"
        is_read = one.name in _READ or one.name.partition("_")[2] in _READ
        flags = _FLAGS.get(one.name) or [f"--{one.name.replace('_', '-')}"]
        add = (read if is_read else match).add_argument
        values = options.values.get(one.name)
        if one.name == "summary":
            count = "a row for every observation: how many references match it"
            match.add_argument("--count", action="store_true", help=count)
            words = "likewise, what is made of a column of these: sum, mean, min, max"
            add(*flags, action="append", default=[], metavar="COLUMN:KIND,...", help=words)
        elif values == (False, True):
            action = "store_false" if one.default else "store_true"
            # What false means is what its flag does.
            add(*flags, dest=one.name, action=action, help=words.removeprefix("false: "))
        elif values:
            allowed = [value for value in values if value]
            add(*flags, choices=allowed, default=one.default, help=words)
        else:
            type, metavar = _TAKEN.get(one.name, (str, "COLUMN"))
            is_needed = one.default is MISSING
            default = None if is_needed else one.default
            add(*flags, dest=one.name, type=type, metavar=metavar, default=default,
                required=is_needed, help=words)  # fmt: skip


def run(given: argparse.Namespace) -> int:
    """Resolve files as the command line says; returns the exit code."""
    if given.output is None and not given.plan:
        given.parser.error("-o FILE says where the result goes; - is standard output")
    if given.server and given.to and is_address(given.output):
        given.parser.error("at an address a service writes Parquet files: leave --to out")
    if given.output == "-" and given.to == "shp":
        given.parser.error("a shapefile is several files: standard output is one")
    if given.input_format and "-" not in given.observations:
        given.parser.error("--from is the format of standard input: a file's name says its own")
    try:
        with ExitStack() as stack:
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


def _names(given: str) -> tuple[str, ...] | Literal["*"]:
    """Names between commas, or `*` for all."""
    return EVERY if given == EVERY else tuple(given.split(","))


def _list(given: str) -> tuple[str, ...]:
    return tuple(given.split(","))


def _length(given: str) -> str | float:
    """A length of time with its unit, or a number for times that are numbers."""
    for number in (int, float):
        with suppress(ValueError):
            return number(given)
    return given


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
            given.output if is_address(given.output) else path,
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
    observations = _for_service(given.observations[0], "observations")
    references = _for_service(given.references, "references")
    if not is_address(given.output):
        _refuse_output(given, [one for one in (observations, references) if isinstance(one, Path)])
    key = given.key or os.environ.get("GEORESOLVE_KEY")
    try:
        service = Client(given.server, key, progress=False if given.quiet else None)
    except ValueError as error:
        given.parser.error(f"--server: {error}")
    try:
        with service as client:
            if is_address(given.output):
                job = client.submit(observations, references, output=given.output, **options)
            else:
                job = client.submit(observations, references, **options)
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


def _for_service(given: str, role: Role) -> str | Path:
    """A set that the service has or reads itself, or the one file to send."""
    if is_address(given) or given.startswith("dataset:"):
        return given
    file, *others = files_at(given, role)
    if others:
        raise InvalidInput(
            f"{role}: --server takes one file, and at {given!r} are {len(others) + 1}: make one of "
            "them, or name an address that the service reads"
        )
    return Path(str(file.file))


def _refuse_output(given: argparse.Namespace, sources: list[Path]) -> None:
    """Refuse an output that a service does not give, or that cannot be written."""
    target = Path("matches.csv" if given.output == "-" else given.output)
    wanted = given.to or target.suffix.removeprefix(".").lower() or "parquet"
    formats = [one.suffix for one in FORMATS]
    if wanted not in formats:
        raise InvalidOption(
            f"a service gives no result as {wanted!r}: name one of {', '.join(formats)}, or leave "
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
    planned = plan(given.observations, given.references, _asked(given), device=given.device)
    _warn(planned.remarks)
    spread = planned.result_rows_spread
    sure = f"by a sample, give or take {spread:,}" if spread else "at most"
    print(
        f"observations  {planned.observations:,} rows, {planned.invalid_observations:,} invalid",
        f"references    {planned.references:,} rows, {planned.invalid_references:,} invalid",
        f"result        {planned.result_rows:,} rows {sure}",
        f"columns       {', '.join(planned.columns)}",
        f"device        {planned.device}",
        f"search        {planned.search}",
        f"time          about {planned.seconds:,.2f} s",
        sep="\n",
    )


def _warn(remarks: list[str]) -> None:
    for remark in remarks:
        print(f"georesolve: warning: {remark}", file=sys.stderr)


def _failed(exit_code: int, message: str) -> int:
    print(f"georesolve: {message}", file=sys.stderr)
    return exit_code


def metres(text: str) -> float:
    """Metres of a distance with its unit (`50km`, `800 m`, `3mi`), or of a number of metres."""
    match = _DISTANCE.fullmatch(text)
    if match is not None and (unit := match[2] or "m") in METRES:
        try:
            return float(match[1]) * METRES[unit]
        except ValueError:
            pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a distance: write a number and one of {', '.join(METRES)}, as in 50km"
    )


def told(distance_m: float) -> str:
    """A distance in the unit that people would take for it."""
    if distance_m < 1000:
        return f"{distance_m:.3g} m" if distance_m < 100 else f"{distance_m:.0f} m"
    return f"{distance_m / 1000:,.1f} km"


def _distance(text: str) -> float | str:
    """A distance with its unit, or the name of a column, which begins with no digit."""
    return metres(text) if text[:1] in "0123456789.-+ " else text


_READ = {*Reading._fields}
_FLAGS = {
    "k": ["-k"],
    "max_distance_m": ["--max-distance"],
    "distance_m": ["-d", "--distance"],
    "densify_m": ["--densify"],
    "allow_exact": ["--no-exact"],
}
"""Flags that are not called as their option is."""
_TAKEN: dict[str, tuple[Callable[[str], Any], str]] = {
    "k": (int, "K"),
    "max_distance_m": (metres, "DISTANCE"),
    "distance_m": (_distance, "DISTANCE"),
    "densify_m": (metres, "DISTANCE"),
    "columns": (_names, "A,B"),
    "observation_columns": (_names, "A,B"),
    "by": (_list, "A,B"),
    "observation_by": (_list, "A,B"),
    "reference_by": (_list, "A,B"),
    "max_time": (_length, "TIME"),
    "layer": (str, "LAYER"),
    "crs": (str, "CRS"),
}
"""How the text of an option is read, and what it is called; of all others it is a column."""
