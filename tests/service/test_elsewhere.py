"""Inputs and results elsewhere: read from and written to folders and an object store."""

import hashlib
import io
import json
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve.cli import main
from georesolve.client import Client, ServiceRefused
from georesolve.io.storage import OutputFailed, Prefix, StoreFailed, open_store, place_of
from georesolve.query import NEAR, MatchOptions
from georesolve.service.clock import new_id, now
from georesolve.service.datasets.library import Library
from georesolve.service.errors import NotReady
from georesolve.service.jobs.retention import Retention
from georesolve.service.maps.cache import Maps
from georesolve.service.settings import Settings
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.schema import kept
from georesolve.service.store.store import LONG_AGO, Store
from tests import oracle
from tests.conftest import (
    finished,
    free_port,
    look_up,
    points,
    run_nearest,
    running_service,
    store_points,
    wait_until,
)
from tests.https_server import serving
from tests.object_store import BUCKET, SECRET, line_to, seaweed
from tests.service.test_jobs import PARQUET, parquet

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
def line(store):
    """What the service reaches the store by."""
    with line_to(store) as line:
        yield line


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("web")) as files:
        yield files


@pytest.fixture(scope="module")
def service(tmp_path_factory, device, folder, line, web):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in line.environment.items():
            patch.setenv(name, value)
        patch.setenv("SSL_CERT_FILE", str(web.certificate))
        sources = f"file://{folder}/,s3://{BUCKET}/open/,{web.address}/open/"
        sinks = f"file://{folder}/results/,s3://{BUCKET}/open/results/,s3://not-there-yet/"
        data_dir = tmp_path_factory.mktemp("service") / "data"
        flags = ("--device", device, "--sources", sources, "--sinks", sinks)
        with running_service(data_dir, *flags) as client:
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


def test_an_output_among_its_inputs_or_of_a_whole_sink_is_refused(service, folder, store):
    own = folder / "results" / "own"
    address = lay(own, OBSERVATIONS, store)
    (own.parent / "link").symlink_to(own)
    linked = f"file://{own.parent}/link"
    among = (400, "lies in the folder of the observations")
    for href, output, (status, told) in (
        (address, f"{address}/result/", among),
        (f"{address}/day=*/*.parquet", f"{address}/day=3/", among),
        (address, f"{linked}/result/", among),
        (f"{linked}/day=*/*.parquet", f"{address}/day=3/", among),
        (address, f"file://{folder}/results/", (403, "is all of what is listed for results")),
    ):
        sets = {"observations": {"href": href}, "references": {"lat": [1.0], "lon": [2.0]}}
        body = {"inputs": sets, "output": {"href": output}}
        answer = service.post("/processes/nearest/execution", json=body, headers=ASYNC)
        assert (answer.status_code, told in answer.text) == (status, True), answer.text


