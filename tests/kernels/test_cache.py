"""Machine code that numba keeps: used again for the same sources, never for other ones."""

import ast
import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.core import event
from numba.core.errors import TypingError

import georesolve
from georesolve import kernels
from georesolve.kernels import cache

_METRES = """
import numpy as np
from georesolve.kernels import coordinates_cpu, query
found = query.Found(np.zeros((1, 1), np.int64), np.full((1, 1), 4.0))
print(round(coordinates_cpu.answer_of(found).distance_m[0, 0] / np.pi, 3))
print(sum(coordinates_cpu._measure.stats.cache_hits.values()))
"""
_SEARCHES = """
import numpy as np
from georesolve.kernels import bearing, build_index, count_within, nearest, within
from georesolve.kernels import singles_cpu, within_cpu
from georesolve.kernels.query import Degrees
index = build_index(np.zeros(3), np.arange(3.0), copies=True)
nearest(index, np.ones(2), np.ones(2), algorithm="tree")
for distance_m in (1e5, np.array([1e5, 1e6])):
    for search in (count_within, within):
        search(index, np.ones(2), np.ones(2), distance_m, algorithm="tree", once=True)
print(len(bearing._fill.signatures), end=" ")
written, read_only = Degrees(np.zeros(9), np.ones(9)), Degrees(np.ones(9), np.ones(9))
read_only.lat_deg.flags.writeable = False
for points in (written, read_only):
    bearing.bearings(points, written)
for loop in (singles_cpu.search_singles, within_cpu.search_within, bearing._fill):
    print(sum(loop.stats.cache_hits.values()), len(loop.signatures), end=" ")
"""
_FOLDERS = """
import pkgutil
from georesolve import kernels
from importlib import import_module
paths = set()
for module in pkgutil.iter_modules(kernels.__path__, "georesolve.kernels."):
    for value in vars(import_module(module.name)).values():
        path = getattr(getattr(value, "stats", None), "cache_path", None)
        if path:
            paths.add(path)
print(*paths, sep="\\n")
"""


@pytest.fixture
def install(tmp_path):
    """A copy of the package, nothing compiled."""
    folder = tmp_path / "install" / "georesolve"
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(kernels.__file__).parent, folder / "kernels", ignore=skipped)
    for name in ("__init__", "version", "query"):
        shutil.copy(Path(georesolve.__file__).with_name(f"{name}.py"), folder)
    return folder


