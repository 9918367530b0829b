"""`/resolve` over HTTP: files and datasets in, the right result out; bad input refused."""

import base64
import hashlib
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import shapely

from tests.conftest import SAMPLES, finished, look_up, points, run_nearest, sphere
from tests.oracle import nearest

PARQUET = "application/vnd.apache.parquet"

ONE = {"lat": [1], "lon": [2]}


def parquet(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def csv(table):
    sink = io.BytesIO()
    pa.csv.write_csv(table, sink)
    return sink.getvalue()


def table_of(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == PARQUET
    return pq.read_table(io.BytesIO(response.content))


def inline(table):
    return {name: table[name].to_pylist() for name in ("lat", "lon")}


@pytest.fixture(scope="module")
def tables():
    return points(300, 11), points(200, 12)


@pytest.fixture(scope="module")
def expected():
    return nearest(*sphere(300, 11), *sphere(200, 12))


def check(table, expected):
    rows, metres = expected
    np.testing.assert_array_equal(table["observation"], np.arange(len(rows)))
    np.testing.assert_array_equal(table["reference"], rows)
    np.testing.assert_allclose(table["distance_m"], metres, rtol=1e-12, atol=1e-3)


@pytest.mark.parametrize("write", [parquet, csv])
def test_files(service, tables, expected, write):
    files = {
        role: (f"points.{write.__name__}", write(table))
        for role, table in zip(("observations", "references"), tables, strict=True)
    }
    response = service.post("/resolve", files=files)
    table = table_of(response)
    check(table, expected)
    np.testing.assert_array_equal(table["reference_id"], expected[0] + 1_000_000)


def test_datasets_and_an_asynchronous_job(service, tables, expected):
    ids = []
    for table in tables:
        made = service.post("/datasets", content=parquet(table), headers={"Content-Type": PARQUET})
        assert made.status_code == 201
        again = service.post("/datasets", files={"file": ("again.csv", csv(table))})
        assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
        assert service.get(made.headers["location"]).json() == again.json()
        assert made.json()["rows"] == table.num_rows
        ids.append(made.json()["id"])
    form = {"observations": (None, f"dataset:{ids[0]}"), "references": (None, f"dataset:{ids[1]}")}
    answer = service.post("/resolve", files=form, headers={"Prefer": "respond-async"})
    assert answer.status_code == 201
    assert answer.headers["preference-applied"] == "respond-async"
    info = finished(service, answer.headers["location"])
    assert (info["status"], info["progress"], info["jobID"]) == ("successful", 100, info["id"])
    check(table_of(service.get(f"/jobs/{info['id']}/results")), expected)
    report = service.get(f"/jobs/{info['id']}/report").json()
    assert report["counts"]["matched"] == 300
    assert {"queue", "read", "resolve", "write", "assemble"} <= set(report["seconds"])
    for id in ids:
        assert service.delete(f"/datasets/{id}").status_code == 204
        assert service.get(f"/datasets/{id}").status_code == 404


def test_content_is_registered_once(service):
    content = parquet(points(500, 16))

    def register(_):
        headers = {"Content-Type": PARQUET}
        return service.post("/datasets", content=content, headers=headers).json()["id"]

    with ThreadPoolExecutor(8) as threads:
        ids = set(threads.map(register, range(8)))
    assert len(ids) == 1
    url = f"/datasets/{ids.pop()}"
    data = service.get(f"{url}/data.parquet")
    assert hashlib.sha256(data.content).hexdigest() == service.get(url).json()["sha256"]
    again = service.get(f"{url}/data.parquet", headers={"If-None-Match": data.headers["etag"]})
    assert again.status_code == 304
    assert service.delete(url).status_code == 204


def test_the_same_bytes_every_time(service, tables):
    tags = set()
    for write in (parquet, csv):
        files = {
            role: (f"points.{write.__name__}", write(table))
            for role, table in zip(("observations", "references"), tables, strict=True)
        }
        tags.add(service.post("/resolve", files=files).headers["etag"])
    assert len(tags) == 1


def test_ranges_and_conditions(service, tables):
    body = {"observations": inline(tables[0]), "references": inline(tables[1])}
    job = run_nearest(service, body, {"Prefer": "respond-async"})
    url = f"{job.headers['location']}/results/matches.parquet"
    assert finished(service, job.headers["location"])["status"] == "successful"
    whole = service.get(url)
    tail = service.get(url, headers={"Range": "bytes=-8"})
    assert (tail.status_code, tail.content) == (206, whole.content[-8:])
    tag = whole.headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        assert service.get(url, headers={"If-None-Match": known}).status_code == 304
    assert service.get(url, headers={"If-None-Match": f"x{tag[1:]}"}).status_code == 200
    head = service.head(url)
    assert (head.status_code, head.content) == (200, b"")
    assert (head.headers["etag"], head.headers["content-length"]) == (tag, str(len(whole.content)))
    beyond = service.get(url, headers={"Range": f"bytes={len(whole.content)}-"})
    assert beyond.status_code == 416


def test_options(service):
    observations = {"lat": [0.0, 0.0, 95.0], "lon": [0.0, 50.0, 0.0], "tag": ["a", "b", "c"]}
    references = {"lat": [0.0], "lon": [0.0], "name": ["null island"]}
    table = table_of(
        look_up(
            service,
            {
                "observations": observations,
                "references": references,
                "max_distance_m": 0,
                "on_invalid": "null",
                "columns": ["name"],
                "observation_columns": ["tag"],
            },
        )
    )
    assert table.to_pydict() == {
        "observation": [0, 1, 2],
        "reference": [0, None, None],
        "distance_m": [0.0, None, None],
        "status": ["matched", "beyond_max_distance", "invalid_coordinate"],
        "observation_tag": ["a", "b", "c"],
        "reference_name": ["null island", None, None],
    }


def test_a_set_against_itself(service):
    table = points(40, 13)
    id = service.post("/datasets", files={"file": ("p.csv", csv(table))}).json()["id"]
    body = {"observations": f"dataset:{id}", "references": f"dataset:{id}"}
    answers = [
        table_of(look_up(service, {**body, "k": 2, "exclude_self": flag})) for flag in (False, True)
    ]
    with_self, without = (table["reference"].to_numpy().reshape(40, 2) for table in answers)
    np.testing.assert_array_equal(with_self[:, 0], np.arange(40))
    np.testing.assert_array_equal(with_self[:, 1], without[:, 0])
    assert service.delete(f"/datasets/{id}").status_code == 204


def test_exclude_self_needs_one_set(service, tables):
    body = {"observations": inline(tables[0]), "references": inline(tables[1])}
    answer = look_up(service, {**body, "exclude_self": True})
    check_refusal(answer, "the same dataset as both", {})


def test_the_same_references_again_with_other_columns(service):
    references = points(5, 14, name=list("abcde"))
    for columns in ({}, {"columns": "name"}):
        files = {
            "observations": ("o.parquet", parquet(points(3, 15))),
            "references": ("r.parquet", parquet(references)),
        }
        table = table_of(service.post("/resolve", params=columns, files=files))
    assert set(table["reference_name"].to_pylist()) <= set("abcde")


GOOD = b"lat,lon\n1,2\n"
PQ = parquet(pa.table({"lat": [1.0], "lon": [2.0]}))


def pq_of(**columns):
    return parquet(pa.table(columns))


BAD_INPUT = {
    "missing column": (b"a,lon\n1,2\n", "no column for latitudes.*found 'a', 'lon'", {}),
    "ambiguous column": (b"lat,lon,Y\n1,2,3\n", "ambiguous", {"column": "lat"}),
    "text": (b"lat,lon\n1,2\nx,3\n", "'lat', row 1: .*'x'", {"column": "lat", "row": 1}),
    "null": (b"lat,lon\n1,2\n3,\n", "null", {"column": "lon", "row": 1}),
    "NaN": (b"lat,lon\nNaN,3\n", "not a number", {"column": "lat", "row": 0}),
    "infinity": (b"lat,lon\n1,2\n1,2\n1,inf\n", "holds inf", {"column": "lon", "row": 2}),
    "latitude 91": (b"lat,lon\n1,2\n91,2\n", "holds 91.0", {"column": "lat", "row": 1}),
    "longitude 361": (b"lat,lon\n1,361\n", "-180 to 360", {"column": "lon", "row": 0}),
    "ragged row": (b"lat,lon\n1,2\n1,2,3\n", "3 fields .* header has 2", {"row": 1}),
    "empty file": (b"", "the file is empty", {}),
    "not UTF-8": (b"lat,lon,name\n1,2,\xff\n", "not UTF-8", {"column": "name"}),
    "header not UTF-8": (
        b"lat,lon,\xff\n1,2,3\n",
        "is not UTF-8.*: declare its charset",
        {"column": "\N{REPLACEMENT CHARACTER}"},
    ),
    "truncated Parquet": (PQ[:-20], "not a readable parquet file", {}),
    "half a Parquet": (PQ[: len(PQ) // 2], "not a readable parquet file", {}),
    "text in Parquet": (pq_of(lat=["1"], lon=[2.0]), "holds string", {"column": "lat", "row": 0}),
    "null in Parquet": (
        pq_of(lat=[1.0, None], lon=[2.0, 3.0]),
        "null",
        {"column": "lat", "row": 1},
    ),
    "all null in Parquet": (pq_of(lat=[None], lon=[2.0]), "holds null", {"column": "lat"}),
    "repeated column": (b"lat,lon,lat\n1,2,3\n", "appears 2 times", {"column": "lat"}),
}


@pytest.mark.parametrize("role", ["observations", "references"])
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_and_leaves_nothing(service, case, role):
    content, message, place = BAD_INPUT[case]
    name = "bad.parquet" if "Parquet" in case else "bad.csv"
    files = {"observations": ("good.csv", GOOD), "references": ("good.csv", GOOD)}
    before = left_behind(service)
    response = service.post("/resolve", files={**files, role: (name, content)})
    check_refusal(response, message, {"file": role, **place} if place else {})
    assert left_behind(service) <= before


def check_refusal(response, message, place):
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == 400
    assert re.search(message, problem["detail"]), problem["detail"]
    assert "Traceback" not in response.text
    assert "/tmp" not in response.text
    if place:
        assert place.items() <= problem["errors"][0].items()


def left_behind(service):
    data_dir = service.log.with_suffix("")
    jobs = service.get("/jobs", params={"limit": 1000}).json()["jobs"]
    files = {str(path) for path in data_dir.rglob("*") if path.suffix in (".parquet", ".received")}
    return len(jobs), files


def test_references_without_rows(service):
    files = {"observations": ("good.csv", GOOD), "references": ("none.csv", b"lat,lon\n")}
    check_refusal(service.post("/resolve", files=files), "references: the table has no rows", {})


def test_observations_without_rows(service):
    files = {"observations": ("none.csv", b"lat,lon\n"), "references": ("good.csv", GOOD)}
    assert table_of(service.post("/resolve", files=files)).num_rows == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"observations": {"lat": [1], "lon": [2]}}, "/references: Field required"),
        (
            {"observations": {"lat": [1, "x"], "lon": [2, 3]}, "references": ONE},
            "/observations/lat/1: 'x' is not a number",
        ),
        (
            {"observations": {"lat": [0.5, True], "lon": [2, 3]}, "references": ONE},
            "/observations/lat/1: True is not a number",
        ),
        (
            {"observations": {"lat": [1, 2.5], "lon": [False, 3]}, "references": ONE},
            "/observations/lon/0: False is not a number",
        ),
        (
            {"observations": {"lat": [1], "lon": [2, 3]}, "references": ONE},
            "differ in length",
        ),
        (
            {"observations": {"lat": [1], "lon": [2], "n": [1, "a"]}, "references": ONE},
            "differ in length",
        ),
        (
            {"observations": [1, 2], "references": ONE},
            r'^/observations: an array is no point set.*\{"lat": \[52.5\], "lon": \[13.4\]\}',
        ),
        (
            {"observations": [{"lat": 1, "lon": 2}, {"lat": 1}], "references": ONE},
            "^/observations/1/lon: has no 'lon', unlike record 0",
        ),
        (
            {"observations": [{"lat": 1, "lon": 2}, {"lat": 1, "a/b": 2}], "references": ONE},
            "^/observations/1/lon: has no 'lon', unlike record 0",
        ),
        (
            {"observations": [{"lat": 1, "lon": 2}, 7], "references": ONE},
            "^/observations/1: is 7: give an object",
        ),
        (
            {"observations": ONE, "references": {"value": [{"lat": 1, "lon": "x"}]}},
            "^/references/value/0/lon: 'x' is not a number",
        ),
        (
            {"observations": [{"lat": 1, "lon": 2, "a/b": [3]}], "references": ONE},
            "^/observations/0/a~1b: points have numbers",
        ),
        (
            {"observations": [{"lat": 1}], "references": ONE},
            "^/observations: no column for longitudes",
        ),
        ({"observations": {"lat": [1], "lon": [2]}, "references": 3}, "^/references: a number is"),
        ({"observations": "set:1", "references": "x"}, "neither a file nor 'dataset:<id>'"),
        ({"observations": {"lat": [10**400], "lon": [2]}, "references": ONE}, "is not a number"),
        (
            {"observations": {"lat": [1], "lon": [2], "n": [{}]}, "references": ONE},
            "/n/0: points have numbers",
        ),
        (
            {"observations": {str(i): [] for i in range(60_000)}, "references": ONE},
            "60000 columns are more than the limit of 256",
        ),
    ],
)
def test_bad_arrays(service, body, message):
    response = look_up(service, body)
    if "limit" in message:
        assert response.status_code == 413
        assert message in response.json()["detail"]
    else:
        check_refusal(response, message, {})
    assert len(response.content) < 3000


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_distance_m": -1}, "greater than or equal to 0"),
        ({"max_distance_m": "nan"}, "finite|greater than or equal"),
        ({"k": 65}, "less than or equal to 64"),
        ({"algorithm": "magic"}, "'auto'"),
        ({"colour": "red"}, "/query/colour: there is no such name here.*; allowed are lat, lon,"),
        ({"max_distance": 5}, r"/query/max_distance: .*\(did you mean 'max_distance_m'\?\)"),
        ({"obs_lat": "a", "b": 1}, "/query/obs_lat.*did you mean 'observation_lat'"),
        ({"k": [1, 2]}, "/query/k: given 2 times"),
        ({"columns": "nothing"}, "no column 'nothing'; found 'lat', 'lon'"),
        ({"columns": "lat,nothing"}, "no column 'nothing'; found 'lat', 'lon'"),
        ({"columns": ["lat,lon", "lat"]}, "no column 'lat,lon'; found 'lat', 'lon'"),
    ],
)
def test_bad_options(service, parameters, message):
    files = {"observations": ("good.csv", GOOD), "references": ("good.csv", GOOD)}
    before = left_behind(service)
    response = service.post("/resolve", params=parameters, files=files)
    check_refusal(response, message, {})
    assert left_behind(service) <= before


