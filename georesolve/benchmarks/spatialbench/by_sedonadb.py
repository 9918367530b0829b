import sys

import sedonadb

question, trips, buildings, out = sys.argv[2:]
QUERIES = {
    "q8": """
        SELECT b.b_buildingkey, b.b_name, COUNT(*) AS nearby_pickup_count
        FROM trip t JOIN building b
        ON ST_DWithin(ST_GeomFromWKB(t.t_pickuploc), ST_GeomFromWKB(b.b_boundary), 0.0045)
        GROUP BY b.b_buildingkey, b.b_name
        ORDER BY nearby_pickup_count DESC, b.b_buildingkey ASC
    """,
    "q12": """
        WITH trip_with_geom AS (
            SELECT t_tripkey, t_pickuploc, ST_GeomFromWKB(t_pickuploc) AS pickup_geom FROM trip
        ), building_with_geom AS (
            SELECT b_buildingkey, b_name, ST_GeomFromWKB(b_boundary) AS boundary_geom FROM building
        )
        SELECT t.t_tripkey, t.t_pickuploc, b.b_buildingkey, b.b_name AS building_name,
            ST_Distance(t.pickup_geom, b.boundary_geom) AS distance_to_building
        FROM trip_with_geom t JOIN building_with_geom b
        ON ST_KNN(t.pickup_geom, b.boundary_geom, 5, FALSE)
        ORDER BY distance_to_building ASC, b.b_buildingkey ASC
    """,
}
context = sedonadb.connect()
context.read_parquet(trips).to_view("trip")
context.read_parquet(buildings).to_view("building")
context.sql(QUERIES[question]).to_parquet(out, compression="zstd(1)")
