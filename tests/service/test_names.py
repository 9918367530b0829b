"""Names of datasets: replaced in one step, older versions kept, jobs with the version they took."""

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow.parquet as pq
import pytest

from georesolve.query import MatchOptions
from georesolve.service.clock import now
from georesolve.service.datasets.library import Library
from georesolve.service.jobs.retention import Retention
from georesolve.service.settings import Settings
from georesolve.service.store.names import Condition
from georesolve.service.store.rows import DatasetRow, Delivery
from georesolve.service.store.schema import kept
from georesolve.service.store.store import Store
from tests.conftest import finished, points, store_points, wait_until

CSV = {"Content-Type": "text/csv"}
HERE = {"lat": [0.0], "lon": [0.0]}


def put(client, name, lon, **headers):
    content = f"id,lat,lon\nat {lon},0,{lon}\n".encode()
    return client.put(f"/datasets/{name}", content=content, headers=CSV | headers)


def nearest(client, references):
    answer = client.post("/nearest", json={"observations": HERE, "references": references})
    return answer.raise_for_status().json()[0]["reference_id"]


@pytest.fixture
def name(service, request):
    """A name that no other test has."""
    name = request.node.name.replace("[", ".").replace("]", "").lower()[:64]
    yield name
    service.delete(f"/datasets/{name}")


def test_a_name_stands_for_its_newest_version(service, name):
    first, second = put(service, name, 1), put(service, name, 2)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.headers["location"].endswith(f"/datasets/{name}")
    assert first.json()["names"] == [name, f"{name}@1"]
    assert second.json()["names"] == [name, f"{name}@2"]
    assert nearest(service, f"dataset:{name}") == "at 2"
    assert nearest(service, {"dataset": f"{name}@1"}) == "at 1"
    assert nearest(service, f"dataset:{first.json()['id']}") == "at 1"
    # Only what is replaced expires.
    newest, old = (service.get(f"/datasets/{name}{version}").json() for version in ("", "@1"))
    assert newest["expires"] is None
    assert old["expires"] is not None
    assert old["names"] == [f"{name}@1"]
    listed = {one["id"]: one["names"] for one in service.get("/datasets").json()["datasets"]}
    assert listed[newest["id"]] == [name, f"{name}@2"]


def test_the_same_content_makes_no_version_and_an_older_one_can_come_back(service, name):
    first = put(service, name, 3).json()
    assert put(service, name, 3).json() == first
    put(service, name, 4)
    back = put(service, name, 3).json()
    assert back["id"] == first["id"]
    assert back["names"] == [f"{name}@1", name, f"{name}@3"]
    assert back["expires"] is None


def test_registering_what_has_a_name_does_not_let_it_expire(service, name):
    made = put(service, name, 5).json()
    again = service.post("/datasets", content=b"id,lat,lon\nat 5,0,5\n", headers=CSV)
    assert (again.status_code, again.json()["id"]) == (200, made["id"])
    assert service.get(f"/datasets/{made['id']}").json()["expires"] is None


def test_it_is_replaced_only_if_it_is_what_the_client_knows(service, name):
    refused = put(service, name, 6, **{"If-Match": "*"})
    assert refused.status_code == 412
    assert "leave it out" in refused.json()["detail"]
    etag = put(service, name, 6, **{"If-None-Match": "*"}).headers["etag"]
    assert service.get(f"/datasets/{name}").headers["etag"] == etag
    assert put(service, name, 7, **{"If-None-Match": "*"}).status_code == 412
    assert put(service, name, 7, **{"If-Match": f'"other", {etag}'}).status_code == 200
    refused = put(service, name, 8, **{"If-Match": etag})
    assert refused.status_code == 412
    assert etag not in refused.json()["detail"]
    assert put(service, name, 8, **{"If-None-Match": etag}).status_code == 400
    assert nearest(service, f"dataset:{name}") == "at 7"


def test_of_those_that_replace_one_version_at_a_time_one_does(service, name):
    etag = put(service, name, 10).headers["etag"]
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda lon: put(service, name, lon, **{"If-Match": etag}), range(11, 19))
        )
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7
    won = next(answer.json() for answer in answers if answer.status_code == 200)
    assert service.get(f"/datasets/{name}").json()["id"] == won["id"]


