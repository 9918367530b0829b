"""The benchmarks run, at toy size, whatever peers are installed."""

import json
import shutil
import sys
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from georesolve import kernels as kernels_of_ours
from georesolve.benchmarks import (
    accepting,
    doors,
    fronts,
    geodesics,
    groups_and_times,
    kernels,
    lake,
    maps,
    radius,
    service,
    small_requests,
    turns,
    whole_jobs,
)
from georesolve.benchmarks.spatialbench import __main__ as spatialbench
from georesolve.io.storage import Folder
from georesolve.query import MatchOptions
from georesolve.workers.job import Job
from georesolve.workers.pipeline import run
from georesolve.workers.results.manifest import open_matches
from tests.conftest import points, sphere


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


def test_the_benchmark_of_the_ellipsoid_runs(tmp_path, capsys):
    path = tmp_path / "figures.json"
    geodesics.main(["--toy", "--repeats", "1", "--json", str(path)])
    figures = json.loads(path.read_text())["figures"]
    assert len(figures) == len(geodesics.CASES["cpu"])
    assert not any(row["wrong"] for row in figures)
    assert "cKDTree and PROJ" in capsys.readouterr().out


def test_groups_and_windows_are_measured_beside_the_ways_round(tmp_path, capsys):
    path = tmp_path / "figures.json"
    groups_and_times.main(["--toy", "--repeats", "1", "--json", str(path)])
    figures = json.loads(path.read_text())["figures"]
    found = {(row["case"], row["method"]): row["found"] for row in figures}
    assert found["200 groups", "ours"] == found["200 groups", "loop over groups"]
    assert found["window of 1 %", "ours"] >= found["window of 1 %", "64, then the window"]
    assert "100000 groups" in capsys.readouterr().out


def test_all_within_a_distance_is_counted_and_found_beside_peers(tmp_path, capsys):
    path = tmp_path / "figures.json"
    radius.main(["--toy", "--repeats", "1", "--json", str(path)])
    figures = json.loads(path.read_text())["figures"]
    for kind in ("uniform", "cities"):
        found = {row["method"]: row["found"] for row in figures if row["kind"] == kind}
        # Those in SQL are of packages that tests do not have, and one of them answers on a plane.
        trees = {name: n for name, n in found.items() if "DB" not in name}
        assert len(trees) == 6
        # No pair lies at the edge of the distance.
        assert len(set(trees.values())) == 1
    assert "uniform: 1024 observations, 512 references" in capsys.readouterr().out


def test_versions_take_turns(capsys, device):
    turns.main(["--toy", "--pairs", "1", "--device", device])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(turns.comparisons(device))
    assert all(" ratio " in line for line in lines)


def test_the_other_version_is_that_of_its_own_folder(tmp_path):
    package = tmp_path / "georesolve"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "kernels.py").write_text(
        "from pathlib import Path\n"
        "def build_index(*references): Path('called').touch()\n"
        "def nearest(*arguments, **query): pass\n"
    )
    np.savez(tmp_path / "sets.npz", references=np.zeros((2, 1)), observations=np.zeros((2, 1)))
    with ExitStack() as stack:
        other = turns._Version(tmp_path, "cpu", stack)
        assert other.seconds(0, tmp_path / "sets.npz", turns.Search("uniform", 1, 1)) > 0
    assert (tmp_path / "called").exists()


def test_the_bound_of_a_median_is_one_of_its_ratios():
    # Of fifteen, eleven or more are below the median once in seventeen times, twelve once in 57.
    assert turns.upper_bound([float(i) for i in range(15)]) == 11.0
    assert turns.upper_bound([2.0]) == 2.0


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


@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk here")
def test_small_requests_beside_a_bare_app(tmp_path, monkeypatch, device):
    out = tmp_path / "out.json"
    sizes = ["--references", "500", "--rows", "10", "--requests", "5", "--clients", "4"]
    sizes += ["--rounds", "1", "--seconds", "1"]
    monkeypatch.setattr(sys, "argv", ["", "--device", device, *sizes, "--json", str(out)])
    small_requests.main()
    figures = json.loads(out.read_text())
    assert {"http", "total", "at_hand", "resolve", "write"} <= figures["alone"].keys()
    assert {"bare app", "service"} <= figures["together"]["1"].keys()
    assert all(turn["p50"] > 0 for [turn] in figures["together"]["4"].values())


