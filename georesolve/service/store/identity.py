"""Which data folder and database belong together (both have an id), and who may work there."""

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

import sqlalchemy as sa

from georesolve.io.storage import Folder, Place
from georesolve.service import errors
from georesolve.service.store.schema import kept, store

logger = logging.getLogger(__name__)

ID_FILE = "store-id"
"""The file of a data folder that holds the id of its store."""
PATIENCE_SECONDS = 3.0
"""The children of a service that was killed are killed with it, and end some moments later."""
_FOLDERS = ("datasets", "jobs", "incoming")
# What a new disk comes with, and what is made before there is anything to lose.
_UNCOUNTED = re.compile(r"\..*|lost\+found|lock|scratch|georesolve\.sqlite.*")
_SHOWN = 3


class Ownership(NamedTuple):
    """The lock of a data folder, which all processes hold that were forked from this one."""

    # Whether no other service and no other process of this one worked there when it was taken.
    is_alone: bool
    # Lets others in, if they may be: what one who is alone does is done.
    share: Callable[[], None]


@contextmanager
def owned(data_dir: Path, shared: bool) -> Iterator[Ownership]:
    """Own a data folder, with others if all of them share it; raises CannotStart."""
    make_data_dir(data_dir)
    until = time.monotonic() + PATIENCE_SECONDS
    with (data_dir / "lock").open("a+") as lock:
        while not (is_alone := _holds(lock, LOCK_EX)):
            if shared and _holds(lock, LOCK_SH):
                break
            if time.monotonic() > until:
                lock.seek(0)
                raise errors.CannotStart(
                    f"the data folder {data_dir} is in use by process {lock.read().strip()}: "
                    "stop that one, or take another folder"
                )
            time.sleep(0.05)
        if is_alone:
            lock.truncate(0)
            with suppress(OSError):
                # On a full disk nobody is told the number; what makes room shall start.
                os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        yield Ownership(is_alone, partial(flock, lock, LOCK_SH if shared else LOCK_EX))


def _holds(lock: TextIO, kind: int) -> bool:
    with suppress(OSError):
        flock(lock, kind | LOCK_NB)
        return True
    return False


def _content_of(data_dir: Path) -> list[str]:
    """What lies in a data folder, as far as something is lost with it; empty for a new folder."""
    found = []
    for path in sorted(data_dir.iterdir()) if data_dir.is_dir() else ():
        if path.name in _FOLDERS and path.is_dir():
            found += [f"{path.name}/{inner.name}" for inner in sorted(path.iterdir())]
        elif not _UNCOUNTED.fullmatch(path.name):
            found.append(path.name)
    return found


def _shown(content: list[str]) -> str:
    """The first names of what was found, and how many more there are."""
    more = f" and {len(content) - _SHOWN} more" if len(content) > _SHOWN else ""
    return ", ".join(map(repr, content[:_SHOWN])) + more


def make_data_dir(data_dir: Path, database: Path | None = None) -> None:
    """Make a data folder where there is none, for a SQLite file if that is given: CannotStart."""
    lock = data_dir / "lock"
    try:
        # Looked at in this order: a service that makes the folder meanwhile makes its lock and its
        # database first.
        content = _content_of(data_dir)
        is_foreign = bool(content) and not (lock.exists() or (data_dir / ID_FILE).exists())
        its_lock = lock.read_text(errors="replace") if lock.exists() else ""
        if is_foreign or not re.fullmatch(r"\d*\s*", its_lock):
            raise errors.CannotStart(
                f"the data folder {data_dir} is not empty and is not that of a service, it has "
                f"{_shown(content)}: name an empty or a new folder with --data-dir"
            )
        data_dir.mkdir(parents=True, exist_ok=True)
        lock.touch()
        # Not opened here: where it is closed, this process would lose its locks of it.
        if database is not None and database.exists() and not os.access(database, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(database))
    except OSError as error:
        raise errors.CannotStart(
            f"the data folder {data_dir} cannot be used: {error.strerror} ({error.filename}); "
            "name another with --data-dir, or let this user write there"
        ) from error
    if database is not None and content and not has_content(database):
        raise errors.CannotStart(
            f"the data folder {data_dir} is not empty, it has {_shown(content)}, but its database "
            f"{database} is {'empty' if database.exists() else 'missing'}: put the database back, "
            "or name an empty or a new folder with --data-dir"
        )


def has_content(database: Path) -> bool:
    """Whether a SQLite file is there, and not empty."""
    return database.exists() and database.stat().st_size > 0


def refuse_other_store(engine: sa.Engine, root: Place, database: str) -> None:
    """Refuse files and a database of different stores; mark a folder that has no id yet.

    A folder without an id is that of a SQLite file which lies in it. With Postgres, and for a
    prefix of an object store, one of the two must have nothing to lose.
    """
    with engine.connect() as connection:
        id = connection.execute(sa.select(store.c.id)).scalar_one()
        has_bytes = sa.select(sa.func.count(kept.c.id)).where(kept.c.size_bytes > 0)
        known = connection.execute(has_bytes).scalar_one()
    place = f"the data folder {root.path}" if isinstance(root, Folder) else f"the store {root.href}"
    given = None
    with suppress(FileNotFoundError), root.open(ID_FILE) as file:
        given = file.read().decode(errors="replace").strip()
    if given == id:
        return
    if given is not None:
        trouble = f"{place} is of the store {given[:40]!r}"
    else:
        has_database = isinstance(root, Folder) and engine.dialect.name == "sqlite"
        if isinstance(root, Folder):
            content = _content_of(root.path)
        else:
            jobs = root.below("jobs").folders()
            datasets = [f"datasets/{name}" for name in root.below("datasets").names()]
            content = datasets + jobs
        if has_database or not (known or content):
            with root.new(ID_FILE) as new:
                new.write(f"{id}\n".encode())
            root.sync(ID_FILE)
            root.sync()
            logger.info("%s is from now on of the store %s", place, id)
            return
        trouble = (
            f"{place} has none of the {known} datasets and results that "
            f"the database knows, it has {_shown(content) or 'nothing'}"
        )
    raise errors.CannotStart(
        f"{trouble}; the database is {database}, of the store {id!r}: name the folder and the "
        "database of one store with --data-dir or --store, and --database-url. To join these two "
        f"all the same, write {id} into {root.href.removeprefix('file://')}{ID_FILE}: files that "
        "the database does not know stay until 'georesolve sweep --unknown' removes them"
    )
