"""`georesolve`, and `python -m georesolve`, which is the same.

A process that decodes a file imports the script that the service was started with, and so this:
nothing is loaded here before it runs.
"""

import sys


def main() -> int:
    """Run the command line; returns its exit code."""
    from georesolve import commands

    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