def test_of_those_that_replace_anything_each_makes_a_version(service, name):
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda lon: put(service, name, lon), range(20, 28)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    versions = {nearest(service, f"dataset:{name}@{i}") for i in range(1, 9)}
    assert versions == {f"at {lon}" for lon in range(20, 28)}


def test_a_job_keeps_the_version_that_it_was_accepted_with(service, name):
    put(service, name, 30)
    asked = {"inputs": {"observations": HERE, "references": {"dataset": name}}}
    job = service.post(
        "/processes/nearest/execution", json=asked, headers={"Prefer": "respond-async"}
    )
    put(service, name, 31)
    finished(service, job.headers["location"])
    result = service.get(f"{job.headers['location']}/results").raise_for_status()
    assert pq.read_table(io.BytesIO(result.content))["reference_id"].to_pylist() == ["at 30"]


def test_a_name_is_removed_with_its_versions(service, name):
    old, new = put(service, name, 40).json(), put(service, name, 41).json()
    refused = service.delete(f"/datasets/{new['id']}")
    assert refused.status_code == 409
    assert f"DELETE /datasets/{name}" in refused.json()["detail"]
    assert service.delete(f"/datasets/{name}").status_code == 204
    for gone in (name, f"{name}@1", old["id"], new["id"]):
        assert service.get(f"/datasets/{gone}").status_code == 404
    # The next one begins anew.
    assert put(service, name, 41).json()["names"] == [name, f"{name}@1"]


def test_a_name_whose_removal_broke_off_leaves_no_dataset(tmp_path):
    with closing(Store(tmp_path / "data")) as store:
        store.jobs_place.make()
        library = Library(store.of("ann"))
        sets = [
            DatasetRow(store_points(points(5, seed), tmp_path / f"{seed}.parquet"), {})
            for seed in range(3)
        ]
        for made, name in zip(sets, ("places", "places", "other"), strict=True):
            row, _ = library.register(made)
            store.of("ann").names.put(name, row.id, Condition(), None)
        # As when the process is killed before it removes the sets themselves.
        assert len(store.of("ann").names.remove("places", None)) == 2
        with store._engine.begin() as connection:
            connection.execute(kept.update().where(kept.c.expires > now()).values(expires=now()))
        Retention(Settings(), store, Library(store)).sweep()
        assert store.kept_ids("dataset") == {row.id}
        assert len(list(store.datasets_place.path.glob("*.parquet"))) == 1


def test_what_another_name_has_stays_when_a_name_is_removed(service, name):
    """It is an older version of the other one, which expires."""
    other = f"{name[:60]}.o"
    put(service, other, 42)
    old, _ = put(service, name, 42).json(), put(service, other, 43)
    assert old["expires"] is None
    assert service.delete(f"/datasets/{name}").status_code == 204
    assert nearest(service, f"dataset:{other}@1") == "at 42"
    left = service.get(f"/datasets/{old['id']}").json()
    assert left["names"] == [f"{other}@1"]
    assert left["expires"] is not None
    assert service.delete(f"/datasets/{other}").status_code == 204
    assert service.get(f"/datasets/{old['id']}").status_code == 404


def test_what_is_put_in_vain_is_not_kept(service, name):
    """Another took the name while the body came."""
    before = service.get("/datasets").json()

    def body():
        yield b"id,lat,lon\n"
        put(service, name, 45)
        yield b"at 46,0,46\n"

    refused = service.put(f"/datasets/{name}", content=body(), headers=CSV | {"If-None-Match": "*"})
    assert refused.status_code == 412
    assert nearest(service, f"dataset:{name}") == "at 45"
    service.delete(f"/datasets/{name}").raise_for_status()
    after = service.get("/datasets").json()
    assert [one["id"] for one in after["datasets"]] == [one["id"] for one in before["datasets"]]
    assert after["used_bytes"] == before["used_bytes"]


