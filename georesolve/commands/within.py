"""`georesolve within`: files in, a file of all references within a distance out."""

import argparse
from typing import TYPE_CHECKING, Any

from georesolve.commands.nearest import EXIT_CODES, MATCHED, add_command, add_shared, metres, said

if TYPE_CHECKING:
    from georesolve.options import WithinOptions

_EPILOG = f"""\
examples:
  georesolve within shops.csv depots.geojson -d 10km -o pairs.parquet --columns name
  georesolve within shops.csv depots.geojson -d radius_m -o pairs.parquet
  georesolve within ships.parquet ships.parquet -d 0.5nmi --once -o meetings.parquet
  georesolve within trips.parquet buildings.parquet -d 500m --count -o counts.parquet
  georesolve within sites.csv towns.csv -d 50km --count --summary population:sum,mean -o sums.csv

{EXIT_CODES}"""


def add_to(commands: Any) -> None:
    """Add the command to the parser of the command line."""
    parser = add_command(
        commands,
        "within",
        help="resolve files on this machine: all references within a distance",
        description="Write all references within a distance of every observation to a file, or "
        "how many there are: exact, in metres.",
        epilog=_EPILOG,
    )
    match = parser.add_argument_group(MATCHED).add_argument
    units = "800, 800m, 10km, 3mi, 2nmi, 100ft, or the observations' column that has metres of each"
    reach = match("-d", "--distance", dest="distance_m", type=_distance, required=True, help=units)
    reach.metavar = "DISTANCE"
    both = "of files that are the same: each pair once, its lower row as the observation"
    match("--once", action="store_true", help=both)
    alone = "left: also a row for every observation without a reference"
    match("--how", choices=("left", "inner"), default="inner", help=alone)
    add_shared(parser, match)
    by = "reference: a row for every reference, of columns of the observations"
    match("--summary-by", choices=("observation", "reference"), default="observation", help=by)
    parser.set_defaults(options=_options)


def _distance(text: str) -> float | str:
    """A distance with its unit, or the name of a column, which begins with no digit."""
    return metres(text) if text[:1] in "0123456789.-+ " else text


def _options(given: argparse.Namespace) -> "WithinOptions":
    from georesolve.options import WithinOptions

    return WithinOptions(**said(given, WithinOptions))
