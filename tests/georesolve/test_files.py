"""`georesolve.files`: the bytes of the service, from files of each format, piece by piece."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve import files
from georesolve.engine import in_memory
from georesolve.frames import given
from georesolve.io.columns import Reading
from georesolve.options import Options
from georesolve.query import MatchOptions
from georesolve.workers.own_cluster import resolve_on_all_gpus
from tests.conftest import ROOT, points

OBSERVATIONS = points(3000, 1, name=[f"o{i}" for i in range(3000)])
REFERENCES = points(500, 2, name=[f"r{i}" for i in range(500)])


def geojson(table):
    return json.dumps(
        {
            "type": "FeatureCollection",
            "features": [
                {
                    "type": "Feature",
                    "geometry": {"type": "Point", "coordinates": [row.pop("lon"), row.pop("lat")]},
                    "properties": row,
                }
                for row in table.to_pylist()
            ],
        }
    )


def write(table, path):
    match path.name.partition(".")[2]:
        case "parquet":
            pq.write_table(table, path, row_group_size=700)
        case "arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, 500)
        case "csv":
            pa.csv.write_csv(table, path)
        case "csv.gz":
            write(table, path.with_suffix(""))
            path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
        case "geojson":
            path.write_text(geojson(table))
    return path


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "csv.gz", "geojson"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "max_distance_m": 2e6, "columns": ["name"], "observation_columns": ["name"]},
        {"how": "inner", "max_distance_m": 5e5, "algorithm": "brute"},
        {"columns": "*", "observation_columns": "*"},
        {"near": True, "max_distance_m": 2e5, "columns": ["lat"]},
    ],
)
def test_the_bytes_of_the_service(service, tmp_path, suffix, options):
    observations = write(OBSERVATIONS, tmp_path / f"observations.{suffix}")
    references = write(REFERENCES, tmp_path / f"references.{suffix}")
    sent = {
        role: (path.name, path.read_bytes())
        for role, path in (("observations", observations), ("references", references))
    }
    answer = service.post("/resolve", files=sent, params=options).raise_for_status()
    summary = files.resolve(
        observations, references, tmp_path / "matches.parquet", Options(**options)
    )
    assert (tmp_path / "matches.parquet").read_bytes() == answer.content
    assert sum(summary.counts.values()) == 3000 * options.get("k", 1)
    assert (summary.observations, summary.references) == (3000, 500)
    in_memory = georesolve.nearest(observations, references, **options)
    assert in_memory.to_pylist() == pq.read_table(tmp_path / "matches.parquet").to_pylist()
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


def test_many_pieces_are_the_bytes_of_a_job(service, tmp_path, monkeypatch):
    """As a job of the service, with many row groups, which here are made piece by piece."""
    options = {"k": 2, "columns": ["name"], "near": True}
    large = points(200_000, 3, name=np.arange(200_000).astype(str))
    observations = write(large, tmp_path / "observations.parquet")
    references = write(REFERENCES, tmp_path / "references.parquet")
    sent = {"observations": observations.read_bytes(), "references": references.read_bytes()}
    answer = service.post("/resolve", files=sent, params=options).raise_for_status()
    monkeypatch.setattr(files, "RESULT_ROWS", 2**17)
    told = []
    files.resolve(
        observations,
        references,
        tmp_path / "matches.parquet",
        Options(**options),
        progress=lambda *now: told.append(now),
    )
    assert (tmp_path / "matches.parquet").read_bytes() == answer.content
    assert told == [(0, 200_000), *((65_536 * i, 200_000) for i in (1, 2, 3)), (200_000, 200_000)]


@pytest.mark.parametrize("several", ["glob", "folder", "list"])
def test_several_files_are_one_table(tmp_path, several):
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    parts = [
        write(OBSERVATIONS.slice(start, 1000), folder / f"{start:04}.parquet")
        for start in (0, 1000, 2000)
    ]
    paths = {"glob": str(folder / "*.parquet"), "folder": folder, "list": parts}[several]
    references = write(REFERENCES, tmp_path / "references.csv")
    files.resolve(paths, references, tmp_path / "several.parquet")
    files.resolve(
        write(OBSERVATIONS, tmp_path / "whole.parquet"), references, tmp_path / "one.parquet"
    )
    assert (tmp_path / "several.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


def test_a_refusal_names_the_file_of_a_row(tmp_path):
    """Files of a lake have the same names in each of its folders."""
    good = write(REFERENCES, tmp_path / "good.parquet")
    for day, latitude in (("22", 1.0), ("23", 95.0)):
        (folder := tmp_path / "lake" / f"day={day}").mkdir(parents=True)
        table = pa.table({"lat": [1.0, 1.0, latitude], "lon": [1.0, 2.0, 3.0]})
        write(table, folder / "part-0.parquet")
    told = r"first one row 5.* row 5 is row 2 of day=23/part-0\.parquet"
    with pytest.raises(georesolve.InvalidInput, match=told):
        files.resolve(tmp_path / "lake", good, tmp_path / "matches.parquet")
    with pytest.raises(georesolve.InvalidInput, match=told):
        georesolve.nearest(tmp_path / "lake", good)
    (folder / "part-0.parquet").write_bytes(good.read_bytes()[:-20])
    with pytest.raises(georesolve.InvalidInput, match=r"\(day=23/part-0\.parquet\): not a read"):
        georesolve.nearest(tmp_path / "lake", good)


@pytest.mark.parametrize("texts", [("x", "1"), ("1", "x")])
def test_a_row_of_one_file_is_told_once(tmp_path, texts):
    (lake := tmp_path / "lake").mkdir()
    for number, text in enumerate(texts):
        (lake / f"{number}.csv").write_text(f"lat,lon\n1,1\n{text},1\n")
    told = rf"observations \({texts.index('x')}\.csv\): .* row 1: the value 'x' is not a number"
    with pytest.raises(georesolve.InvalidInput, match=told) as refused:
        georesolve.nearest(lake, REFERENCES)
    assert " is row " not in str(refused.value)


def test_several_files_without_numbers_are_refused(tmp_path):
    (lake := tmp_path / "lake").mkdir()
    for name in ("a", "b"):
        write(pa.table({"lat": ["x"], "lon": [1.0]}), lake / f"{name}.parquet")
    with pytest.raises(georesolve.InvalidInput, match="'lat' holds string, not numbers"):
        georesolve.nearest(lake, REFERENCES)


def test_a_refusal_lists_all_columns_of_a_file(tmp_path):
    other = REFERENCES.rename_columns(["id", "north", "east", "name"])
    with pytest.raises(georesolve.InvalidInput, match="found 'id', 'north', 'east', 'name'"):
        georesolve.nearest(write(other, tmp_path / "other.parquet"), REFERENCES)


def test_refusals_leave_no_file(tmp_path):
    good = write(REFERENCES, tmp_path / "good.parquet")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "cut.parquet").write_bytes(good.read_bytes()[:-20])
    other = REFERENCES.set_column(0, "id", pa.array([str(i) for i in range(500)]))
    write(other, tmp_path / "good2.parquet")
    refused = {
        "empty.csv": "observations: the file is empty",
        "cut.parquet": "observations: not a readable parquet file",
        "nothing.csv": "observations: there is no file at",
        "good*.parquet": r"'id' is int64 in good\.parquet and string in good2\.parquet",
    }
    before = set(tmp_path.iterdir())
    for name, words in refused.items():
        with pytest.raises(ValueError, match=words):
            files.resolve(tmp_path / name, good, tmp_path / "matches.parquet")
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["matches.parquet", "matches.csv", "matches.gpkg"])
def test_an_output_that_is_no_regular_file_is_refused_before_sets_are_read(tmp_path, name):
    unreadable = tmp_path / "unreadable.parquet"
    unreadable.write_bytes(b"no Parquet")
    os.mkfifo(tmp_path / name)
    before = {*tmp_path.iterdir()}
    with pytest.raises(georesolve.InvalidOption, match="is no regular file"):
        files.resolve(unreadable, unreadable, tmp_path / name)
    assert {*tmp_path.iterdir()} == before
    assert (tmp_path / name).is_fifo()


def test_memory_stays_bounded(tmp_path):
    """Of many observations no more are in memory than of few."""
    path = tmp_path / "large.parquet"
    table = points(2**17, 4)
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(32):
            writer.write_table(table)
    references = write(REFERENCES, tmp_path / "references.parquet")
    script = f"""