@pytest.mark.parametrize(
    "parts",
    [
        [("observations", GOOD), ("observations", GOOD)],
        [("observations", GOOD), ("references", GOOD), ("kk", b"2")],
        [("observations", GOOD)],
        [],
    ],
)
def test_forms_with_other_parts(service, parts):
    files = [(name, (f"{name}.csv", content)) for name, content in parts if name != "kk"]
    data = {name: content for name, content in parts if name == "kk"}
    headers = {} if parts else {"Content-Type": "multipart/form-data; boundary=b"}
    response = service.post("/resolve", files=files, data=data, headers=headers)
    check_refusal(response, "once each|boundary|parsing|Missing|must have", {})


TINY = {"observations": {"lat": [1], "lon": [2]}, "references": {"lat": [1], "lon": [2]}}
FORM = dict.fromkeys(TINY, ("one.csv", GOOD))


def test_json_of_very_many_objects_is_refused_before_they_are_made(service):
    body = b'{"observations": {"lat": [' + b"[]," * (1 << 19) + b"[]]}, "
    body += b'"references": {"lat": [1], "lon": [2]}}'
    headers = {"Content-Type": "application/json"}
    for path in ("/nearest", "/estimate"):
        answer = service.post(path, content=body, headers=headers)
        assert answer.status_code == 413, answer.text
        nested = (1 << 19) + 7
        detail = answer.json()["detail"]
        assert f"{nested} arrays and objects, and the limit is {1 << 19}" in detail


