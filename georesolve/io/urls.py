"""Point sets by their address: looked up below what the operator listed (`io.urls`)."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from georesolve.io.column_sizes import Width, value_bytes
from georesolve.io.columns import Reading, find_columns
from georesolve.io.datasets import ROW_GROUP, Dataset, stored_and_encoded
from georesolve.io.errors import (
    InvalidInput,
    Refused,
    SinkNotAllowed,
    SourceNotAllowed,
    SourceUnreadable,
    TooLarge,
)
from georesolve.io.numbers import check_numeric
from georesolve.io.object_storage import ObjectFile, objects_below
from georesolve.io.points import Bounds
from georesolve.io.source_files import (
    Scheme,
    SourceFile,
    SourceFiles,
    handle_of,
    href_of,
    plainly,
)

LONGEST = 1000
"""Characters of an address at most."""
_PATHS: dict[Scheme, re.Pattern[str]] = {
    "file": re.compile(r"/[\w.~=+,:@/*-]+", re.ASCII),
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{2,62}(/[\w.~=+,:/*-]*)?", re.ASCII),
    # A host, and a port if it is not 443.
    "https": re.compile(
        r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[\w.~=+,:@/-]*)?", re.ASCII
    ),
}


class Address(NamedTuple):
    """Where files lie: a path, in which * stands for any characters but a slash."""

    scheme: Scheme
    path: str


def is_href(text: str) -> bool:
    """Whether a text is meant as an address, be it a wrong one."""
    return "://" in text


def address_of(href: str, refusal: type[Refused] = SourceNotAllowed) -> Address:
    """Take an address apart; raises `refusal` when it is not written plainly, or has no scheme."""
    given, _, path = href.partition("://")
    *folders, last = path.lstrip("/").split("/")
    is_plain = not {"", ".", ".."}.intersection(folders) and last not in (".", "..")
    for scheme, plain in _PATHS.items():
        if scheme == given and is_plain and len(href) <= LONGEST and plain.fullmatch(path):
            return Address(scheme, path)
    raise refusal(
        f"{href[:200]!r} is no address that is allowed: write it as in s3://bucket/folder/, "
        f"file:///folder/ or https://host/folder/file.parquet, in at most {LONGEST} characters: "
        "letters, digits and . ~ = + , : @ - _ *, without '..', user names, queries and percent "
        "signs"
    )


def prefixes_of(listed: str | None) -> tuple[Address, ...]:
    """The prefixes that an operator listed, separated by commas; raises ValueError."""
    prefixes = []
    for one in filter(None, map(str.strip, (listed or "").split(","))):
        scheme, path = address_of(one)
        if "*" in path:
            raise ValueError(f"{one!r} has a *, and is to be a folder")
        prefixes.append(Address(scheme, path.rstrip("/") + "/"))
    return tuple(prefixes)


class Prefixes:
    """The prefixes that an operator listed with a setting; an address below none is refused."""

    def __init__(self, listed: str | None, setting: str, refusal: type[Refused]) -> None:
        self._prefixes = prefixes_of(listed)
        self._setting = setting
        self._refusal = refusal

    def find(self, href: str) -> tuple[Address, Address]:
        """An address, and the prefix that it lies below; raises the refusal, and asks nothing."""
        address = address_of(href, self._refusal)
        for prefix in self._prefixes:
            if address.scheme == prefix.scheme and f"{address.path}/".startswith(prefix.path):
                return address, prefix
        listed = ", ".join(href_of(*prefix) for prefix in self._prefixes) or "none"
        raise self._refusal(
            f"{href[:200]!r} lies below no prefix that is allowed here; the operator of the "
            f"service lists them with the setting {self._setting}: {listed}"
        )

    def refuse_links(self, paths: Iterable[str], prefix: Address, href: str) -> None:
        """Refuse local files that lie elsewhere than they seem; raises the refusal."""
        folder = Path(prefix.path).resolve()
        for path in paths if prefix.scheme == "file" else ():
            if not Path(path).resolve().is_relative_to(folder):
                raise self._refusal(
                    f"{href[:200]!r}: {Path(path).name!r} leads out of the folder that the "
                    "operator listed"
                )


class Sinks(Prefixes):
    """Where results may be written besides the folder of the service."""

    def __init__(self, listed: str | None) -> None:
        super().__init__(listed, "sinks", SinkNotAllowed)

    def output(self, href: str) -> str:
        """The address of a folder for one result, with a slash at its end; asks for nothing."""
        address, prefix = self.find(href)
        if "*" in address.path:
            raise SinkNotAllowed(
                f"{href[:200]!r} is no folder: name one of file:// or s3://, for this result alone"
            )
        if f"{address.path.rstrip('/')}/" == prefix.path:
            raise SinkNotAllowed(
                f"{href[:200]!r} is all of what is listed for results: name a folder in it, for "
                "this result alone"
            )
        self.refuse_links([address.path], prefix, href)
        return f"{href_of(*address).rstrip('/')}/"


_SUFFIXES = (".parquet", ".parq", ".pq", ".geoparquet")
_MOST_FILES = 10_000
_MOST_LISTED = 100_000
_LOOKS_AT_A_TIME = 16
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_TIMES_ENCODED = 4
"""Memory of a text is taken for so many times what it takes in a file."""


class Sources(Prefixes):
    """Looks up point sets below the prefixes that an operator listed, separated by commas."""

    def __init__(self, listed: str | None, bounds: Bounds) -> None:
        super().__init__(listed, "sources", SourceNotAllowed)
        self._bounds = bounds

    def dataset(self, href: str, reading: Reading, file: str) -> Dataset:
        """The point set at an address, as it is now: its footers are read, its rows are not.

        An address is a Parquet file, a pattern of them, or a folder, whose folders may be named by
        values (`day=2026-11-22`). Where it lies below no prefix, nothing is asked for.
        """
        address, prefix = self.find(href)
        try:
            self.refuse_links([fixed_part(address.path)], prefix, href)
            paths = sorted(islice(_files(address, file), _MOST_FILES + 1))
            self.refuse_links(paths, prefix, href)
            if not paths:
                raise InvalidInput(f"{file}: there is no Parquet file at {href}")
            if len(paths) > _MOST_FILES:
                raise TooLarge(f"{file}: more than {_MOST_FILES} files, the limit, lie at {href}")
            with ThreadPoolExecutor(_LOOKS_AT_A_TIME) as threads:
                looks = list(threads.map(lambda path: _look(address.scheme, path), paths))
        except FileNotFoundError:
            raise InvalidInput(f"{file}: there is no Parquet file at {href}") from None
        except OSError as error:
            raise SourceUnreadable(f"{file}: {href} cannot be read: {str(error)[:300]}") from error
        return self._described(address, href, looks, reading, file)

    def _described(
        self, address: Address, href: str, looks: list["_Look"], reading: Reading, file: str
    ) -> Dataset:
        schema = looks[0].schema
        are_mixed = not all(look.schema.equals(schema) for look in looks)
        if are_mixed:
            schema = plainly(schema)
        for look in looks if are_mixed else ():
            if not plainly(look.schema).equals(schema):
                one, other = (href_of(address.scheme, at.file.path) for at in (look, looks[0]))
                fields, others = (
                    {f"{at.name}: {at.type}" for at in of} for of in (plainly(look.schema), schema)
                )
                differing = "the same in another order"
                if fields != others:
                    own, its = (
                        ", ".join(sorted(some)[:4]) for some in (fields - others, others - fields)
                    )
                    differing = f"{own or 'none'} instead of {its or 'none'}"
                raise InvalidInput(
                    f"{file}: {one} has other columns than {other}: {differing}; write all files "
                    "with the same columns and types, in the same order"
                )
        rows = sum(look.file.rows for look in looks)
        values = [partition_of(look.file.path) for look in looks]
        names = [name for name in values[0] if name not in schema.names]
        partitions = tuple((name, all(is_whole(one.get(name)) for one in values)) for name in names)
        columns = [*schema.names, *names]
        self._bounds.refuse_beyond(len(columns), rows, file)
        lat, lon, id = find_columns(columns, reading, file)
        for name in (lat, lon):
            check_numeric(
                schema.field(name) if name in schema.names else pa.field(name, pa.string()), file
            )
        stored = sum((look.stored for look in looks), Counter[str]())
        encoded = sum((look.encoded for look in looks), Counter[str]())
        files = tuple(
            look.file._replace(
                partition=tuple(value_of(one.get(name), whole) for name, whole in partitions)
            )
            for look, one in zip(looks, values, strict=True)
        )
        manifest = SourceFiles(
            href=href,
            scheme=address.scheme,
            files=files,
            lat=lat,
            lon=lon,
            partitions=partitions,
            keeps_invalid=reading.on_invalid == "null",
            is_trusted=reading.coordinates == "trust",
            sizes=tuple((name, stored[name], encoded[name]) for name in columns),
            are_mixed=are_mixed,
        )
        types = {name: schema.field(name).type for name in schema.names}
        types |= {lat: pa.float64(), lon: pa.float64()}
        content = json.dumps([asdict(manifest), id])
        return Dataset(
            file=manifest,
            digest=hashlib.sha256(content.encode()).hexdigest(),
            rows=rows,
            invalid_rows=0,
            lat=lat,
            lon=lon,
            id=id,
            columns=tuple(columns),
            first_invalid=(),
            widths=tuple(
                _width(types.get(name, pa.string()), encoded[name], rows) for name in columns
            ),
        )


class _Look(NamedTuple):
    """What the footer of a file says; of each column what it takes, as stored and as encoded."""

    file: SourceFile
    schema: pa.Schema
    stored: Counter[str]
    encoded: Counter[str]


def _files(address: Address, file: str) -> Iterator[str]:
    """Paths of the files at an address."""
    scheme, path = address
    fixed, is_pattern = fixed_part(path), "*" in path
    # Nothing lists what lies on a server.
    if scheme == "https":
        yield path
        return
    if not is_pattern and _is_file(scheme, fixed):
        yield fixed
        return
    for number, one in enumerate(_below(scheme, fixed)):
        if number >= _MOST_LISTED:
            raise TooLarge(
                f"{file}: more than {_MOST_LISTED} files, the limit, lie below "
                f"{href_of(scheme, fixed)}: name a folder with fewer, or Parquet files"
            )
        below = one[len(fixed) :].strip("/").split("/")
        is_hidden = any(segment.startswith(("_", ".")) for segment in below)
        if one.endswith(_SUFFIXES) and not is_hidden and (not is_pattern or fits(one, path)):
            yield one


def _is_file(scheme: Scheme, path: str) -> bool:
    if scheme == "file":
        return Path(path).is_file()
    try:
        return "/" in path and bool(ObjectFile(path))
    except FileNotFoundError:
        return False


def _below(scheme: Scheme, folder: str) -> Iterator[str]:
    """Paths of the files in a folder and its folders."""
    if scheme == "s3":
        bucket = folder.partition("/")[0]
        yield from (f"{bucket}/{one['path']}" for one in objects_below(folder))
        return
    for path, _, names in os.walk(folder, onerror=_raise, followlinks=True):
        yield from (f"{path}/{name}" for name in names)


def _raise(error: OSError) -> None:
    raise error


def fixed_part(path: str) -> str:
    """The part of a path before the first folder that is a pattern."""
    return path[: path.index("*")].rpartition("/")[0] if "*" in path else path.rstrip("/")


def fits(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern, segment by segment; a pattern may name folders."""
    segments, patterns = path.split("/"), pattern.rstrip("/").split("/")
    return len(segments) >= len(patterns) and all(map(fnmatchcase, segments, patterns))


