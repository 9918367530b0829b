"""The Python client and a service that is well: what it sends, gives back and tells."""

import datetime
import functools
import io
import math
import os
import signal
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import geopandas
import httpx
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve.client import AsyncClient, Client, ServiceRefused
from georesolve.client.exchange import Exchange
from georesolve.io.tables import like
from tests import oracle
from tests.conftest import points, wait_until

OBSERVATIONS, REFERENCES = points(400, 51), points(60, 52, name=[f"site {i}" for i in range(60)])
# More than is sent in one request without a job.
MANY = points(360_000, 53)
NAMES = ["observation", "reference", "distance_m", "status", "observation_id", "reference_id"]


@pytest.fixture(scope="module")
def address(service):
    return str(service.base_url)


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def expected(observations):
    columns = [
        table[name].to_numpy() for table in (observations, REFERENCES) for name in ["lat", "lon"]
    ]
    return oracle.nearest(*columns)


def check(matches, observations=OBSERVATIONS):
    """Compare a result, as pandas, with the oracle."""
    rows, metres = expected(observations)
    assert matches["reference"].to_numpy(np.int64).tolist() == rows.tolist()
    np.testing.assert_allclose(matches["distance_m"].to_numpy(), metres, rtol=1e-9, atol=1e-6)


def jobs_of(service):
    return {job["id"] for job in service.get("/jobs", params={"limit": 1000}).json()["jobs"]}


def test_tables_come_back_as_the_kind_that_was_given(client):
    frame = OBSERVATIONS.to_pandas().set_index(np.arange(400) * 3)
    matches = client.nearest(frame, REFERENCES)
    assert list(matches.columns) == NAMES
    assert matches.index.equals(frame.index)
    check(matches)
    arrow = client.nearest(OBSERVATIONS, REFERENCES.to_pandas(), columns=["name"])
    assert isinstance(arrow, pa.Table)
    check(arrow.to_pandas())
    assert arrow["reference_name"].to_pylist() == [
        f"site {i}" for i in arrow["reference"].to_pylist()
    ]
    from_polars = client.nearest(polars.from_arrow(OBSERVATIONS), polars.from_arrow(REFERENCES))
    assert isinstance(from_polars, polars.DataFrame)
    check(from_polars.to_pandas())
    lat, lon = frame["lat"].to_numpy(), frame["lon"].to_numpy()
    check(client.nearest((lat, lon), REFERENCES).to_pandas())
    stream = pa.RecordBatchReader.from_batches(OBSERVATIONS.schema, OBSERVATIONS.to_batches(64))
    check(client.nearest(stream, REFERENCES).to_pandas())


def test_rows_of_frames_keep_their_index_and_geometry(client):
    frame = OBSERVATIONS.to_pandas()
    places = geopandas.GeoDataFrame(
        frame[["id"]].set_index(frame["id"].astype(str)),
        geometry=geopandas.points_from_xy(frame["lon"], frame["lat"], crs="EPSG:4326"),
    )
    check(client.nearest(places, REFERENCES))
    two = client.nearest(places, REFERENCES, k=2)
    assert isinstance(two, geopandas.GeoDataFrame)
    assert two.crs == places.crs
    assert two.index.tolist() == np.repeat(places.index.to_numpy(), 2).tolist()
    assert two.geometry.x.tolist() == np.repeat(places.geometry.x.to_numpy(), 2).tolist()
    near = client.nearest(frame, REFERENCES, max_distance_m=500_000, how="inner")
    _, metres = expected(OBSERVATIONS)
    assert near.index.tolist() == np.flatnonzero(metres <= 500_000).tolist()
    far = client.nearest(frame, REFERENCES, max_distance_m=500_000)
    assert far["reference"].dtype == pd.Int64Dtype()
    assert far["reference"].isna().tolist() == (metres > 500_000).tolist()