def run(install, code, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    # Python's own cache goes by time and size, too.
    environment |= {"PYTHONPATH": str(install.parent), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def folders(install):
    return sorted((install / "kernels" / "__pycache__").glob("georesolve-*"), key=os.path.getmtime)


def test_a_changed_source_is_never_answered_by_old_code(install):
    assert run(install, _METRES) == ["6371008.8", "0"]
    assert run(install, _METRES) == ["6371008.8", "1"]
    source = install / "kernels" / "query.py"
    text, times = source.read_text(), source.stat()
    source.write_text(text.replace("6_371_008.8", "6_371_009.9"))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source.stat().st_size == times.st_size
    for n in range(20):
        old = folders(install)[0].with_name(f"georesolve-{n}")
        old.mkdir()
        os.utime(old, (n, n))
    assert run(install, _METRES) == ["6371009.9", "0"]
    # Not for ever: the old state of the sources and the latest of the other folders.
    assert len(folders(install)) == 9
    assert folders(install)[0].name == "georesolve-13"
    # An image may give all files one time.
    for file in install.rglob("*.py"):
        os.utime(file, (0, 0))
    assert run(install, _METRES) == ["6371009.9", "1"]


def test_walks_and_bearings_are_compiled_once():
    # Here, where most kernels are compiled already: the first of two processes may compile some.
    here = Path(georesolve.__file__).parent
    told = [run(here, _SEARCHES) for _ in range(2)]
    # No bearing for who asks for none.
    assert told[1] == ["0 1 1 1 1 1 1 "]


def test_all_kernels_are_kept_in_one_folder_of_their_cpu(install, tmp_path):
    own = run(install, _FOLDERS)
    assert own == [str(folders(install)[0])]
    other = run(install, _FOLDERS, NUMBA_CPU_NAME="generic")
    assert other == [str(folders(install)[1])]
    (given,) = run(install, _FOLDERS, NUMBA_CACHE_DIR=str(tmp_path / "given"))
    assert Path(given).is_relative_to(tmp_path / "given")
    assert Path(given).name == Path(own[0]).name


_OUTSIDE = """
from georesolve.tiles import loops
print(loops.double(4.0), sum(loops.double.stats.cache_hits.values()))
"""
_LOOPS = """
from georesolve.kernels.cache import cached_njit
from georesolve.kernels.hilbert import spread
from georesolve.tiles.factors import times

@cached_njit(nogil=True)
def double(x):
    return times(x) + spread(0)
"""
_FACTORS = """
from numba import njit

@njit
def times(x):
    return 2.0 * x
"""


def test_code_outside_kernels_is_stale_when_a_source_changes(install):
    folder = install / "tiles"
    folder.mkdir()
    for name, text in (("__init__", ""), ("loops", _LOOPS), ("factors", _FACTORS)):
        folder.joinpath(f"{name}.py").write_text(text)
    assert run(install, _OUTSIDE) == ["8.0 0"]
    assert run(install, _OUTSIDE) == ["8.0 1"]
    assert list(folders(install)[0].glob("loops.double-tiles-*.nbi"))
    for file, old, new, result in (
        ("tiles/loops.py", "times(x) +", "3 + times(x) +", "11.0"),
        ("tiles/factors.py", "2.0 * x", "5.0 * x", "23.0"),
        ("kernels/hilbert.py", "    return ", "    return 1 + ", "24.0"),
    ):
        source = install / file
        times, text = source.stat(), source.read_text()
        start = text.index("def spread") if "hilbert" in file else 0
        source.write_text(text[:start] + text[start:].replace(old, new, 1))
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert run(install, _OUTSIDE) == [f"{result} 0"]
        assert run(install, _OUTSIDE) == [f"{result} 1"]


def test_functions_outside_kernels_are_cached_by_no_other_mechanism():
    package = Path(georesolve.__file__).parent
    wrong = [
        f"{file.relative_to(package)}:{node.value.lineno}"
        for file in package.rglob("*.py")
        if file.relative_to(package).parts[0] != "kernels"
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.keyword) and node.arg == "cache"
    ]
    assert wrong == []


def test_an_install_that_cannot_be_written_to_keeps_code_at_home(install, tmp_path):
    # Even root cannot make a folder where a file is.
    (install / "kernels" / "__pycache__").touch()
    (home,) = run(install, _FOLDERS, XDG_CACHE_HOME=str(tmp_path / "home"))
    assert Path(home).is_relative_to(tmp_path / "home")
    with pytest.raises(AssertionError, match="set NUMBA_CACHE_DIR to a folder that may be written"):
        run(install, _FOLDERS, XDG_CACHE_HOME="/dev/null")


class _Collector(event.Listener):
    """Whether there was one that looked for garbage, as compilations began and ended."""

    def __init__(self):
        self.began, self.ended = [], []

    def on_start(self, event):
        self.began.append(gc.isenabled())

    def on_end(self, event):
        self.ended.append(gc.isenabled())


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_looked_for_while_code_is_compiled(collects):
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with event.install_listener("numba:compile", _Collector()) as seen:
            inner = numba.njit(lambda x: x + 1)
            assert numba.njit(lambda x: inner(x))(1) == 2
            with pytest.raises(TypingError):
                numba.njit(lambda x: x.nothing)(1)
    finally:
        (gc.enable if before else gc.disable)()
    assert seen.began == [False] * 3
    assert seen.ended == [False, collects, collects]


def test_what_is_compiled_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_folder", lambda: tmp_path)
    before = cache.compiled_seconds()
    numba.njit(lambda x: x + 1)(1)
    assert cache.compiled_seconds() > before
    assert cache.kinds_compiled() == ()
    for kind in ("within-sphere", "within-sphere", "nearest-sphere"):
        cache.note_compiled(kind)
    assert sorted(cache.kinds_compiled()) == ["nearest-sphere", "within-sphere"]
