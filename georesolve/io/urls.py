"""Point sets by their address: looked up below what the operator listed (`io.urls`)."""

import hashlib
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
)
from georesolve.io.joined_columns import (
    EXACT_INTEGERS,
    ColumnType,
    FileColumns,
    JoinedColumns,
    Partitions,
    refuse_pair,
)
from georesolve.io.numbers import check_numeric
from georesolve.io.points import Bounds
from georesolve.io.source_files import (
    Scheme,
    SourceFile,
    SourceFiles,
    handle_of,
    href_of,
)
from georesolve.io.storage import (
    PARQUET_SUFFIXES,
    File,
    Listed,
    fixed_part,
    list_files,
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


_MAX_FILES = 10_000
_MAX_LISTED = 100_000
_FOOTERS_AT_A_TIME = 16
_TIMES_ENCODED = 4
"""Guess of the memory of a text, in multiples of its encoded size."""


class Sources(Prefixes):
    """Point sets of Parquet files below the prefixes that an operator listed."""

    def __init__(self, listed: str | None, bounds: Bounds) -> None:
        super().__init__(listed, "sources", SourceNotAllowed)
        self._bounds = bounds

    def dataset(self, href: str, reading: Reading, file: str) -> Dataset:
        """Read the footers of the point set at a URL, and no rows.

        The URL is that of a Parquet file, a pattern or a folder; folders may be named by values
        (`day=2026-11-22`). A URL below no prefix is refused without a request.
        """
        address, prefix = self.find(href)
        scheme, path = address
        try:
            self.refuse_links([fixed_part(path)], prefix, href)
            files = list_files(
                path if scheme == "file" else href,
                file,
                suffixes=PARQUET_SUFFIXES,
                max_files=_MAX_FILES,
                max_listed=_MAX_LISTED,
            )
            paths = [_path_of(each.file) for each in files]
            self.refuse_links(paths, prefix, href)
            if not files:
                raise InvalidInput(f"{file}: there is no Parquet file at {href}")
            with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as threads:
                footers = list(threads.map(partial(_footer, scheme), paths))
        except FileNotFoundError:
            raise InvalidInput(f"{file}: there is no Parquet file at {href}") from None
        except OSError as error:
            raise SourceUnreadable(f"{file}: {href} cannot be read: {str(error)[:300]}") from error
        return self._described(address, href, files, footers, reading, file)

    def _described(
        self,
        address: Address,
        href: str,
        files: list[Listed],
        footers: list["_Footer"],
        reading: Reading,
        file: str,
    ) -> Dataset:
        rows = sum(each.file.rows for each in footers)
        partitions = Partitions([each.below for each in files], reading)
        columns = []
        for listed, footer in zip(files, footers, strict=True):
            name = file if len(files) == 1 else f"{file} ({listed.name})"
            schema = footer.schema
            added = (field for field in partitions.schema if field.name not in schema.names)
            fields = [*schema, *added]
            self._bounds.refuse_beyond(len(fields), rows, file)
            roles = find_columns([field.name for field in fields], reading, name)
            for field in fields:
                if field.name in roles[:2]:
                    check_numeric(field, name)
            types = {
                field.name: ColumnType(field.type, listed.name, field.name not in schema.names)
                for field in fields
            }
            columns.append(FileColumns(listed.name, roles, None, types))
        joined = JoinedColumns(columns, None, file)
        self._refuse_inexact(joined, address.scheme, files, footers, file)
        lat, lon, id = joined.roles
        if id in joined.refusals:
            raise joined.refusals[id]
        types = joined.types
        self._bounds.refuse_beyond(len(types), rows, file)
        stored, encoded = Counter[str](), Counter[str]()
        sources, changed = [], set()
        for number, (footer, names) in enumerate(zip(footers, joined.names, strict=True)):
            schema = footer.schema
            in_file = {name: source for name, source in names.items() if source in schema.names}
            for name, source in in_file.items():
                stored[name] += footer.stored[source]
                encoded[name] += footer.encoded[source]
            changed |= {n for n, source in in_file.items() if schema.field(source).type != types[n]}
            missing = tuple(name for name in types if name not in in_file)
            changed.update(missing)
            row = partitions.row(number)
            sources.append(
                footer.file._replace(
                    partition=tuple(row[name] for name in partitions.schema.names),
                    renamed=tuple(
                        (name, source) for name, source in in_file.items() if name != source
                    ),
                    missing=missing,
                )
            )
        casts = pa.schema([(name, type) for name, type in types.items() if name in changed])
        manifest = SourceFiles(
            href=href,
            scheme=address.scheme,
            files=tuple(sources),
            lat=lat,
            lon=lon,
            partitions=tuple(partitions.schema.names),
            keeps_invalid=reading.on_invalid == "null",
            is_trusted=reading.coordinates == "trust",
            sizes=tuple((name, stored[name], encoded[name]) for name in types),
            casts=b64encode(casts.serialize()).decode() if changed else "",
            refusals=tuple((name, each.detail) for name, each in joined.refusals.items()),
        )
        content = json.dumps([asdict(manifest), id])
        return Dataset(
            file=manifest,
            digest=hashlib.sha256(content.encode()).hexdigest(),
            rows=rows,
            invalid_rows=0,
            lat=lat,
            lon=lon,
            id=id,
            columns=tuple(types),
            first_invalid=(),
            widths=tuple(_width(types[name], encoded[name], rows) for name in types),
        )

    def _refuse_inexact(
        self,
        joined: JoinedColumns,
        scheme: Scheme,
        files: list[Listed],
        footers: list["_Footer"],
        file: str,
    ) -> None:
        """Refuse integers beyond 2^53 that would become float64, by the statistics of footers."""
        for name, type in joined.types.items():
            types = joined.columns[name]
            if name in joined.roles[:2] or not pa.types.is_floating(type):
                continue
            for listed, footer, names in zip(files, footers, joined.names, strict=True):
                source = names.get(name, name)
                if source not in footer.schema.names:
                    continue
                integer = ColumnType(footer.schema.field(source).type, listed.name)
                is_wide = pa.types.is_integer(integer.type) and integer.type.bit_width == 64
                if is_wide and not _are_exact(scheme, footer.file.path, source):
                    other = next(each for each in types if pa.types.is_floating(each.type))
                    joined.refusals.setdefault(name, refuse_pair(name, integer, other, file))


class _Footer(NamedTuple):
    """Schema and sizes of the columns of a file, stored and before compression."""

    file: SourceFile
    schema: pa.Schema
    stored: Counter[str]
    encoded: Counter[str]


def _path_of(file: File) -> str:
    """Path of a file as `source_files` knows it: of a remote one, bucket or host, and key."""
    return str(file) if isinstance(file, Path) else str(file).partition("://")[2]


def _footer(scheme: Scheme, path: str) -> _Footer:
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
    return _Footer(SourceFile(path, footer.num_rows, size, version), schema, *sizes)


def _are_exact(scheme: Scheme, path: str, column: str) -> bool:
    """Whether the statistics of a file say that float64 holds all integers of a column."""
    with handle_of(scheme, path) as (handle, _):
        footer = pq.read_metadata(handle)
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema != column or not chunk.num_values:
                continue
            bounds = chunk.statistics
            if bounds is None or not (bounds.has_min_max or bounds.null_count == chunk.num_values):
                return False
            if bounds.has_min_max and max(-bounds.min, bounds.max) > EXACT_INTEGERS:
                return False
    return True


def _width(type: pa.DataType, encoded: int, rows: int) -> Width:
    """What a column takes in memory: of texts a guess, as no row is read."""
    each: Any = value_bytes(pa.array([], type))
    if isinstance(each, int):
        return Width(each * rows, each * min(rows, ROW_GROUP), each)
    mean = -(-_TIMES_ENCODED * encoded // max(1, rows))
    return Width(mean * rows, mean * min(rows, ROW_GROUP), _TIMES_ENCODED * mean)