def test_an_index_is_no_column(client):
    frame = OBSERVATIONS.to_pandas().set_index(pd.Index(np.arange(400) ** 2, name="id"))
    geometry = geopandas.points_from_xy(frame["lon"], frame["lat"], crs="EPSG:4326")
    places = geopandas.GeoDataFrame(geometry=geometry, index=frame.index)
    references = client.register(REFERENCES)
    for table, options in ((frame[["lat", "lon"]], {"observation_columns": "*"}), (places, {})):
        expected = georesolve.nearest(table, REFERENCES, **options)
        for known in (REFERENCES, references):
            found = client.nearest(table, known, **options)
            assert [*found.columns] == [*expected.columns]
            assert found.index.equals(expected.index)
    client.remove(references)


def write_geojson(table, path):
    frame = table.to_pandas()
    geometry = geopandas.points_from_xy(frame["lon"], frame["lat"], crs="EPSG:4326")
    path.write_text(geopandas.GeoDataFrame(frame[["id"]], geometry=geometry).to_json())


def write_packed_csv(table, path):
    with pa.CompressedOutputStream(path, "gzip") as file:
        pyarrow.csv.write_csv(table, file)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("o.parquet", pq.write_table),
        ("o.feather", functools.partial(pyarrow.feather.write_feather, compression="uncompressed")),
        ("o.csv", pyarrow.csv.write_csv),
        (
            "o.csv.gz",
            lambda table, path: pyarrow.csv.write_csv(
                table, pa.CompressedOutputStream(path, "gzip")
            ),
        ),
        ("o.geojson", write_geojson),
    ],
)
def test_files_are_sent_as_they_are(client, tmp_path, name, write):
    write(OBSERVATIONS, tmp_path / name)
    check(client.nearest(tmp_path / name, REFERENCES).to_pandas())
    dataset = client.register(str(tmp_path / name))
    assert dataset.rows == 400
    check(client.nearest(dataset, REFERENCES).to_pandas())


def test_a_dataset_has_a_name(client):
    first = client.register(REFERENCES, alias="test-client")
    second = client.register(REFERENCES.slice(1), alias="test-client")
    assert (first.names, second.names) == (
        ["test-client", "test-client@1"],
        ["test-client", "test-client@2"],
    )
    expected = client.nearest(OBSERVATIONS, second)
    assert client.nearest(OBSERVATIONS, "dataset:test-client").equals(expected)
    assert not client.nearest(OBSERVATIONS, "dataset:test-client@1").equals(expected)


@pytest.mark.parametrize("alias", [None, "test-alias"])
def test_the_name_of_a_dataset_is_that_of_http(client, service, alias):
    """The same fields for the same words: `name` is a title, and `alias` the address."""
    title, table = "Sites of 2026, all of them", points(5, 91 if alias else 92)
    registered = client.register(table, name=title, alias=alias)
    assert registered.name == title
    assert registered.names == ([alias, f"{alias}@1"] if alias else [])
    content = io.BytesIO()
    pq.write_table(table, content)
    path = f"/datasets/{alias}" if alias else "/datasets"
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    answer = service.request(
        "PUT" if alias else "POST",
        path,
        params={"name": title},
        content=content.getvalue(),
        headers=headers,
    )
    info = answer.raise_for_status().json()
    assert (info["id"], info["name"], info["names"]) == (
        registered.id,
        registered.name,
        registered.names,
    )
    service.delete(f"/datasets/{alias or registered.id}").raise_for_status()


def test_a_dataset_is_registered_once(client):
    table = points(300, 54).rename_columns(["id", "phi", "lambda"])
    dataset = client.register(table, lat="phi", lon="lambda")
    assert (dataset.rows, dataset.lat, dataset.lon, dataset.id_column) == (
        300,
        "phi",
        "lambda",
        "id",
    )
    assert client.register(table.to_pandas(), lat="phi", lon="lambda").id == dataset.id
    by_name = client.nearest(OBSERVATIONS, f"dataset:{dataset.id}")
    assert by_name.equals(client.nearest(OBSERVATIONS, dataset))
    client.remove(dataset)
    with pytest.raises(ServiceRefused) as refused:
        client.nearest(OBSERVATIONS, dataset)
    assert (refused.value.status, refused.value.type) == (
        404,
        "urn:georesolve:problem:no-such-dataset",
    )


