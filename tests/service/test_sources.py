"""Inputs by address: read from folders and from an object store, where they lie."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import oracle
from tests.conftest import finished, look_up, points, run_nearest, running_service
from tests.object_store import BUCKET, SECRET, seaweed

OBSERVATIONS = points(6_000, 1, name=[f"n{i}" for i in range(6_000)])
REFERENCES = points(500, 2)
ASYNC = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("listed")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with seaweed(tmp_path_factory.mktemp("store") / "weed") as store:
        yield store


@pytest.fixture(scope="module")
def service(tmp_path_factory, device, folder, store):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        sources = f"file://{folder}/,s3://{BUCKET}/open/"
        data_dir = tmp_path_factory.mktemp("service") / "data"
        with running_service(data_dir, "--device", device, "--sources", sources) as client:
            yield client


def lay(place, table, store, *, files=3):
    """Lay a table down in files, two folders deep; returns the address of all of them."""
    rows = -(-table.num_rows // files)
    for i in range(files):
        piece = table.slice(i * rows, rows)
        if isinstance(place, str):
            with store.files.open_output_stream(f"{BUCKET}/{place}/day={i}/p.parquet") as file:
                pq.write_table(piece, file, row_group_size=700)
        else:
            (place / f"day={i}").mkdir(parents=True)
            pq.write_table(piece, place / f"day={i}/p.parquet", row_group_size=700)
    return f"s3://{BUCKET}/{place}" if isinstance(place, str) else f"file://{place}"


def downloaded(client, location):
    answer = client.get(f"{location}/results").raise_for_status()
    return pq.read_table(pa.BufferReader(answer.content))


def check(result, observations=OBSERVATIONS, references=REFERENCES):
    sets = (observations["lat"], observations["lon"], references["lat"], references["lon"])
    rows, metres = oracle.nearest(*(degrees.to_numpy() for degrees in sets))
    np.testing.assert_array_equal(result["reference"], rows)
    np.testing.assert_allclose(result["distance_m"], metres, atol=1e-6)
    assert result["observation_id"].to_pylist() == observations["id"].to_pylist()
    assert result["reference_id"].to_pylist() == references["id"].take(rows).to_pylist()


@pytest.fixture(params=["file", "s3"])
def place(request, folder, tmp_path):
    """A place of its own below what is listed."""
    name = tmp_path.name
    return folder / name if request.param == "file" else f"open/{name}"


def test_an_execution_reads_both_sets_where_they_lie(service, store, place):
    inputs = {
        "observations": {"href": lay(place, OBSERVATIONS, store) + "/day=*/*.parquet"},
        "references": {"href": lay_references(place, store)},
        "observation_columns": ["name", "day"],
    }
    before = service.get("/datasets").json()["used_bytes"]
    answer = run_nearest(service, inputs, ASYNC)
    assert answer.status_code == 201, answer.text
    assert finished(service, answer.headers["Location"])["status"] == "successful"
    result = downloaded(service, answer.headers["Location"])
    check(result)
    assert result["observation_name"].to_pylist() == OBSERVATIONS["name"].to_pylist()
    assert result["observation_day"].to_pylist() == [i // 2000 for i in range(6_000)]
    service.delete(answer.headers["Location"]).raise_for_status()
    assert service.get("/datasets").json()["used_bytes"] == before


def lay_references(place, store):
    other = f"{place}-references" if isinstance(place, str) else place.with_name(f"{place.name}-r")
    return lay(other, REFERENCES, store, files=2)


def test_a_form_and_a_small_request(service, store, place):
    observations, references = lay(place, OBSERVATIONS, store), lay_references(place, store)
    form = {"observations": (None, observations), "references": (None, references)}
    answer = service.post("/resolve", files=form)
    assert answer.status_code == 200, answer.text
    check(pq.read_table(pa.BufferReader(answer.content)))
    few = OBSERVATIONS.slice(0, 50)
    arrays = {name: few[name].to_pylist() for name in ("id", "lat", "lon")}
    answer = look_up(service, {"observations": arrays, "references": {"href": references}})
    assert answer.status_code == 200, answer.text
    check(pq.read_table(pa.BufferReader(answer.content)), few)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, few.schema) as writer:
        writer.write_table(few)
    answer = service.post(
        "/nearest",
        params={"references": references},
        content=sink.getvalue().to_pybytes(),
        headers={
            "Content-Type": "application/vnd.apache.arrow.stream",
            "Accept": "application/vnd.apache.parquet",
        },
    )
    assert answer.status_code == 200, answer.text
    check(pq.read_table(pa.BufferReader(answer.content)), few)


def test_a_registered_address(service, store, place):
    href = lay_references(place, store)
    answer = service.post("/datasets", files={"file": (None, href)})
    assert answer.status_code == 201, answer.text
    info = answer.json()
    assert (info["rows"], info["size_bytes"], info["bbox"]) == (500, 0, None)
    assert info["columns"] == ["id", "lat", "lon", "day"]
    assert service.post("/datasets", files={"file": (None, href)}).status_code == 200
    few = OBSERVATIONS.slice(0, 50)
    arrays = {name: few[name].to_pylist() for name in ("id", "lat", "lon")}
    answer = look_up(service, {"observations": arrays, "references": {"dataset": info["id"]}})
    check(pq.read_table(pa.BufferReader(answer.content)), few)
    answer = service.get(f"/datasets/{info['id']}/data.parquet")
    assert (answer.status_code, href in answer.json()["detail"]) == (404, True)
    assert service.delete(f"/datasets/{info['id']}").status_code == 204


def refused(service, observations, references, status, slug):
    inputs = {"observations": observations, "references": references}
    answer = run_nearest(service, inputs, ASYNC)
    assert answer.status_code == status, answer.text
    assert answer.json()["type"].endswith(slug)
    return answer.json()["detail"]


def test_what_is_not_listed_is_refused_at_every_door(service, folder):
    few = {"lat": [1.0], "lon": [2.0]}
    href = f"s3://{BUCKET}/secret/a.parquet"
    for one in ({"href": href}, href, {"value": {"href": href}}, {"href": f"file://{folder}s/a"}):
        assert "the setting sources" in refused(service, one, few, 403, "source-not-allowed")
        answer = look_up(service, {"observations": few, "references": one})
        assert answer.status_code == 403
    form = {"observations": (None, href), "references": (None, href)}
    assert service.post("/resolve", files=form).status_code == 403
    assert service.post("/datasets", files={"file": (None, href)}).status_code == 403
    assert service.post("/datasets", files={"file": (None, "text")}).status_code == 400


def test_a_file_that_changes_fails_its_job_by_name(service, store, place):
    """It is registered, then one of its files is replaced."""
    href = lay(place, OBSERVATIONS, store)
    id = service.post("/datasets", files={"file": (None, href)}).json()["id"]
    changed = OBSERVATIONS.slice(0, 2000).set_column(0, "id", pa.array(range(2000)))
    if isinstance(place, str):
        with store.files.open_output_stream(f"{BUCKET}/{place}/day=1/p.parquet") as file:
            pq.write_table(changed, file)
    else:
        pq.write_table(changed, place / "day=1/p.parquet")
    inputs = {"observations": f"dataset:{id}", "references": {"lat": [1.0], "lon": [2.0]}}
    answer = run_nearest(service, inputs, ASYNC)
    info = finished(service, answer.headers["Location"])
    assert info["status"] == "failed"
    assert f"{href}/day=1/p.parquet: it has changed since" in info["message"]
    assert service.get(f"{answer.headers['Location']}/results").status_code >= 400


def test_bad_rows_fail_their_job_by_file_row_group_and_row(service, store, place):
    table = OBSERVATIONS.to_pandas()
    table.loc[4_750, "lat"] = -95.5
    href = lay(place, pa.Table.from_pandas(table, preserve_index=False), store)
    sets = {"observations": {"href": href}, "references": {"lat": [1.0], "lon": [2.0]}}
    answer = run_nearest(service, sets, ASYNC)
    info = finished(service, answer.headers["Location"])
    assert info["status"] == "failed"
    place_of_it = f"{href}/day=2/p.parquet: row group 1, row 50 of it (row 750 of the file)"
    assert place_of_it in info["message"]
    answer = run_nearest(service, {**sets, "on_invalid": "null"}, ASYNC)
    assert finished(service, answer.headers["Location"])["status"] == "successful"
    result = downloaded(service, answer.headers["Location"])
    assert result["status"].to_pylist().count("invalid_coordinate") == 1
    assert result["reference"][4_750].as_py() is None


def test_references_whose_invalid_rows_are_not_counted_are_refused(service, store, place):
    """With them it would not be known how many of k neighbours there are."""
    sets = {"observations": {"lat": [1.0], "lon": [2.0]}, "on_invalid": "null"}
    href = lay_references(place, store)
    form = {"file": (None, href), "on_invalid": (None, "null")}
    id = service.post("/datasets", files=form).json()["id"]
    for references in ({"href": href}, {"dataset": id}):
        answer = run_nearest(service, {**sets, "references": references}, ASYNC)
        assert answer.status_code == 400, answer.text
        assert "on_invalid=null" in answer.json()["detail"]
    service.delete(f"/datasets/{id}").raise_for_status()


def test_secrets_are_nowhere(service):
    assert SECRET not in service.log.read_text()
