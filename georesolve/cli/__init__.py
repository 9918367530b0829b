"""The command line: `nearest` and `within` work on files, the others belong to the service."""

import argparse
import sys
from collections.abc import Sequence

from georesolve.version import __version__

_ON_FILES = {
    "nearest": "resolve files on this machine: the nearest reference of every observation",
    "within": "resolve files on this machine: all references within a distance",
}
_ELSEWHERE = {
    "serve": "run the service",
    "keys": "make, list, rotate and revoke API keys of a service",
    "sweep": "tell and remove what a service keeps by itself",
    "backup": "write a backup of a service, which may run",
    "bench": "measure it on this machine, beside other ways to search",
}
"""Commands of the service, which is imported when one of them is called."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] not in _ELSEWHERE:
        # The options of commands load numpy, which --help and --version do without. What begins
        # so is --print-completion.
        is_needed = any(one in _ON_FILES or one.startswith("--p") for one in arguments)
        given = parser(with_options=is_needed).parse_args(arguments)
        # Not before: help loads nothing that a command needs.
        from georesolve.cli import on_files

        return on_files.run(given)
    try:
        from georesolve.cli import serve

        return serve.main(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("georesolve"):
            raise
        print(
            f"georesolve: georesolve {arguments[0]} needs {error.name}, which is not installed: "
            "pip install 'georesolve[service]'",
            file=sys.stderr,
        )
        return 3


def parser(*, with_options: bool = True) -> argparse.ArgumentParser:
    """The parser of the command line, which also makes the completion of shells."""
    import shtab

    whole = argparse.ArgumentParser(
        prog="georesolve",
        description="The exact nearest reference points of geospatial observations, and all within "
        "a distance.",
        epilog="`georesolve COMMAND --help` describes a command.",
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    shtab.add_argument_to(whole, "--print-completion", help="of bash, zsh or tcsh, to be sourced")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    for name, does in (_ON_FILES | _ELSEWHERE).items():
        commands.add_parser(name, help=does)
    if with_options:
        from georesolve.cli import arguments

        arguments.add_to(commands.choices)
    return whole
