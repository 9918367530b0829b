"""`georesolve`: the command line. Every setting is a flag of `serve`."""

import argparse
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from service.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="georesolve",
        description="The exact nearest reference point of every geospatial observation.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the service",
        description="Run the service. A flag not given is taken from its GEORESOLVE_* variable.",
    )
    serve.set_defaults(run=_serve)
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        text = f"{field.description} (default: {field.default})"
        if field.annotation is bool:
            serve.add_argument(flag, action="store_const", const=True, help=text)
        else:
            serve.add_argument(flag, metavar="VALUE", help=text)
    given = vars(parser.parse_args(arguments))
    run = given.pop("run")
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            place = " ".join(f"--{str(part).replace('_', '-')}" for part in problem["loc"])
            print(f"georesolve: {place} {problem['msg']}".replace("  ", " "), file=sys.stderr)
        return 2
    exit_code: int = run(settings)
    return exit_code


def _serve(settings: Settings) -> int:
    # Imported here: every worker process imports this module again and needs none of it.
    from service.server import serve

    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
