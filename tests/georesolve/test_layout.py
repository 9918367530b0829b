"""Layout of the package: names of files."""

from collections import defaultdict
from pathlib import Path

import georesolve

ROOT = Path(georesolve.__file__).parent
REPEATED = {"__init__", "__main__", "errors", "models", "router"}


def test_no_file_name_is_used_in_two_sibling_packages():
    siblings = [ROOT, ROOT / "service"]
    for parent in siblings:
        packages = defaultdict(set)
        for path in parent.rglob("*.py"):
            package = path.relative_to(parent).parts[0]
            in_service = parent == ROOT and package == "service"
            if not in_service and path.stem not in REPEATED and path.parent != parent:
                packages[path.stem].add(package)
        assert {name: found for name, found in packages.items() if len(found) > 1} == {}
