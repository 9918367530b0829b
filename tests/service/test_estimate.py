"""What a job would take, beside what a job takes."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import finished, look_up, points, run_nearest
from tests.service.test_jobs import parquet, start_job
from tests.service.test_processes import TINY

ROLES = ("observations", "references")
TABLE = {"lat": [1.0], "lon": [2.0]}


def estimate(client, body):
    answer = client.post("/estimate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("m", "n", "k", "near"),
    [(1 << 20, 1 << 14, 1, False), (100_000, 90_000, 1, True), (1000, 50, 3, False)],
)
def test_an_estimate_beside_a_job(service, m, n, k, near):
    observations, references = (points(size, size).drop("id") for size in (m, n))
    told = estimate(service, {"observations": m, "references": n, "k": k, "near": near})
    location = start_job(service, observations, references, k=k, near=near)
    assert finished(service, location)["status"] == "successful"
    report = service.get(f"{location}/report").json()
    assert told["rows"] == report["rows"] == m * k
    assert report["options"]["k"] == k
    assert "on a sphere of radius 6371008.8 m" in report["measure"]
    assert told["chunks"] == sum(report["chunks_by_worker"].values())
    assert told["fits"] is True
    assert told["obstacles"] == []
    assert told["devices"] >= 1
    assert 0 < told["seconds_warm"] <= told["seconds"] < told["seconds_cold"]
    # Of a small result the file's own head and foot are the most.
    assert abs(told["bytes_out"] - report["size_bytes"]) < 0.1 * report["size_bytes"] + 5000


def test_an_estimate_of_datasets_knows_their_columns(service):
    names = [f"a name for the place number {i}" for i in range(20_000)]
    references = points(20_000, 5, **{"the.name": names})
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    made = service.post("/datasets", content=parquet(references), headers=headers).json()
    both = {"observations": {"dataset": made["id"]}, "references": f"dataset:{made['id']}"}
    plain = estimate(service, both)
    carried = estimate(service, {"inputs": {**both, "columns": ["the.name"]}})
    assert carried["bytes_in"] == plain["bytes_in"]
    assert carried["bytes_out"] > plain["bytes_out"]
    answer = look_up(service, {**both, "columns": ["the.name"]})
    size = len(answer.content)
    assert pq.read_table(io.BytesIO(answer.content)).num_rows == plain["rows"] == 20_000
    assert size / 2 < carried["bytes_out"] < 2 * size
    assert service.post("/estimate", json={**both, "columns": ["none"]}).status_code == 400
    assert service.delete(f"/datasets/{made['id']}").status_code == 204


def test_an_estimate_knows_where_the_points_lie(service, device):
    spread = [points(rows, seed).drop("id") for rows, seed in ((1 << 20, 1), (1 << 17, 2))]
    pole = spread[0].set_column(0, "lat", pa.array(np.full(1 << 20, 90.0)))
    ring = spread[1].set_column(0, "lat", pa.array(np.full(1 << 17, 45.0)))
    place = pa.table({"lat": np.full(1 << 17, 4.0), "lon": np.full(1 << 17, 5.0)})
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    ids = [
        service.post("/datasets", content=parquet(table), headers=headers).json()["id"]
        for table in (*spread, pole, ring, place)
    ]

    def told(observations, references):
        sets = {"observations": ids[observations], "references": ids[references]}
        return estimate(service, {role: f"dataset:{id}" for role, id in sets.items()})

    easy, hard = told(0, 1), told(2, 3)
    by_rows, few_by_rows = (
        estimate(service, {"observations": rows, "references": 1 << 17})
        for rows in (1 << 20, 1 << 17)
    )
    assert easy["chunks"] == by_rows["chunks"]
    assert easy["seconds"] < 1.5 * by_rows["seconds"]
    assert 1 < told(4, 4)["seconds"] / few_by_rows["seconds"] < 3
    if device == "cpu":
        # Each of 2^20 with each of 2^17, half a nanosecond for a pair; on a machine as busy as jobs
        # before found it, which holds for both.
        assert 50 < hard["seconds"] / by_rows["seconds"] < 330
        assert hard["chunks"] > 8 * easy["chunks"]
    assert hard["seconds"] > 2 * by_rows["seconds"]
    for id in ids:
        assert service.delete(f"/datasets/{id}").status_code == 204


@pytest.mark.parametrize(
    ("width", "m"), [(200, 70_000), (5000, 20_000)], ids=["a dictionary", "too long for one"]
)
def test_an_estimate_knows_what_repeats(service, width, m):
    """The names of few references stand once in each row group of the result, if they are short."""
    letters = np.random.default_rng(7).integers(97, 123, (300, width), np.uint8)
    observations = points(m, 8, note=[f"the note of {i}" for i in range(m)])
    references = points(300, 9, name=[row.tobytes().decode() for row in letters])
    headers = {"Content-Type": "application/vnd.apache.parquet"}
    ids = [
        service.post("/datasets", content=parquet(table), headers=headers).json()["id"]
        for table in (observations, references)
    ]
    sets = {role: {"dataset": id} for role, id in zip(ROLES, ids, strict=True)}
    options = {"k": 2, "columns": ["name"], "observation_columns": ["note"]}
    told = estimate(service, {**sets, **options})
    size = len(run_nearest(service, {**sets, **options}).content)
    assert 0.8 * size < told["bytes_out"] < 1.25 * size
    for id in ids:
        assert service.delete(f"/datasets/{id}").status_code == 204


def test_arrays_are_estimated_and_nothing_of_them_stays(service):
    before = service.get("/jobs").json()["jobs"]
    told = estimate(service, TINY)
    assert (told["rows"], told["chunks"], told["fits"]) == (1, 1, True)
    assert service.get("/jobs").json()["jobs"] == before
    assert list((service.log.with_suffix("") / "incoming").glob("*/*")) == []


def test_what_does_not_fit_says_why(service):
    told = estimate(service, {"observations": 1 << 33, "references": 1 << 33})
    assert told["fits"] is False
    text = " ".join(told["obstacles"])
    assert f"{1 << 33} rows of observations, there are {1 << 28}" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"observations": 1}, "/references: Field required"),
        ({"observations": -1, "references": 1}, "/observations: -1 rows: give from 0 to"),
        ({"observations": True, "references": 1}, "/observations: true or false is no point set"),
        ({"observations": 1.5, "references": 1}, "/observations: a number is no point set"),
        ({"observations": 1, "references": [1]}, "/references: an array is no point set"),
        ({"observations": 1, "references": 1, "k": 0}, "be greater than or equal to 1, got 0"),
        ({"observations": 1, "references": 1, "K": 1}, "/K: there is no such name here"),
        ({"observations": "5", "references": 1}, "neither a file nor 'dataset:<id>'"),
        ({"inputs": {"observations": 1}}, "/inputs/observations: a number is no point set"),
        (
            {"inputs": {"observations": TABLE, "references": TABLE}, "response": "neither"},
            "/response: Input should be 'raw' or 'document'",
        ),
        ([], "the body: Input should be an object"),
    ],
)
def test_bad_estimates(service, body, message):
    answer = service.post("/estimate", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["detail"]


def test_an_estimate_tells_of_sets_that_hardly_belong_together(service):
    lat, lon = np.random.default_rng(3).uniform([[46.2], [6.5]], [[47.7], [9.8]], (2, 50))
    right, swapped, elsewhere = (
        {"lat": lat.tolist(), "lon": lon.tolist()},
        {"lat": lon.tolist(), "lon": lat.tolist()},
        {"lat": (lat - 30).tolist(), "lon": lon.tolist()},
    )
    for observations, words in (
        (right, []),
        (swapped, ["the axes of one set look swapped"]),
        (elsewhere, ["the two sets lie far apart"]),
    ):
        told = estimate(service, {"inputs": {"observations": observations, "references": right}})
        assert [one.partition(":")[0] for one in told["remarks"]] == words
