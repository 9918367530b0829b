"""The examples in the description of the API, which `/docs` sends: two cities, two observations.

A test sends them to a running service.
"""

from typing import Any

DATASET_ID = "c2dc0025774d679bb3a6a011e495714d"
JOB_ID = "76358bed50f1bf029ad36b08c4e66b16"

CITIES_CSV = "id,lat,lon\nFrankfurt,50.11,8.68\nZurich,47.37,8.54\n"
CITIES_GEOJSON: dict[str, Any] = {
    "type": "FeatureCollection",
    "features": [
        {
            "type": "Feature",
            "id": name,
            "geometry": {"type": "Point", "coordinates": [lon, lat]},
            "properties": {},
        }
        for name, lat, lon in (("Frankfurt", 50.11, 8.68), ("Zurich", 47.37, 8.54))
    ],
}
SIGHTINGS = {"id": ["Berlin", "Paris"], "lat": [52.52, 48.86], "lon": [13.4, 2.35]}
SETS = {
    "observations": SIGHTINGS,
    "references": {"id": ["Frankfurt", "Zurich"], "lat": [50.11, 47.37], "lon": [8.68, 8.54]},
}
SIGHTINGS_CSV = "id,lat,lon\nBerlin,52.52,13.4\nParis,48.86,2.35\n"
FILES = {"observations": SIGHTINGS_CSV, "references": CITIES_CSV}
OPTIONS = {"max_distance_m": 600_000}
EXECUTION = {"inputs": {**SETS, **OPTIONS}}
WITHIN = {"distance_m": 600_000}
