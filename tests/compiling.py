"""Compiles the kernels of a CPU once for all processes of tests, where nothing is compiled yet.

A kernel that is missing here is compiled by the test that needs it.
"""

import sys
from multiprocessing import get_context

import numpy as np
import shapely

from georesolve.engine import inline, sampling
from georesolve.engine.inline import spiral
from georesolve.io.datasets import Edging
from georesolve.io.outlines import outline_of, shapes_of
from georesolve.kernels import (
    Filters,
    ShapeIndex,
    build_filtered_index,
    build_index,
    nearest,
    nearest_points,
    tree_cpu,
    within,
)
from georesolve.kernels.bearing import bearings
from georesolve.kernels.query import Degrees, Query
from georesolve.workers.warm_up import rehearse


def _main():
    points = Degrees(*spiral(500))
    # What both need.
    index = build_index(*points, copies=True)
    # Types are checked meanwhile, which leaves a part of two cores.
    other = get_context("fork").Process(target=_compile_others, args=[points])
    other.start()
    inline.prepare(None)
    sampling.load()
    rehearse("cpu")
    tree_cpu.search(index, points, Query(1), by="cells")
    within(index, *points, 1e6)
    on_ellipsoid = build_index(*points, earth="wgs84")
    for k in (1, 2):
        nearest(on_ellipsoid, *points, k=k, algorithm="tree")
    within(on_ellipsoid, *points, 1e6)
    bearings(points, points, "wgs84")
    other.join()
    sys.exit(other.exitcode)


def _compile_others(points):
    outline = outline_of(np.array([shapely.box(0, 0, 1, 1)]), Edging())
    shapes = ShapeIndex(1, shapes_of(outline, Edging()))
    nearest_points(shapes, points, *nearest(shapes, *points))
    within(shapes, *points, 1e6)
    # The other process has compiled by now what these have in common with points.
    # Trees of many observations are searched by loops of their own.
    points = Degrees(*spiral(1000))
    row = np.arange(1000)
    for times in (None, row):
        filtered = build_filtered_index(*points, row % 2, times)
        filters = Filters((row % 2).astype(np.int32), row, 0, 0)
        nearest(filtered, *points, filters=filters)
        within(filtered, *points, 1e6, filters=filters)


if __name__ == "__main__":
    _main()
