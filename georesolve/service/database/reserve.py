"""The reserve: a file in the data folder that gives up its room to SQLite when the disk is full."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from georesolve.service.errors import CannotStart, is_disk_full

logger = logging.getLogger(__name__)

RESERVE_FILE = "reserve"
_BYTES = 4 << 20
_PIECE_BYTES = 256 << 10
"""A deletion adds some tens of kB to SQLite's log. What else writes to the disk may take the rest
of a piece, so not everything is given up at once."""

T = TypeVar("T")


class Reserve:
    """Room for the changes that make room: of datasets, jobs and keys that end."""

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / RESERVE_FILE

    def make(self) -> None:
        """Take the room, or what was given up of it, if as much again is free then."""
        try:
            held = self._file.stat().st_size if self._file.exists() else 0
            disk = os.statvfs(self._file.parent)
            if held < _BYTES and disk.f_bavail * disk.f_frsize > 2 * _BYTES:
                with self._file.open("ab") as handle:
                    os.posix_fallocate(handle.fileno(), 0, _BYTES)
        except OSError as error:
            logger.warning("no room can be reserved on the disk: %s", error)

    def spend(self, change: Callable[[], T]) -> T:
        """Make a small change; while the disk is too full for it, give up more of the reserve.

        Raises
        ------
        Exception
            What the change raises. If the disk is full, nothing of the reserve is left.
        """
        while True:
            try:
                return change()
            except (OSError, SQLAlchemyError, CannotStart) as error:
                if not is_disk_full(error.__cause__ or error) or not self._give_up_a_piece():
                    raise

    def _give_up_a_piece(self) -> bool:
        held = self._file.stat().st_size if self._file.exists() else 0
        if held:
            left = max(0, held - _PIECE_BYTES)
            os.truncate(self._file, left)
            logger.warning("the disk is full: %d bytes of the reserve are left", left)
        return held > 0
