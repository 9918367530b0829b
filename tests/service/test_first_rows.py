"""The first rows of a dataset: what is long is cut, and what goes away meanwhile is told of."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely


def registered(service, table):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    made = service.post(
        "/datasets?on_invalid=null", content=sink.getvalue().to_pybytes(), headers=headers
    )
    return made.raise_for_status().json()


def first(service, made, most=10):
    return service.get(f"/datasets/{made['id']}/rows", params={"most": most})


def test_what_is_long_is_cut(service):
    circle = shapely.Point(8, 50).buffer(0.1, 100)
    triangle = shapely.Polygon([(8, 50), (8.5, 50), (8.25, 50.5)])
    shapes = [triangle, circle, None]
    about = {"version": "1.1.0", "primary_column": "geometry"}
    about["columns"] = {"geometry": {"encoding": "WKB", "geometry_types": []}}
    table = pa.table(
        {
            "geometry": shapely.to_wkb(np.array(shapes)),
            "note": ["ü" * 1000, "ß" * 1001, None],
            "list": [[1], [2, 3], None],
            "bytes": [b"a", b"b" * 3000, None],
        },
        metadata={"geo": json.dumps(about)},
    )
    made = registered(service, table)
    rows = first(service, made).raise_for_status().json()
    assert [list(row) for row in rows] == [made["columns"]] * 3
    assert shapely.from_wkt(rows[0]["geometry"]).equals(triangle)
    assert rows[1]["geometry"] == f"Polygon of {len(circle.exterior.coords)} points"
    assert [row["note"] for row in rows] == ["ü" * 1000, "ß" * 1000 + "...", None]
    assert [row["list"] for row in rows] == [[1], [2, 3], None]
    assert [row["bytes"] and len(row["bytes"]) for row in rows] == [4, 1003, None]
    service.delete(f"/datasets/{made['id']}")


def test_a_column_without_a_text_hides_no_other(service):
    beyond = pa.array([2**62, 0], pa.timestamp("us"))
    nested = pa.array([[2**62], [0]], pa.list_(pa.timestamp("us")))
    table = pa.table({"lat": [1.0, 2.0], "lon": [1.0, 2.0], "beyond": beyond, "nested": nested})
    made = registered(service, table)
    rows = first(service, made).raise_for_status().json()
    assert [row["lat"] for row in rows] == [1.0, 2.0]
    assert {rows[0]["beyond"], rows[1]["nested"]} == {"(no text can be made of it)"}
    service.delete(f"/datasets/{made['id']}")


def test_rows_that_are_too_large_and_none(service):
    table = pa.table({"lat": [1.0, 2.0], "lon": [1.0, 2.0], "list": [[10**8] * 10**6] * 2})
    made = registered(service, table)
    refused = first(service, made)
    assert (refused.status_code, "ask for fewer" in refused.json()["detail"]) == (406, True)
    assert len(first(service, made, 1).json()[0]["list"]) == 10**6
    service.delete(f"/datasets/{made['id']}")
    made = registered(service, table.slice(0, 0))
    assert first(service, made).json() == []
    service.delete(f"/datasets/{made['id']}")


def test_what_is_removed_meanwhile_is_not_there(service):
    table, seen = pa.table({"lat": [1.0] * 5000, "lon": [2.0] * 5000}), set()
    with ThreadPoolExecutor(4) as threads:
        for i in range(8):
            made = registered(service, table.slice(i))
            asked = [threads.submit(first, service, made, 100) for _ in range(12)]
            asked[i].result()
            service.delete(f"/datasets/{made['id']}").raise_for_status()
            seen |= {one.result().status_code for one in asked}
    assert seen <= {200, 404}
