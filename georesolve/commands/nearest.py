"""`georesolve nearest`: files in, a file out, on this machine or by a service.

`within` shares all that is not its own with it.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from georesolve.intake.columns import EVERY

if TYPE_CHECKING:
    from georesolve.files import Summary
    from georesolve.intake.columns import Role
    from georesolve.options import Options, WithinOptions

EXIT_CODES = """\
exit codes:
  0 resolved    1 a file or an option was refused    2 wrong usage
  3 the machine or the service could not do it       130 interrupted

Nothing is written unless the result is complete.
"""
_EPILOG = f"""\
examples:
  georesolve nearest shops.csv depots.geojson -o matches.parquet
  georesolve nearest shops.csv depots.geojson -o near.csv -k 3 --max-distance 50km --columns name
  georesolve nearest 'lake/2026-11/*.parquet' sites.parquet -o matches.parquet --plan
  georesolve nearest obs.parquet sites.parquet -o matches.parquet --server http://gpu-box:8000
  zcat fixes.csv.gz | georesolve nearest - sites.parquet --from csv -o - --to csv | head

{EXIT_CODES}"""
_ADDRESS = (
    "; also an address such as s3://bucket/matches.parquet, with --server that of a folder which "
    "the service may write to"
)
MATCHED = "how observations are matched"
_COLUMNS = ("lat", "lon", "geometry", "id")
_SETS = ("observation", "reference")

METRES = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "nmi": 1852.0, "ft": 0.3048, "yd": 0.9144}
"""Metres of each unit: the international foot, yard and mile, and the nautical mile."""

_DISTANCE = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-z]*)\s*")


def add_to(commands: Any) -> None:
    """Add the command to the parser of the command line."""
    parser = add_command(
        commands,
        "nearest",
        help="resolve files on this machine: the nearest reference of every observation",
        description="Write the nearest reference of every observation to a file: exact, in metres, "
        "on a sphere or on the ellipsoid.",
        epilog=_EPILOG,
    )
    match = parser.add_argument_group(MATCHED).add_argument
    match("-k", type=int, default=1, help="neighbours of each, 1 to 64 (default: 1)")
    units = "references farther away do not match: 800, 800m, 50km, 3mi, 2nmi, 100ft"
    match("--max-distance", dest="max_distance_m", type=metres, metavar="DISTANCE", help=units)
    match("--how", choices=("left", "inner"), default="left", help="inner: matched rows only")
    rank = "time: the least time apart comes first, then the nearest"
    match("--rank-by", choices=("distance", "time"), default="distance", help=rank)
    add_shared(parser, match)
    parser.set_defaults(options=_options)


def add_command(commands: Any, name: str, **words: str) -> argparse.ArgumentParser:
    """Add a command that makes a file of two sets of files."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, formatter_class=argparse.RawDescriptionHelpFormatter, **words
    )
    add = parser.add_argument
    files = (
        "files, folders or globs (Parquet, Arrow, CSV, GeoJSON, also packed by gzip; GeoPackage, "
        "FlatGeobuf, shapefile), also at an address such as s3://bucket/folder/; - is standard "
        "input"
    )
    add("observations", nargs="+", metavar="OBSERVATIONS", help=files)
    add("references", metavar="REFERENCES", help="a file, a folder or a glob")
    suffix = (
        "its suffix is its format: .parquet .arrows .csv .json .geojson .gpkg .fgb .shp; - is "
        "standard output"
    )
    add("-o", "--output", metavar="FILE", help=suffix + _ADDRESS)
    add("--to", metavar="FORMAT", help="format of the output instead of its suffix")
    add("--from", dest="input_format", metavar="FORMAT", help="of standard input")
    add("--quiet", action="store_true", help="no progress and no summary")
    add("--plan", action="store_true", help="say what it would take, and stop")
    add("--server", metavar="URL", help="have a service do it")
    add("--key", help="API key of the service (better: GEORESOLVE_KEY)")
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_shared(parser: argparse.ArgumentParser, match: Any) -> None:
    """Add what may be said whatever is asked: of matches to their group, and of reading."""
    own = "not the reference of the observation's own row"
    match("--exclude-self", action="store_true", help=own)
    near = "also the latitude and longitude of the reference, and the bearing to it"
    match("--near", action="store_true", help=near)
    measured = "what metres are measured on: a sphere, or the ellipsoid of WGS 84 (points only)"
    match("--earth", choices=("sphere", "wgs84"), default="sphere", help=measured)
    carry = "reference columns to carry into the result; '*' for all"
    match("--columns", type=_names, default=(), metavar="A,B", help=carry)
    carry = "observation columns to carry"
    match("--observation-columns", type=_names, default=(), metavar="A,B", help=carry)
    count = "a row for every observation: how many references match it"
    match("--count", action="store_true", help=count)
    of_column = "likewise, what is made of a column of these: sum, mean, min, max"
    match("--summary", action="append", default=[], metavar="COLUMN:KIND,...", help=of_column)
    equal = "only references with equal values in these columns of both files match"
    match("--by", type=_list, metavar="A,B", help=equal)
    times = "column of times of both files, for --max-time, --time-direction and --rank-by"
    match("--time", metavar="COLUMN", help=times)
    for prefix in _SETS:
        match(f"--{prefix}-by", type=_list, metavar="A,B", help=argparse.SUPPRESS)
        match(f"--{prefix}-time", metavar="COLUMN", help=argparse.SUPPRESS)
    apart = "references farther apart in time do not match: 15min, 2h, 90s, 1d, or a number"
    match("--max-time", type=_length, metavar="TIME", help=apart)
    which = "backward: references not later than the observation; forward: not earlier"
    directions = ("nearest", "backward", "forward")
    match("--time-direction", choices=directions, default="nearest", help=which)
    not_same = "no reference of the very time of the observation"
    match("--no-exact", dest="allow_exact", action="store_false", help=not_same)
    search = "how to search: the answer is the same"
    match("--algorithm", choices=("auto", "tree", "brute"), default="auto", help=search)
    where = "where to search; auto: on a GPU where there is one"
    match("--device", choices=("auto", "cpu", "cuda"), default="auto", help=where)

    read = parser.add_argument_group(
        "how files are read",
        "For one of the two, --observation-lat, --reference-id and so on name its columns.",
    ).add_argument
    for name in _COLUMNS:
        read(f"--{name}", metavar="COLUMN", help=f"{name} column of both files")
        for prefix in _SETS:
            read(f"--{prefix}-{name}", metavar="COLUMN", help=argparse.SUPPRESS)
    for prefix, of in (("", "both files"), *((f"{one}-", f"the {one}s") for one in _SETS)):
        layer = f"of {of}, where a file has several"
        read(f"--{prefix}layer", metavar="LAYER", help=layer)
        crs = f"of coordinates in columns of {of}, unless degrees: EPSG:25832"
        read(f"--{prefix}crs", metavar="CRS", help=crs)
    keep = "null: keep rows with invalid coordinates, with a status"
    read("--on-invalid", choices=("error", "null"), default="error", help=keep)
    trust = "trust: take coordinates that look like metres or radians for degrees"
    read("--coordinates", choices=("check", "trust"), default="check", help=trust)
    run = "of lines and polygons, unless GeoParquet says it: straight in degrees, or great circles"
    read("--edges", choices=("planar", "spherical"), help=run)
    follow = "how closely planar edges are followed by great circles (default: 1m)"
    read("--densify", dest="densify_m", type=metres, metavar="DISTANCE", help=follow)