def test_an_execution_reads_both_sets_where_they_lie(service, store, place):
    inputs = {
        "observations": {"href": lay(place, OBSERVATIONS, store) + "/day=*/*.parquet"},
        "references": {"href": lay_references(place, store)},
        "observation_columns": ["name", "day"],
        "near": True,
    }
    before = service.get("/datasets").json()["used_bytes"]
    answer = run_nearest(service, inputs, ASYNC)
    assert answer.status_code == 201, answer.text
    assert finished(service, answer.headers["Location"])["status"] == "successful"
    result = downloaded(service, answer.headers["Location"])
    check(result)
    assert result["observation_name"].to_pylist() == OBSERVATIONS["name"].to_pylist()
    assert result["observation_day"].to_pylist() == [i // 2000 for i in range(6_000)]
    here = georesolve.nearest(OBSERVATIONS, REFERENCES, near=True)
    assert all(result[name].to_pylist() == here[name].to_pylist() for name in NEAR)
    service.delete(answer.headers["Location"]).raise_for_status()
    assert service.get("/datasets").json()["used_bytes"] == before


def test_files_of_other_names_types_and_columns_are_read_as_python_reads_them(
    service, store, place, line, monkeypatch
):
    """Columns that the request does not name may have any type."""
    for name, value in line.environment.items():
        monkeypatch.setenv(name, value)
    first, second = OBSERVATIONS.slice(0, 700), OBSERVATIONS.slice(700, 300)
    first = first.append_column("n", pa.array(range(700), pa.int16()))
    second = second.append_column("n", pa.array([0.5] * 300, pa.float64()))
    first = first.append_column("mixed", pa.array([True] * 700))
    second = second.append_column("mixed", pa.array(["x"] * 300))
    order = ["mixed", "lon", "n", "id", "lat"]
    second = second.select(order).rename_columns(["mixed", "longitude", "n", "ID", "latitude"])
    for number, table in enumerate((first, second, first.slice(0, 0).drop_columns("mixed"))):
        name = f"day={number}/{number}.parquet"
        if isinstance(place, str):
            sink = store.files.open_output_stream(f"{BUCKET}/{place}/{name}")
        else:
            (place / name).parent.mkdir(parents=True)
            sink = (place / name).open("wb")
        with sink as file:
            pq.write_table(table, file, row_group_size=150)
    href = f"s3://{BUCKET}/{place}" if isinstance(place, str) else f"file://{place}"
    references = {"lat": [1.0, 50.0], "lon": [2.0, 9.0]}
    inputs = {"observations": {"href": href}, "references": references}
    answer = run_nearest(service, {**inputs, "observation_columns": ["n", "day"]}, ASYNC)
    assert answer.status_code == 201, answer.text
    assert finished(service, answer.headers["Location"])["status"] == "successful"
    result = downloaded(service, answer.headers["Location"])
    here = href if isinstance(place, str) else place
    expected = georesolve.nearest(here, references, observation_columns=["n", "day"])
    assert result.to_pylist() == expected.to_pylist()
    assert result["observation_n"].to_pylist() == [*range(700), *[0.5] * 300]
    assert result["observation_id"].to_pylist() == OBSERVATIONS["id"].to_pylist()[:1000]
    refusal = "the column 'mixed' is bool in day=0/0.parquet and string in day=1/1.parquet"
    answer = run_nearest(service, {**inputs, "observation_columns": ["mixed"]}, ASYNC)
    assert (answer.status_code, refusal in answer.json()["detail"]) == (400, True), answer.text
    with pytest.raises(georesolve.InvalidInput, match=refusal):
        georesolve.nearest(here, references, observation_columns=["mixed"])


def test_an_execution_reads_files_over_https(service, web):
    inputs = {}
    for role, table in (("observations", OBSERVATIONS), ("references", REFERENCES)):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=700)
        web.content[f"/open/{role}.parquet"] = sink.getvalue().to_pybytes()
        inputs[role] = {"href": f"{web.address}/open/{role}.parquet"}
    answer = run_nearest(service, inputs, ASYNC)
    assert answer.status_code == 201, answer.text
    assert finished(service, answer.headers["Location"])["status"] == "successful"
    check(downloaded(service, answer.headers["Location"]))
    web.fault = "refuses"
    answer = run_nearest(service, inputs, ASYNC)
    assert (answer.status_code, inputs["observations"]["href"] in answer.text) == (503, True)
    web.fault = None