def _look(scheme: Scheme, path: str) -> _Look:
    try:
        with handle_of(scheme, path) as (handle, version):
            size = handle.size()
            footer = pq.read_metadata(handle)
            schema = footer.schema.to_arrow_schema().remove_metadata()
    except pa.ArrowException as error:
        raise InvalidInput(
            f"{href_of(scheme, path)}: not a readable Parquet file: {str(error)[:300]}"
        ) from None
    sizes = stored_and_encoded(footer, schema)
    return _Look(SourceFile(path, footer.num_rows, size, version), schema, *sizes)


def partition_of(path: str) -> dict[str, str | None]:
    """What the folders of a file are named by."""
    pairs = (segment.split("=", 1) for segment in path.split("/")[:-1] if "=" in segment)
    return {name: None if text == _NO_VALUE else unquote(text) for name, text in pairs}


def is_whole(text: str | None) -> bool:
    """Whether the name of a folder is a whole number, or tells that there is none."""
    return text is None or (re.fullmatch("0|-?[1-9][0-9]{0,17}", text) is not None)


def value_of(text: str | None, is_whole: bool) -> str | int | None:
    """The value that the name of a folder stands for."""
    return int(text) if is_whole and text is not None else text


def _width(type: pa.DataType, encoded: int, rows: int) -> Width:
    """What a column takes in memory: of texts a guess, as no row is read."""
    each: Any = value_bytes(pa.array([], type))
    if isinstance(each, int):
        return Width(each * rows, each * min(rows, ROW_GROUP), each)
    mean = -(-_TIMES_ENCODED * encoded // max(1, rows))
    return Width(mean * rows, mean * min(rows, ROW_GROUP), _TIMES_ENCODED * mean)