@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk here")
def test_small_requests_by_number_of_fronts(tmp_path, monkeypatch, device):
    out = tmp_path / "out.json"
    sizes = ["--references", "500", "--observations", "1000", "--clients", "4", "--seconds", "1"]
    flags = ["--device", device, "--fronts", "2", *sizes, "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["", *flags])
    fronts.main()
    figures = json.loads(out.read_text())["fronts"]
    assert figures.keys() == {"2"}
    for found in figures.values():
        assert found["alone"]["requests_a_second"] > 0
        assert found["beside jobs"]["done"] > 0 < found["beside uploads"]["done"]


@pytest.mark.timeout(300)
def test_a_job_beside_its_floor_and_beside_ckdtree(tmp_path, capsys, device):
    out = tmp_path / "out.json"
    flags = ["--observations", "10", "--references", "places", "--repeats", "1", "--workers", "1"]
    peer = ["--ckdtree"] if device == "cpu" else []
    whole_jobs.main(["--device", device, *flags, *peer, "--json", str(out)])
    figures = json.loads(out.read_text())
    assert figures["failed"] == {}
    floors = {"floor, our reader and writer", "floor, Dask's dataframes"}
    jobs = {"job", "accepted to successful", "stage resolve", *(["job, cKDTree"] if peer else [])}
    assert floors | jobs <= figures["seconds"].keys()
    assert set(figures["rows unlike ours"].values()) == {0}
    assert "job / it" in capsys.readouterr().out


def test_the_floor_is_shaped_like_the_result(tmp_path, cluster):
    table = points(1_000, 1)
    references = whole_jobs.canonical(table, tmp_path / "references.parquet")
    observations = whole_jobs.canonical(table.drop(["id"]), tmp_path / "observations.parquet")
    job = Job(observations, references, MatchOptions(), id="a" * 32, folder=tmp_path / "job")
    run(cluster, job, lambda progress: None, lambda: False)
    want = pq.read_schema(open_matches(job.folder)).remove_metadata()
    for floor in (whole_jobs.our_floor, whole_jobs.floor_of_dask):
        folder = tmp_path / floor.__name__
        folder.mkdir()
        to = Folder(folder) if floor is whole_jobs.our_floor else folder
        floor(cluster, (observations, references), to)
        written = [pq.read_table(path) for path in folder.glob("*.parquet")]
        assert sum(part.num_rows for part in written) == 1_000
        for part in written:
            assert [field.name for field in part.schema] == want.names
            if floor is whole_jobs.our_floor:
                assert part.schema.types == want.types


@pytest.mark.timeout(300)
def test_a_job_between_files(tmp_path, capsys, device):
    out, place = tmp_path / "out.json", tmp_path / "lake"
    sizes = ["--observations", "17", "--references", "8", "--repeats", "1", "--workers", "1"]
    lake.main(["--device", device, *sizes, "--place", str(place), "--json", str(out)])
    figures = json.loads(out.read_text())
    assert figures["seconds"].keys() == {
        "job",
        "floor, our reader and writer",
        "floor, moving the bytes",
        "floor, Dask's dataframes",
    }
    assert {"worker", "runner", "front"} <= figures["memory bytes"].keys()
    # The random bits of a distance alone take more than 4 bytes.
    assert figures["result bytes"] > 4 * 2**17
    assert not list(place.rglob("*.parquet"))
    told = capsys.readouterr().out
    assert "131,072 x 256" in told
    assert "of the last job: read " in told


def test_ckdtree_answers_as_ours_does():
    (lat, lon), references = sphere(500, 1), sphere(100, 2)
    answer = whole_jobs.nearest_by_scipy(whole_jobs.ScipyIndex(*references), lat, lon, k=1)
    ours = kernels_of_ours.nearest(kernels_of_ours.build_index(*references), lat, lon)
    np.testing.assert_array_equal(answer.reference, ours.reference)
    np.testing.assert_allclose(answer.distance_m, ours.distance_m, atol=1e-6)


def test_ckdtree_is_not_for_gpus(capsys):
    with pytest.raises(SystemExit):
        whole_jobs.main(["--device", "cuda", "--ckdtree"])
    assert "--ckdtree searches on a CPU" in capsys.readouterr().err


def test_what_the_doors_cost(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["", "--toy", "--repeats", "1", "--json", str(out)])
    doors.main()
    figures = json.loads(out.read_text())
    assert all(len(figures[name]) == 1 for name in figures.keys() - {"commit", "machine"})
    assert len(figures) == 9
    assert "| bare script |" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["parquet", "csv", "arrows"])
def test_what_it_takes_to_be_accepted(tmp_path, monkeypatch, capsys, format):
    out = tmp_path / "out.json"
    flags = ["--rows", "10", "--runs", "1", "--format", format, "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["accepting", *flags])
    accepting.main()
    seconds = json.loads(out.read_text())["seconds"]
    assert [len(values) for values in seconds.values()] == [1, 1]
    assert "accepted / floor" in capsys.readouterr().out


def test_maps(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["maps", "--rows", "10", "--zoom", "1", "--json", str(out)])
    maps.main()
    report = json.loads(out.read_text())
    assert len(report["png"]) == len(report["geojson"]) == 4
    assert "first picture" in capsys.readouterr().out


def test_spatialbench_from_files_to_file(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(3)
    lat, lon = rng.uniform(-60, 60, 500), rng.uniform(-170, 170, 500)
    near = np.arange(500) % 40
    buildings = shapely.box(lon[:40], lat[:40], lon[:40] + 0.001, lat[:40] + 0.001)
    pickups = shapely.points(lon[near] + rng.normal(0, 1e-3, 500), lat[near])
    keys = pa.array(np.arange(500))
    trips = {"t_tripkey": keys, "t_pickuploc": shapely.to_wkb(pickups)}
    of_buildings = {
        "b_buildingkey": keys[:40],
        "b_name": [f"building {i}" for i in range(40)],
        "b_boundary": shapely.to_wkb(buildings),
    }
    pq.write_table(pa.table(trips), tmp_path / "trip.parquet")
    pq.write_table(pa.table(of_buildings), tmp_path / "building.parquet")
    path = tmp_path / "figures.json"
    monkeypatch.setattr(
        sys, "argv", ["spatialbench", str(tmp_path), "--repeats", "1", "--json", str(path)]
    )
    spatialbench.main()
    figures = json.loads(path.read_text())
    assert figures["q12 georesolve"]["rows"] == 2500
    assert figures["q8 georesolve"]["rows"] == figures["q8 geopandas"]["rows"] == 40
    assert "| q12 | georesolve | 2500 |" in capsys.readouterr().out
