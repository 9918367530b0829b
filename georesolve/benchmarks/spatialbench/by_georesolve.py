import sys

import numpy as np
import polars as pl
import pyarrow.parquet as pq

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
    words = np.multiply(distance, steps, out=np.empty(distance.size, np.uint64), casting="unsafe")
    words <<= bits
    words |= np.arange(distance.size, dtype=np.uint64)
    words.sort()
    # Of a row the lower 32 bits.
    rows = words.astype(np.uint32) & np.uint32(2 ** int(bits) - 1)
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
    found.write_parquet(out, compression_level=1)
else:
    of_trips = pq.read_table(trips, columns=["t_tripkey", place])
    found = georesolve.nearest(of_trips, buildings, k=5, **asked)
    # In one piece, and rows of buildings in half of the memory.
    distance = np.concatenate([one.to_numpy() for one in found["distance_m"].chunks])
    reference = pl.from_arrow(found["reference"]).cast(pl.UInt32).rechunk()
    del found
    # Rows are taken in any order from one chunk in a tenth of the time that many need.
    of_trips = pl.from_arrow(of_trips).rechunk()
    # Each name is looked up and written once.
    names = pl.read_parquet(buildings, columns=[key, name]).cast({name: pl.Categorical}).rechunk()
    keys, numbers = names[key].to_numpy(), reference.to_numpy()
    rows = pl.LazyFrame({"row": in_order(distance, lambda of: keys[numbers[of]])})
    row = pl.col("row")
    # A trip has five rows, in the order of the trips. What is taken is written part by part.
    columns = [pl.lit(one).gather(row // 5).alias(one.name) for one in of_trips]
    columns += [pl.lit(one).gather(pl.lit(reference).gather(row)).alias(one.name) for one in names]
    columns += [pl.lit(pl.Series(distance)).gather(row).alias("distance_m")]
    rows.select(columns).sink_parquet(out, compression_level=1)
