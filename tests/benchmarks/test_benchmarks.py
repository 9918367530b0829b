"""The benchmarks run at toy size, so that they never rot."""

import json
import sys

from benchmarks import kernels, service


def test_kernels(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["kernels", "--toy", "--repeats", "1", "--json", str(out)])
    kernels.main()
    rows = json.loads(out.read_text())
    assert rows.keys() == kernels.CASES.keys()
    for row in rows.values():
        assert {"ours", "ours, tree", "ours, brute", "prange brute"} <= row["median"].keys()
        assert not any(row["wrong"].values())
    assert "not installed" in capsys.readouterr().out


def test_service(tmp_path, monkeypatch, capsys, device):
    out = tmp_path / "out.json"
    flags = ["--device", device, "--observations", "10", "--references", "6", "--runs", "1"]
    monkeypatch.setattr(sys, "argv", ["service", *flags, "--json", str(out)])
    service.main()
    report = json.loads(out.read_text())["cold"]
    assert report["counts"]["matched"] == 1024
    assert "2^10 x 2^6" in capsys.readouterr().out
