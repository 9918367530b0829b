"""`georesolve`, and `python -m georesolve`, which is the same.

A process that decodes a file imports the script that the service was started with, and so this:
nothing is loaded here before it runs.
"""

import gc
import sys


def main() -> int:
    """Run the command line; returns its exit code."""
    from georesolve import cli

    if sys.argv[1:2] not in (["nearest"], ["within"], ["serve"]):
        return cli.main()
    # All that it loads it needs to its end: to look through that for garbage, again and again and
    # once more at the end, takes a quarter of what a small search does, or the start of a service,
    # which looks through it once: see `engine.memory.keep_what_is_loaded`.
    gc.disable()
    try:
        return cli.main()
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
