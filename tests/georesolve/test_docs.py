"""The code of docs/python.md, dask.md and ellipsoid.md is run, and prints what stands there."""

import re
import shlex
import subprocess

import dask
import pandas as pd
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve import cli
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def run(page, folder, monkeypatch, capsys, n_pieces, *, shows=True):
    """Run the pieces of a page one after the other; what they define."""
    text = (ROOT / "docs" / page).read_text()
    monkeypatch.chdir(folder)
    (folder / "samples").symlink_to(ROOT / "samples")
    [files] = re.findall(r"```\n((?:mkdir|cat >) .*?)```", text, re.DOTALL)
    subprocess.run(["sh", "-euc", files], check=True)
    pieces = re.findall(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", text, re.DOTALL)
    assert len(pieces) == n_pieces
    known = {}
    for code, shown in pieces:
        exec(compile(code, page, "exec"), known)
        printed = capsys.readouterr().out
        lines = [line.rstrip() for line in printed.splitlines()]
        assert not shown or not shows or lines == shown.splitlines()
        assert bool(printed) == ("print(" in code)
    return known


# Python warns of every fork of a process with threads.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
# Ibis calls what DuckDB has another name for now.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ibis", "ignore:fetch_arrow_table")
def test_the_page_about_python_runs(tmp_path, monkeypatch, capsys):
    known = run("python.md", tmp_path, monkeypatch, capsys, 16)
    assert known["near"].to_pylist()[0]["reference_name"] == "Köln"
    assert known["joined"].loc["Potsdam", "name"] == "Berlin"


@pytest.mark.parametrize("on_cluster", [False, True])
def test_the_page_about_dask_runs(on_cluster, tmp_path, monkeypatch, capsys, device, request):
    """On threads, and on processes or GPUs, whose frames print missing names otherwise."""
    # Its processes find files where they start.
    monkeypatch.chdir(tmp_path)
    if on_cluster:
        request.getfixturevalue("dask_client")
    is_on_gpu = on_cluster and device == "cuda"
    with dask.config.set({"dataframe.backend": "cudf" if is_on_gpu else "pandas"}):
        known = run("dask.md", tmp_path, monkeypatch, capsys, 4, shows=not is_on_gpu)
        rows = known["matches"].compute()
    assert rows["reference"].fillna(-1).to_numpy().tolist() == [0, 1, 2, -1, 0]
    assert (type(rows).__module__.partition(".")[0] == "cudf") == is_on_gpu


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    """Its lines of Python, with the samples of the checkout, print what stands below them."""
    [(code, shown)] = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown
    # A visitor sees places near by.
    assert all(float(line.split()[-2]) < 50 for line in shown.splitlines())


def test_the_calls_of_the_readme_answer():
    """Each of a table, of two sightings of one place in Paris and places around it."""
    seen = {
        "lat": [48.85, 48.85],
        "lon": [2.35, 2.35],
        "country": ["FR", "DE"],
        "at": pd.to_datetime(["2026-01-01 12:00", "2026-01-01 09:00"]),
    }
    # Four metres, four kilometres, a country away, and an ocean.
    places = {
        "lat": [48.85004, 48.886, 50.1, 40.7],
        "lon": [2.35, 2.35, 8.7, -74.0],
        "country": ["FR", "FR", "DE", "US"],
        "at": pd.to_datetime(["2026-01-01 08:00", "2026-01-01 11:30", *["2026-01-01 12:30"] * 2]),
        "beds": [1, 2, 4, 8],
    }
    known = {"georesolve": georesolve, "seen": pd.DataFrame(seen), "places": pd.DataFrame(places)}
    known |= {name: str(ROOT / f"samples/{name}.parquet") for name in ("rivers", "countries")}
    calls = re.findall(r"`(georesolve\.[a-z]+\(.*?\))`", README.partition("## Try it")[0])
    answers = [eval(call, known) for call in calls]
    three, within, sums, same, hour, before, river, country, ellipsoid = answers
    assert three["reference"].tolist() == [0, 1, 2] * 2
    assert within["reference"].tolist() == [0, 1] * 2
    assert sums[["count", "beds_sum"]].to_numpy().tolist() == [[2, 3]] * 2
    assert same["reference"].tolist() == [0, 2]
    assert hour["reference"].fillna(-1).tolist() == [1, 0]
    assert before["reference"].tolist() == [1, 0]
    assert (river["distance_m"] < 5_000).all()
    assert (country["distance_m"] == 0).all()
    assert len(country) == 2
    assert ellipsoid["reference"].tolist() == [0, 0]


def test_airports_have_another_nearest_place_on_the_ellipsoid(monkeypatch, capsys):
    text = (ROOT / "docs/ellipsoid.md").read_text()
    [(code, shown)] = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(compile(code, "ellipsoid.md", "exec"), {})
    assert capsys.readouterr().out == shown
    assert len(shown.splitlines()) == 37


def test_the_command_of_the_readme_runs(tmp_path, monkeypatch):
    [command] = re.findall(r"```\ngeoresolve (nearest .*?)```", README, re.DOTALL)
    matches = tmp_path / "matches.parquet"
    monkeypatch.chdir(ROOT)
    # A shell drops the end of a line that goes on.
    arguments = shlex.split(command.replace("\\\n", "").replace(matches.name, str(matches)))
    assert cli.main(arguments) == 0
    assert "reference_name" in pq.read_schema(matches).names


def test_the_files_that_the_readme_sends_are_there():
    named = set(re.findall(r"samples/[\w-]+\.(?:csv|parquet)", README))
    assert len(named) == 2
    assert [name for name in named if not (ROOT / name).exists()] == []
