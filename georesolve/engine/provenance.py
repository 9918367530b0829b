"""Metadata of a result: version, options, counts and the geometry columns that it carries."""

import json

from georesolve.engine.match_sets import MatchSets
from georesolve.io.datasets import geo, geometries_of
from georesolve.kernels.geodesic import FLATTENING, SEMI_MAJOR_M
from georesolve.kernels.query import EARTH_RADIUS_M
from georesolve.version import __version__


def provenance(sets: MatchSets, counts: dict[str, int]) -> dict[str, str]:
    """Metadata of a result, from its options and its rows by status alone."""
    measured: dict[str, float] = {"radius_m": EARTH_RADIUS_M}
    if sets.options.earth == "wgs84":
        measured = {"semi_major_axis_m": SEMI_MAJOR_M, "inverse_flattening": 1.0 / FLATTENING}
    content = {
        "version": __version__,
        **measured,
        "options": sets.options.told(),
        "counts": counts,
    }
    return {"georesolve": json.dumps(content, sort_keys=True), **geometries(sets)}


def geometries(sets: MatchSets) -> dict[str, str]:
    """GeoParquet metadata of the geometry columns of a result, as the datasets have them."""
    of_observations, of_references = sets.carried()
    carrying = [
        (f"{sets.options.summary_by}_", sets.observations, of_observations),
        ("reference_", sets.references, of_references),
    ]
    columns = {
        prefix + name: about
        for prefix, dataset, carried in carrying
        if carried
        for name, about in geometries_of(dataset.file).items()
        if name in carried
    }
    return geo(columns)
