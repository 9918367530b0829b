"""Where numba keeps the machine code of kernels: a folder of its own for each state of the sources.

Numba tells whether code is stale by the time and the size of the one file in which the compiled
function stands. The formulas that the function calls stand in other files, and all files of an
image may have one time. So kernels are kept in a folder that is named for a digest of all sources
of this package, of the versions of numba and llvmlite, and of the CPU.

Functions outside `kernels` that are compiled with `cached_njit` lie in the same folder. They are
stale when any source outside `kernels` that uses numba changes.
"""

import gc
import os
import shutil
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite.binding import get_host_cpu_name
from numba import njit
from numba.core import caching, codegen, config, dispatcher, event
from numba.core.runtime import rtsys

from georesolve.query import MAX_K

_HERE = Path(__file__).resolve().parent
_PACKAGE = _HERE.parent
_PREFIX = "georesolve-"
_NOTE = ".compiled"
TELLING_ROWS = 1000
"""Fewer observations are searched by few of the kernels: what they need says little of others."""
_KEPT = 8
"""Folders of other states that stay: of versions that are used in turns, and of other CPUs."""


class KernelLocator:
    """Location of the machine code of a function of georesolve, for numba."""

    def __init__(self, file: Path, first_line: int) -> None:
        self._file, self._first_line = file, first_line

    @classmethod
    def from_function(cls, function: Any, file: str) -> "KernelLocator | None":
        """Locator of a function of georesolve; None makes numba try its own locators."""
        path = Path(file).resolve()
        if not path.is_relative_to(_PACKAGE):
            return None
        return cls(path, function.__code__.co_firstlineno)

    def get_cache_path(self) -> str:
        """The folder."""
        return str(_folder())

    def ensure_cache_path(self) -> None:
        """Make the folder anew if it has been removed meanwhile."""
        _folder().mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        """Stamp by which numba detects stale code; the folder is enough for kernels."""
        if self._file.is_relative_to(_HERE):
            return _digest()
        return f"{_digest()} {_digest_of_callers()}"

    def get_disambiguator(self) -> str:
        """Suffix that separates functions of one name, in one file or in files of one name."""
        folder = self._file.parent.relative_to(_PACKAGE)
        return f"{'.'.join(folder.parts)}-{self._first_line}"


def keep_code_of_kernels(implementation: Any) -> None:
    """Have a cache of numba ask `KernelLocator` first; there is one for CPUs and one for GPUs."""
    if KernelLocator not in implementation._locator_classes:
        implementation._locator_classes.insert(0, KernelLocator)


class KernelCache(caching.FunctionCache):
    """A cache that loads code of this package without loading what compiles.

    Before it looks for code, numba's own imports all that it knows of Python and numpy: 0.4 s of a
    processor, longer than all imports of a search together. Code that stands needs its runtime
    alone. Where there is none, compilation imports the rest.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for a signature, None where there is none."""
        if not isinstance(self._impl.locator, KernelLocator):
            return super().load_overload(sig, target_context)
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
        return None


def load_code_of_kernels() -> None:
    """Have numba load the code of functions on a CPU through `KernelCache`."""
    dispatcher.FunctionCache = KernelCache


def cached_njit(**options: Any) -> Any:
    """Decorator `numba.njit` with a cache, for loops outside `kernels`."""
    keep_code_of_kernels(caching.CacheImpl)
    load_code_of_kernels()
    return njit(cache=True, **options)


class _Compiling(event.TimingListener):
    """Counts seconds, and holds Python's garbage collector while numba compiles.

    What is compiled is made of millions of small objects that live until it is done: looking
    through them again and again took a quarter of the time.
    """

    def on_start(self, event: Any) -> None:
        """Called before a function is compiled, and those that it calls."""
        if not self._depth:
            self._collects = gc.isenabled()
            gc.disable()
        super().on_start(event)

    def on_end(self, event: Any) -> None:
        """Called when it is compiled, or could not be."""
        super().on_end(event)
        if not self._depth and self._collects:
            gc.enable()


_compiling = _Compiling()
event.register("numba:compile", _compiling)


def compiled_seconds() -> float:
    """For how long this process has compiled code for CPUs so far; loading it does not count."""
    return _compiling.duration if _compiling.done else 0.0


def note_compiled(kind: str) -> None:
    """Note beside the code that all that a kind of question needs is there."""
    # On a disk that is full, say, it is told again that there is code to compile, and no more.
    with suppress(OSError):
        _folder().joinpath(f"{kind}{_NOTE}").touch()


def kinds_compiled() -> tuple[str, ...]:
    """The kinds of which that was noted."""
    return tuple(path.name.removesuffix(_NOTE) for path in _folder().glob(f"*{_NOTE}"))


@cache
def digest_of_sources() -> str:
    """Digest of all sources of kernels: other kernels may have computed other results."""
    return _digest_of({file: file.read_bytes() for file in _HERE.rglob("*.py")})


@cache
def _digest_of_callers() -> str:
    """Digest of all sources outside `kernels` that may define compiled functions."""
    files = (file for file in _PACKAGE.rglob("*.py") if not file.is_relative_to(_HERE))
    sources = {file: file.read_bytes() for file in files}
    return _digest_of({f: s for f, s in sources.items() if b"numba" in s or b"cached_njit" in s})


def _digest_of(sources: dict[Path, bytes]) -> str:
    digest = sha256()
    for file, source in sorted(sources.items()):
        name = file.relative_to(_PACKAGE).as_posix()
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()


@cache
def _digest() -> str:
    cpu = config.CPU_NAME or get_host_cpu_name()
    features = config.CPU_FEATURES
    if features is None:
        features = codegen.get_host_cpu_features()
    versions = f"{numba.__version__} {llvmlite.__version__}"
    content = f"{digest_of_sources()} {MAX_K} {versions} {cpu} {features}"
    return sha256(content.encode()).hexdigest()[:20]


@cache
def _folder() -> Path:
    # Where numba would keep the code of this file: in NUMBA_CACHE_DIR, beside it, or at home.
    for way in (
        caching.UserProvidedCacheLocator,
        caching.InTreeCacheLocator,
        caching.UserWideCacheLocator,
    ):
        usual = way.from_function(_remove_oldest, __file__)
        if usual is None:
            continue
        folder = Path(usual.get_cache_path()) / f"{_PREFIX}{_digest()}"
        is_new = not folder.is_dir()
        # Another user may have made it, and this one may not write to it.
        with suppress(PermissionError):
            folder.mkdir(exist_ok=True)
            # The time says when it was last used.
            os.utime(folder)
            if is_new:
                _remove_oldest(folder)
            return folder
    raise RuntimeError(
        f"compiled kernels can be kept neither in {_HERE} nor in the user's cache folder: set "
        "NUMBA_CACHE_DIR to a folder that may be written to"
    )


def _remove_oldest(own: Path) -> None:
    """Keep the folders that were used last; a process that misses its own compiles again."""
    # Another process may remove the same ones.
    with suppress(FileNotFoundError):
        others = [path for path in own.parent.glob(f"{_PREFIX}*") if path != own]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[_KEPT:]:
            shutil.rmtree(path, ignore_errors=True)
