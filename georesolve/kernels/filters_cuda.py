"""What walks on a GPU leave out beside what is too far away: their *filters*.

They are a type by which the compiler chooses: `Everything` leaves nothing out, and costs nothing;
`OfGroup` what is of another group, `InPart` what is of another time as well. Each lane *asks* for
something. Lanes that are `alike` are of one group and walk together: their walk leaves out boxes
and points that hold nothing of it. What is left each lane compares with what it asks for.
"""

from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from georesolve.kernels.boxes_cuda import NEVER
from georesolve.kernels.descent_cuda import gap_to
from georesolve.kernels.times import window_of
from georesolve.kernels.warp_cuda import (
    ALL_LANES,
    ballot,
    by_type,
    first_lane,
    implements,
    without_first,
)


class Everything(NamedTuple):
    """Every observation may match every reference."""


EVERYTHING = Everything()


class OfGroup(NamedTuple):
    """An observation may match references of its group within a distance, one below 0 nothing.

    `codes` are the groups of the tree's points, `groups` (2, n_boxes) the least and the greatest in
    each box, `group` those of observations; `most2` is a squared chord.
    """

    codes: Any
    groups: Any
    group: Any
    most2: Any


class InPart(NamedTuple):
    """The same, and of times so long `before` and `after` that of each observation.

    Groups are parts of the time of a group here, each with all that its observations may match.
    `times` are those of the tree's points, `own` those of observations, which match no reference
    of the same time where it `skips` that.
    """

    codes: Any
    groups: Any
    group: Any
    most2: Any
    times: Any
    own: Any
    before: int
    after: int
    skips: bool


Filtering = Everything | OfGroup | InPart


class Asked(NamedTuple):
    """Group and time window of an observation, and its time, which does not match if it `skips`."""

    group: int
    least: int
    greatest: int
    time: int
    skips: bool


class Sieved(NamedTuple):
    """A view to which boxes without anything of a group are beyond all."""

    view: Any
    groups: Any
    group: int


@by_type(Everything)
def asked_by(filters, row):  # type: ignore[no-untyped-def]
    """What the observation of a row asks for."""
    return int32(0)


@implements(asked_by, OfGroup)
def _(filters, row):  # type: ignore[no-untyped-def]
    return filters.group[row]


@implements(asked_by, InPart)
def _(filters, row):  # type: ignore[no-untyped-def]
    time = filters.own[row]
    least, greatest = window_of(time, filters.before, filters.after)
    return Asked(filters.group[row], least, greatest, time, filters.skips)


@by_type(Everything, OfGroup)
def group_of(filters, asked):  # type: ignore[no-untyped-def]
    """The group that is asked for: with no filters it is one."""
    return asked


@implements(group_of, InPart)
def _(filters, asked):  # type: ignore[no-untyped-def]
    return asked.group if asked.least <= asked.greatest else int32(-1)


@by_type(Everything)
def alike(filters, group, lane):  # type: ignore[no-untyped-def]
    """The lanes that may walk together with one of them."""
    return uint32(ALL_LANES)


@implements(alike, OfGroup, InPart)
def _(filters, group, lane):  # type: ignore[no-untyped-def]
    return ballot(group == cuda.shfl_sync(ALL_LANES, group, lane))


@by_type(Everything)
def sieved(filters, view, group):  # type: ignore[no-untyped-def]
    """The view of a walk for a group."""
    return view


@implements(sieved, OfGroup, InPart)
def _(filters, view, group):  # type: ignore[no-untyped-def]
    return Sieved(view, filters.groups, group)


@implements(gap_to, Sieved)
def _(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    gap = gap_to(view.view, points, boxes, i, box, level)
    if view.group < view.groups[0, i] or view.groups[1, i] < view.group:
        gap = int32(NEVER)
    return gap


@by_type(Everything)
def is_of(filters, group, i):  # type: ignore[no-untyped-def]
    """Whether point i of the tree is of a group."""
    return True


@implements(is_of, OfGroup, InPart)
def _(filters, group, i):  # type: ignore[no-untyped-def]
    return filters.codes[i] == group


@by_type(Everything, OfGroup)
def asked_there(filters, asked, lane):  # type: ignore[no-untyped-def]
    """What another lane asks for, which is like this one."""
    return asked


@implements(asked_there, InPart)
def _(filters, asked, lane):  # type: ignore[no-untyped-def]
    return Asked(
        asked.group,
        cuda.shfl_sync(ALL_LANES, asked.least, lane),
        cuda.shfl_sync(ALL_LANES, asked.greatest, lane),
        cuda.shfl_sync(ALL_LANES, asked.time, lane),
        asked.skips,
    )


@by_type(Everything, OfGroup)
def matches(filters, asked, i):  # type: ignore[no-untyped-def]
    """Whether point i of the tree, of the group, is what is asked for."""
    return True


@implements(matches, InPart)
def _(filters, asked, i):  # type: ignore[no-untyped-def]
    return _allows(asked, filters.times[i])


@cuda.jit(device=True, forceinline=True)
def _allows(window, time):  # type: ignore[no-untyped-def]
    """Tell whether a time is in the window of an observation, and not its own where it skips."""
    is_own = window.skips and time == window.time
    return window.least <= time and time <= window.greatest and not is_own


@cuda.jit(device=True, forceinline=True)
def in_window(asked, candidates, times):  # type: ignore[no-untyped-def]
    """Of the points of a leaf, those whose times are what is asked for."""
    found = uint32(0)
    while candidates != uint32(0):
        j = first_lane(candidates)
        candidates = without_first(candidates)
        if _allows(asked, times[j]):
            found = uint32(found | uint32(uint32(1) << j))
    return found


@by_type(Everything)
def bounded(filters, chord2):  # type: ignore[no-untyped-def]
    """The lesser of a squared chord and of the greatest that may match, in float32."""
    return chord2


@implements(bounded, OfGroup, InPart)
def _(filters, chord2):  # type: ignore[no-untyped-def]
    return min(chord2, float32(filters.most2[0]))
