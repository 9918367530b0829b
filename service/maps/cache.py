"""The maps of results that this process has open: each is made when it is first asked for."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from os import utime
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from georesolve.service.errors import StorageFull
from georesolve.service.settings import Settings
from georesolve.workers.datasets import Dataset
from georesolve.workers.distances import Distances, Histogram, measure
from georesolve.workers.files import complete
from georesolve.workers.manifest import Manifest
from georesolve.workers.map_files import MAP_NAME, Map, MapFolder, map_bytes, write_map

T = TypeVar("T")

_MOST_OPEN = 8
_THREADS = 2
"""Maps and tiles that are made at a time: each uses all cores."""
_DISTANCES_NAME = "distances.json"


def map_folder(settings: Settings, jobs: Path) -> MapFolder:
    """Where the maps of all jobs lie, and what they may take of the disk."""
    return MapFolder(jobs, settings.index_bytes, settings.free_bytes)


@dataclass(frozen=True)
class Drawn:
    """A result that can be drawn."""

    map: Map
    distances: Distances


class Maps:
    """Makes maps, opens them, and lets go of those used longest ago."""

    def __init__(self, settings: Settings, jobs: Path) -> None:
        self._folder = map_folder(settings, jobs)
        self._limiter = CapacityLimiter(_THREADS)
        self._opened: OrderedDict[str, Drawn] = OrderedDict()
        self._making: dict[str, asyncio.Task[Drawn]] = {}

    async def run(self, function: Callable[[], T]) -> T:
        """What a function returns that takes many cores, called in a thread in its turn."""
        return await to_thread.run_sync(function, limiter=self._limiter)

    async def drawn(
        self, id: str, manifest: Manifest, observations: Callable[[], Dataset]
    ) -> Drawn:
        """The map of a job's result; however many ask for it, it is made once.

        Parameters
        ----------
        observations
            Gives those of the job, if the map is to be made; raises a problem when they are gone.

        Raises
        ------
        StorageFull
            When the disk has no room for it.
        OSError
            When the result is gone or damaged.
        """
        if (opened := self._opened.pop(id, None)) is not None:
            self._opened[id] = opened
            return opened
        if id not in self._making:
            making = asyncio.create_task(
                self.run(lambda: self._made(self._folder.path / id, manifest, observations))
            )
            self._making[id] = making
            making.add_done_callback(lambda _: self._making.pop(id, None))
        drawn = await asyncio.shield(self._making[id])
        self._opened[id] = drawn
        while len(self._opened) > _MOST_OPEN:
            self._opened.popitem(last=False)
        return drawn

    def forget_gone(self) -> None:
        """Close the maps whose files were removed, by any process: until then they take the disk.

        Any thread may call it.
        """
        for id in tuple(self._opened):
            if not (self._folder.path / id / MAP_NAME).exists():
                self._opened.pop(id, None)

    def _made(self, folder: Path, manifest: Manifest, observations: Callable[[], Dataset]) -> Drawn:
        path = folder / MAP_NAME
        # Of several fronts one makes it: the folder is there for as long as the job.
        with (folder / "manifest.json").open("rb") as lock:
            flock(lock, LOCK_EX)
            distances = self.distances(folder, manifest)
            with suppress(FileNotFoundError, ValueError, KeyError):
                map = Map(path, manifest.digest)
                utime(path)
                return Drawn(map, distances)
            path.unlink(missing_ok=True)
            size_bytes = map_bytes(manifest)
            # While it is made it stands there twice.
            if not self._folder.has_room_for(size_bytes, size_bytes):
                raise StorageFull(
                    f"the map of this result takes {size_bytes} bytes of the disk, and as many "
                    f"more while it is made: --index-bytes is {self._folder.most_bytes}, and "
                    f"--free-bytes ({self._folder.free_bytes}) must stay free",
                    headers={"Retry-After": "60"},
                )
            write_map(path, manifest, observations())
            return Drawn(Map(path, manifest.digest), distances)

    @staticmethod
    def distances(folder: Path, manifest: Manifest) -> Distances:
        """How the distances of a job's result are spread: measured once, then read.

        Raises
        ------
        OSError
            When the result is gone or damaged.
        """
        path = folder / _DISTANCES_NAME
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            given = json.loads(path.read_text())
            if given.pop("digest") == manifest.digest:
                histograms = (Histogram(*given.pop(name)) for name in ("linear", "logarithmic"))
                return Distances(given["counts"], given["percentiles_m"], *histograms)
        distances = measure(manifest, folder)
        with complete(path) as temporary:
            temporary.write_text(json.dumps({**distances._asdict(), "digest": manifest.digest}))
        return distances
