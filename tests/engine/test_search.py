"""Searches that a device cannot make at once, and devices that are lost in the middle of one."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from georesolve.engine import memory, resident
from georesolve.engine.plan import Chunk
from georesolve.engine.questions import Batch
from georesolve.engine.search import WrongAnswer, batch_of, question_of, verify
from georesolve.io.datasets import ROW_GROUP
from georesolve.kernels import brute_cpu, tree_cpu
from georesolve.query import MatchOptions
from georesolve.workers.job import Job
from georesolve.workers.pipeline import run
from tests.conftest import points, sphere, store_points

N_REFERENCES = 3 * ROW_GROUP + 2_000


@pytest.fixture(scope="module")
def place_set(tmp_path_factory):
    """Every point twice, far apart in the set: ties go to the lower row, whatever the piece."""
    table = points(N_REFERENCES // 2, 5)
    path = tmp_path_factory.mktemp("search") / "references.parquet"
    return store_points(pa.concat_tables([table, table]), path)


def search(places, lat, lon, options, first_row=0):
    job = Job(places, places, options, id="search", folder=Path())
    return question_of(job, Chunk(0, 0)).answer(Batch(lat, lon, first_row, 0.0))


@pytest.fixture
def in_pieces():
    """Has this process search so many references at a time."""
    resident.forget_all()
    yield lambda size: memory.set_memory("cpu", None, size)
    memory.set_memory("cpu", None, None)


@pytest.mark.parametrize("size", [1, ROW_GROUP, 2 * ROW_GROUP - 1, 2 * ROW_GROUP])
def test_pieces_are_row_groups_and_cover_the_set(place_set, in_pieces, size):
    in_pieces(size)
    pieces = resident.pieces(place_set)
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == place_set.rows
    assert all(start % ROW_GROUP == 0 for start, _ in pieces)
    assert max(stop - start for start, stop in pieces) <= max(size, ROW_GROUP)


def test_a_set_that_fits_is_one_piece(place_set, in_pieces):
    in_pieces(N_REFERENCES)
    assert resident.pieces(place_set) == [(0, N_REFERENCES)]


@pytest.mark.parametrize(
    "options",
    [
        MatchOptions(),
        MatchOptions(k=3),
        MatchOptions(k=2, exclude_self=True),
        MatchOptions(k=7, max_distance_m=30_000.0),
        MatchOptions(algorithm="brute"),
    ],
    ids=repr,
)
def test_pieces_do_not_show_in_the_answer(place_set, in_pieces, options):
    frame = resident.read_rows(place_set.file, 150_000, 150_300, ["lat", "lon"])
    lat, lon = (column.to_numpy() for column in frame.columns)
    whole = search(place_set, lat, lon, options, 150_000)
    in_pieces(ROW_GROUP)
    assert len(resident.pieces(place_set)) == 4
    split = search(place_set, lat, lon, options, 150_000)
    assert split.reference.tobytes() == whole.reference.tobytes()
    assert split.distance_m.tobytes() == whole.distance_m.tobytes()


def test_chunks_begin_with_the_pieces_that_are_there(place_set, in_pieces, monkeypatch):
    """Of four pieces two stay: a chunk builds the other two, not all four, and answers the same."""
    chunks = [sphere(200, seed) for seed in range(5)]
    want = [search(place_set, *chunk, MatchOptions(k=3)) for chunk in chunks]
    in_pieces(ROW_GROUP)
    resident.forget_all()
    monkeypatch.setattr(resident._indexes, "_budget", lambda: 12 << 20)
    built = []
    read = resident.read_points
    monkeypatch.setattr(resident, "read_points", lambda *of: (built.append(of[1:]), read(*of))[1])
    for chunk, expected in zip(chunks, want, strict=True):
        found = search(place_set, *chunk, MatchOptions(k=3))
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
    assert len(set(built)) == 4
    assert len(built) <= 4 + 4 * 2


@pytest.mark.parametrize(("rows", "took"), [(20, "brute"), (5_000, "packets")])
def test_what_auto_took_is_verified_by_the_other(tmp_path, monkeypatch, rows, took):
    places = store_points(points(100, 2), tmp_path / "references.parquet")
    observations = store_points(points(rows, 1), None)
    job, chunk = (
        Job(observations, places, MatchOptions(), id="again", folder=tmp_path),
        Chunk(0, rows),
    )
    question, (batch, _) = question_of(job, chunk), batch_of(job, chunk)
    right, _ = question.found(batch)
    assert verify(job, question, batch, right) == 8
    wrong = {"brute": tree_cpu, "packets": brute_cpu}[took]
    as_it_was = wrong.search

    def searched(*of, **how):
        found = as_it_was(*of, **how)
        found.reference[...] += 1
        return found

    monkeypatch.setattr(wrong, "search", searched)
    own, _ = question.found(batch)
    assert own.equals(right), "auto took the other one"
    with pytest.raises(WrongAnswer, match=f"by '{took}' and"):
        verify(job, question, batch, own)


def test_pieces_leave_when_others_need_their_place(place_set, in_pieces, monkeypatch):
    in_pieces(ROW_GROUP)
    monkeypatch.setattr(resident._indexes, "_budget", lambda: 10 << 20)
    search(place_set, *sphere(100, 1), MatchOptions())
    assert 0 < resident._indexes.nbytes <= 10 << 20


def test_more_memory_holds_more_references():
    for available in (1 << 30, 1 << 34):
        memory.set_memory("cpu", available, None)
        n = memory.references_at_once("cpu")
        assert 0.3 * available < memory.search_bytes("cpu", n, 0, 1) <= 0.4 * available
    memory.set_memory("cpu", None, None)


def leave_memory(n_bytes):
    """Leave a worker so many bytes of its device's memory; None for all."""
    import rmm

    memory = rmm.mr.CudaMemoryResource()
    rmm.mr.set_current_device_resource(
        rmm.mr.LimitingResourceAdaptor(memory, n_bytes) if n_bytes else memory
    )


