"""What `georesolve nearest` and `georesolve within` take: said without loading what they do."""

import argparse
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING
from typing import Any, Literal

from georesolve.io.columns import EVERY, PREFIXES, Reading
from georesolve.options import Options, WithinOptions, fields_of

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
    parser.set_defaults(parser=parser, options=options)
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


def _names(given: str) -> tuple[str, ...] | Literal["*"]:
    """Names between commas, or `*` for all."""
    return EVERY if given == EVERY else tuple(given.split(","))


def _length(given: str) -> str | float:
    """A length of time with its unit, or a number for times that are numbers."""
    for number in (int, float):
        with suppress(ValueError):
            return number(given)
    return given


def metres(text: str) -> float:
    """Metres of a distance with its unit (`50km`, `800 m`, `3mi`), or of a number of metres."""
    match = _DISTANCE.fullmatch(text)
    if match is not None and (unit := match[2] or "m") in METRES:
        with suppress(ValueError):
            return float(match[1]) * METRES[unit]
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a distance: write a number and one of {', '.join(METRES)}, as in 50km"
    )


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
    "by": (_names, "A,B"),
    "observation_by": (_names, "A,B"),
    "reference_by": (_names, "A,B"),
    "max_time": (_length, "TIME"),
    "layer": (str, "LAYER"),
    "crs": (str, "CRS"),
}
"""How the text of an option is read, and what it is called; of all others it is a column."""