def test_all_within_a_distance(client):
    asked = {"summary": {"count": True, "lat": ["sum", "max"]}, "observation_columns": ["id"]}
    observations = OBSERVATIONS.append_column("reach", pa.array(np.linspace(0, 4e6, 400)))
    for distance_m in (2e6, "reach"):
        pairs = client.within(observations, REFERENCES, distance_m, columns=["name"])
        assert pairs.equals(
            georesolve.within(observations, REFERENCES, distance_m, columns=["name"]), False
        )
        sums = client.within(observations, REFERENCES, distance_m, **asked)
        assert sums.to_pylist() == (
            georesolve.within(observations, REFERENCES, distance_m, **asked).to_pylist()
        )
    job = client.submit(OBSERVATIONS, REFERENCES, question="within", distance_m=2e6)
    assert job.to_arrow().num_rows == job.report()["counts"]["matched"] > 0
    with pytest.raises(ServiceRefused, match="is for question=within"):
        client.submit(OBSERVATIONS, REFERENCES, distance_m=2e6)


def test_nothing_is_left_of_a_call(client, service):
    before = jobs_of(service)
    client.nearest(OBSERVATIONS, REFERENCES)
    assert jobs_of(service) == before
    matches = client.nearest(MANY, REFERENCES, columns=["name"])
    (new,) = jobs_of(service) - before
    assert service.get(f"/jobs/{new}").json()["status"] == "dismissed"
    assert len(matches) == len(MANY)
    # One that takes its time makes a job, too.
    before.add(new)
    client.nearest(OBSERVATIONS, points(40_000, 55), algorithm="brute")
    client.nearest(OBSERVATIONS, points(40_000, 55), k=64)
    for id in jobs_of(service) - before:
        assert service.get(f"/jobs/{id}").json()["status"] == "dismissed"
    check(matches.slice(100_000, 400).to_pandas(), MANY.slice(100_000, 400))


def test_a_job_is_waited_for_and_its_result_comes_in_every_format(client, service, tmp_path):
    job = client.submit(OBSERVATIONS, REFERENCES, columns=["lat", "lon"], max_distance_m=2e6)
    assert client.job(job.id).id == job.id
    path = job.download(tmp_path / "matches.parquet")
    assert job.status == "successful"
    assert job.expires is not None
    for suffix in ("parquet", "arrows", "csv", "json", "geojson"):
        path = job.download(tmp_path / f"matches.{suffix}")
        assert path.read_bytes() == service.get(f"/jobs/{job.id}/results/matches.{suffix}").content
    assert sorted(tmp_path.iterdir()) == sorted(tmp_path.glob("matches.*")), "no half file is left"
    arrow = job.to_arrow()
    assert arrow.equals(pq.read_table(tmp_path / "matches.parquet"))
    assert arrow.to_pylist() == job.to_polars().to_dicts()
    frame, geo = job.to_pandas(), job.to_geopandas()
    assert frame["reference_id"].dtype == pd.Int64Dtype()
    assert frame["reference_id"].isna().any()
    assert geo.crs == "OGC:CRS84"
    assert geo.geometry.y.dropna().tolist() == frame["reference_lat"].dropna().tolist()
    report = job.report()
    assert report["counts"]["matched"] == frame["reference"].notna().sum()
    assert "successful" in repr(job)
    job.dismiss()
    assert job.status == "dismissed"
    with pytest.raises(ServiceRefused, match="dismissed") as refused:
        job.to_arrow()
    assert refused.value.status == 410


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"lat": [], "lon": []},
        ([], []),
        pd.DataFrame({"lat": [], "lon": []}),
        pa.table({"lat": pa.array([], "f8"), "lon": pa.array([], "f8")}),
        geopandas.GeoDataFrame(geometry=[], crs=4326),
    ],
    ids=lambda data: type(data).__name__,
)
def test_a_set_without_rows_gives_a_result_without_rows(client, data):
    dataset = client.register(REFERENCES)
    for references in (REFERENCES, dataset):
        for matches in (
            client.nearest(data, references),
            client.within(data, references, 5.0),
            client.submit(data, references).to_arrow(),
        ):
            assert len(matches) == 0
            assert "distance_m" in (getattr(matches, "column_names", None) or matches.columns)


