"""By group and in time: which references an observation may match, and the index for that."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from georesolve.kernels.devices import Array, coordinate_pair, device_of, implementation
from georesolve.kernels.index import ReferenceIndex, build_index
from georesolve.kernels.query import Degrees, Found

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
"""Minimum and maximum time: every int64 is a time, a row without one belongs to no group."""
MAX_ROWS = 1 << 29
"""References of an index: trees for windows hold up to twice as many, which 31 bits number."""
_MOST_FORESTS = 4
"""Trees for windows of so many widths are kept, those that were made last."""
_FEW = 64
"""Observations that have no trees of their own, whatever their windows."""
_NARROW = 8
"""Windows that are by so many times shorter than others are searched in trees of their own."""


class Filters(NamedTuple):
    """What each observation may match, on the device of the observations.

    Attributes
    ----------
    group : int32 array, shape (n_observations,)
        Only references of the same group match. One of a group below 0 matches nothing.
    time : int64 array, shape (n_observations,), optional
        The time of each observation, any number where its group is below 0.
    before, after : int
        Only references of times so long before and after that match, both included; `GREATEST` is
        no limit.
    by_time : bool
        References are ranked by the time apart, then by distance and row.
    skips_own_time : bool
        References of the very time of an observation do not match.
    """

    group: Array
    time: Array | None = None
    before: int = GREATEST
    after: int = GREATEST
    by_time: bool = False
    skips_own_time: bool = False


class FilteredIndex(ReferenceIndex):
    """References of groups and times, ready to be searched: their trees are told apart by these.

    Attributes
    ----------
    degrees : Degrees
        What it was made of, as `group` and `time`, which is empty where times do not matter.
    span : tuple of int, optional
        The least and the greatest time.
    """

    def __init__(
        self, vectors: Array, tree: Any, degrees: Degrees, group: Array, time: Array, n_groups: int
    ) -> None:
        super().__init__(vectors, tree)
        self.degrees, self.group, self.time, self.n_groups = degrees, group, time, n_groups
        placed = time[group >= 0] if time.size else time
        # What searches in windows have made for those up to some width, after that width.
        self._reaching: list[tuple[int, Any]] = []
        self.span = (int(placed.min()), int(placed.max())) if placed.size else None

    @property
    def nbytes(self) -> int:
        """Memory that the index holds so far, in bytes: trees are made when they are asked for."""
        made = () if callable(self._tree) else self._tree
        reaching = [array for _, trees in self._reaching for array in trees]
        # None, unless a search has asked for it.
        plain = vars(self).get("plain")
        parts = self.vectors, *self.degrees, self.group, self.time, *made, *reaching, plain
        return int(sum(getattr(part, "nbytes", 0) for part in parts))

    def __reduce__(self) -> Any:
        made = self.vectors, self.tree, self.degrees, self.group, self.time, self.n_groups
        return FilteredIndex, made

    @property
    def whole(self) -> bool:
        """Whether equal references are all there, as `within` needs."""
        return True

    def trees_for(self, filters: Filters, grow: Callable[[int], Any]) -> Any:
        """What is grown for windows of some width, where nothing is there that is about so wide."""
        assert self.span is not None, "there are references"
        earliest, latest = self.span
        width = latest - earliest
        if GREATEST not in (filters.before, filters.after):
            width = min(width, filters.before + filters.after)
        n = filters.group.size
        for made, trees in sorted(self._reaching, key=lambda one: one[0]):
            # For a few, wider ones cost less than new ones do.
            if width <= made and (
                made <= 2 * width + 2 or 4 * n * made <= (width + 1) * self.n_references
            ):
                return trees
        trees = grow(width)
        self._reaching = [*self._reaching, (width, trees)][-_MOST_FORESTS:]
        return trees

    @cached_property
    def plain(self) -> ReferenceIndex:
        """The index of the same references for what no filter restricts."""
        lat_deg = self.degrees.lat_deg.copy()
        lat_deg[self.group < 0] = np.nan
        return build_index(lat_deg, self.degrees.lon_deg, copies=True)

    def restricts(self, filters: Filters) -> bool:
        """Whether filters leave out any reference for observations of the only group."""
        if filters.by_time or filters.skips_own_time or self.n_groups > 1:
            return True
        time = filters.time
        if time is None or self.span is None or not time.size:
            return False
        earliest, latest = self.span

        def holds_all(time: Any) -> bool:
            now = int(time)
            return (filters.before == GREATEST or now - filters.before <= earliest) and (
                filters.after == GREATEST or latest <= now + filters.after
            )

        # Mostly the first one tells.
        return not (holds_all(time[0]) and holds_all(time.min()) and holds_all(time.max()))


def by_reach(index: FilteredIndex, filters: Filters, search: Callable[[Filters], Found]) -> Found:
    """Search for observations with windows of about one length at a time; all that is found."""
    if index.device == "cuda":
        import cupy as xp
    else:
        xp = np
    found: Found | None = None
    for asked in _reaches(index, filters, xp):
        now = search(asked)
        if found is None:
            found = now
            continue
        for old, new in zip(found, now, strict=True):
            xp.copyto(old, new, where=(asked.group >= 0)[:, None])
    return cast("Found", found)


def _reaches(index: FilteredIndex, filters: Filters, xp: Any) -> Iterator[Filters]:
    """What observations ask for, of a part of them at a time: the others are of no group.

    A window without a limit holds little near that end of all time, and is one with a limit there:
    among fewer references it takes less.
    """
    no_before, no_after = filters.before == GREATEST, filters.after == GREATEST
    if index.span is None or no_before == no_after:
        yield filters
        return
    earliest, latest = index.span
    reach = (latest - earliest) // _NARROW
    time = cast("Array", filters.time)
    # Windows beyond the time of all references hold nothing.
    holds = time >= max(LEAST, earliest - filters.after)
    if no_after:
        holds = time <= min(GREATEST, latest + filters.before)
    holds &= filters.group >= 0
    filters, left = filters._replace(group=xp.where(holds, filters.group, -1)), int(holds.sum())
    while reach > 0:
        near = time <= earliest + reach if no_before else time >= latest - reach
        near &= filters.group >= 0
        some = int(near.sum())
        if some <= max(_FEW, index.n_references >> 10):
            # A few cost less among all references than trees of their own do.
            break
        if some < left:
            yield filters._replace(group=xp.where(near, -1, filters.group))
        filters = filters._replace(
            group=xp.where(near, filters.group, -1),
            before=reach if no_before else filters.before,
            after=reach if no_after else filters.after,
        )
        left, reach = some, reach // _NARROW
    yield filters


def build_filtered_index(
    lat_deg: Array,
    lon_deg: Array,
    group: Array | None = None,
    time: Array | None = None,
    *,
    share: float = 1 / 128,
) -> FilteredIndex:
    """Make the index of references that match by group and in time.

    Parameters
    ----------
    lat_deg, lon_deg : float64 array of numpy or CuPy, shape (n_references,)
        As for `build_index`.
    group : int32 array, shape (n_references,), optional
        Of each reference, from 0 on; one below 0 matches nothing. All are one where it is left out.
    time : int64 array, shape (n_references,), optional
        Time of each reference, any number where its group is below 0. Times do not matter where
        this is left out.
    share : float
        What part of all time a tree holds by time apart, where searches whose windows are half as
        long are the fastest. Others make trees for their windows.
    """
    step = implementation(device_of(lat_deg), "filtered")
    if lat_deg.size > MAX_ROWS:
        raise ValueError(
            f"references by group or in time must be {MAX_ROWS} at most, got {lat_deg.size}"
        )
    lat_deg, lon_deg, _ = coordinate_pair(lat_deg, lon_deg)
    library = type(lat_deg).__module__.partition(".")[0]
    if library == "cupy":
        import cupy as xp
    else:
        xp = np
    group = xp.zeros(lat_deg.size, np.int32) if group is None else group.astype(np.int32)
    n_groups = max(int(group.max()) + 1, 1) if group.size else 1
    time = xp.empty(0, np.int64) if time is None else time.astype(np.int64)
    degrees = Degrees(lat_deg, lon_deg)
    vectors, tree = step.build(*degrees, group, time, n_groups, share)
    return FilteredIndex(vectors, tree, degrees, group, time, n_groups)
