"""The ladder of `georesolve bench`, at toy size; on a GPU with the rungs that need one."""

import json
import multiprocessing
from threading import Thread

import numpy as np
import pytest
from numba import cuda, types

from georesolve.benchmarks import case_study_cuda, ladder, rungs, rungs_cuda
from georesolve.benchmarks.climb import Limits, climb
from georesolve.benchmarks.problem import count_wrong, load, make
from georesolve.cli import serve
from tests.conftest import wait_until

PEERS = {"DuckDB spatial", "SedonaDB, on a plane", "cuML brute force", "cuVS brute force"}


@pytest.fixture
def problem(tmp_path):
    make(tmp_path / "8x6", 8, 6)
    return load(tmp_path / "8x6")


@pytest.mark.timeout(600)
def test_every_rung_is_right_or_says_why_not(tmp_path, capsys, device):
    assert serve.main(["bench", "--toy", "--repeats", "1", "--out", str(tmp_path)]) == 0
    figures = json.loads((tmp_path / "ladder.json").read_text())
    assert {"cpu", "cores", "memory_gib", "gpus", "driver", "versions"} <= figures["machine"].keys()
    assert [row["rung"] for row in figures["rows"]] == [n for n in rungs.RUNGS for _ in ladder.TOY]
    for row in figures["rows"]:
        if device == "cpu" and rungs.RUNGS[row["rung"]].gpu:
            assert row["reason"] == "no GPU"
        elif row.get("reason", "").startswith("not installed: "):
            assert row["rung"] in PEERS, "what is not in the extra test"
        else:
            assert row["median_s"] > 0
            assert row["times_of_ours"] > 0
            assert row["checked"] == row["observations"]
            assert (row["wrong"] > 0) == ("on a plane" in row["rung"])
    out = capsys.readouterr().out
    assert "2^8 x 2^6" in out
    assert "median ms" in out
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_without_its_packages_a_rung_and_the_chart_are_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ladder, "find_spec", lambda module: None)
    name = "scikit-learn brute force"
    ladder.main(["--toy", "--only", name, "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert f"{name}    not installed: scikit-learn" in out
    assert "no chart: matplotlib is not installed" in out


def test_a_size_that_would_take_too_long_is_left_out(problem, tmp_path):
    make(tmp_path / "12x8", 12, 8)
    first, second = climb(
        "Python loop", [problem.folder, tmp_path / "12x8"], Limits(repeats=1, seconds=0.05)
    )
    assert first["wrong"] == 0
    assert "would take about" in second["reason"]
    assert "0.05 s (--limit)" in second["reason"]


def test_what_a_rung_raises_is_the_reason(tmp_path):
    [row] = climb("Python loop", [tmp_path / "nothing"], Limits(1, 1.0))
    assert row["reason"].startswith("FileNotFoundError: ")


def test_a_process_that_dies_is_the_reason(tmp_path):
    # Hours of work.
    make(tmp_path / "16x10", 16, 10)
    rows = climb("Python loop", [tmp_path / "16x10"] * 2, Limits(1, 60.0))

    def kill():
        wait_until(lambda: any(p.name == "Python loop" for p in multiprocessing.active_children()))
        [process] = [p for p in multiprocessing.active_children() if p.name == "Python loop"]
        process.kill()

    thread = Thread(target=kill)
    thread.start()
    assert [row["reason"] for row in rows] == ["its process ended with exit code -9"] * 2
    thread.join()


def test_wrong_rows_are_counted(problem):
    exact = np.load(problem.folder / "exact.npy")
    assert count_wrong(problem, exact) == (0, 256)
    rows = exact.copy()
    rows[3] = (rows[3] + 1) % 64
    rows[7] = -1
    assert count_wrong(problem, rows) == (2, 256)
    # A reference of the same place, in another row, is as near.
    twice = problem._replace(
        references=(np.tile(problem.references[0], 2), np.tile(problem.references[1], 2))
    )
    assert count_wrong(twice, exact + 64) == (0, 256)
    with pytest.raises(ValueError, match="256 observations have an answer of shape"):
        count_wrong(problem, exact[1:])


def test_without_scipy_numpy_judges(problem, tmp_path, monkeypatch):
    monkeypatch.setattr("georesolve.benchmarks.problem.find_spec", lambda module: None)
    assert make(tmp_path / "judged", 8, 6) == "NumPy, float64, one observation in 1"
    np.testing.assert_array_equal(
        np.load(tmp_path / "judged" / "exact.npy"), np.load(problem.folder / "exact.npy")
    )


def test_a_problem_is_spread_over_the_workers_of_a_cluster(problem, cluster):
    prepared = rungs_cuda.spread(cluster.client, problem, rungs_cuda.ours_of_part)
    first, second = prepared.run(), prepared.run()
    assert first.npartitions == len(cluster.workers())
    for answer in (first, second):
        assert count_wrong(problem, prepared.rows(answer)) == (0, 256)


def test_the_case_studys_pair_compiles():
    f4, i4 = ([types.Array(dtype, n, "C") for n in (1, 2)] for dtype in (types.f4, types.i4))
    for kernel, signature in (
        (case_study_cuda.block_min, (f4[1], f4[1], f4[1], i4[1])),
        (case_study_cuda.fast_block_min, (f4[1], f4[1], f4[1], i4[1])),
        (case_study_cuda.global_min, (f4[1], i4[1], f4[0], i4[0])),
    ):
        text, _ = cuda.compile_ptx(kernel.py_func, signature, cc=(9, 0))
        assert ".entry" in text


def test_sizes_are_checked(capsys):
    for wrong in ("16", "ax2", "40x2"):
        with pytest.raises(SystemExit):
            ladder.main(["--sizes", wrong])
    assert "powers of two are 0 to 28, got 40x2" in capsys.readouterr().err
