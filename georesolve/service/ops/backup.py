"""`georesolve backup`: a tar of the data folder of a service, which goes on meanwhile.

The database is copied first, while nothing is removed, then the files that this copy knows: they
never change. Jobs that had not ended begin anew. Unpacked, it is a data folder again.
"""

import hashlib
import io
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import IO

import sqlalchemy as sa

from georesolve.io.errors import InvalidOption
from georesolve.io.local_files import durable
from georesolve.io.storage import PARTS, own_place
from georesolve.service import errors
from georesolve.service.disk import locked
from georesolve.service.settings import Settings
from georesolve.service.store.engine import refuse_missing, sqlite_path
from georesolve.service.store.identity import ID_FILE
from georesolve.service.store.schema import jobs, kept
from georesolve.workers.results.manifest import MANIFEST_NAME, read_manifest
from georesolve.workers.results.parts import ENDING

SUMS = "sha256sums"
"""The last member: the digests of the others, as `sha256sum --check` reads them."""


def back_up(settings: Settings, file: str) -> int:
    """Write a backup to a file, or for `-` to standard output; returns an exit code."""
    if settings.database or settings.store:
        raise errors.CannotStart(
            "this backs up a data folder with its SQLite file: of Postgres take a dump, and have a "
            "bucket keep the versions of its objects, as 'Backup and restore' in deploy/README.md "
            "says"
        )
    refuse_missing(settings.data_dir)
    data_dir = settings.data_dir.absolute()
    database = sqlite_path(data_dir)
    try:
        with ExitStack() as stack:
            out: IO[bytes] = sys.stdout.buffer
            if file != "-":
                path = stack.enter_context(durable(Path(file)))
                # It holds what all owners have: nobody else reads it, from the first byte on.
                path.touch(0o600)
                out = stack.enter_context(path.open("wb"))
            folder = stack.enter_context(TemporaryDirectory(prefix="georesolve-backup-"))
            copy = Path(folder) / database.name
            # Nothing is removed meanwhile.
            stack.enter_context(locked(data_dir))
            with closing(sqlite3.connect(database)) as live, closing(sqlite3.connect(copy)) as to:
                live.backup(to)
            tar = stack.enter_context(tarfile.open(fileobj=out, mode="w|"))
            n_files = _write(tar, data_dir, copy)
            n_bytes = tar.offset
    except InvalidOption as error:
        raise errors.CannotStart(str(error)) from error
    except OSError as error:
        raise errors.CannotStart(
            f"the backup cannot be written: {error}; the database is copied to {gettempdir()} "
            "first: set TMPDIR to a folder with more room if it is full"
        ) from error
    except (sqlite3.Error, sa.exc.SQLAlchemyError) as error:
        raise errors.CannotStart(
            f"the database {database} cannot be copied to {gettempdir()}: "
            f"{' '.join(str(error).split())}; set TMPDIR to a folder with more room if that is "
            "full, else restore the last good backup if the database is damaged"
        ) from error
    _tell(f"{n_files} files are in the backup, which has {n_bytes} bytes")
    return 0


def _write(tar: tarfile.TarFile, data_dir: Path, database: Path) -> int:
    """Write what a copy of the database knows, and that behind it; returns how many files."""
    sums = []
    for name, sha256 in _known(data_dir, database):
        try:
            found = _add(tar, name, data_dir / name)
        except FileNotFoundError:
            _tell(f"{name} is missing, in the service, too")
            continue
        if sha256 not in (None, found):
            _tell(f"{name} is damaged, in the service, too")
        sums.append((found, name))
    # In the end: without it a service does not take what was cut off.
    sums += [(_add(tar, path.name, path), path.name) for path in (data_dir / ID_FILE, database)]
    content = "".join(f"{sha256}  {name}\n" for sha256, name in sums).encode()
    member = tarfile.TarInfo(SUMS)
    member.size, member.mode = len(content), 0o600
    tar.addfile(member, io.BytesIO(content))
    return len(sums)


def _known(data_dir: Path, database: Path) -> Iterator[tuple[str, str | None]]:
    """Names of the files that a database knows, of sets with their SHA-256."""
    is_set = (kept.c.kind != "result") & (kept.c.state == "whole")
    sets = sa.select(kept.c.id, kept.c.sha256, kept.c.dataset).where(is_set)
    engine = sa.create_engine(f"sqlite:///{database}")
    with closing(engine.connect()) as connection:
        rows = connection.execute(sets).all()
        done = sa.select(jobs.c.id).where(jobs.c.status == "successful")
        ids = connection.execute(done).scalars().all()
    engine.dispose()
    for row in rows:
        # Those of a source stay where they are.
        if "manifest" not in row.dataset:
            yield f"datasets/{row.id}.parquet", row.sha256
    for id in ids:
        folder = data_dir / "jobs" / id
        try:
            manifest = read_manifest(folder)
        except FileNotFoundError:
            # It has expired, and its job is still remembered.
            continue
        except OSError as error:
            _tell(f"jobs/{id}: {error}, in the service, too")
            continue
        # A result that was written elsewhere is its client's.
        if manifest.place == own_place(folder).below(PARTS):
            for name in (*(part.name for part in manifest.parts), ENDING):
                yield f"jobs/{id}/{PARTS}/{name}", None
        yield f"jobs/{id}/{MANIFEST_NAME}", None


def _add(tar: tarfile.TarFile, name: str, path: Path) -> str:
    """Add a file; returns its SHA-256."""
    with path.open("rb") as file:
        counted = _Counted(file)
        member = tar.gettarinfo(arcname=name, fileobj=file)
        member.mode = 0o600
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        tar.addfile(member, counted)
    return counted.digest.hexdigest()


class _Counted(io.RawIOBase):
    """A file whose SHA-256 is counted while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self.digest.update(piece)
        return piece


def _tell(message: str) -> None:
    print(f"georesolve: {message}", file=sys.stderr)
