import json
import sys

import numpy as np
import pandas as pd
from sklearn.neighbors import BallTree

shops_path, depots_path, out = sys.argv[1:]
shops = pd.read_csv(shops_path, sep=";", decimal=",", encoding="utf-8-sig")
with open(depots_path) as file:
    features = json.load(file)["features"]
lon_lat = np.array([feature["geometry"]["coordinates"] for feature in features])
names = np.array([feature["properties"]["name"] for feature in features])
tree = BallTree(np.radians(lon_lat[:, ::-1]), metric="haversine")
angles, rows = tree.query(np.radians(shops[["latitude", "longitude"]].to_numpy()), k=3)
pairs = pd.DataFrame(
    {
        "observation": np.repeat(np.arange(len(shops)), 3),
        "reference": rows.ravel(),
        "distance_m": angles.ravel() * 6_371_008.8,
    }
)
pairs = pairs[pairs["distance_m"] <= 50_000]
pairs["observation_id"] = shops["id"].to_numpy()[pairs["observation"]]
pairs["reference_name"] = names[pairs["reference"]]
pairs.to_parquet(out)
