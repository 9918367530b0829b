"""Fronts and a runner that share no folder: a Postgres database and a real object store alone."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyarrow.fs import FileSelector

from georesolve.cli.serve import main
from georesolve.io.storage import open_store
from georesolve.service.clock import new_id
from georesolve.service.datasets.library import Library
from georesolve.service.jobs.retention import Retention
from georesolve.service.settings import Settings
from georesolve.service.store.rows import DatasetRow
from georesolve.service.store.store import Store
from tests.conftest import (
    finished,
    kill_with_children,
    look_up,
    points,
    running_service,
    start_service,
    store_points,
    wait_until,
)
from tests.object_store import BUCKET, SECRET, Gate, line_to, seaweed
from tests.postgres import missing, running_postgres
from tests.service.test_jobs import start_job

pytestmark = pytest.mark.skipif(bool(missing()), reason=str(missing()))
PREFIX = f"{BUCKET}/kept/here"


class Apart:
    """Two fronts and what starts runners.

    Attributes
    ----------
    line
        All that they have of the object store.
    """

    def __init__(self, folder, store, line, url, device):
        self.folder, self.store, self.line, self.url = folder, store, line, url
        self.flags = ("--store", f"s3://{PREFIX}", "--database-url", url, "--device", device)
        self.runners = 0

    @contextmanager
    def front(self, name):
        folder = self.folder / name
        with running_service(folder, "--role", "front", *self.flags, ready=False) as client:
            client.folder = folder
            yield client

    @contextmanager
    def runner(self):
        """A runner with a folder of its own, which looks every second for what has expired."""
        self.runners += 1
        name = f"runner-{self.runners}"
        flags = ("--role", "runner", *self.flags, "--dataset-hours", 0.003)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = start_service(self.folder / name, log, *flags)
            try:
                yield process
            finally:
                kill_with_children(process)

    def keys(self, below):
        selector = FileSelector(f"{PREFIX}/{below}", allow_not_found=True, recursive=True)
        return [one.path for one in self.store.files.get_file_info(selector) if one.is_file]


@pytest.fixture(scope="module")
def apart(tmp_path_factory, device):
    folder = tmp_path_factory.mktemp("apart")
    with (
        pytest.MonkeyPatch.context() as patch,
        seaweed(folder / "weed") as store,
        line_to(store) as line,
        running_postgres() as database,
    ):
        for name, value in line.environment.items():
            patch.setenv(name, value)
        yield Apart(folder, store, line, database("apart"), device)


@pytest.fixture(scope="module")
def fronts(apart):
    with apart.front("a") as a, apart.front("b") as b:
        yield a, b


@pytest.fixture
def runner(apart, fronts):
    with apart.runner() as process:
        for front in fronts:
            wait_until(lambda front=front: front.get("/readyz").is_success, process=process)
        yield process


def register(client, table):
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    answer = client.post("/datasets", content=sink.getvalue().to_pybytes(), headers=headers)
    return answer.raise_for_status().json()["id"]


def ranges_of(client, address, size):
    """A file in three ranges, the middle one across the end of a part."""
    edges = [0, size // 3, size - 5, size]
    pieces = []
    for start, stop in pairwise(edges):
        answer = client.get(address, headers={"Range": f"bytes={start}-{stop - 1}"})
        assert answer.status_code == 206, answer.text
        pieces.append(answer.content)
    return b"".join(pieces)


@pytest.mark.timeout(300)
def test_what_one_front_takes_the_other_gives(apart, fronts, runner, service):
    a, b = fronts
    places, seen = points(1000, 1, name=[f"place {i}" for i in range(1000)]), points(70_000, 2)
    here, there = register(a, places), register(service, places)
    for name in ("data.parquet", ""):
        left, right = (
            client.get(f"/datasets/{id}/{name}".rstrip("/"))
            for client, id in ((b, here), (service, there))
        )
        assert (left.content == right.content) == bool(name), left.text[:300]
    assert (
        ranges_of(b, f"/datasets/{here}/data.parquet", 9000)
        == b.get(f"/datasets/{here}/data.parquet").content[:9000]
    )
    few = {name: seen[name].to_pylist()[:50] for name in ("lat", "lon")}
    answers = [
        look_up(client, {"observations": few, "references": {"dataset": id}, "columns": ["name"]})
        for client, id in ((b, here), (service, there))
    ]
    assert answers[0].content == answers[1].content, answers[0].text[:300]
    location = start_job(b, seen, places)
    assert finished(a, location)["status"] == "successful"
    whole = start_job(service, seen, places)
    assert finished(service, whole)["status"] == "successful"
    expected = service.get(f"{whole}/results").content
    assert a.get(f"{location}/results").content == expected
    assert ranges_of(a, f"{location}/results/matches.parquet", len(expected)) == expected
    as_text = {"Accept": "text/csv"}
    assert (
        b.get(f"{location}/results", headers=as_text).content
        == service.get(f"{whole}/results", headers=as_text).content
    )
    assert b.get(f"{location}/distances").json() == service.get(f"{whole}/distances").json()
    drawn = [c.get(f"{job}/tiles/0/0/0.png") for c, job in ((b, location), (service, whole))]
    assert drawn[0].raise_for_status().content == drawn[1].content
    # Nothing of a set or of a result lies here.
    assert not [*apart.folder.glob("[!w]*/**/*.parquet")]
    id = location.rpartition("/")[2]
    assert not [key for key in apart.keys(f"jobs/{id}") if "/records/" in key or "lled" in key]
    assert a.delete(location).is_success
    assert b.get(f"{location}/results").status_code == 410
    assert not apart.keys(f"jobs/{id}")
    assert a.delete(f"/datasets/{here}").is_success
    wait_until(lambda: b.get(f"/datasets/{here}").status_code == 404)
    refused = look_up(b, {"observations": few, "references": {"dataset": here}})
    assert refused.status_code == 404, refused.text
    assert not [key for key in apart.keys("datasets") if here in key]
    logs = b"".join(path.read_bytes() for path in apart.folder.glob("*.log"))
    assert SECRET.encode() not in logs


@pytest.mark.timeout(300)
def test_while_one_client_waits_for_the_object_store_others_are_answered(apart, fronts, runner):
    a, _ = fronts
    places = points(1000, 7)
    dataset, job = register(a, places), start_job(a, points(500, 8), places)
    assert finished(a, job)["status"] == "successful"
    (part,) = a.get(f"{job}/results/parts").json()["parts"]
    for address, name in (
        (f"/datasets/{dataset}/data.parquet", f"{dataset}.parquet"),
        (part["href"], part["href"].rpartition("/")[2]),
    ):
        content = a.get(address).content
        # Held back is not the look at the object, but what opens it.
        apart.line.gate = gate = Gate(name)
        try:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(a.get, address)
                try:
                    wait_until(gate.is_reached.is_set)
                    # Less than the store itself may take.
                    assert a.get("/livez", timeout=40).is_success
                    assert not waiting.done()
                finally:
                    gate.is_open.set()
                assert waiting.result().content == content
        finally:
            apart.line.gate = None


@pytest.mark.timeout(300)
def test_a_job_goes_on_where_a_killed_runner_left_it(apart, fronts, long_job):
    a, b = fronts
    observations, references, options = long_job
    observations = observations.slice(0, observations.num_rows // 3)
    with apart.runner() as first:
        job = start_job(a, observations, references, **options)
        wait_until(lambda: b.get(job).json().get("progress", 0) > 10, process=first)
        first.send_signal(signal.SIGKILL)
    id = job.rpartition("/")[2]
    assert b.get(f"{job}/results").status_code == 404
    assert apart.keys(f"jobs/{id}/records")
    with apart.runner():
        info = finished(b, job)
        assert info["status"] == "successful", info
        undisturbed = start_job(a, observations, references)
        assert finished(a, undisturbed)["status"] == "successful"
        assert a.get(f"{job}/results").content == b.get(f"{undisturbed}/results").content
        expire(apart, undisturbed)
        wait_until(lambda: not apart.keys(f"jobs/{undisturbed.rpartition('/')[2]}"))
        assert a.get(f"{undisturbed}/results").status_code == 410
        assert b.get(f"{job}/results").is_success


def test_without_its_object_store_a_service_does_not_start(apart, tmp_path):
    apart.line.is_cut = True
    try:
        with (tmp_path / "log").open("ab") as log:
            process = start_service(tmp_path / "data", log, "--role", "front", *apart.flags)
            assert process.wait(60) == 1
    finally:
        apart.line.is_cut = False
    told = (tmp_path / "log").read_text()
    assert "the object store does not answer, or refuses: s3://" in told
    assert "Traceback" not in told


def test_objects_that_no_row_names_stay_until_they_are_removed_by_hand(apart, tmp_path, capsys):
    """With SQLite for the rows."""
    open_store.cache_clear()
    flags = ("--data-dir", str(tmp_path), "--store", f"s3://{BUCKET}/orphans/")
    try:
        with closing(Store(tmp_path, None, f"s3://{BUCKET}/orphans/")) as store:
            store.refuse_other_folder()
            library = Library(store)
            kept = library.keep(DatasetRow(store_points(points(10, 5), tmp_path / "new"), {}))
            orphan = new_id()
            store.datasets_place.keep(pa.py_buffer(b"half"), f"{orphan}.parquet")
            store.datasets_place.keep(pa.py_buffer(b"theirs"), "cities.csv")
            Retention(Settings(), store, library).sweep()
            assert len(store.datasets_place.names()) == 3
            assert main(["sweep", "--unknown", *flags]) == 0
            assert capsys.readouterr().out == f"removed datasets/{orphan}.parquet\n"
            assert sorted(store.datasets_place.names()) == sorted(
                [f"{kept.id}.parquet", "cities.csv"]
            )
            # In `jobs` lie the results of a folder that became a bucket's.
            assert store.maps_folder != tmp_path / "jobs"
    finally:
        open_store.cache_clear()


def expire(apart, location):
    engine = sa.create_engine(apart.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for table in ("jobs", "kept"):
            query = sa.text(
                f"UPDATE {table} SET expires = '2020-01-01T00:00:00.000Z' WHERE id = :id"
            )
            connection.execute(query, {"id": location.rpartition("/")[2]})
    engine.dispose()


@pytest.mark.timeout(300)
def test_while_the_object_store_is_away_nothing_is_half_there(apart, fronts, runner):
    a, b = fronts
    places, seen = points(500, 3), points(3000, 4)
    here = register(a, places)
    # A runner that has died is remembered for some seconds: this one is there.
    assert finished(a, start_job(a, seen, places))["status"] == "successful"
    before = apart.keys("datasets")
    apart.line.is_cut = True
    try:
        body = b"lat,lon\n1,2\n"
        refused = b.post("/datasets", content=body, headers={"Content-Type": "text/csv"})
        assert refused.status_code == 503, refused.text
        assert "object store" in refused.json()["detail"]
        assert b.get(f"/datasets/{here}/data.parquet").status_code == 503
        wait_until(lambda: a.get("/readyz").status_code == 503)
    finally:
        apart.line.is_cut = False
    assert sorted(apart.keys("datasets")) == sorted(before)
    wait_until(lambda: a.get("/readyz").is_success)
    apart.line.bytes_a_second = 2_000_000
    job = start_job(a, seen, places)
    try:
        wait_until(lambda: apart.keys(f"jobs/{job.rpartition('/')[2]}/"))
        apart.line.is_cut = True
        wait_until(lambda: a.get(job).json()["message"] == "waiting for the object store")
    finally:
        apart.line.is_cut, apart.line.bytes_a_second = False, None
    assert finished(b, job)["status"] == "successful"
