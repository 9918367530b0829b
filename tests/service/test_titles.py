"""What datasets and jobs are called: what they were made of, until somebody says otherwise."""

import json
from urllib.parse import unquote

import pytest

from georesolve.client import Client
from tests.conftest import finished

CSV = b"id,lat,lon\na,1,2\nb,3,4\n"


def registered(service, file, content=CSV, **query):
    files = {"file": (file, content, "text/csv")}
    return service.post("/datasets", files=files, params=query).raise_for_status().json()


def job_of(service, **sent):
    headers = {"Prefer": "respond-async"}
    answer = service.post("/resolve", headers=headers, **sent).raise_for_status()
    return service.get(answer.headers["location"]).json()


def test_a_dataset_is_called_as_its_file_and_renamed(service):
    content = CSV + b"c,5,6\n"
    made = registered(service, "Städte 2026.csv", content)
    assert made["name"] == "Städte 2026.csv"
    address = f"/datasets/{made['id']}"
    # The same content keeps what it is called.
    assert registered(service, "copy.csv", content)["name"] == "Städte 2026.csv"
    renamed = service.patch(address, json={"name": "Cities, 2026"})
    assert (renamed.json()["name"], renamed.json()["id"]) == ("Cities, 2026", made["id"])
    assert service.get(address).json()["name"] == "Cities, 2026"
    listed = {one["id"]: one["name"] for one in service.get("/datasets").json()["datasets"]}
    assert listed[made["id"]] == "Cities, 2026"
    # Sent again with a name, it is called so; without one, or as a file, it stays.
    assert registered(service, "copy.csv", content, name="Places")["name"] == "Places"
    assert registered(service, "copy.csv", content)["name"] == "Places"
    assert service.get(address).json()["name"] == "Places"
    # It is no address.
    assert service.get("/datasets/Cities, 2026").status_code == 404
    service.delete(address)
    assert service.patch(address, json={"name": "gone"}).status_code == 404


def test_a_job_is_called_by_what_its_sets_are_called_now(service):
    made = registered(service, "old.csv", CSV + b"d,1,9\n")
    inputs = dict.fromkeys(("observations", "references"), f"dataset:{made['id']}")
    headers = {"Prefer": "respond-async"}
    for name in ("old.csv", "new", "newer"):
        service.patch(f"/datasets/{made['id']}", json={"name": name}).raise_for_status()
        body = {"inputs": inputs}
        job = service.post("/processes/nearest/execution", json=body, headers=headers).json()
        assert job["name"] == f"{name} x {name}, k = 1"


def test_a_job_is_called_by_the_address_of_a_set_without_a_file(service):
    headers = {"Content-Type": "text/csv"}
    content = b"lat,lon\n1,7.5\n2,8.5\n"
    service.put("/datasets/every-night", content=content, headers=headers).raise_for_status()
    sets = dict.fromkeys(("observations", "references"), (None, "dataset:every-night"))
    assert job_of(service, files=sets)["name"] == "every-night x every-night, k = 1"
    service.delete("/datasets/every-night")


def test_a_body_that_is_a_file_says_its_name(service):
    headers = {"Content-Type": "text/csv"}
    for name, content in (("sites.csv", b"lat,lon\n1,7\n"), (None, b"lat,lon\n1,8\n")):
        query = {"name": name} if name else {}
        made = service.post("/datasets", params=query, content=content, headers=headers).json()
        assert made["name"] == (name or made["id"])
        service.delete(f"/datasets/{made['id']}")


