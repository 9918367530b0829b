"""The example that the description of the API follows: two cities, two observations, one job.

A test sends it to a running service, and compares what comes back with what stands here.
"""

from dataclasses import replace
from typing import Any

from georesolve.service.database.rows import REMOVED, Delivery, JobRow
from georesolve.service.datasets.models import DatasetInfo
from georesolve.service.jobs.models import Report, StatusInfo, Verification
from georesolve.service.links import EXAMPLE_BASE
from georesolve.service.ops.models import Check, Health
from georesolve.service.results.models import Bytes, PartInfo, Parts
from georesolve.service.uploads.models import UploadInfo
from georesolve.workers.jobs import MatchOptions

DATASET_ID = "c2dc0025774d679bb3a6a011e495714d"
UPLOAD_ID = "5d0f0ab2c1f24f3f9d6b1c8e7a905c13"
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

# All are matched: FastAPI leaves out of an example what is null.
MATCHES = [
    {
        "observation": 0,
        "reference": 0,
        "distance_m": 423438.40229166334,
        "status": "matched",
        "observation_id": "Berlin",
        "reference_id": "Frankfurt",
    },
    {
        "observation": 1,
        "reference": 0,
        "distance_m": 477749.0263863606,
        "status": "matched",
        "observation_id": "Paris",
        "reference_id": "Frankfurt",
    },
]
MATCHES_GEOJSON: dict[str, Any] = {
    "type": "FeatureCollection",
    "features": [
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [lon, lat]},
            "properties": match,
        }
        for (lat, lon), match in zip(((52.52, 13.4), (48.86, 2.35)), MATCHES, strict=True)
    ],
}
MATCHES_CSV = """\
"observation","reference","distance_m","status","observation_id","reference_id"
0,0,423438.40229166334,"matched","Berlin","Frankfurt"
1,0,477749.0263863606,"matched","Paris","Frankfurt"
"""

_SIGHTINGS_SHA256 = "533b25223517c27ce182da9abdba9e6633de0b4426c1c14351291e7e4bdea194"
_CITIES_SHA256 = "f020695b56b9231102236178f300510dff8c9d9da80f6630aadc9dbcdc680ac0"
_DIGEST = "fb122f0185d126f9db348ee282142e89d962f59469a1925b55ae2798620ecc87"
_CREATED = "2026-11-21T14:36:33.530+00:00"
_STARTED = "2026-11-21T14:36:33.542+00:00"
_FINISHED = "2026-11-21T14:36:33.838+00:00"

DATASET = DatasetInfo(
    id=DATASET_ID,
    names=[],
    rows=2,
    invalid_rows=0,
    bbox=[8.54, 47.37, 8.68, 50.11],
    columns=["id", "lat", "lon"],
    lat="lat",
    lon="lon",
    id_column="id",
    sha256=_CITIES_SHA256,
    size_bytes=1_158,
    created="2026-11-21T14:36:32.931+00:00",
    expires="2026-12-21T14:36:32.931+00:00",
)

UPLOAD = UploadInfo(
    id=UPLOAD_ID,
    offset=0,
    size_bytes=len(CITIES_CSV),
    created=_CREATED,
    expires="2026-11-22T14:36:33.530+00:00",
)

_ENDING = Bytes(
    size_bytes=2558,
    sha256="f7c2f165170834f4e4014ffaeaf48492cd50e53b1ab626b812c247ac6dbc1742",
)
_ROW_GROUP = Bytes(
    size_bytes=641,
    sha256="cab3cfae0ca0cc943fc3f71b8e93d9471b889e8fcfbb1fc731a49f1357dc859e",
)
_PART = PartInfo(
    href=f"{EXAMPLE_BASE}/jobs/{JOB_ID}/results/parts/000000000000-000000000002.parquet",
    rows=2,
    size_bytes=3203,
    digest=_DIGEST,
    row_groups=[_ROW_GROUP],
    ending=_ENDING,
)
PARTS = Parts(digest=_DIGEST, rows=2, size_bytes=3203, parts=[_PART], ending=_ENDING)

REPORT = Report(
    options=MatchOptions(max_distance_m=OPTIONS["max_distance_m"]),
    counts={"matched": 2, "beyond_max_distance": 0, "invalid_coordinate": 0, "no_reference": 0},
    seconds={
        "queue": 0.012,
        "decode_observations": 0.002,
        "receive_references": 0.0003,
        "decode_references": 0.009,
        "read": 0.005,
        "index": 0.00002,
        "resolve": 0.0007,
        "verify": 0.0004,
        "write": 0.004,
        "partitions": 0.233,
        "assemble": 0.004,
    },
    rows=2,
    size_bytes=3203,
    digest=_DIGEST,
    observations_sha256=_SIGHTINGS_SHA256,
    references_sha256=_CITIES_SHA256,
    verification=Verification(observations=2),
    device="cpu",
    chunks_by_worker={"0": 1},
    versions={"georesolve": "0.1.0", "dask": "2026.7.1", "numba": "0.64.0", "pyarrow": "26.0.1"},
)

_ACCEPTED_ROW = JobRow(
    id=JOB_ID,
    owner="",
    process="nearest",
    status="accepted",
    created=_CREATED,
    started=None,
    finished=None,
    updated=_CREATED,
    expires=None,
    observations="",
    references=DATASET_ID,
    options=MatchOptions(max_distance_m=OPTIONS["max_distance_m"]),
    delivery=Delivery(),
    rows=2,
    rows_done=0,
    rows_a_second=None,
    size_bytes=0,
    message="waiting for a free place",
    suspicion=0,
    problem=None,
    report=None,
)
_DONE_ROW = replace(
    _ACCEPTED_ROW,
    status="successful",
    started=_STARTED,
    finished=_FINISHED,
    updated=_FINISHED,
    expires="2026-11-28T14:36:33.838+00:00",
    rows_done=2,
    message="done",
    report=REPORT.model_dump(),
)


def _status(row: JobRow) -> dict[str, Any]:
    return StatusInfo.of(row, EXAMPLE_BASE).model_dump(exclude_none=True)


ACCEPTED = _status(_ACCEPTED_ROW)
DONE = _status(_DONE_ROW)
DISMISSED = _status(replace(_DONE_ROW, status="dismissed", message=REMOVED, report=None))

_ALWAYS_CHECKED = [
    Check(name="store", ok=True, detail="writable, 0 jobs not finished"),
    Check(
        name="disk",
        ok=True,
        detail="80000000000 bytes free, of which 1073741824 must stay free",
    ),
    Check(name="sandbox", ok=True, detail="Landlock (version 7), seccomp"),
    Check(name="small requests", ok=True, detail="answered here"),
]
HEALTHY = Health(
    status="ok",
    checks=[
        *_ALWAYS_CHECKED,
        Check(name="workers", ok=True, detail="2 that passed their check"),
        Check(name="device", ok=True, detail="cpu"),
        Check(name="dashboard", ok=True, detail="http://127.0.0.1:8787/status"),
    ],
)
UNHEALTHY = Health(
    status="unavailable",
    checks=[
        *_ALWAYS_CHECKED,
        Check(name="cluster", ok=False, detail="the cluster is being opened"),
    ],
)
METRICS = """\
# HELP georesolve_workers Workers that have passed their check: one a GPU where the device is cuda.
# TYPE georesolve_workers gauge
georesolve_workers{device="cpu"} 2.0
"""