@pytest.mark.parametrize("k", [1, 64])
def test_retries_of_a_lost_answer_share_a_key(address, service, k):
    """Retries of `nearest` make one job, also where the first attempt was answered inline."""
    observations, keys = points(1_100, 7), []
    before = jobs_of(service)
    with georesolve.Client(address) as client:
        wire = client.awaited._exchange.wire
        send = wire.send

        async def lossy(request):
            response = await send(request)
            if request.url.path == "/resolve":
                keys.append(request.headers.get("Idempotency-Key"))
                if len(keys) < 4:
                    await response.aclose()
                    raise httpx.ReadError("the answer is lost")
            return response

        wire.send = lossy
        matches = client.nearest(observations, REFERENCES, k=k)
    assert matches.num_rows == 1_100 * k
    assert keys[0] is None
    assert len(set(keys[1:])) == 1
    assert keys[1] is not None
    # One of the first attempt, unless that was answered inline, and one of all retries.
    assert len(jobs_of(service) - before) == (1 if k == 1 else 2)


def test_a_download_replaces_no_pipe(client, tmp_path):
    os.mkfifo(tmp_path / "matches.csv")
    job = client.submit(OBSERVATIONS, REFERENCES)
    with pytest.raises(georesolve.InvalidOption, match="is no regular file"):
        job.download(tmp_path / "matches.csv")
    job.dismiss()
    assert (tmp_path / "matches.csv").is_fifo()


def test_points_that_are_carried_are_geometries(client):
    frame = REFERENCES.to_pandas()
    sites = geopandas.GeoDataFrame(
        frame[["id"]], geometry=geopandas.points_from_xy(frame["lon"], frame["lat"], crs=4326)
    )
    job = client.submit(OBSERVATIONS, sites, columns=["geometry"])
    geo = job.to_geopandas()
    rows, _ = expected(OBSERVATIONS)
    assert geo.geometry.x.tolist() == frame["lon"].to_numpy()[rows].tolist()
    bare = client.submit(OBSERVATIONS, REFERENCES)
    with pytest.raises(ValueError, match=r"columns=\['geometry'\]"):
        bare.to_geopandas()


def test_jobs_are_listed_by_pages(client):
    own = [client.submit(OBSERVATIONS, REFERENCES, k=k) for k in (1, 2, 3)]
    for job in own:
        job.wait()
    assert [job.id for job in client.jobs(limit=2)] == [own[2].id, own[1].id]
    found = client.jobs(status=["successful"], limit=1001)
    assert {job.id for job in own} <= {job.id for job in found}
    assert {job.status for job in found} == {"successful"}


def test_the_async_client_does_the_same(address, tmp_path):
    async def use():
        async with AsyncClient(address) as client:
            small = await client.nearest(OBSERVATIONS.to_pandas(), REFERENCES)
            dataset = await client.register(REFERENCES)
            large = await client.nearest(MANY, dataset)
            job = await client.submit(OBSERVATIONS, dataset)
            await job.download(tmp_path / "matches.csv")
            return small, large, await job.to_arrow(), [one.id for one in await client.jobs()]

    small, large, arrow, ids = anyio.run(use)
    check(small)
    check(large.slice(0, 400).to_pandas(), MANY.slice(0, 400))
    check(arrow.to_pandas())
    assert len(ids) >= 2
    assert (tmp_path / "matches.csv").read_bytes().count(b"\n") == 401


def test_a_cancelled_call_dismisses_its_job(address, service, long_job):
    observations, references, options = long_job
    before = jobs_of(service)

    def running():
        jobs = service.get("/jobs", params={"status": "running"}).json()["jobs"]
        return next((job["id"] for job in jobs if job["id"] not in before and job["rows_done"]), "")

    async def use():
        async with AsyncClient(address) as client, anyio.create_task_group() as group:
            group.start_soon(functools.partial(client.nearest, observations, references, **options))
            while not (id := await anyio.to_thread.run_sync(running)):
                await anyio.sleep(0.02)
            # One who found the job does not end it.
            found = await client.job(id)
            with anyio.move_on_after(0.2) as scope:
                await found.wait()
            assert scope.cancelled_caught
            assert (await client.job(id)).status == "running"
            group.cancel_scope.cancel()
        return id

    id = anyio.run(use)
    assert service.get(f"/jobs/{id}").json()["status"] == "dismissed"