def test_json_has_its_digest(service):
    content = json.dumps(TINY).encode()
    right = base64.b64encode(hashlib.sha256(content).digest()).decode()
    other = base64.b64encode(hashlib.sha256(b"").digest()).decode()
    for digest, status in ((right, 200), (other, 400)):
        headers = {"Content-Type": "application/json", "Content-Digest": f"sha-256=:{digest}:"}
        assert service.post("/nearest", content=content, headers=headers).status_code == status


def test_a_pointer_leads_to_a_name_with_strokes(service):
    body = {**TINY, "observations": {"lat": [1], "lon": [2], "a/b~": [[1]]}}
    errors = look_up(service, body).json()["errors"]
    assert errors[0]["pointer"] == "/observations/a~1b~0/0"
    body["observations"]["a/b~"] = 1
    errors = look_up(service, body).json()["errors"]
    assert errors[0]["pointer"] == "/observations/a~1b~0"
    errors = look_up(service, {**TINY, "a/b~": 1}).json()["errors"]
    assert "/a~1b~0" in [error["pointer"] for error in errors]


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        ("Respond-Async;x=1", "respond-async"),
        ("handling=strict, respond-async, wait=soon", "respond-async"),
        ("wait=0", "wait=0"),
        ("respond-async, wait=0, wait=60", "respond-async, wait=0"),
    ],
)
def test_a_client_that_takes_a_job(service, prefer, applied):
    answer = service.post("/resolve", files=FORM, headers={"Prefer": prefer})
    assert (answer.status_code, answer.headers["preference-applied"]) == (201, applied)
    assert finished(service, answer.headers["location"])["status"] == "successful"


