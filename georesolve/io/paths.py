"""Paths and addresses that a user gives: a file, a folder or a glob, read as one table."""

import glob
import os
import threading
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from georesolve.io.columns import MEANT, Reading, Role
from georesolve.io.errors import InvalidInput, InvalidOption, Refused
from georesolve.io.formats import Source, Table, format_of
from georesolve.io.normalized import opened, refusal_of
from georesolve.io.points import Bounds
from georesolve.io.remote import Elsewhere, files_below, is_address, would_find
from georesolve.io.urls import is_whole, partition_of, value_of

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a folder, a glob, or several of these, here or at an address."""
File = Path | Elsewhere
_HIDDEN = (".", "_")
"""How names begin of what Spark and others put beside their data: _SUCCESS, ._SUCCESS.crc."""


class Listed(NamedTuple):
    """A file that was found by what was given, and its path below that folder or pattern."""

    file: File
    given: str

    @property
    def below(self) -> str:
        """Empty for a file that was given itself."""
        parts, given = Path(str(self.file)).parts, Path(self.given).parts
        # Of tuples it compares elements.
        return "/".join(parts[len(os.path.commonprefix([parts, given])) :])  # noqa: RUF071

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.below or self.file.name


UNBOUNDED = Bounds()
"""Files of one's own may be as large as they are."""


def files_at(given: Paths, role: Role) -> list[Listed]:
    """The files that paths stand for, of a folder or a glob by name; refused if there are none."""
    if isinstance(given, str | os.PathLike):
        given = [given]
    found: list[Listed] = []
    for one in given:
        base = str(one if is_address(one) else Path(one))
        files = files_below(base) if is_address(one) else _files_of(Path(one))
        found += [Listed(file, base) for file in files]
    if not found:
        raise InvalidInput(
            f"{role}: there is no file at {', '.join(repr(str(one)) for one in given) or '[]'}: "
            "give a file, a folder or a glob"
        )
    return found


def refuse_as_target(target: File, sources: Sequence[Listed]) -> None:
    """Refuse a path that no result can be written to, or that it is made of, before it is read."""
    if isinstance(target, Elsewhere):
        if not target.name or "*" in target.key or target.root.startswith("http"):
            raise InvalidOption(
                f"the result cannot be written to {str(target)!r}: name a file of s3://, gs:// or "
                "az://, without a *"
            )
    elif target.is_dir():
        raise InvalidOption(f"{str(target)!r} is a folder: name a file in it for the result")
    elif not target.parent.is_dir():
        raise InvalidOption(
            f"the result cannot be written to {str(target)!r}: there is no folder "
            f"{str(target.parent)!r}; make it first"
        )
    for source in (one.file for one in sources):
        is_same = source == target
        if isinstance(source, Path) and isinstance(target, Path) and target.exists():
            # By whatever names.
            is_same = source.samefile(target)
        if is_same:
            raise InvalidOption(
                f"the result would replace {str(source)!r}, which it is made of: name another "
                "file for it"
            )
    for given in dict.fromkeys(one.given for one in sources if str(one.file) != one.given):
        if isinstance(target, Elsewhere):
            is_read = is_address(given) and would_find(given, target)
        else:
            is_read = not is_address(given) and _would_find(Path(given), target)
        if is_read:
            raise InvalidOption(
                f"the result {str(target)!r} would lie among the files of {given!r}, which it is "
                "made of, and the next run would read it as one of them: name a file elsewhere"
            )


def _would_find(given: Path, target: Path) -> bool:
    """Whether a folder or a pattern would find a file, if it were there."""
    if given.is_dir():
        is_hidden = target.name.startswith(_HIDDEN)
        # A link in its place is replaced.
        return not is_hidden and target.parent.resolve().is_relative_to(given.resolve())
    folders, name = (given, "*") if given.name == "**" else (given.parent, given.name)
    is_hidden = target.name.startswith(".") and not name.startswith(".")
    return (
        fnmatch(target.name, name)
        and not is_hidden
        and any(one.is_dir() and one.samefile(target.parent) for one in _globbed(folders))
    )


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        shown = [one for one in inside if not one.name.startswith(_HIDDEN)]
        # A shapefile is several files, of which the others are read with it.
        shapes = {one.with_suffix("") for one in shown if one.suffix.lower() == ".shp"}
        return [
            one
            for one in shown
            if one.suffix.lower() == ".shp" or one.with_suffix("") not in shapes
        ]
    if path.exists():
        return [path]
    return sorted(one for one in _globbed(path) if one.is_file())


def _globbed(path: Path) -> Iterator[Path]:
    # Not Path.glob, which takes no pattern that begins with a root. ** alone leaves out the folder
    # that one is in.
    return map(Path, glob.glob(os.path.join(".", path), recursive=True))  # noqa: PTH118, PTH207


