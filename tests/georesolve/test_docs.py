"""The code of docs/python.md is run, and prints what stands there."""

import re
import shlex
import subprocess

import pyarrow.parquet as pq
import pytest

from georesolve import commands
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()
PIECES = re.findall(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", PAGE, re.DOTALL)
README = (ROOT / "README.md").read_text()


# Python warns of every fork of a process with threads.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_every_piece_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    [files] = re.findall(r"```\n(cat > .*?)```", PAGE, re.DOTALL)
    subprocess.run(["sh", "-euc", files], check=True)
    known = {}
    assert len(PIECES) == 11
    for code, shown in PIECES:
        exec(compile(code, "docs/python.md", "exec"), known)
        printed = capsys.readouterr().out
        assert not shown or [line.rstrip() for line in printed.splitlines()] == shown.splitlines()
        assert bool(printed) == ("print(" in code)
    assert known["near"].to_pylist()[0]["reference_name"] == "Köln"
    assert known["joined"].loc["Potsdam", "name"] == "Berlin"


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    """Its lines of Python, with the samples of the checkout, print what stands below them."""
    [(code, shown)] = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown
    # A visitor sees places near by.
    assert all(float(line.split()[-2]) < 50 for line in shown.splitlines())


def test_the_command_of_the_readme_runs(tmp_path, monkeypatch):
    [command] = re.findall(r"```\ngeoresolve (nearest .*?)```", README, re.DOTALL)
    matches = tmp_path / "matches.parquet"
    monkeypatch.chdir(ROOT)
    # A shell drops the end of a line that goes on.
    arguments = shlex.split(command.replace("\\\n", "").replace(matches.name, str(matches)))
    assert commands.main(arguments) == 0
    assert "reference_name" in pq.read_schema(matches).names


def test_the_files_that_the_readme_sends_are_there():
    named = set(re.findall(r"samples/[\w-]+\.(?:csv|parquet)", README))
    assert len(named) == 2
    assert [name for name in named if not (ROOT / name).exists()] == []
