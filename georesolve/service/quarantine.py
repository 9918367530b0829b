"""The quarantine: files that nobody knows wait there for a week before they are removed."""

import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from georesolve.service.clock import ExpiryClock, now

logger = logging.getLogger(__name__)

_DAYS = 7
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


class Quarantine:
    """Takes files and folders of a data folder; one folder holds what was taken on one day.

    A file without a row in the database may be one that a killed service left. It may also be one
    whose row is missing, because the database is an older copy: then it is worth a lot.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._folder = data_dir / "quarantine"

    def take(self, paths: Iterable[Path]) -> None:
        """Move files and folders here; what cannot be moved stays where it is."""
        paths = sorted(paths)
        if not paths:
            return
        batch = self._folder / now()[:10]
        moved = 0
        for path in paths:
            target = batch / path.relative_to(self._data_dir)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
                moved += 1
            except OSError as error:
                logger.warning("%s is in no database and cannot be moved away: %s", path, error)
        logger.warning(
            "%d files or folders that the database does not know were moved to %s, the first is "
            "%s: they are removed after %d days; move them back if the database is not the right "
            "one",
            moved,
            batch,
            paths[0].name,
            _DAYS,
        )

    def expire(self, clock: ExpiryClock) -> None:
        """Remove what was taken long enough ago."""
        if not self._folder.is_dir():
            return
        # The day itself counts, so what was taken in its last minute stays as long as the rest.
        oldest = clock.now(-86400 * (_DAYS + 1))[:10]
        for batch in self._folder.iterdir():
            if _DAY.fullmatch(batch.name) and batch.name < oldest:
                shutil.rmtree(batch, ignore_errors=True)
                logger.info("what was in quarantine since %s is removed", batch.name)
