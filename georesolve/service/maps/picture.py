"""A tile as a picture: colour tells the median distance, opacity how many observations there are.

The colours are viridis, which people who see few colours can tell apart, spread evenly over the
percentiles of the whole result: a distance has one colour in all tiles of a job. Of a summary they
are of plasma, and tell the greatest count of a pixel by ranges of about equal ratios.
"""

import io
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageColor

from georesolve.workers.results.distances import PERCENTS, Distances, fine_bins
from georesolve.workers.tiles.map_files import Square

_COLOURS = 64
_UNMATCHED = "#ff3d7f"
_MANY = ("#fca537", "#f3864a", "#e56a5d", "#d14f72", "#b83289", "#99159f", "#7501a8")
"""Of few to many, from plasma without its ends: seen on light maps and on dark ones."""
_NONE = "#98a3a9"
_LEAST_ALPHA = 80
_SIDE = 256


class Scale(NamedTuple):
    """The colours of matched observations, and the numbers from which on they are used, ascending.

    There are none without any number. What is unmatched has a colour of its own, all `#rrggbb`.
    A pixel with one observation has `least_alpha`.
    """

    colours: list[str]
    starts: list[float]
    unmatched: str
    least_alpha: int


def scale_of(distances: Distances, *, is_count: bool) -> Scale:
    """The scale of a whole result, whose pixels are all opaque if they show counts."""
    found = distances.percentiles
    if is_count:
        starts = np.geomspace(1, found[-1] + 1, len(_MANY) + 1)[:-1] if any(found) else np.empty(0)
        starts = np.unique(np.floor(starts))
        at = np.linspace(0, len(_MANY) - 1, starts.size).astype(int)
        return Scale([_MANY[i] for i in at], starts.tolist(), _NONE, 255)
    # A tenth of a second to load, for processes that draw.
    from bokeh.palettes import viridis

    if not found:
        return Scale([], [], _UNMATCHED, _LEAST_ALPHA)
    at = np.linspace(0, 100, _COLOURS, endpoint=False)
    starts, numbers = _without_ties(np.interp(at, PERCENTS, found))
    shown = starts <= found[-1]
    colours = [viridis(_COLOURS)[number].lower() for number in numbers[shown]]
    return Scale(colours, starts[shown].tolist(), _UNMATCHED, _LEAST_ALPHA)


def _without_ties(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts that differ, and the number of the colour of each.

    Equal distances have the first colour of those that begin with them, and greater ones the last:
    a distance of 0 is no distance of the next percentile.
    """
    begins, ends = fine_bins(starts)
    begins[0] = starts[0]
    is_first = np.append(True, begins[1:] >= ends[:-1])
    is_last = np.append(is_first[1:], True)
    starts = np.where(is_last & ~is_first, ends, begins)
    numbers = np.flatnonzero(is_first | is_last)
    numbers = numbers[np.append(np.diff(starts[numbers]) > 0, True)]
    return starts[numbers], numbers


@cache
def empty_tile() -> bytes:
    """A picture of nothing."""
    return _encoded(np.zeros((_SIDE, _SIDE, 4), np.uint8))


def picture(square: Square, scale: Scale, densest: int) -> bytes:
    """A tile as PNG: a pixel with as many observations as the `densest` is opaque."""
    counts = square.matched + square.unmatched
    # NaN sorts behind all; its pixels get their colour below.
    number = np.searchsorted(scale.starts, square.numbers, "right") - 1
    number = np.where(square.matched > 0, number.clip(0), len(scale.colours))
    rgb = [ImageColor.getrgb(one) for one in (*scale.colours, scale.unmatched)]
    share = np.log(counts.clip(1)) / np.log(densest) if densest > 1 else np.ones(counts.shape)
    alpha = np.where(counts, np.rint(scale.least_alpha + (255 - scale.least_alpha) * share), 0)
    pixels = np.dstack([np.array(rgb, np.uint8)[number], alpha.astype(np.uint8)])
    pixels[counts == 0] = 0
    return _encoded(pixels)


def _encoded(pixels: np.ndarray) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG", compress_level=1)
    return sink.getvalue()
