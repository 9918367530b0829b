"""Options as fields of a form, in a query and in JSON; which columns a result carries."""

import io

import pyarrow.parquet as pq
import pytest

from tests.conftest import look_up, run_nearest

OBSERVATIONS = b"id,lat,lon,seen\n7,0,0.2,noon\n"
REFERENCES = b'name,"x,y",lat,lon\na,left,0,0\nb,right,0,1\n'
ARRAYS = {
    "observations": {"id": [7], "lat": [0.0], "lon": [0.2], "seen": ["noon"]},
    "references": {"name": ["a", "b"], "x,y": ["left", "right"], "lat": [0, 0], "lon": [0, 1]},
}
ALL = {"reference_name", "reference_x,y", "reference_lat", "reference_lon"}
OWN = {"observation", "reference", "distance_m", "status", "observation_id"}


def resolve(service, data=None, params=None):
    files = {"observations": ("o.csv", OBSERVATIONS), "references": ("r.csv", REFERENCES)}
    return service.post("/resolve", files=files, data=data or {}, params=params or {})


def columns_of(answer):
    assert answer.status_code == 200, answer.text
    return set(pq.read_schema(io.BytesIO(answer.content)).names) - OWN


def test_options_beside_the_files(service):
    answer = resolve(service, {"k": "2", "columns": "name", "max_distance_m": "30000"})
    table = pq.read_table(io.BytesIO(answer.content))
    assert table["rank"].to_pylist() == [1, 2]
    assert table["reference_name"].to_pylist() == ["a", None]
    same = resolve(
        service,
        {"k": "2", "lat": "", "columns": ""},
        {"columns": "name", "max_distance_m": "30000", "k": "2"},
    )
    assert same.content == answer.content


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ("name", {"reference_name"}),
        ("name,lat", {"reference_name", "reference_lat"}),
        (["name", "lat"], {"reference_name", "reference_lat"}),
        # Of several each is a name as it stands, and the same one counts once.
        (["x,y", "name"], {"reference_x,y", "reference_name"}),
        (["x,y", "x,y"], {"reference_x,y"}),
        ("*", ALL),
    ],
)
def test_columns_in_texts(service, given, carried):
    assert columns_of(resolve(service, data={"columns": given})) == carried
    assert columns_of(resolve(service, params={"columns": given})) == carried


@pytest.mark.parametrize("send", [look_up, run_nearest])
def test_columns_in_json(service, send):
    assert columns_of(send(service, {**ARRAYS, "columns": ["x,y"]})) == {"reference_x,y"}
    both = {"columns": "*", "observation_columns": "*"}
    own = {"observation_lat", "observation_lon", "observation_seen"}
    assert columns_of(send(service, {**ARRAYS, **both})) == ALL | own
    assert columns_of(resolve(service, both)) == ALL | own
    for wrong in ("name", ["name", 1], 7):
        refused = send(service, {**ARRAYS, "columns": wrong})
        assert refused.status_code == 400
        assert (
            'give a list of column names, each of 500 characters at most, or "*" for all'
            in (refused.json()["detail"])
        )


def test_all_columns_are_estimated_as_their_names_are(service):
    names = [name.removeprefix("reference_") for name in sorted(ALL)]
    told = [
        service.post("/estimate", json={**ARRAYS, "columns": columns}).raise_for_status().json()
        for columns in (names, "*")
    ]
    assert told[0]["bytes_out"] == told[1]["bytes_out"]
    rows = {"observations": 10, "references": 10, "columns": "*"}
    assert service.post("/estimate", json=rows).status_code == 200


@pytest.mark.parametrize(
    ("data", "params", "message"),
    [
        ({"k": "2"}, {"k": "3"}, "/query/k: the query says '3' and the form '2': send it once"),
        ({"columns": ["name", "lat"]}, {"columns": "name"}, "/query/columns: the query says"),
        ({"k": ["2", "2"]}, {}, "/k: given 2 times"),
        ({"k": "many"}, {}, "/k: Input should be a valid integer"),
        ({}, {"k": "many"}, "unable to parse string as an integer, got 'many'"),
        ({}, {"k": "65"}, "/query/k: Input should be less than or equal to 64, got '65'"),
        ({"max_distance": "5"}, {}, "it has 'max_distance' (as texts it may have the options lat"),
        ({"column": "name"}, {}, "there is no field 'column' here (did you mean 'columns'?): the"),
        ({"q": "1"}, {}, "there is no field 'q' here: the form must have"),
        ({}, {"max_distance": "5"}, "(did you mean 'max_distance_m'?)"),
        ({"columns": "x" * 70_000}, {}, "the options of the form have more than 65536 bytes"),
    ],
)
def test_options_that_are_refused(service, data, params, message):
    refused = resolve(service, data, params)
    assert refused.status_code == 400, refused.text
    assert message in refused.json()["detail"]


def test_an_option_is_no_file(service):
    files = {"observations": ("o.csv", OBSERVATIONS), "k": ("k.txt", b"2")}
    refused = service.post("/resolve", files=files)
    assert (refused.status_code, refused.json()["detail"][:3]) == (400, "k: ")


def test_a_dataset_is_registered_with_options_beside_its_file(service):
    content = b"breadth,length\n1.25,2\n"
    made = service.post(
        "/datasets", files={"file": ("p.csv", content)}, data={"lat": "breadth", "lon": "length"}
    )
    assert made.status_code == 201, made.text
    assert (made.json()["lat"], made.json()["lon"]) == ("breadth", "length")
    service.delete(made.headers["location"]).raise_for_status()