@pytest.mark.parametrize("prefer", ["wait=60", "wait=60, respond-async", "respond-async, wait=99"])
def test_a_client_that_waits_a_while(service, prefer):
    answer = service.post("/resolve", files=FORM, headers={"Prefer": prefer})
    assert table_of(answer).num_rows == 1
    # The result is no answer to respond-async.
    assert answer.headers["preference-applied"] == "wait=60"
    assert answer.status_code == 200
    # It is new, whatever the client has.
    headers = {"Prefer": prefer, "If-None-Match": "*", "Idempotency-Key": prefer}
    assert table_of(service.post("/resolve", files=FORM, headers=headers)).num_rows == 1


def test_unknown_dataset_and_formats(service):
    form = {"observations": (None, "dataset:none"), "references": (None, "dataset:none")}
    assert service.post("/resolve", files=form).status_code == 404
    form = {"observations": ("a.xls", b"\x00\x01"), "references": ("a.csv", GOOD)}
    assert service.post("/resolve", files=form).status_code == 415
    assert service.post("/resolve", content=b"lat,lon").status_code == 415
    refused = service.post("/resolve", json=TINY)
    assert refused.status_code == 415
    assert "JSON goes to /nearest" in refused.json()["detail"]
    assert service.post("/resolve", files={"observations": ("a.csv", GOOD)}).status_code == 400