@pytest.mark.parametrize(
    ("options", "called"),
    [
        ({"k": 2}, "a.csv x b.csv, k = 2"),
        ({"max_distance_m": 50_000}, "a.csv x b.csv, k = 1, within 50 km"),
        ({"question": "within", "distance_m": 12.5}, "a.csv x b.csv, all, within 12.5 m"),
        (
            {
                "question": "within",
                "distance_m": 1000,
                "summary": json.dumps({"count": True}),
                "summary_by": "reference",
            },
            "a.csv x b.csv, a count for each reference, within 1 km",
        ),
        ({"by": "id", "max_distance_m": 5}, "a.csv x b.csv, k = 1, by id, within 5 m"),
        ({"time": "id", "max_time": 5}, "a.csv x b.csv, k = 1, at most 5 apart"),
        ({"time": "id", "rank_by": "time"}, "a.csv x b.csv, k = 1, in time"),
        ({"name": "mine"}, "mine"),
    ],
)
def test_a_job_is_called_by_what_it_was_made_of(service, options, called):
    # The folders that a browser may send are not shown.
    content = CSV.replace(b"a,", b"1,").replace(b"b,", b"2,")
    files = {"observations": ("C:\\maps\\a.csv", content), "references": ("b.csv", content)}
    job = job_of(service, files=files, data={key: str(one) for key, one in options.items()})
    assert job["name"] == called
    address = f"/jobs/{job['id']}"
    assert service.patch(address, json={"name": "better"}).json()["name"] == "better"
    assert service.get("/jobs").json()["jobs"][0]["name"] == "better"


def test_a_browser_saves_a_download_as_what_it_is_made_of(service):
    files = dict.fromkeys(("observations", "references"), ("Städte.csv", CSV))
    address = f"/jobs/{job_of(service, files=files)['id']}"
    assert finished(service, address)["status"] == "successful"
    made = registered(service, "Städte.csv", CSV + b"e,9,9\n")
    other = registered(service, "other.csv", CSV + b"f,9,9\n")
    away = {"name": '../"a"\\b v1.2'}
    assert service.patch(f"/datasets/{other['id']}", json=away).status_code == 200
    for path, plain, called in (
        (f"{address}/results/matches.parquet", "matches", "Städte.csv x Städte.csv, k = 1.parquet"),
        (f"{address}/results/matches.csv", "matches", "Städte.csv x Städte.csv, k = 1.csv"),
        (
            f"{address}/results/matches.geojson?geometry=line",
            "matches",
            "Städte.csv x Städte.csv, k = 1 lines.geojson",
        ),
        (f"/datasets/{made['id']}/data.parquet", "data", "Städte.parquet"),
        (f"/datasets/{other['id']}/data.parquet", "data", '.._"a"_b v1.2.parquet'),
    ):
        saved = service.get(path).raise_for_status().headers["content-disposition"]
        suffix = called.rpartition(".")[2]
        assert saved.startswith(f'attachment; filename="{plain}.{suffix}"; ')
        assert unquote(saved.partition("filename*=UTF-8''")[2]) == called


def test_sets_without_a_file_are_called_by_their_rows(service):
    inputs = {"observations": {"lat": [1.0], "lon": [2.0]}, "references": "dataset:none"}
    inputs["references"] = inputs["observations"]
    headers = {"Prefer": "respond-async"}
    for name in ({}, {"name": "by hand"}):
        body = {"inputs": inputs, **name}
        job = service.post("/processes/nearest/execution", json=body, headers=headers).json()
        assert job["name"] == name.get("name", "1 row x 1 row, k = 1")


@pytest.mark.parametrize("wrong", ["", " ", "a\nb", "x" * 201, 5])
def test_what_nothing_can_be_called(service, wrong):
    made = registered(service, "c.csv")
    refused = service.patch(f"/datasets/{made['id']}", json={"name": wrong})
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["pointer"] == "/body/name"


def test_the_client_renames(service, tmp_path):
    path = tmp_path / "towns.csv"
    path.write_bytes(CSV + b"d,7,8\n")
    with Client(str(service.base_url)) as client:
        towns = client.register(path)
        assert towns.name == "towns.csv"
        assert client.rename(towns, "Towns").name == "Towns"
        job = client.submit(path, towns, k=2)
        assert job.name == "towns.csv x Towns, k = 2"
        job.rename("again")
        job.refresh()
        assert job.name == "again"
        job.wait()
        assert client.submit(path, towns, name="said").name == "said"
        job.dismiss()