def test_groups_are_those_of_folders(service, store, place):
    """Days 0 to 2 of the observations, 0 and 1 of the references."""
    inputs = {
        "observations": {"href": lay(place, OBSERVATIONS, store)},
        "references": {"href": lay_references(place, store)},
        "by": "day",
    }
    sets = [
        table.append_column(
            "day", pa.array(np.arange(table.num_rows) // -(-table.num_rows // files))
        )
        for table, files in ((OBSERVATIONS, 3), (REFERENCES, 2))
    ]
    wanted = georesolve.nearest(*sets, by="day")
    job = run_nearest(service, inputs, ASYNC).headers["Location"]
    assert finished(service, job)["status"] == "successful"
    result = downloaded(service, job)
    assert all(result[name].equals(wanted[name]) for name in ("reference", "distance_m"))
    assert result["status"].to_pylist() == wanted["status"].to_pylist()
    assert {*result["status"].to_pylist()} == {"matched", "no_reference"}
    few = {"lat": [1.0, 1.0], "lon": [2.0, 2.0], "day": [1, 2]}
    [one, other] = service.post("/nearest", json={**inputs, "observations": few}).json()
    assert (one["reference"] >= REFERENCES.num_rows // 2, other["status"]) == (True, "no_reference")
    service.delete(job).raise_for_status()


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
    assert info["name"] == href[:200]
    first = service.get(f"/datasets/{info['id']}/rows", params={"most": 2}).json()
    assert [list(row) for row in first] == [info["columns"]] * 2
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


def test_options_of_shapes_are_refused_of_points_elsewhere(service, folder):
    few, href = {"lat": [1.0], "lon": [2.0]}, {"href": f"file://{folder}/a.parquet"}
    for option in ({"edges": "planar"}, {"densify_m": 5}):
        sent = {"observations": few, "references": href, **option}
        answer = service.post("/nearest", json=sent)
        assert answer.status_code == 400
        assert "leave edges and densify_m out, or send the file" in answer.json()["detail"]


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
    place_of_it = (
        f"{href}/day=2/p.parquet: row group 1, row 50 of it (row 750 of the file) has lat=-95.5,"
    )
    assert place_of_it in info["message"]
    answer = run_nearest(service, {**sets, "on_invalid": "null"}, ASYNC)
    assert finished(service, answer.headers["Location"])["status"] == "successful"
    result = downloaded(service, answer.headers["Location"])
    assert result["status"].to_pylist().count("invalid_coordinate") == 1
    assert result["reference"][4_750].as_py() is None


def degrees_gone_wrong(kind):
    lat, lon = (OBSERVATIONS[name].to_numpy() for name in ("lat", "lon"))
    pairs = {
        "radians": (np.radians(lat), np.radians(lon)),
        "metres": (lat * 111_195, lon * 111_195),
        "swapped": (lon, lat),
    }
    return pa.table(dict(zip(("lat", "lon"), pairs[kind], strict=True)))


@pytest.mark.parametrize("on_invalid", ["error", "null"])
@pytest.mark.parametrize("kind", ["radians", "metres", "swapped"])
def test_what_cannot_be_degrees_fails_its_job_as_an_upload_is_refused(
    service, store, folder, tmp_path, kind, on_invalid
):
    table = degrees_gone_wrong(kind)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    form = {"file": ("points.parquet", sink.getvalue()), "on_invalid": (None, on_invalid)}
    refused = service.post("/datasets", files=form)
    assert refused.status_code == 400
    evidence = refused.json()["detail"].partition(" rows look like ")[2].partition(";")[0]
    assert evidence, refused.text

    href = lay(folder / tmp_path.name, table, store)
    few = {"lat": [1.0], "lon": [2.0]}
    sets = {"observations": {"href": href}, "references": few, "on_invalid": on_invalid}
    answer = run_nearest(service, sets, ASYNC)
    info = finished(service, answer.headers["Location"])
    assert info["status"] == "failed"
    assert f" rows look like {evidence}" in info["message"]
    assert f" of {href}/day=" in info["message"]
    answer = run_nearest(service, sets | {"coordinates": "trust"}, ASYNC)
    trusted = finished(service, answer.headers["Location"])
    are_valid = kind == "radians" or on_invalid == "null"
    assert trusted["status"] == ("successful" if are_valid else "failed")
    assert "look like" not in trusted["message"]


def test_references_in_radians_are_refused_each_time(service, store, folder, tmp_path):
    href = lay(folder / tmp_path.name, degrees_gone_wrong("radians"), store)
    id = service.post("/datasets", files={"file": (None, href)}).json()["id"]
    sets = {"observations": {"lat": [1.0], "lon": [2.0]}, "references": {"dataset": id}}
    for _ in range(2):
        answer = run_nearest(service, sets, ASYNC)
        info = finished(service, answer.headers["Location"])
        assert info["status"] == "failed"
        assert "6000 of 6000 rows look like radians" in info["message"]
        answer = look_up(service, sets)
        assert (answer.status_code, "look like radians" in answer.text) == (400, True)
    service.delete(f"/datasets/{id}").raise_for_status()


def test_the_report_tells_where_observations_are_that_nobody_counted(
    service, store, folder, tmp_path
):
    table = OBSERVATIONS.to_pandas()
    table.loc[:12, ["lat", "lon"]] = 0.0
    table.loc[4_750, "lat"] = -95.5
    lat, lon = table["lat"].drop(4_750), table["lon"].drop(4_750)
    href = lay(folder / tmp_path.name, pa.Table.from_pandas(table, preserve_index=False), store)
    sets = {
        "observations": {"href": href},
        "references": {"lat": [1.0, 2.0], "lon": [2.0, 3.0]},
        "on_invalid": "null",
    }
    answer = run_nearest(service, sets, ASYNC)
    assert finished(service, answer.headers["Location"])["status"] == "successful"
    report = service.get(f"{answer.headers['Location']}/report").json()
    assert report["observations_bbox"] == [lon.min(), lat.min(), lon.max(), lat.max()]
    assert report["references_bbox"] == [2.0, 1.0, 3.0, 2.0]
    assert report["remarks"][0].startswith("observations: 13 rows are at exactly (0, 0)")


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


class Output:
    """A place for one result: its address, and what lies there."""

    def __init__(self, kind, folder, store, name):
        self._folder = folder / "results" / name if kind == "file" else None
        self._path, self._files = f"{BUCKET}/open/results/{name}", store.files
        self.href = f"s3://{self._path}/" if self._folder is None else f"file://{self._folder}/"

    def names(self):
        """Names of what lies there, which may go meanwhile."""
        if self._folder is not None:
            return {path.name for path in self._folder.rglob("*")}
        selector = pa.fs.FileSelector(self._path, allow_not_found=True, recursive=True)
        return {one.base_name for one in self._files.get_file_info(selector)}

    def content(self):
        """What lies there, by name."""
        if self._folder is not None:
            return {name: (self._folder / name).read_bytes() for name in self.names()}
        return {
            name: self._files.open_input_file(f"{self._path}/{name}").read()
            for name in self.names()
        }


@pytest.fixture(params=["file", "s3"])
def output(request, folder, store, tmp_path):
    """A place of its own below what may be written."""
    return Output(request.param, folder, store, tmp_path.name)


MANY = points(300_000, 3)


@pytest.fixture(scope="module")
def observations(service):
    """Registered ones, whose result has several parts."""
    sink = io.BytesIO()
    pq.write_table(MANY, sink)
    file = {"file": ("many.parquet", sink.getvalue())}
    return service.post("/datasets", files=file).raise_for_status().json()["id"]


def write(service, observations, output, *, references=REFERENCES, **options):
    """Run a job that writes its result elsewhere; returns the answer to its request."""
    if isinstance(references, pa.Table):
        references = {name: references[name].to_pylist() for name in ("id", "lat", "lon")}
    sets = {"observations": {"dataset": observations}, "references": references}
    body = {"inputs": sets | options, "output": {"href": output.href}}
    return service.post("/processes/nearest/execution", json=body, headers=ASYNC)


def test_a_result_is_written_elsewhere(service, observations, output):
    before = service.get("/datasets").json()["used_bytes"]
    answer = write(service, observations, output)
    assert answer.status_code == 201, answer.text
    job = answer.headers["Location"]
    assert finished(service, job)["status"] == "successful"
    result = service.get(f"{job}/results")
    assert (result.status_code, output.href in result.headers["Link"]) == (204, True)
    for address in ("matches.parquet", "matches.csv", "parts/x.parquet"):
        refused = service.get(f"{job}/results/{address}")
        assert (refused.status_code, output.href in refused.json()["detail"]) == (404, True)

    lies = output.content()
    listed = json.loads(lies["_manifest.json"])
    assert lies["_SUCCESS"].decode() == f"{hashlib.sha256(lies['_manifest.json']).hexdigest()}\n"
    names = [part["href"] for part in listed["parts"]]
    assert len(names) > 1
    assert set(lies) == {*names, "_ending", "_manifest.json", "_SUCCESS"}
    told = service.get(f"{job}/results/parts").json()
    for part in listed["parts"]:
        part["href"] = output.href + part["href"]
    assert told == listed
    tables = [pq.read_table(io.BytesIO(lies[name])) for name in names]
    check(pa.concat_tables(tables).slice(0, 2_000), MANY.slice(0, 2_000))

    # Put together they are the file that the service would have kept, to the last byte.
    groups = [
        lies[name][4 : -part["ending"]["size_bytes"]]
        for name, part in zip(names, listed["parts"], strict=True)
    ]
    arrays = {name: REFERENCES[name].to_pylist() for name in ("id", "lat", "lon")}
    kept = run_nearest(
        service, {"observations": {"dataset": observations}, "references": arrays}, ASYNC
    ).headers["Location"]
    finished(service, kept)
    whole = service.get(f"{kept}/results")
    assert b"".join([b"PAR1", *groups, lies["_ending"]]) == whole.content
    assert whole.headers["ETag"] == f'"{listed["digest"]}"'
    service.delete(kept).raise_for_status()

    again = write(service, observations, output)
    assert (again.status_code, again.json()["type"].rpartition(":")[2]) == (409, "output-taken")
    # A result is its client's: it stays when the job is removed.
    assert service.get("/datasets").json()["used_bytes"] <= before + 20_000
    service.delete(job).raise_for_status()
    assert output.content() == lies


def written(output):
    """The result in a place, read as its manifest lists it."""
    files = output.content()
    names = [part["href"] for part in json.loads(files["_manifest.json"])["parts"]]
    return pa.concat_tables(pq.read_table(pa.BufferReader(files[name])) for name in names)


def test_the_client_and_the_command_name_addresses(service, store, folder, tmp_path, capsys):
    place, output = f"open/{tmp_path.name}", Output("s3", folder, store, tmp_path.name)
    observations, references = lay(place, OBSERVATIONS, store), lay_references(place, store)
    url = str(service.base_url)
    with Client(url) as client:
        job = client.submit(observations, references, output=output.href)
        parts = job.parts()["parts"]
        assert sum(part["rows"] for part in parts) == OBSERVATIONS.num_rows
        names = [name for name in output.names() if name.startswith("0")]
        assert [part["href"] for part in parts] == sorted(output.href + name for name in names)
        with pytest.raises(ServiceRefused, match=output.href):
            job.to_arrow()
        job.dismiss()
        check(written(output))
        check(client.nearest(observations, references))
    other = Output("file", folder, store, f"{tmp_path.name}-2")
    flags = ("nearest", observations, references, "-o", other.href)
    assert main([*flags, "--server", url]) == 0
    assert "matched" in capsys.readouterr().err
    check(written(other))
    assert main(flags) == 1
    assert f"{other.href!r} is no address of a file" in capsys.readouterr().err


def test_a_form_names_an_output(service, observations, output):
    form = {"observations": f"dataset:{observations}", "references": f"dataset:{observations}"}
    files = {name: (None, value) for name, value in {**form, "output": output.href}.items()}
    answer = service.post("/resolve", files=files)
    assert answer.status_code == 204, answer.text
    assert f"<{output.href}>" in answer.headers["Link"]
    assert "_SUCCESS" in output.names()


def test_a_bucket_for_results_may_not_be_there_yet(service, store, observations):
    """SeaweedFS makes a bucket with its first object."""
    form = {"observations": f"dataset:{observations}", "references": f"dataset:{observations}"}
    form |= {"output": "s3://not-there-yet/one/"}
    answer = service.post("/resolve", files={name: (None, value) for name, value in form.items()})
    assert answer.status_code == 204, answer.text
    assert store.files.get_file_info("not-there-yet/one/_SUCCESS").is_file


@pytest.mark.parametrize("end", ["fails", "is dismissed"])
def test_a_job_without_a_result_leaves_nothing_there(service, store, folder, output, end, long_job):
    if end == "fails":
        table = MANY.to_pandas()
        table.loc[299_999, "lat"] = 95.5
        table, references, options = pa.Table.from_pandas(table), REFERENCES, {}
    else:
        table, places, options = long_job
        # They are more than JSON may hold.
        content, headers = parquet(places), {"Content-Type": PARQUET}
        answer = service.post("/datasets", content=content, headers=headers)
        references = {"dataset": answer.raise_for_status().json()["id"]}
    href = lay(folder / f"{output.href.split('/')[-2]}-set", table, store, files=1)
    body = {"file": (None, href)}
    id = service.post("/datasets", files=body).raise_for_status().json()["id"]
    job = write(service, id, output, references=references, **options).headers["Location"]
    if end == "is dismissed":
        wait_until(lambda: any(name.endswith(".parquet") for name in output.names()))
        service.delete(job).raise_for_status()
    info = finished(service, job)
    assert info["status"] == {"fails": "failed", "is dismissed": "dismissed"}[end]
    wait_until(lambda: not output.names())
    # The place is free again.
    assert write(service, id, output).status_code == 201
    service.delete(f"/datasets/{id}")


def test_a_slow_store_makes_a_job_slow(service, store, line):
    """Of a set that is read and a result that is written, both at 500 kB a second."""
    observations = lay("open/slow", OBSERVATIONS, store, files=1)
    output = Output("s3", None, store, "slow")
    arrays = {name: REFERENCES[name].to_pylist() for name in ("id", "lat", "lon")}
    sets = {"observations": {"href": observations}, "references": arrays}
    body = {"inputs": sets, "output": {"href": output.href}}
    line.bytes_a_second = 500_000
    try:
        job = service.post("/processes/nearest/execution", json=body, headers=ASYNC)
        assert finished(service, job.headers["Location"])["status"] == "successful"
    finally:
        line.bytes_a_second = None
    seconds = service.get(f"{job.headers['Location']}/report").json()["seconds"]
    # A file of 180 kB takes as long as the line lets it.
    assert seconds["read"] + seconds["write"] > 0.2
    assert "_SUCCESS" in output.names()


def test_an_object_is_whole_or_not_there(store, monkeypatch):
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    open_store.cache_clear()
    place = place_of(f"s3://{BUCKET}/open/results/by-hand/")
    with pytest.raises(TypeError), place.new("broken") as file:
        file.writelines([bytes(20 << 20), "no bytes"])
    assert not place.is_taken()
    with place.new("whole") as file:
        file.write(bytes(20 << 20))
    assert place.names() == ["whole"]
    assert place.look("whole").size == 20 << 20
    place.remove(["whole"])
    left = pa.fs.FileSelector(f"{BUCKET}/open/results/by-hand", allow_not_found=True)
    assert store.files.get_file_info(left) == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    open_store.cache_clear()
    failure = f"{place.href}x: it cannot be written"
    with pytest.raises(OutputFailed, match=failure), place.new("x") as file:
        file.write(b"x")
    open_store.cache_clear()


@pytest.fixture
def bucket(store, tmp_path, monkeypatch):
    """The store of a service whose files lie in a bucket, in this process."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    open_store.cache_clear()
    with closing(Store(tmp_path / "data", None, f"s3://{BUCKET}/{tmp_path.name}/")) as kept:
        kept.jobs_place.make()
        yield kept
    open_store.cache_clear()


def a_dataset(bucket, tmp_path, **kept):
    made = store_points(points(10, 5), tmp_path / "new")
    return Library(bucket).keep(DatasetRow(made, {}), **kept)


@pytest.mark.parametrize("registered", [True, False])
def test_an_object_that_could_not_be_removed_goes_later(bucket, tmp_path, monkeypatch, registered):
    """Also when it was there before the runner, which takes such for those of a newer database."""
    library = Library(bucket)
    row = a_dataset(bucket, tmp_path, registered=registered)
    with monkeypatch.context() as away:
        away.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        open_store.cache_clear()
        if registered:
            with pytest.raises(StoreFailed):
                library.remove(row.id)
        else:
            library.release(row.id)
    open_store.cache_clear()
    assert bucket.datasets_place.names() == [f"{row.id}.parquet"]
    assert bucket.kept_ids() == {row.id}
    assert bucket.of("").dataset(row.id) is None
    Retention(Settings(), bucket, library).sweep()
    assert bucket.datasets_place.names() == []
    assert bucket.dataset(row.id) is None


def test_an_object_that_comes_after_its_row_was_swept_goes(bucket, tmp_path, monkeypatch):
    """A slow line takes more than the hour that a set has to come."""
    library = Library(bucket.of(""))
    keep = Prefix.keep

    def keep_late(place, file, name):
        with bucket._engine.begin() as connection:
            connection.execute(kept.update().values(expires=LONG_AGO))
        Retention(Settings(), bucket, library).sweep()
        keep(place, file, name)

    monkeypatch.setattr(Prefix, "keep", keep_late)
    with pytest.raises(NotReady, match="took more than 3600 s"):
        library.register(DatasetRow(store_points(points(10, 5), tmp_path / "new"), {}))
    library.release(a_dataset(bucket, tmp_path).id)
    assert bucket.datasets_place.names() == []
    assert bucket.kept_ids() == set()


def test_a_map_beside_a_bucket_goes_with_its_result(bucket, tmp_path, monkeypatch):
    row = a_dataset(bucket, tmp_path)
    kept, expired, removed = (
        bucket.add_job(row, row, MatchOptions(), Delivery()) for _ in range(3)
    )
    for id, hours in ((kept, 1), (expired, -1), (removed, 1)):
        bucket.finish_job(id, "successful", "done", report={}, expires=now(3600 * hours))
    bucket.dismiss_finished_job(removed)
    maps = Maps(Settings(store=f"s3://{BUCKET}/{tmp_path.name}/"), bucket)
    for id in (kept, expired, removed, new_id()):
        (maps.folder(id) / "distances.json").touch()
    theirs = bucket.maps_folder / "cities"
    theirs.mkdir()
    maps.forget_gone()
    assert {*bucket.maps_folder.iterdir()} == {theirs, bucket.maps_folder / kept}
    # It is asked again after a while, not at each change of the database.
    monkeypatch.setattr("georesolve.service.maps.cache._SWEEP_SECONDS", 0.0)
    bucket.dismiss_finished_job(kept)
    maps.forget_gone()
    assert [*bucket.maps_folder.iterdir()] == [theirs]


def test_outputs_that_are_not_listed_are_refused(service, observations, folder):
    few = {"lat": [1.0], "lon": [2.0]}
    body = {"inputs": {"observations": few, "references": few}}
    for href in (f"s3://{BUCKET}/open/", f"file://{folder}/resultss/", "http://a/b", "x"):
        answer = service.post(
            "/processes/nearest/execution", json={**body, "output": {"href": href}}, headers=ASYNC
        )
        assert answer.status_code == 403, answer.text
        assert answer.json()["type"].endswith("sink-not-allowed")
        form = {"observations": f"dataset:{observations}", "references": "dataset:x"}
        files = {name: (None, value) for name, value in {**form, "output": href}.items()}
        assert service.post("/resolve", files=files).status_code == 403


def test_secrets_are_nowhere(service):
    assert SECRET not in service.log.read_text()
