import sys

import geopandas as gpd
import pandas as pd

question, trips, buildings, out = sys.argv[2:]
if question != "q8":
    sys.exit("GeoPandas has no join of the k nearest")
pickups = pd.read_parquet(trips, columns=["t_pickuploc"])["t_pickuploc"]
table = pd.read_parquet(buildings, columns=["b_buildingkey", "b_name", "b_boundary"])
pickups = gpd.GeoSeries.from_wkb(pickups)
boundaries = gpd.GeoSeries.from_wkb(table.pop("b_boundary"))
near, _ = pickups.sindex.query(boundaries, predicate="dwithin", distance=0.0045)
table["nearby_pickup_count"] = pd.Series(near).value_counts()
table = table.dropna().astype({"nearby_pickup_count": int})
keys = ["nearby_pickup_count", "b_buildingkey"]
table = table.sort_values(keys, ascending=[False, True])
table.to_parquet(out, index=False, compression="zstd", compression_level=1)
