"""The code of docs/python.md is run, and prints what stands there."""

import re

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()
PIECES = re.findall(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", PAGE, re.DOTALL)
SHOPS = "shop,lat,lon\nBonn,50.73,7.1\nCádiz,36.53,-6.29\nPotsdam,52.4,13.06\n"
DEPOTS = "name,lat,lon\nBerlin,52.52,13.4\nParis,48.86,2.35\nKöln,50.93,6.95\n"


def test_every_piece_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shops.csv").write_text(SHOPS)
    (tmp_path / "depots.csv").write_text(DEPOTS)
    known = {}
    assert len(PIECES) == 8
    for code, shown in PIECES:
        exec(compile(code, "docs/python.md", "exec"), known)
        printed = capsys.readouterr().out
        assert not shown or [line.rstrip() for line in printed.splitlines()] == shown.splitlines()
        assert bool(printed) == ("print(" in code)
    assert known["near"].to_pylist()[0]["reference_name"] == "Köln"
    assert known["joined"].loc["Potsdam", "name"] == "Berlin"


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    """Its lines of Python, with the samples of the checkout."""
    page = (ROOT / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out