def test_every_row_of_the_samples_equals_the_oracle(service):
    files = {
        "observations": ("airports.parquet", (SAMPLES / "airports.parquet").read_bytes()),
        "references": ("places.parquet", (SAMPLES / "places.parquet").read_bytes()),
    }
    table = table_of(service.post("/resolve", files=files))
    airports, places = (pq.read_table(SAMPLES / f"{n}.parquet") for n in ("airports", "places"))
    lat, lon, lats, lons = (t[c].to_numpy() for t in (airports, places) for c in ("lat", "lon"))
    check(table, nearest(lat, lon, lats, lons))
    assert table["observation_id"].to_pylist() == airports["id"].to_pylist()
    assert table["reference_id"].to_pylist() == (table["reference"].to_numpy() + 1).tolist()


def renamed(table, **names):
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def test_each_table_has_its_own_columns(service, tables, expected):
    observations, references = tables
    observations = renamed(observations, id="ship", lat="breadth", lon="length")
    # What names a column of one table counts before what names it for both.
    references = renamed(references, id="port", lat="north", lon="east")
    options = {
        "observation_lat": "breadth",
        "observation_lon": "length",
        "observation_id": "ship",
        "lat": "north",
        "lon": "east",
        "id": "port",
    }
    files = {
        "observations": ("o.csv", csv(observations)),
        "references": ("r.parquet", parquet(references)),
    }
    table = table_of(service.post("/resolve", params=options, files=files))
    check(table, expected)
    assert table["observation_ship"].to_pylist() == observations["ship"].to_pylist()
    assert "reference_port" in table.column_names
    arrays = {
        "observations": {name: observations[name].to_pylist() for name in ("breadth", "length")},
        "references": {name: references[name].to_pylist() for name in ("north", "east")},
    }
    del options["id"], options["observation_id"]
    inputs = {**arrays, **options}
    for send in (look_up, run_nearest):
        check(table_of(send(service, inputs)), expected)
    assert service.post("/estimate", json=inputs).json()["rows"] == len(observations)


