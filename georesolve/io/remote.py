"""Files at addresses of object stores and servers: found, fetched, and written with obstore.

Who asks is the user, on the user's own machine: keys and endpoints are those of the environment, as
other clients of the store find them. What a service may read is said in `io.urls`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from georesolve.io.errors import InvalidOption
from georesolve.io.extras import needed
from georesolve.io.object_storage import SETTINGS, asked
from georesolve.io.urls import fits, fixed_part, is_href

_SCHEMES = ("s3", "gs", "az", "https", "http")
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
_BLOCK_BYTES = 1 << 20


class Elsewhere(NamedTuple):
    """A file of an object store or a server."""

    root: str
    key: str

    def __str__(self) -> str:
        """Its address."""
        return f"{self.root}/{self.key}"

    @property
    def name(self) -> str:
        """What comes last in its address."""
        return self.key.rpartition("/")[2]

    def fetch(self, path: Path, is_over: threading.Event) -> Path:
        """Copy it to a path, or a part of it where it is over before; raises OSError."""
        with self._asked():
            blocks = iter(_store(self.root).get(self.key).stream(min_chunk_size=_BLOCK_BYTES))
        with path.open("wb") as file:
            while not is_over.is_set():
                with self._asked():
                    block = next(blocks, None)
                if block is None:
                    break
                file.write(block)
        return path

    def put(self, path: Path) -> None:
        """Write a file to its place, where it is complete or absent; raises OSError."""
        with self._asked():
            _store(self.root).put(self.key, path)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            with asked():
                yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no {self}") from error
        except OSError as error:
            raise OSError(f"{self}: {error}") from error


def is_address(given: Any) -> bool:
    """Whether a text is meant as an address, be it a wrong one."""
    return isinstance(given, str) and is_href(given)


def elsewhere(href: str) -> Elsewhere:
    """What lies at an address; raises InvalidOption where that is none of a file."""
    scheme, _, path = href.partition("://")
    bucket, _, key = path.partition("/")
    if scheme not in _SCHEMES or not bucket:
        raise InvalidOption(
            f"{href[:200]!r} is no address of a file: there are "
            f"{', '.join(f'{one}://' for one in _SCHEMES)}, as in s3://bucket/folder/file.parquet; "
            "a file of this machine is given by its path"
        )
    if scheme.startswith("http"):
        if "?" in key:
            raise InvalidOption(f"{href[:200]!r} has a query, which is not sent: fetch the file")
        # It is written again as it has to be.
        key = unquote(key)
    needed("obstore", "cloud", href)
    return Elsewhere(f"{scheme}://{bucket}", key)


def files_below(href: str) -> list[Elsewhere]:
    """The file at an address, or those of a folder or that fit a pattern, by name.

    Raises InvalidOption where they are none that can be fetched one by one.
    """
    found = _found(href)
    for one in found:
        if one.name.lower().endswith(".shp"):
            raise InvalidOption(
                f"{one} is a shapefile, which is several files: fetch them, or write a GeoPackage"
            )
    return found


def _found(href: str) -> list[Elsewhere]:
    one = elsewhere(href)
    if one.root.startswith("http"):
        # Nothing lists what lies on a server.
        return [one]
    folder = fixed_part(one.key)
    with one._asked():
        store = _store(one.root)
        if one.key == folder and folder:
            with suppress(FileNotFoundError):
                store.head(one.key)
                return [one]
        # Consoles make empty objects that stand for folders.
        pages = store.list(folder or None)
        listed = (found["path"] for page in pages for found in page if found["size"])
        return sorted(Elsewhere(one.root, key) for key in listed if _is_found(key, one.key))


def would_find(href: str, file: Elsewhere) -> bool:
    """Whether a folder or a pattern would find a file, if it were there."""
    one = elsewhere(href)
    return one.root == file.root and _is_found(file.key, one.key)


def _is_found(key: str, pattern: str) -> bool:
    folder = fixed_part(pattern)
    is_below = not folder or f"{key}/".startswith(f"{folder}/")
    is_hidden = any(part.startswith(("_", ".")) for part in key[len(folder) :].split("/"))
    return is_below and not is_hidden and ("*" not in pattern or fits(key, pattern))


def _store(root: str) -> Any:
    """The store of an address, as the environment says now."""
    own = ((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
    return _opened(root, tuple(sorted(own)))


@lru_cache(maxsize=8)
def _opened(root: str, environment: tuple[tuple[str, str], ...]) -> Any:
    from obstore.store import from_url

    return from_url(root, **SETTINGS)
