"""`georesolve`: the command line. Every setting is a flag of `serve`."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import get_args

from pydantic import ValidationError

from georesolve.service import errors
from georesolve.service.settings import SECRETS, KeyRole, Settings, misspelt

_FROM_ENVIRONMENT = (
    "A flag not given is taken from its GEORESOLVE_* variable, or from the file of that name, in "
    f"small letters, in {SECRETS}."
)


_VERBS = {
    "create": ("make a key and print it", "Make a key and print it, this once."),
    "list": ("list the keys", "List the keys."),
    "rotate": (
        "give a key a new secret",
        "Give a key a new secret and print it, this once. The old one ends within a second, and "
        "what was made with it belongs to the new one, which is valid for as long as the old one "
        "was made for.",
    ),
    "revoke": (
        "let a key open nothing any more",
        "Revoke a key for good; what was made with it stays, and is nobody's.",
    ),
    "adopt": (
        "give a key what was made without keys",
        "Give a key the datasets and jobs that were made while the service needed no keys.",
    ),
}
"""Of `georesolve keys`: what each does, in short and in full."""
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["bench"]:
        from georesolve.benchmarks import ladder

        return ladder.main(arguments[1:])
    # Other users of the machine may not read the files of the service, nor those of its workers.
    os.umask(0o077)
    given = vars(_parser().parse_args(arguments))
    for name, meant in misspelt(os.environ).items():
        hint = f": is {meant} meant?" if meant else ""
        print(f"georesolve: {name} is no setting and has no effect{hint}", file=sys.stderr)
    # Every worker process imports this module again and needs none of what a command does.
    run = resolve_name(given.pop("run"))
    own = {name: given.pop(name) for name in given.keys() - Settings.model_fields}
    try:
        settings = Settings.gathered(
            **{name: value for name, value in given.items() if value is not None}
        )
    except ValidationError as error:
        for problem in error.errors():
            # No place where settings do not fit together; all of them are the input then.
            flags = (str(part).replace("_", "-") for part in problem["loc"])
            was = "".join(f"--{flag} is {problem['input']!r}: " for flag in flags)
            reason = problem["msg"].removeprefix("Value error, ")
            print(f"georesolve: {was}{reason}", file=sys.stderr)
        return 2
    if arguments[:1] == ["serve"]:
        # What it starts inherits the environment, and decodes files of strangers.
        for name in [name for name in os.environ if name.upper() == "GEORESOLVE_DATABASE_URL"]:
            del os.environ[name]
    try:
        exit_code: int = run(settings, **own)
    except errors.CannotStart as error:
        print(f"georesolve: {error}", file=sys.stderr)
        return 1
    return exit_code


def _parser() -> argparse.ArgumentParser:
    # `georesolve.cli` has a description of each command.
    parser = argparse.ArgumentParser(prog="georesolve")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", description=f"Run the service. {_FROM_ENVIRONMENT}")
    _add_settings(serve, Settings.model_fields)
    serve.set_defaults(run="georesolve.service.server:serve")
    keys = commands.add_parser("keys")
    verbs = keys.add_subparsers(required=True, metavar="VERB")
    for name, (brief, full) in _VERBS.items():
        verb = verbs.add_parser(name, help=brief, description=f"{full} {_FROM_ENVIRONMENT}")
        if name == "create":
            verb.add_argument("name", metavar="NAME", help="who holds it, or what for")
            verb.add_argument(
                "--role",
                dest="key_role",
                choices=get_args(KeyRole),
                default="user",
                help="user: all that it makes itself; admin: what all keys make, too; metrics: "
                "/metrics alone (default: user)",
            )
            verb.add_argument(
                "--expires",
                type=_hours,
                default=0,
                metavar="TIME",
                help="how long it is valid, in hours, days or weeks: 12h, 90d, 52w (default: for "
                "ever)",
            )
        elif name != "list":
            verb.add_argument(
                "given", metavar="KEY", help="its name or first characters, as listed"
            )
        _add_settings(verb, ("data_dir", "database_url"))
        verb.set_defaults(run="georesolve.cli.keys:run", verb=name)
    sweep = commands.add_parser(
        "sweep",
        description="Tell which files of a service its database does not know, and have its runner "
        f"remove what has expired. {_FROM_ENVIRONMENT}",
    )
    sweep.add_argument(
        "--now",
        dest="believes_clock",
        action="store_true",
        help="believe the clock: remove what has expired, also after it jumped by more than a day",
    )
    sweep.add_argument(
        "--unknown",
        dest="removes_unknown",
        action="store_true",
        help="remove the files that the database does not know; without it they are listed",
    )
    _add_settings(sweep, ("data_dir", "database_url", "store"))
    sweep.set_defaults(run="georesolve.service.jobs.retention:sweep_by_hand")
    backup = commands.add_parser(
        "backup",
        description="Write a tar of the data folder of a service, which may run: what it has "
        f"accepted by now. Nothing is removed meanwhile. {_FROM_ENVIRONMENT}",
    )
    backup.add_argument("file", metavar="FILE", help="the tar to write; - for standard output")
    _add_settings(backup, ("data_dir", "database_url", "store"))
    backup.set_defaults(run="georesolve.service.ops.backup:back_up")
    return parser


def _hours(text: str) -> float:
    found = re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: give a number of hours, days or weeks, such as 12h, 90d or 52w"
        )
    return float(found[1]) * _HOURS[found[2]]


def _add_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    for name in names:
        field = Settings.model_fields[name]
        flag = f"--{name.replace('_', '-')}"
        default = field.get_default(call_default_factory=True)
        text = f"{field.description} (default: {default})"
        if field.annotation is bool:
            parser.add_argument(flag, action="store_const", const=True, help=text)
        else:
            parser.add_argument(flag, metavar="VALUE", help=text)