def test_points_for_one_table_and_coordinates_for_both(service, tables, expected):
    observations, references = (renamed(table, lat="north", lon="east") for table in tables)
    wkb = shapely.to_wkb(shapely.points(*observations.select(["east", "north"]).columns))
    options = {"lat": "north", "lon": "east", "observation_geometry": "where"}
    files = {
        "observations": ("o.parquet", parquet(pa.table({"where": list(wkb)}))),
        "references": ("r.parquet", parquet(references)),
    }
    check(table_of(service.post("/resolve", params=options, files=files)), expected)
    options["observation_lat"] = "north"
    refused = service.post("/resolve", params=options, files=files)
    assert refused.status_code == 400
    assert "a column of points ('where') and one of coordinates ('north')" in refused.text


def test_advice_names_the_option_of_the_table(service, tables):
    observations, references = tables
    swapped = renamed(references, lat="lon", lon="lat")
    files = {
        "observations": ("o.parquet", parquet(observations)),
        "references": ("r.parquet", parquet(swapped)),
    }
    refused = service.post("/resolve", files=files)
    assert refused.status_code == 400
    advice = re.search(r"send the options (\S+)=(\S+) and (\S+)=(\S+);", refused.json()["detail"])
    assert advice.groups() == ("reference_lat", "lon", "reference_lon", "lat")
    options = {advice[1]: advice[2], advice[3]: advice[4]}
    right = service.post("/resolve", params=options, files=files)
    expected = nearest(*sphere(300, 11), *sphere(200, 12))
    check(table_of(right), expected)
    files["references"] = ("r.parquet", parquet(renamed(references, lat="a", lon="b")))
    refused = service.post("/resolve", files=files)
    assert "with the option reference_lat=... and reference_lon=..." in refused.json()["detail"]
