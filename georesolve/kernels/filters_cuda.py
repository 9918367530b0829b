"""What walks on a GPU leave out beside what is too far away: their *filters*.

They are a type by which the compiler chooses: `Everything` leaves nothing out, and costs nothing;
`OfGroup` what is of another group, `InPart` what is of another time as well, in a tree of parts of
time, and `InTime` in a tree by time. Each lane *asks* for something. Lanes that are `alike` walk
together, and what they *want* together is looked for: a walk leaves out boxes and points that hold
none of it. What is left each lane compares with what it asks for.
"""

from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64, uint32

from georesolve.kernels.boxes_cuda import NEVER
from georesolve.kernels.descent_cuda import gap_to
from georesolve.kernels.warp_cuda import ALL_LANES, ballot, by_type, implements

LATEST = (1 << 63) - 1
EARLIEST = -(1 << 63)


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
    """The same, and of times from `least` to `greatest` alone but `left_out`, of each observation.

    Groups are parts of the time of a group here, each with all that its observations may match.
    `times` are those of the tree's points; `left_out` is of no observation where nothing is.
    """

    codes: Any
    groups: Any
    group: Any
    most2: Any
    times: Any
    least: Any
    greatest: Any
    left_out: Any


class InTime(NamedTuple):
    """The same in a tree by time, of one observation: `spans` (2, n_boxes) are of its boxes."""

    codes: Any
    groups: Any
    group: Any
    most2: Any
    times: Any
    least: Any
    greatest: Any
    left_out: Any
    spans: Any


Filtering = Everything | OfGroup | InPart | InTime


class Asked(NamedTuple):
    """A group, the least and the greatest time that an observation asks for, and one that not."""

    group: int
    least: int
    greatest: int
    left_out: int


class Sieved(NamedTuple):
    """A view to which boxes without anything that is wanted are beyond all."""

    view: Any
    filters: Any
    wanted: Any


@by_type(Everything)
def asked_by(filters, row):  # type: ignore[no-untyped-def]
    """What the observation of a row asks for."""
    return int32(0)


@implements(asked_by, OfGroup)
def _(filters, row):  # type: ignore[no-untyped-def]
    return filters.group[row]


@implements(asked_by, InTime)
@implements(asked_by, InPart)
def _(filters, row):  # type: ignore[no-untyped-def]
    left_out = int64(EARLIEST)
    if filters.left_out.size > 0:
        left_out = filters.left_out[row]
    return Asked(filters.group[row], filters.least[row], filters.greatest[row], left_out)


@by_type(Everything)
def may_match(filters, asked):  # type: ignore[no-untyped-def]
    """Whether an observation that asks for this may match anything."""
    return True


@implements(may_match, OfGroup)
def _(filters, asked):  # type: ignore[no-untyped-def]
    return asked >= 0


@implements(may_match, InTime)
@implements(may_match, InPart)
def _(filters, asked):  # type: ignore[no-untyped-def]
    return asked.group >= 0 and asked.least <= asked.greatest


@by_type(Everything)
def alike(filters, asked, lane):  # type: ignore[no-untyped-def]
    """The lanes that may walk together with one of them."""
    return uint32(ALL_LANES)


@implements(alike, OfGroup)
def _(filters, asked, lane):  # type: ignore[no-untyped-def]
    return ballot(asked == cuda.shfl_sync(ALL_LANES, asked, lane))


@implements(alike, InPart)
def _(filters, asked, lane):  # type: ignore[no-untyped-def]
    return ballot(asked.group == cuda.shfl_sync(ALL_LANES, asked.group, lane))


@by_type(Everything)
def wanted_by(filters, asked, lane):  # type: ignore[no-untyped-def]
    """What a walk wants for all lanes that are like one of them: their group."""
    return int32(0)


@implements(wanted_by, OfGroup)
def _(filters, asked, lane):  # type: ignore[no-untyped-def]
    return cuda.shfl_sync(ALL_LANES, asked, lane)


@implements(wanted_by, InPart)
def _(filters, asked, lane):  # type: ignore[no-untyped-def]
    return cuda.shfl_sync(ALL_LANES, asked.group, lane)


@implements(wanted_by, InTime)
def _(filters, asked, lane):  # type: ignore[no-untyped-def]
    return asked


@by_type(Everything)
def sieved(filters, view, wanted):  # type: ignore[no-untyped-def]
    """The view of a walk for what is wanted."""
    return view


@implements(sieved, OfGroup)
@implements(sieved, InPart)
@implements(sieved, InTime)
def _(filters, view, wanted):  # type: ignore[no-untyped-def]
    return Sieved(view, filters, wanted)


@by_type(OfGroup)
def _meets(filters, i, wanted):  # type: ignore[no-untyped-def]
    """Whether anything in box i may be what is wanted."""
    return filters.groups[0, i] <= wanted and wanted <= filters.groups[1, i]