INTERRUPTED = """
import sys
import georesolve
from georesolve.client import Client
import pyarrow.parquet as pq
address, folder = sys.argv[1:]
client = Client(address)
job = client.submit(f"{folder}/o.parquet", f"{folder}/r.parquet", algorithm="brute")
print(job.id, flush=True)
job.wait()
"""


def test_ctrl_c_dismisses_the_job(address, service, long_job, tmp_path):
    observations, references, _ = long_job
    # On a quiet machine it would end within two seconds, before it is interrupted on a busy one.
    pq.write_table(pa.concat_tables([observations] * 5), tmp_path / "o.parquet")
    pq.write_table(references, tmp_path / "r.parquet")
    command = [sys.executable, "-c", INTERRUPTED, address, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        id = process.stdout.readline().decode().strip()
        wait_until(lambda: service.get(f"/jobs/{id}").json()["rows_done"] > 0)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert told.decode().splitlines()[-1] == "KeyboardInterrupt"
    assert service.get(f"/jobs/{id}").json()["status"] == "dismissed"


def test_progress_is_shown_where_it_is_asked_for(address, capfd, monkeypatch):
    with Client(address, progress=True) as client:
        client.nearest(MANY, REFERENCES)
    shown = capfd.readouterr().err
    assert "sending: 100%" in shown
    assert "resolving: 100%" in shown
    assert "360k/360k" in shown
    assert "rows/s]" in shown
    assert "receiving: 100%" in shown
    # Neither a terminal nor a notebook.
    with Client(address) as client:
        client.nearest(MANY, REFERENCES)
    assert capfd.readouterr().err == ""


def test_progress_is_shown_in_a_terminal(address, monkeypatch):
    ours, theirs = os.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as watched:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Client(address) as client:
            client.nearest(MANY, REFERENCES)
        monkeypatch.undo()
        terminal.flush()
        shown = watched.read(1 << 16).decode()
    for title in ("sending", "resolving", "receiving"):
        assert f"{title}: 100%" in shown


def test_refusals_say_what_the_service_says(client):
    lat = OBSERVATIONS["lat"].to_numpy().copy()
    lat[[3, 7]] = 95.5
    wrong = OBSERVATIONS.set_column(1, "lat", pa.array(lat))
    with pytest.raises(ServiceRefused) as refused:
        client.register(wrong)
    error = refused.value
    assert (error.status, error.title) == (400, "The input is not valid")
    assert [place["row"] for place in error.errors] == [3, 7]
    assert "on_invalid=null" in str(error)
    assert "column lat, row 7" in str(error)
    assert f"(request {error.request_id})" in str(error)
    assert client.register(wrong, on_invalid="null").invalid_rows == 2
    with pytest.raises(ServiceRefused, match="did you mean 'max_distance_m'"):
        client.nearest(OBSERVATIONS, REFERENCES, max_distance=5)
    with pytest.raises(ServiceRefused, match="there is no job 'none'"):
        client.job("none")


def test_what_is_no_point_set_is_told_before_it_is_sent(client, tmp_path):
    with pytest.raises(TypeError, match=r"references: int is no point set: give a path, a table"):
        client.nearest(OBSERVATIONS, 5)
    with pytest.raises(FileNotFoundError, match="observations: there is no file"):
        client.nearest(tmp_path / "none.csv", REFERENCES)
    with pytest.raises(ValueError, match=r"one shape \(n,\), got \(3,\) and \(2,\)"):
        client.nearest(([1, 2, 3], [4, 5]), REFERENCES)
    with pytest.raises(ValueError, match="'localhost:8000' is no address of a service"):
        Client("localhost:8000")


@contextmanager
def something_else(status, body, **headers):
    """A web server that is no service of ours; yields its address.

    Of several statuses each request gets the next one.
    """
    statuses = list(status) if isinstance(status, tuple) else [status]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(statuses.pop(0))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_what_passes_is_waited_for():
    """What proxies answer, too, while a service is away."""
    passing = (408, 429, 502, 503, 504, 200)
    page = b'{"jobs": [], "links": []}'
    with (
        something_else(passing, page, **{"Retry-After": "0"}) as address,
        Client(address) as client,
    ):
        assert client.jobs() == []


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [
        (
            403,
            {"Content-Type": "text/html"},
            r"Forbidden \(403\): .* without a problem in words: <h1>No",
        ),
        (308, {"Location": "https://elsewhere"}, "leads on to https://elsewhere: give the client"),
        (400, {"Content-Type": "application/json"}, r"Bad Request \(400\)"),
    ],
)
def test_answers_of_others_are_told_as_such(status, headers, told):
    with (
        something_else(status, b"<h1>No</h1>", **headers) as address,
        Client(address) as client,
        pytest.raises(ServiceRefused, match=told),
    ):
        client.jobs()


