"""How much of the disk must stay free."""

import shutil
from collections.abc import Callable

from service.errors import StorageFull
from service.settings import Settings

LOOK_BYTES = 16 << 20
"""After so many bytes of what is stored as it comes the disk is looked at again."""


class Disk:
    """Keeps some of the disk free: what runs and what looks after the service need room, too.

    Parameters
    ----------
    promised
        Tells how many bytes accepted jobs are expected to write yet; it may ask the database.
    """

    def __init__(self, settings: Settings, promised: Callable[[], int]) -> None:
        self._folder = settings.data_dir
        self._promised = promised
        self.must_stay_free = settings.free_bytes

    def free(self) -> int:
        """Bytes that are free."""
        return shutil.disk_usage(self._folder).free

    def room(self) -> int:
        """Bytes that may be stored, below 0 when too few are free as it is."""
        return self.free() - self.must_stay_free - self._promised()

    def refuse_when_low(self, coming: int = 0) -> None:
        """Refuse what would be stored while there is no room for it.

        Parameters
        ----------
        coming
            Bytes that it is known to need.

        Raises
        ------
        StorageFull
        """
        free, promised = self.free(), self._promised()
        if free - promised - coming < self.must_stay_free:
            needs = f", {coming} bytes are coming" if coming else ""
            needs += f", accepted jobs need {promised}" if promised else ""
            raise StorageFull(
                f"the disk of the service has {free} bytes free{needs}, and "
                f"{self.must_stay_free} must stay free: remove datasets and results that are no "
                "longer needed, or come again later",
                headers={"Retry-After": "60"},
            )
