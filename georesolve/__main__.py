"""`georesolve`, and `python -m georesolve`, which is the same.

A process that decodes a file imports the script that the service was started with, and so this:
nothing is loaded here before it runs.
"""

import sys


def main() -> int:
    """Run the command line; returns its exit code."""
    from georesolve.extras import MissingExtra, needed

    try:
        # Of all that the commands need, what is imported first.
        needed("pydantic_settings", "service", "the command georesolve")
    except MissingExtra as error:
        sys.stderr.write(f"georesolve: {error}\n")
        return 1
    from georesolve.service import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
