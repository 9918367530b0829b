"""Small jobs answered in this process: the bytes of a job on a cluster, whatever its device."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import georesolve
from georesolve.engine import memory
from georesolve.engine import resident as residents
from georesolve.engine.cost_model import quickly_indexed
from georesolve.engine.inline import (
    QUICK_STEPS,
    NotAtHand,
    NotResident,
    SearchIsHard,
    is_quick,
    resolve_at_hand,
)
from georesolve.engine.memory import in_pieces
from georesolve.io.datasets import InMemory
from georesolve.io.errors import InvalidInput
from georesolve.io.index_files import IndexFolder
from georesolve.kernels import cache
from georesolve.kernels.threads_cpu import allowed
from georesolve.query import FilterOptions, MatchOptions
from georesolve.workers.job import Job
from georesolve.workers.pipeline import run
from georesolve.workers.results.manifest import open_matches
from tests.conftest import points, store_points, wait_until

OPTIONS = [
    {},
    {"k": 3, "columns": ("id",), "observation_columns": ("lat",)},
    {"max_distance_m": 300_000.0, "how": "inner"},
    {"algorithm": "brute"},
    {"k": 2, "near": True, "columns": ("lon",), "observation_columns": ("lon",)},
]


def expected(cluster, job):
    run(cluster, job, lambda progress: None, lambda: False)
    return open_matches(job.folder).read()


@pytest.fixture
def make_job(tmp_path):
    """Makes jobs against the same references, their observations in a file or in memory."""
    references = store_points(points(2_000, 2), tmp_path / "references.parquet")

    def make(name, rows, *, in_memory=False, **options):
        path = None if in_memory else tmp_path / f"{name}.parquet"
        observations = store_points(points(rows, seed=len(name)), path)
        return Job(
            observations, references, MatchOptions(**options), id=name, folder=tmp_path / name
        )

    return make


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_bytes_of_a_job(cluster, make_job, options):
    for job in (
        make_job("one", 500, **options),
        make_job("three", 1, in_memory=True, **options),
        make_job("sixteen", 0, **options),
    ):
        answer = resolve_at_hand(job)
        assert answer.content == expected(cluster, in_a_file(job))
        assert sum(answer.counts.values()) == job.observations.rows * job.options.k
        assert set(answer.seconds) == {"read", "index", "resolve"}


def in_a_file(job):
    """The same job for the queue of tasks, whose inputs lie in files."""
    observations = job.observations
    if not isinstance(observations.file, InMemory):
        return job
    path = job.folder.with_suffix(".parquet")
    path.write_bytes(observations.file.file)
    return replace(job, observations=replace(observations, file=path, digest=observations.sha256))


def test_a_set_against_itself(cluster, make_job):
    job = make_job("itself", 300, exclude_self=True)
    job = replace(job, references=job.observations)
    assert resolve_at_hand(job).content == expected(cluster, job)


def test_the_index_of_references_that_stay_is_one_file(cluster, make_job, tmp_path, device):
    folder = IndexFolder(tmp_path / "indexes", 1 << 30, 0)
    job = make_job("stays", 300, max_distance_m=1e5)
    content = resolve_at_hand(job).content
    residents.forget_all()
    assert not folder.path.exists()
    job = replace(job, indexes=folder)
    assert resolve_at_hand(job).content == content
    [index] = folder.path.iterdir()
    assert index.stem == job.references.sha256
    # Workers map it, too: what was damaged would show in the log, not in the answer.
    assert expected(cluster, job) == content
    index.unlink()
    client = cluster.client
    client.run(residents.forget_all)
    again = replace(job, id="again", folder=tmp_path / "again")
    assert expected(cluster, again) == content
    assert index.exists() == (device == "cpu")


@pytest.mark.parametrize("filters", [None, FilterOptions(("id",), ("id",))])
def test_references_that_take_long_to_index_are_loaded_beside(cluster, tmp_path, filters):
    options = MatchOptions(columns=("lat",), filters=filters)
    many = quickly_indexed(options) + 1
    references = store_points(points(many, 3), tmp_path / "references.parquet")
    job = Job(
        store_points(points(9, 4), None), references, options, id="many", folder=tmp_path / "many"
    )
    with pytest.raises(NotResident, match=f"the {many} references are being read"):
        resolve_at_hand(job)
    content = expected(cluster, in_a_file(job))

    def is_answered():
        with suppress(NotResident):
            assert resolve_at_hand(job).content == content
            return True

    wait_until(is_answered)


def test_why_references_cannot_be_loaded_beside_is_told(tmp_path):
    times = FilterOptions(observation_time="cell", reference_time="cell", max_time=1)
    options = MatchOptions(filters=times)
    many = quickly_indexed(options) + 1
    sets = [
        store_points(points(n, n, cell=pa.array([2**63] * n, pa.uint64())), path)
        for n, path in ((9, None), (many, tmp_path / "references.parquet"))
    ]
    job = Job(*sets, options, id="cells", folder=tmp_path)

    def is_told():
        with suppress(NotResident):
            resolve_at_hand(job)

    with pytest.raises(InvalidInput, match="allowed is what int64 holds"):
        wait_until(is_told)


def test_columns_of_groups_and_sums_that_are_too_large_are_not_at_hand(make_job, monkeypatch):
    monkeypatch.setattr(memory, "column_bytes", lambda: 1_000)
    for options in (
        {"filters": FilterOptions(("id",), ("id",))},
        {"summary": {"id": ("sum",)}},
    ):
        with pytest.raises(NotAtHand, match="'id' of the references takes 16000 bytes"):
            resolve_at_hand(make_job("large", 9, in_memory=True, **options))


def test_what_memory_holds_in_pieces_is_not_at_hand(tmp_path):
    references = store_points(points(70_000, 3), tmp_path / "references.parquet")
    observations = store_points(points(9, 4), None)
    job = Job(observations, references, MatchOptions(), id="pieces", folder=tmp_path / "pieces")
    with in_pieces(65_536), pytest.raises(NotAtHand, match="70000 references are searched piece"):
        resolve_at_hand(job)


def test_a_set_that_is_gone_is_told(make_job):
    job = make_job("gone", 1)
    job.observations.file.unlink()
    with pytest.raises(FileNotFoundError):
        resolve_at_hand(job)


def on_a_ring(references, observations, tmp_path):
    """References on the equator, and observations as far from all of them: no bound tells more."""
    lon = np.linspace(-180, 180, references, endpoint=False)
    near_the_pole = 90 - 1e-9 * np.arange(observations)
    sets = [
        store_points(pa.table({"lat": np.zeros(references), "lon": lon}), None),
        store_points(pa.table({"lat": near_the_pole, "lon": np.zeros(observations)}), None),
    ]
    return Job(sets[1], sets[0], MatchOptions(), id="ring", folder=tmp_path)


def test_a_search_that_is_hard_goes_from_the_event_loop_to_a_thread_and_from_there_to_a_job(
    tmp_path, monkeypatch
):
    job = on_a_ring(100_000, 100, tmp_path)
    assert resolve_at_hand(job).rows.num_rows == 100
    assert is_quick(job.observations, job.references, job.options), "by its numbers of rows"
    with pytest.raises(SearchIsHard):
        resolve_at_hand(job, QUICK_STEPS)
    # Threads of many cores share the steps.
    monkeypatch.setattr(allowed, "threads", min(allowed.threads, 16))
    with pytest.raises(NotAtHand, match="equally far from an observation"):
        resolve_at_hand(on_a_ring(400_000, 20_000, tmp_path))


def test_what_was_compiled_without_a_job_is_known_after_a_restart(make_job, tmp_path, monkeypatch):
    # Where the code lies is asked anew: the notes of a machine that has run nothing.
    noted = tmp_path / "noted"
    noted.mkdir()
    monkeypatch.setattr(cache, "_folder", lambda: noted)
    few = make_job("few", 100, question="within", distance_m=1e5)
    resolve_at_hand(few)
    assert cache.kinds_compiled() == ()
    job = make_job("matches", 2000, question="within", distance_m=1e5)
    resolve_at_hand(job)
    assert cache.kinds_compiled() == (job.kind,)
    places = points(2000, 1), points(300, 2)
    georesolve.nearest(*places, k=2, device="cpu")
    georesolve.within(*places, 1e5, device="cpu", summary={"count": True})
    kinds = {"nearest-several-sphere", "within-summary-observation-sphere", job.kind}
    assert {*cache.kinds_compiled()} == kinds