LOOKED_UP = {
    "pandas": OBSERVATIONS.to_pandas().set_index(np.arange(400) * 3),
    "polars": polars.from_arrow(OBSERVATIONS),
    "arrow": OBSERVATIONS,
    "pair": tuple(OBSERVATIONS[name].to_numpy() for name in ("lat", "lon")),
    "text ids": OBSERVATIONS.set_column(0, "id", OBSERVATIONS["id"].cast(pa.string())),
    "missing": OBSERVATIONS.append_column("size", pa.array([None, 1.5] * 200)),
    # What JSON does not say as it is goes as a file.
    "days": OBSERVATIONS.append_column("day", pa.array([datetime.date(2026, 1, 2)] * 400)),
    "narrow": OBSERVATIONS.append_column("size", pa.array([1, None] * 200, pa.int16())),
    "nan": OBSERVATIONS.append_column("size", pa.array([math.nan, 1.0] * 200)),
    "nothing": OBSERVATIONS.append_column("size", pa.nulls(400, pa.float64())),
}


@pytest.mark.parametrize("kind", LOOKED_UP)
def test_a_small_table_against_a_registered_set_is_looked_up(client, kind, monkeypatch):
    asked, ask = [], Exchange.ask

    def noting(self, method, path, **request):
        asked.append(path)
        return ask(self, method, path, **request)

    monkeypatch.setattr(Exchange, "ask", noting)
    given, sites = LOOKED_UP[kind], client.register(REFERENCES)
    for options in ({}, {"k": 2, "columns": ["name"], "observation_columns": "*", "near": True}):
        job = client.submit(given, sites, **options)
        wanted = like(job.to_arrow(), given)
        job.dismiss()
        asked.clear()
        found = client.nearest(given, sites, **options)
        is_file = kind in ("days", "narrow", "nan", "nothing")
        assert asked[0] == ("/resolve" if is_file else "/nearest")
        if isinstance(found, pd.DataFrame):
            pd.testing.assert_frame_equal(found, wanted)
        else:
            assert type(found) is type(wanted)
            # An Arrow table with a NaN equals none.
            assert found.schema == wanted.schema
            pd.testing.assert_frame_equal(found.to_pandas(), wanted.to_pandas())


def test_what_is_looked_up_leaves_no_job_and_is_refused_in_the_same_words(client, service):
    sites = client.register(REFERENCES)
    before = jobs_of(service)
    pairs = client.within(OBSERVATIONS, f"dataset:{sites.id}", 1e6)
    assert pairs.num_rows == georesolve.within(OBSERVATIONS, REFERENCES, 1e6).num_rows
    # More than is made at once becomes a job, which goes with its result.
    assert client.within(OBSERVATIONS, sites, 2e7).num_rows == 400 * REFERENCES.num_rows
    assert jobs_of(service) == before
    wrong = OBSERVATIONS.set_column(
        1, "lat", pa.array([95.0, *OBSERVATIONS["lat"].to_pylist()[1:]])
    )
    with pytest.raises(georesolve.ServiceRefused, match=r"holds 95\.0, allowed are"):
        client.nearest(wrong, sites)