def test_what_was_put_in_vain_and_registered_by_another_stays(tmp_path):
    with closing(Store(tmp_path / "data")) as store:
        library = Library(store.of("ann"), 1)
        made = [
            lambda seed=seed: DatasetRow(
                store_points(points(5, seed), tmp_path / f"{seed}.parquet"), {}
            )
            for seed in range(4)
        ]
        rows = [library.register(one())[0] for one in made]
        wait_until(lambda: now(3600) > rows[-1].expires)
        again, is_new = library.register(made[0]())
        assert (again.id, is_new) == (rows[0].id, False)
        store.of("ann").names.put("places", rows[1].id, Condition(), None)
        store.of("ann").add_job(rows[2], rows[2], MatchOptions(), Delivery())
        for row in rows:
            library.discard(row.id, expires=row.expires)
        assert store.kept_ids("dataset") == {row.id for row in rows[:3]}
        assert not store.dataset_file(rows[3].id).exists()


def test_what_has_expired_and_a_job_needs_outlives_another_job_that_is_refused(tmp_path):
    with closing(Store(tmp_path / "data")) as store:
        library = Library(store.of("ann"), 1)
        made = store_points(points(5, 1), tmp_path / "1.parquet")
        row, _ = library.register(DatasetRow(made, {}))
        store.of("ann").add_job(row, row, MatchOptions(), Delivery())
        with store._engine.begin() as connection:
            connection.execute(kept.update().where(kept.c.id == row.id).values(expires=now()))
        assert store.of("ann").dataset(row.id) is None
        library.release(row.id)
        assert store.dataset_file(row.id).exists()


def test_a_name_that_another_process_replaces_stands_for_the_new_one_at_once(tmp_path):
    with closing(Store(tmp_path / "data")) as store, closing(Store(tmp_path / "data")) as other:
        # As a front does that looks for changes.
        store.changes._look()
        library = Library(store.of("ann"))
        made = [store_points(points(5, seed), tmp_path / f"{seed}.parquet") for seed in range(2)]
        ids = [library.register(DatasetRow(one, {}))[0].id for one in made]
        for id in ids:
            other.of("ann").names.put("places", id, Condition(), None)
            assert library.known("places") is None
            assert library.use("places").id == id
            assert library.known("places").id == id
        assert library.of(store.of("bob")).known("places") is None
        other.of("ann").names.remove("places", None)
        assert library.known("places") is None


def test_an_older_version_is_removed_alone(service, name):
    put(service, name, 50), put(service, name, 51)
    assert service.delete(f"/datasets/{name}@1").status_code == 204
    assert service.get(f"/datasets/{name}@1").status_code == 404
    assert nearest(service, f"dataset:{name}") == "at 51"


@pytest.mark.parametrize("wrong", ["Places", "1places", "a" * 65, "0" * 32, "places@1", "a b"])
def test_what_is_no_name(service, wrong):
    refused = put(service, wrong, 1)
    assert refused.status_code == 400
    assert "begin with a letter" in refused.json()["detail"]


def test_a_bad_table_replaces_nothing(service, name):
    put(service, name, 60)
    refused = service.put(f"/datasets/{name}", content=b"lat,lon\n91,0\n", headers=CSV)
    assert refused.status_code == 400
    assert nearest(service, f"dataset:{name}") == "at 60"
    assert service.get(f"/datasets/{name}").json()["names"] == [name, f"{name}@1"]


def test_if_match_guards_every_operation_on_a_dataset(service, name):
    dataset = put(service, name, 6).json()
    tag, path = f'"{dataset["sha256"]}"', f"/datasets/{name}"
    requests = [("GET", path), ("GET", f"{path}/data.parquet"), ("PATCH", path), ("DELETE", path)]
    for value, fails in (('"other"', True), (f"W/{tag}", True), (f'"other", {tag}', False)):
        for method, url in requests:
            body = {"json": {"name": "renamed"}} if method == "PATCH" else {}
            answer = service.request(method, url, headers={"If-Match": value}, **body)
            assert (answer.status_code == 412) == fails, (method, url, value)
            assert answer.is_success != fails
        assert (service.get(path).status_code == 404) != fails
    # An absent dataset is 404 with any If-Match, too.
    assert service.get(path, headers={"If-Match": "*"}).status_code == 404
