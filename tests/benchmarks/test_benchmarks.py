"""The benchmarks run, at toy size, whatever peers are installed."""

import json
import sys

from benchmarks import kernels, service, small_requests


def test_the_benchmark_of_the_kernels_runs(tmp_path, capsys):
    path = tmp_path / "figures.json"
    kernels.main(["--toy", "--repeats", "1", "--json", str(path)])
    figures = json.loads(path.read_text())
    assert figures["cases"].keys() == kernels.TOY.keys()
    for rows in figures["cases"].values():
        assert {"ours, auto", "ours, tree", "ours, brute"} <= {row["method"] for row in rows}
        assert not any(row["differing"] for row in rows if row["ours"])
    assert [line["case"] for line in figures["summary"]] == [n for n in kernels.TOY for _ in (0, 1)]
    assert "median ms" in capsys.readouterr().out


def test_the_first_answer_of_a_process_is_timed():
    assert kernels.first_answer() > 0


def test_a_peer_that_is_not_installed_is_named(monkeypatch, capsys):
    absent = kernels.METHODS["small_gicp"]._replace(package="no-such-package")
    monkeypatch.setitem(kernels.METHODS, "small_gicp", absent)
    monkeypatch.setattr(kernels, "TOY", {"uniform": kernels.TOY["uniform"]})
    kernels.main(["--toy", "--repeats", "1"])
    out = capsys.readouterr().out
    assert "small_gicp: no-such-package is not installed, left out" in out


def test_a_job_by_stage(tmp_path, monkeypatch, capsys, device):
    out = tmp_path / "out.json"
    flags = ["--device", device, "--observations", "10", "--references", "6", "--runs", "1"]
    monkeypatch.setattr(sys, "argv", ["service", *flags, "--json", str(out)])
    service.main()
    report = json.loads(out.read_text())["cold"]
    assert report["counts"]["matched"] == 1024
    assert "2^10 x 2^6" in capsys.readouterr().out


def test_small_requests_by_stage(tmp_path, monkeypatch, device):
    out = tmp_path / "out.json"
    sizes = ["--references", "500", "--rows", "10", "--requests", "5", "--clients", "4"]
    monkeypatch.setattr(sys, "argv", ["", "--device", device, *sizes, "--json", str(out)])
    small_requests.main()
    figures = json.loads(out.read_text())
    assert {"http", "total", "lane", "resolve", "write"} <= figures["alone"].keys()
    assert [row["statuses"] for row in figures["together"]] == [{"200": 200}] * 3
