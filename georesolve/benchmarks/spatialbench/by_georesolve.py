import sys

import numpy as np
import polars as pl

import georesolve

question, trips, buildings, out = sys.argv[2:]
key, name, place = "b_buildingkey", "b_name", "t_pickuploc"
asked = {"observation_geometry": place, "reference_geometry": "b_boundary"}


def in_order(distance, key):
    """Rows by distance, of equal ones by key.

    NumPy sorts numbers several times as fast as the rows that they come from, so a number is made
    of a distance, rounded, and its row; rows whose distances are rounded alike are sorted after.
    """
    bits = np.uint64(distance.size.bit_length())
    steps = 2.0 ** (63 - int(bits)) / max(distance.max(), 1.0)
    words = (distance * steps).astype(np.uint64) << bits
    words |= np.arange(distance.size, dtype=np.uint64)
    words.sort()
    rows = (words & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.uint32)
    words >>= bits
    equal = np.flatnonzero(words[1:] == words[:-1])
    equal = np.union1d(equal, equal + 1)
    of = rows[equal]
    rows[equal] = of[np.lexsort((key(of), distance[of]))]
    return rows


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
    names = pl.read_parquet(buildings, columns=[key, name]).rechunk()
    # As Arrow they come back without a copy.
    places = of_trips.select(place).to_arrow(compat_level=pl.CompatLevel.oldest())
    found = georesolve.nearest(places, buildings, k=5, **asked)
    # In one piece, and rows of buildings in half of the memory.
    found = {
        "distance_m": found["distance_m"].to_numpy(),
        "reference": pl.from_arrow(found["reference"]).cast(pl.UInt32).to_numpy(),
    }
    keys = names[key].to_numpy()
    rows = in_order(found["distance_m"], lambda of: keys[found["reference"][of]])
    found = pl.DataFrame(found).select(pl.all().gather(rows))
    # A trip has five rows, and these are in the order of the trips.
    parts = [of_trips.select(pl.all().gather(rows // np.uint32(5)))]
    parts += [names.select(pl.all().gather(found["reference"]))]
    found = pl.concat([*parts, found.select("distance_m")], how="horizontal")
found.write_parquet(out, compression_level=1)