import os, re
from pathlib import Path

# Each thread keeps some memory of its own: as many on every machine.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
os.environ["CUDA_VISIBLE_DEVICES"] = ""
from georesolve import files

def look(done, rows):
    status = Path("/proc/self/status").read_text()
    mib[done] = int(re.search(r"RssAnon:\\s*(\\d+)", status)[1]) >> 10

mib = {{}}
files.RESULT_ROWS = 2**17
files.resolve({str(path)!r}, {str(references)!r}, {str(tmp_path / "out")!r}, progress=look)
print(mib[2**22] - mib[2**19], mib)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert pq.read_metadata(tmp_path / "out").num_rows == 2**22
    # Three and a half million rows of the result are 105 MiB.
    assert int(ran.stdout.split()[0]) < 60, ran.stdout


def test_on_a_cluster_the_rows_are_the_same(device):
    """What several GPUs get: files, a cluster of its own, and the result of its job."""
    sets = [
        given(table, "observations").points(Reading(), None) for table in (OBSERVATIONS, REFERENCES)
    ]
    options = MatchOptions(k=2, columns=("name",))
    told = []
    result = resolve_on_all_gpus(*sets, options, lambda *now: told.append(now), device=device)
    expected = georesolve.nearest(OBSERVATIONS, REFERENCES, k=2, columns=["name"])
    assert result.to_pylist() == expected.to_pylist()
    assert told[-1] == (3000, 3000)
    assert not in_memory.deserves_all_gpus(10**6, 10**6, options)