@implements(_meets, InPart)
def _(filters, i, wanted):  # type: ignore[no-untyped-def]
    return filters.groups[0, i] <= wanted and wanted <= filters.groups[1, i]


@implements(_meets, InTime)
def _(filters, i, wanted):  # type: ignore[no-untyped-def]
    return (
        filters.groups[0, i] <= wanted.group
        and wanted.group <= filters.groups[1, i]
        and filters.spans[0, i] <= wanted.greatest
        and wanted.least <= filters.spans[1, i]
    )


@implements(gap_to, Sieved)
def _(view, points, boxes, i, box, level):  # type: ignore[no-untyped-def]
    gap = gap_to(view.view, points, boxes, i, box, level)
    return gap if _meets(view.filters, i, view.wanted) else int32(NEVER)


@by_type(InTime)
def narrowed(filters, asked, time, apart):  # type: ignore[no-untyped-def]
    """What is asked for, if it is no farther apart from a time than another time."""
    least, greatest = asked.least, asked.greatest
    # Saturated: time apart may be all that 64 bits hold, and is then not narrowed.
    is_told = apart < int64(LATEST)
    if is_told and time >= int64(EARLIEST) + apart:
        least = max(least, int64(time - apart))
    if is_told and time <= int64(LATEST) - apart:
        greatest = min(greatest, int64(time + apart))
    return Asked(asked.group, least, greatest, asked.left_out)


@by_type(Everything)
def is_wanted(filters, wanted, i):  # type: ignore[no-untyped-def]
    """Whether point i of the tree may be what is wanted."""
    return True


@implements(is_wanted, OfGroup)
@implements(is_wanted, InPart)
def _(filters, wanted, i):  # type: ignore[no-untyped-def]
    return filters.codes[i] == wanted


@implements(is_wanted, InTime)
def _(filters, wanted, i):  # type: ignore[no-untyped-def]
    return filters.codes[i] == wanted.group


@by_type(Everything)
def asked_there(filters, asked, lane):  # type: ignore[no-untyped-def]
    """What another lane asks for, which is like this one."""
    return asked


@implements(asked_there, OfGroup)
def _(filters, asked, lane):  # type: ignore[no-untyped-def]
    return asked


@implements(asked_there, InPart)
def _(filters, asked, lane):  # type: ignore[no-untyped-def]
    return Asked(
        asked.group,
        cuda.shfl_sync(ALL_LANES, asked.least, lane),
        cuda.shfl_sync(ALL_LANES, asked.greatest, lane),
        cuda.shfl_sync(ALL_LANES, asked.left_out, lane),
    )


@by_type(Everything)
def matches(filters, asked, i):  # type: ignore[no-untyped-def]
    """Whether what is wanted of point i of the tree is what one lane asks for."""
    return True


@implements(matches, OfGroup)
def _(filters, asked, i):  # type: ignore[no-untyped-def]
    return True


@implements(matches, InTime)
@implements(matches, InPart)
def _(filters, asked, i):  # type: ignore[no-untyped-def]
    time = filters.times[i]
    return asked.least <= time and time <= asked.greatest and time != asked.left_out


@by_type(Everything)
def common_to(filters, asked, member):  # type: ignore[no-untyped-def]
    """What the windows of all members of a walk have in common."""
    return int32(0)


@implements(common_to, OfGroup)
def _(filters, asked, member):  # type: ignore[no-untyped-def]
    return int32(0)


@implements(common_to, InPart)
def _(filters, asked, member):  # type: ignore[no-untyped-def]
    least = asked.least if member else int64(EARLIEST)
    greatest = asked.greatest if member else int64(LATEST)
    for step in (16, 8, 4, 2, 1):
        least = max(least, cuda.shfl_xor_sync(ALL_LANES, least, step))
        greatest = min(greatest, cuda.shfl_xor_sync(ALL_LANES, greatest, step))
    if filters.left_out.size > 0:
        greatest = int64(EARLIEST)
    return least, greatest


@by_type(Everything)
def all_match(filters, common, i):  # type: ignore[no-untyped-def]
    """Whether all members match what is wanted of point i of the tree, as far as that is told."""
    return True


@implements(all_match, OfGroup)
def _(filters, common, i):  # type: ignore[no-untyped-def]
    return True


@implements(all_match, InPart)
def _(filters, common, i):  # type: ignore[no-untyped-def]
    time = filters.times[i]
    return common[0] <= time and time <= common[1]


@by_type(Everything)
def bounded(filters, chord2):  # type: ignore[no-untyped-def]
    """The lesser of a squared chord and of the greatest that may match, in float32."""
    return chord2


@implements(bounded, OfGroup)
@implements(bounded, InPart)
def _(filters, chord2):  # type: ignore[no-untyped-def]
    return min(chord2, float32(filters.most2[0]))
