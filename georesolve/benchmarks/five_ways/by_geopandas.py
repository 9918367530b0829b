import sys

import geopandas as gpd
import numpy as np
import pandas as pd
from pyproj import Geod

shops_path, depots_path, out = sys.argv[1:]
shops = pd.read_csv(shops_path, sep=";", decimal=",", encoding="utf-8-sig")
shops = gpd.GeoDataFrame(
    shops, geometry=gpd.points_from_xy(shops["longitude"], shops["latitude"]), crs="EPSG:4326"
)
depots = gpd.read_file(depots_path)
# A degree of longitude is at least this long in all rows: candidates, to be measured below.
widest = 0.45 / np.cos(np.radians(shops.geometry.y.abs().clip(upper=89).max() + 0.45))
rows, near = depots.sindex.query(shops.geometry, predicate="dwithin", distance=max(0.45, widest))
sphere = Geod(a=6_371_008.8, b=6_371_008.8)
shop, depot = shops.geometry.iloc[rows], depots.geometry.iloc[near]
metres = sphere.inv(shop.x.values, shop.y.values, depot.x.values, depot.y.values)[2]
pairs = pd.DataFrame({"observation": rows, "reference": near, "distance_m": metres})
pairs = pairs[pairs["distance_m"] <= 50_000].sort_values(["observation", "distance_m", "reference"])
pairs = pairs.groupby("observation").head(3)
pairs["observation_id"] = shops["id"].to_numpy()[pairs["observation"]]
pairs["reference_name"] = depots["name"].to_numpy()[pairs["reference"]]
pairs.to_parquet(out)
