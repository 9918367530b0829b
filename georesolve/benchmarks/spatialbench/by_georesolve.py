import sys

import polars as pl

import georesolve

question, trips, buildings, out = sys.argv[2:]
key, name, place = "b_buildingkey", "b_name", "t_pickuploc"
asked = {"observation_geometry": place, "reference_geometry": "b_boundary"}
if question == "q8":
    of_buildings = {"summary": {"count": True}, "summary_by": "reference", "columns": [key, name]}
    found = pl.from_arrow(georesolve.within(trips, buildings, 500, **of_buildings, **asked))
    found = found.filter(pl.col("count") > 0).sort(
        "count", f"reference_{key}", descending=[True, False]
    )
    found = found.select(f"reference_{key}", f"reference_{name}", "count")
else:
    # Rows are taken in any order from one chunk in a tenth of the time that many need.
    of_trips = pl.read_parquet(trips, columns=["t_tripkey", place]).rechunk()
    found = georesolve.nearest(of_trips.select(place), buildings, k=5, columns=[key], **asked)
    found = found.select("observation", "reference", "distance_m", f"reference_{key}")
    found = found.sort("distance_m", f"reference_{key}")
    names = pl.read_parquet(buildings, columns=[key, name]).rechunk()
    parts = [of_trips.select(pl.all().gather(found["observation"].cast(pl.UInt32)))]
    parts += [names.select(pl.all().gather(found["reference"].cast(pl.UInt32)))]
    found = pl.concat([*parts, found.select("distance_m")], how="horizontal")
found.write_parquet(out)
