"""Files that no row names: left by a process that was killed, or unknown to an older database."""

import datetime
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

_TOLERATED_SECONDS = 60.0


def remove_unknown(paths: Iterable[Path], last_told: str | None) -> None:
    """Remove files and folders that no row names, unless they are newer than the database.

    Parameters
    ----------
    last_told
        When a runner last wrote to the database. One that is an older copy of itself does not know
        what was made since: that stays, for the day on which the right copy is back.
    """
    known_until = -float("inf")
    if last_told is not None:
        known_until = datetime.datetime.fromisoformat(last_told).timestamp() + _TOLERATED_SECONDS
    newer = []
    for path in paths:
        if path.stat().st_mtime > known_until:
            newer.append(path)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if newer:
        logger.warning(
            "%d files or folders are newer than the database, which does not know them, such as "
            "%s: put back the newest copy of the database, or remove them",
            len(newer),
            min(newer),
        )