@contextmanager
def table_of(
    files: Sequence[Listed], reading: Reading, role: Role, scratch: Path
) -> Iterator[Table]:
    """Files as one table, with the columns of the first; they are read while its batches are.

    What folders are named by (`day=2026-11-22`) are columns, too. What is fetched or unpacked lies
    in the folder `scratch` while it is read.
    """
    first_rows: list[int] = []
    with closing(_fetched([one.file for one in files], scratch / role)) as fetched:
        try:
            yield _chained(files, fetched, reading, role, scratch, first_rows)
        except InvalidInput as error:
            first = error.errors[0] if error.errors else {}
            row = first.get("row")
            # What is refused of one file counts its rows; of columns, before any row is read.
            if len(files) == 1 or row is None or first["file"] != role or not first_rows:
                raise
            number = bisect_right(first_rows, row) - 1
            where = f"row {row} is row {row - first_rows[number]} of {files[number].name}"
            raise InvalidInput(f"{error}; {where}", error.errors) from None


def _chained(
    files: Sequence[Listed],
    fetched: Generator[Path],
    reading: Reading,
    role: Role,
    scratch: Path,
    first_rows: list[int],
) -> Table:
    values = [_columns_named(one.below, reading) for one in files]
    names = dict.fromkeys(name for one in values for name in one)
    whole = {name: all(is_whole(one.get(name)) for one in values) for name in names}
    types = {name: pa.int64() if are_whole else pa.string() for name, are_whole in whole.items()}

    def open_next(number: int) -> tuple[Source, Table]:
        # One file is called as the service calls it.
        name: str = role if len(files) == 1 else f"{role} ({files[number].name})"
        path, unpacked = next(fetched), scratch / f"{role}-{number}.unpacked"
        format, is_packed = format_of(path, None, path.name, name)
        packed_to = unpacked if is_packed else None
        source = Source(path, format, reading, name, unpacked=packed_to, side_by_side=True)
        with _blaming(source):
            own = {one: value_of(values[number].get(one), whole[one]) for one in whole}
            scalars = {one: pa.scalar(value, types[one]) for one, value in own.items()}
            return source, _with_columns(opened(source, UNBOUNDED), scalars)

    source, first = open_next(0)

    def batches(source: Source, table: Table) -> Iterator[pa.RecordBatch]:
        rows = 0
        for number in range(len(files)):
            first_rows.append(rows)
            if number:
                source, table = open_next(number)
            with _blaming(source):
                if table.schema.names != first.schema.names:
                    raise InvalidInput(
                        f"{source.file}: its columns are {', '.join(table.schema.names)}, and "
                        f"those of the first file {', '.join(first.schema.names)}: give files of "
                        "the same columns in the same order"
                    )
                for batch in table.batches:
                    rows += batch.num_rows
                    yield batch if batch.schema.equals(first.schema) else batch.cast(first.schema)
            if source.unpacked is not None:
                source.unpacked.unlink()
        fetched.close()

    declared = first.declared_rows if len(files) == 1 else None
    return first._replace(batches=batches(source, first), declared_rows=declared)


def _columns_named(path: str, reading: Reading) -> dict[str, str | None]:
    """What the folders of a path are named by; of coordinates and ids only what a user names."""
    own = {reading.lat, reading.lon, reading.id}
    found = partition_of(path).items()
    return {name: value for name, value in found if name in own or name.lower() not in MEANT}


def _fetched(files: Sequence[File], folder: Path) -> Generator[Path]:
    """Where the files lie, each until the next one is asked for.

    One that lies elsewhere is fetched while the one before it is read, and goes when it was.
    """
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as threads:

        def begin(number: int) -> Future[Path] | None:
            if number == len(files) or isinstance(file := files[number], Path):
                return None
            folder.mkdir(exist_ok=True)
            return threads.submit(file.fetch, folder / f"{number}-{file.name}", is_over)

        coming = begin(0)
        try:
            for number, file in enumerate(files):
                path = coming.result() if coming else Path(str(file))
                is_copy, coming = coming is not None, begin(number + 1)
                try:
                    yield path
                finally:
                    if is_copy:
                        path.unlink()
        finally:
            is_over.set()


def _with_columns(table: Table, values: Mapping[str, pa.Scalar]) -> Table:
    """A table with columns that have one value each, but those that it has itself."""
    added = {name: one for name, one in values.items() if name not in table.schema.names}
    schema = table.schema
    for name, value in added.items():
        schema = schema.append(pa.field(name, value.type))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in table.batches:
            columns = (pa.repeat(value, batch.num_rows) for value in added.values())
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)

    return table._replace(schema=schema, batches=batches()) if added else table


@contextmanager
def _blaming(source: Source) -> Iterator[None]:
    """Say of what the libraries that read a file raise that the file is at fault, if it is."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        refusal = refusal_of(error, source)
        if refusal is None:
            raise
        raise refusal from error
