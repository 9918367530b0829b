"""The maps of results that this process has open: each is made when it is first asked for."""

import math
import os
import shutil
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from georesolve.io.datasets import Dataset
from georesolve.io.local_files import complete
from georesolve.service import errors, pools
from georesolve.service.clock import is_id
from georesolve.service.disk import locked
from georesolve.service.settings import Settings
from georesolve.service.store.store import Store
from georesolve.workers.results.distances import Distances, measure
from georesolve.workers.results.manifest import Manifest
from georesolve.workers.tiles.map_files import (
    Map,
    MapFolder,
    map_bytes,
    map_paths,
    write_map,
)

_MOST_OPEN = 8
_THREADS = 2
"""Maps and tiles that are made at a time: each uses all cores."""
_PICTURE_BYTES = 32 << 20
"""Memory for pictures of tiles, and `_EACH_BYTES` more for each: that of the world takes all rows
to draw."""
_EACH_BYTES = 512
_DISTANCES_NAME = "distances.json"
_KEPT = TypeAdapter(tuple[str, Distances])
"""With the digest of their result."""
_SWEEP_SECONDS = 10.0
"""So often it is asked, at most, which results are gone: the database may change at any moment."""


class Drawn(NamedTuple):
    """A result that can be drawn."""

    map: Map
    distances: Distances


class Maps:
    """Makes maps, opens them, keeps pictures, and lets go of what was used longest ago."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        self._folder = MapFolder(store.maps_folder, settings.index_bytes, settings.keep_free)
        self._swept_at = -math.inf
        # Calls what takes many cores.
        self.run = pools.SharedPool("maps", _THREADS)
        self._pictures: OrderedDict[str, bytes] = OrderedDict()
        self._picture_bytes = 0
        self._opened: OrderedDict[str, Drawn] = OrderedDict()
        self._drawing = pools.Shared[Drawn]()

    async def picture(self, name: str, draw: Callable[[], Awaitable[bytes]]) -> bytes:
        """The picture that a name stands for, as it was drawn before if it is kept."""
        found = self._pictures.get(name) or await draw()
        self._picture_bytes += 0 if name in self._pictures else len(found) + _EACH_BYTES
        self._pictures[name] = found
        self._pictures.move_to_end(name)
        while self._picture_bytes > _PICTURE_BYTES:
            self._picture_bytes -= len(self._pictures.popitem(last=False)[1]) + _EACH_BYTES
        return found

    async def drawn(
        self, owner: str, id: str, manifest: Manifest, observations: Callable[[], Dataset]
    ) -> Drawn:
        """The map of a job's result, for the owner who asks; however many ask, it is made once.

        `observations` gives those of the job if it is to be made, or raises that they are gone.
        """
        # A thread may close it at any moment: see `forget_gone`.
        drawn = self._opened.pop(id, None) or await self._drawing(
            id, lambda: self.run(owner, self._made, id, manifest, observations)
        )
        self._opened[id] = drawn
        if len(self._opened) > _MOST_OPEN:
            self._opened.popitem(last=False)
        return drawn

    def forget_gone(self) -> None:
        """Remove the maps of results that are gone, and close those that any process removed."""
        if monotonic() > self._swept_at + _SWEEP_SECONDS:
            self._swept_at = monotonic()
            with suppress(OSError):
                ids = [path.name for path in self._folder.path.iterdir() if is_id(path.name)]
                for id in {*ids} - self._store.with_result(ids):
                    shutil.rmtree(self._folder.path / id, ignore_errors=True)
        # Until they are closed they take the disk.
        for id in tuple(self._opened):
            with suppress(OSError):
                if not all(path.exists() for path in map_paths(self._folder.path / id)):
                    self._opened.pop(id, None)

    def folder(self, id: str) -> Path:
        """Where the map of a job lies on this machine, made anew where it is missing."""
        folder = self._folder.path / id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _made(self, id: str, manifest: Manifest, observations: Callable[[], Dataset]) -> Drawn:
        # Of several fronts one makes it. Neither map nor distances keep all cores busy by
        # themselves.
        folder = self.folder(id)
        with locked(folder), ThreadPoolExecutor(1) as beside:
            distances = beside.submit(self.distances, id, manifest)
            return Drawn(self._map(folder, manifest, observations), distances.result())

    def _map(self, folder: Path, manifest: Manifest, observations: Callable[[], Dataset]) -> Map:
        with suppress(FileNotFoundError, ValueError, KeyError):
            map = Map(folder, manifest.digest)
            for path in map_paths(folder):
                os.utime(path)
            return map
        for path in map_paths(folder):
            path.unlink(missing_ok=True)
        size_bytes = map_bytes(manifest)
        # While it is made it stands there twice.
        if not self._folder.has_room_for(size_bytes, size_bytes):
            raise errors.StorageFull(
                f"the map of this result takes {size_bytes} bytes of the disk, and as many more "
                f"while it is made: --index-bytes is {self._folder.most_bytes}, and --keep-free "
                f"({self._folder.must_stay_free}) must stay free"
            )
        write_map(folder, manifest, observations())
        return Map(folder, manifest.digest)

    def distances(self, id: str, manifest: Manifest) -> Distances:
        """How the distances of a job's result are spread: measured once, then read."""
        folder = self.folder(id)
        path = folder / _DISTANCES_NAME
        with suppress(FileNotFoundError, ValidationError):
            digest, known = _KEPT.validate_json(path.read_bytes())
            if digest == manifest.digest:
                return known
        distances = measure(manifest)
        with complete(path) as temporary:
            temporary.write_bytes(_KEPT.dump_json((manifest.digest, distances)))
        return distances