def run(given: argparse.Namespace) -> int:
    """Resolve files as the command line says; returns the exit code."""
    if given.output is None and not given.plan:
        given.parser.error("-o FILE says where the result goes; - is standard output")
    if given.server and given.to and _is_address(given.output or ""):
        given.parser.error("at an address a service writes Parquet files: leave --to out")
    if given.output == "-" and given.to == "shp":
        given.parser.error("a shapefile is several files: standard output is one")
    if given.input_format and "-" not in given.observations:
        given.parser.error("--from is the format of standard input: a file's name says its own")
    # A second is lost to what is imported here: not before `--help` is answered.
    from georesolve.intake.errors import Refused
    from georesolve.workers.gpus import NoGpuError
    from georesolve.workers.jobs import CarriedTooLong

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
    from georesolve.intake.errors import UnsupportedFormat
    from georesolve.intake.sources import format_of

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


def _is_address(given: str) -> bool:
    return "://" in given


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


def _options(given: argparse.Namespace) -> "Options":
    from georesolve.options import Options

    return Options(**said(given, Options))


def said(given: argparse.Namespace, options: type["Options | WithinOptions"]) -> dict[str, Any]:
    """What the command line says of the fields of these options, which are called alike."""
    summary: dict[str, Any] = {"count": ["count"]} if given.count else {}
    for column, _, kinds in (one.rpartition(":") for one in given.summary):
        name = column or kinds
        summary[name] = [*summary.get(name, []), *kinds.split(",")]
    found = {one.name: getattr(given, one.name) for one in fields(options)}
    return found | {"summary": summary or None}


def _resolve(given: argparse.Namespace) -> None:
    from georesolve.compilation import compiling
    from georesolve.files import resolve
    from georesolve.progress import progress_bar

    shown = False if given.quiet else None
    with (
        _output(given) as path,
        compiling(shown),
        progress_bar(shown, "rows", "georesolve") as show,
    ):
        summary = resolve(
            given.observations,
            given.references,
            given.output if _is_address(given.output) else path,
            given.options(given),
            format=given.to,
            device=given.device,
            progress=show,
        )
    _warn(summary.remarks)
    if not given.quiet:
        _tell(summary, given)


def _ask(given: argparse.Namespace) -> None:
    """Have a service resolve two files, which may lie where it reads them itself."""
    from georesolve.extras import needed

    needed("httpx", "client", "--server")
    from georesolve.client import Client, ServiceError, ServiceRefused
    from georesolve.intake.errors import Refused

    if len(given.observations) > 1:
        given.parser.error("--server takes one file of observations")
    asked = given.options(given)
    options = {name: one for name, one in asdict(asked).items() if one is not None and one != {}}
    options["question"] = asked.question
    observations = _for_service(given.observations[0], "observations")
    references = _for_service(given.references, "references")
    if not _is_address(given.output):
        _refuse_output(given, [one for one in (observations, references) if isinstance(one, Path)])
    key = given.key or os.environ.get("GEORESOLVE_KEY")
    try:
        service = Client(given.server, key, progress=False if given.quiet else None)
    except ValueError as error:
        given.parser.error(f"--server: {error}")
    try:
        with service as client:
            if _is_address(given.output):
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


def _for_service(given: str, role: "Role") -> str | Path:
    """A set that the service has or reads itself, or the one file to send."""
    from georesolve.intake.errors import InvalidInput
    from georesolve.paths import files_at

    if _is_address(given) or given.startswith("dataset:"):
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
    from georesolve.intake.errors import InvalidOption
    from georesolve.intake.representations import FORMATS
    from georesolve.paths import refuse_as_target

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


def _tell(summary: "Summary", given: argparse.Namespace) -> None:
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
    from georesolve.files import plan

    planned = plan(given.observations, given.references, given.options(given), device=given.device)
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
