"""A tile as a picture: colour tells the median distance, opacity how many observations there are.

The colours are viridis, which people who see few colours can tell apart, spread evenly over the
percentiles of the whole result: a distance has one colour in all tiles of a job.
"""

import io
from functools import cache

import numpy as np
from PIL import Image, ImageColor

from georesolve.workers.distances import PERCENTS
from georesolve.workers.map_files import Square

COLOURS = 64
UNMATCHED = "#ff3d7f"
_LEAST_ALPHA = 80
_SIDE = 256


@cache
def colours() -> tuple[str, ...]:
    """The colours of matched observations, near to far, as `#rrggbb`."""
    # A tenth of a second to load, for processes that draw.
    from bokeh.palettes import viridis

    return tuple(colour.lower() for colour in viridis(COLOURS))


@cache
def _rgb() -> np.ndarray:
    return np.array([ImageColor.getrgb(one) for one in (*colours(), UNMATCHED)], np.uint8)


@cache
def empty_tile() -> bytes:
    """A picture of nothing."""
    return _encoded(np.zeros((_SIDE, _SIDE, 4), np.uint8))


def thresholds(percentiles_m: list[float]) -> list[float]:
    """The distances from which on the colours are used, ascending; empty without any distance."""
    if not percentiles_m:
        return []
    at = np.linspace(0, 100, COLOURS, endpoint=False)
    found: list[float] = np.interp(at, PERCENTS, percentiles_m).tolist()
    return found


def picture(square: Square, percentiles_m: list[float], densest: int) -> bytes:
    """A tile as PNG; the percentiles are those of the whole result.

    A pixel with as many observations as the `densest` of its zoom level is opaque.
    """
    counts = square.matched + square.unmatched
    # NaN sorts behind all; its pixels get their colour below.
    number = np.searchsorted(thresholds(percentiles_m), square.median_m, "right") - 1
    number = np.where(square.matched > 0, number.clip(0), COLOURS)
    share = np.log(counts.clip(1)) / np.log(densest) if densest > 1 else np.ones(counts.shape)
    alpha = np.where(counts, np.rint(_LEAST_ALPHA + (255 - _LEAST_ALPHA) * share), 0)
    pixels = np.dstack([_rgb()[number], alpha.astype(np.uint8)])
    pixels[counts == 0] = 0
    return _encoded(pixels)


def _encoded(pixels: np.ndarray) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG", compress_level=1)
    return sink.getvalue()