@pytest.mark.gpu
def test_chunks_are_halved_where_memory_does_not_suffice(cluster, tmp_path, caplog):
    # A worker has four chunks: each needs more than there is although it is alone.
    rows = 400_000 * len(cluster.workers())
    observations = store_points(points(rows, 1), tmp_path / "observations.parquet")
    places = store_points(points(1_000, 2), tmp_path / "references.parquet")

    def job(name):
        return Job(observations, places, MatchOptions(k=64), id=name, folder=tmp_path / name)

    cluster.client.run(leave_memory, 64 << 20)
    try:
        result, progress = run(cluster, job("short"), lambda progress: None, lambda: False)
    finally:
        cluster.client.run(leave_memory, None)
    assert "is halved" in caplog.text
    assert progress.rows_done == rows
    ample, _ = run(cluster, job("ample"), lambda progress: None, lambda: False)
    assert result.digest == ample.digest


def lose_device():
    """An access to memory that is not there: nothing works in this context after it."""
    import cupy

    source = 'extern "C" __global__ void f() { *(volatile int*)8 = 1; }'
    cupy.RawKernel(source, "f")((1,), (1,), ())
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return "nothing"


@pytest.mark.gpu
def test_a_lost_device_costs_its_worker_and_nothing_else(cluster, tmp_path):
    observations = store_points(points(300_000, 1), tmp_path / "observations.parquet")
    places = store_points(points(1_000, 2), tmp_path / "references.parquet")

    def job(name):
        return Job(observations, places, MatchOptions(), id=name, folder=tmp_path / name)

    expected, _ = run(cluster, job("before"), lambda progress: None, lambda: False)
    pids = cluster.client.run(os.getpid)
    victim = sorted(pids)[0]
    lost = cluster.client.run(lose_device, workers=[victim])
    assert "illegal" in lost[victim].lower()
    result, progress = run(cluster, job("after"), lambda progress: None, lambda: False)
    assert result.digest == expected.digest
    assert progress.rows_done == 300_000
    cluster.client.wait_for_workers(len(pids), timeout=120)
    after = cluster.client.run(os.getpid)
    assert pids[victim] not in after.values()
    assert set(pids.values()) - {pids[victim]} <= set(after.values())


def answer_wrong():
    """A device that miscalculates: from now on this process finds the row after the right one."""
    from georesolve import kernels

    right = kernels.nearest

    def nearest(index, *observations, algorithm, **options):
        answer = right(index, *observations, algorithm=algorithm, **options)
        # What is asked for by name is how the answer is verified.
        if algorithm == "auto":
            answer.reference[...] += 1
        return answer

    kernels.nearest = nearest


def test_a_device_that_is_wrong_costs_its_worker_and_nothing_else(cluster, tmp_path):
    observations = store_points(points(20_000, 1), tmp_path / "observations.parquet")
    places = store_points(points(1_000, 2), tmp_path / "references.parquet")

    def job(name):
        return Job(observations, places, MatchOptions(k=2), id=name, folder=tmp_path / name)

    expected, progress = run(cluster, job("before"), lambda progress: None, lambda: False)
    assert progress.verified == 8 * sum(progress.chunks_by_worker.values())
    pids = cluster.client.run(os.getpid)
    victim = sorted(pids)[0]
    cluster.client.run(answer_wrong, workers=[victim])
    result, progress = run(cluster, job("after"), lambda progress: None, lambda: False)
    assert result.digest == expected.digest
    assert progress.rows_done == 20_000
    cluster.client.wait_for_workers(len(pids), timeout=120)
    assert pids[victim] not in cluster.client.run(os.getpid).values()


@pytest.mark.parametrize("rows", [0, 1, 5, 30])
def test_what_is_searched_again(place_set, in_pieces, tmp_path, rows):
    options = MatchOptions(k=3, exclude_self=True)
    job = Job(store_points(points(rows, 1), None), place_set, options, id="again", folder=tmp_path)
    question, (batch, _) = question_of(job, Chunk(0, rows)), batch_of(job, Chunk(0, rows))
    right, _ = question.found(batch)
    assert verify(job, question, batch, right) == min(8, rows)
    if rows:
        distance_m = right["distance_m"].to_numpy().copy()
        distance_m[3 * ((rows - 1) // 2)] *= 1 + 1e-15
        place = right.column_names.index("distance_m")
        off = right.set_column(place, "distance_m", pa.array(distance_m))
        with pytest.raises(WrongAnswer, match="by 'brute'"):
            verify(job, question, batch, off)
    in_pieces(ROW_GROUP)
    assert verify(job, question, batch, right) == 0
