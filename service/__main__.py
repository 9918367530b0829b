"""`python -m service`: the same as `georesolve`."""

import sys

from service.cli import main

if __name__ == "__main__":
    sys.exit(main())
