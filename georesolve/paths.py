"""Paths that a user gives: a file, a folder or a glob, read as one table."""

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from georesolve.intake.canonical import opened, refusal_of
from georesolve.intake.columns import Reading, Role
from georesolve.intake.errors import InvalidInput, InvalidOption, Refused
from georesolve.intake.points import Bounds
from georesolve.intake.sources import Source, Table, format_of, is_layer
from georesolve.layers import read_layer, refuse_layer

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a folder, a glob, or several of these."""

UNBOUNDED = Bounds()
"""Files of one's own may be as large as they are."""


def files_at(given: Paths, role: Role) -> list[Path]:
    """The files that paths stand for, of a folder or a glob by name; refused if there are none."""
    if isinstance(given, str | os.PathLike):
        given = [given]
    found = [file for one in given for file in _files_of(Path(one))]
    if not found:
        raise InvalidInput(
            f"{role}: there is no file at {', '.join(repr(str(one)) for one in given) or '[]'}: "
            "give a file, a folder or a glob"
        )
    return found


def refuse_as_target(target: Path, sources: Sequence[Path]) -> None:
    """Refuse a path that no result can be written to, or that it is made of, before it is read."""
    if target.is_dir():
        raise InvalidOption(f"{str(target)!r} is a folder: name a file in it for the result")
    if not target.parent.is_dir():
        raise InvalidOption(
            f"the result cannot be written to {str(target)!r}: there is no folder "
            f"{str(target.parent)!r}; make it first"
        )
    if target.exists():
        for source in sources:
            if source.samefile(target):
                raise InvalidOption(
                    f"the result would replace {str(source)!r}, which it is made of: name another "
                    "file for it"
                )


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        # What Spark and others put beside their data: _SUCCESS, ._SUCCESS.crc.
        shown = [one for one in inside if not one.name.startswith((".", "_"))]
        # A shapefile is several files, of which the others are read with it.
        shapes = {one.with_suffix("") for one in shown if one.suffix.lower() == ".shp"}
        return [
            one
            for one in shown
            if one.suffix.lower() == ".shp" or one.with_suffix("") not in shapes
        ]
    if path.exists():
        return [path]
    # Not Path.glob, which takes no pattern that begins with a root.
    found = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207
    return sorted(one for one in found if one.is_file())


def sources_of(files: Sequence[Path], reading: Reading, role: Role, scratch: Path) -> list[Source]:
    """How to read some files; what has to be unpacked goes to the folder `scratch`."""
    sources = []
    for number, path in enumerate(files):
        # One file is called as the service calls it.
        file: str = role if len(files) == 1 else f"{role} ({path.name})"
        if is_layer(path):
            sources.append(Source(path, "layer", reading, file))
            continue
        refuse_layer(reading, file)
        format, is_packed = format_of(path, None, path.name, file)
        unpacked = scratch / f"{role}-{number}.unpacked" if is_packed else None
        sources.append(Source(path, format, reading, file, unpacked=unpacked))
    return sources


def chained(sources: Sequence[Source]) -> Table:
    """Files as one table, with the columns of the first; they are read while its batches are."""
    with _blaming(sources[0]):
        first = _opened(sources[0])

    def batches() -> Iterator[pa.RecordBatch]:
        for number, source in enumerate(sources):
            with _blaming(source):
                table = first if number == 0 else _opened(source)
                if table.schema.names != first.schema.names:
                    raise InvalidInput(
                        f"{source.file}: its columns are {', '.join(table.schema.names)}, and "
                        f"those of the first file {', '.join(first.schema.names)}: give files of "
                        "the same columns in the same order"
                    )
                for batch in table.batches:
                    yield batch if batch.schema.equals(first.schema) else batch.cast(first.schema)
            if source.unpacked is not None:
                source.unpacked.unlink()

    declared = first.declared_rows if len(sources) == 1 else None
    return first._replace(batches=batches(), declared_rows=declared)


def _opened(source: Source) -> Table:
    return read_layer(source) if source.format == "layer" else opened(source, UNBOUNDED)


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
