"""`georesolve nearest`, called as a user calls it: files, formats, exit codes and what it says."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve import Client, cli, resolve
from georesolve.cli.arguments import METRES, metres
from georesolve.cli.on_files import told
from georesolve.engine.gpus import count_gpus
from georesolve.files import plan
from georesolve.options import Options
from tests import oracle
from tests.conftest import ROOT, points, wait_until


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Observations as CSV and Parquet, references as Parquet with names."""
    folder = tmp_path_factory.mktemp("command")
    observations, references = points(300, 1), points(80, 2)
    pq.write_table(observations, folder / "observations.parquet")
    pa.csv.write_csv(observations, folder / "observations.csv")
    names = pa.array([f"site {i}" for i in range(80)])
    pq.write_table(references.append_column("name", names), folder / "references.parquet")
    return folder


def nearest(*arguments):
    return cli.main(["nearest", *map(str, arguments)])


def ranked(matches):
    return matches["rank"].to_pylist(), matches["status"].to_pylist()


def test_it_is_told_where_the_cap_cuts(files, tmp_path):
    sets = files / "observations.csv", files / "references.parquet", tmp_path / "out.parquet"
    asked = {"k": 3, "max_distance_m": 2e6}
    cut = resolve(*sets, Options(**asked)).cut
    assert cut == resolve(*sets, Options(**asked, how="inner")).cut > 0
    counts = georesolve.within(*sets[:2], 2e6, summary={"count": True})["count"].to_numpy()
    assert cut == (counts >= 3).sum()
    # One is what was asked for, no limit cuts nothing, and of all references there are no more.
    for other in ({"k": 1}, {"max_distance_m": None}):
        assert resolve(*sets, Options(**{**asked, **other})).cut == 0
    few = tmp_path / "few.parquet"
    pq.write_table(pq.read_table(sets[1]).slice(0, 3), few)
    assert resolve(sets[0], few, sets[2], Options(k=3, max_distance_m=2e7)).cut == 0


def test_two_files_become_one(files, tmp_path, capsys):
    out = tmp_path / "matches.parquet"
    sets = files / "observations.csv", files / "references.parquet"
    assert nearest(*sets, "-o", out, "-k", 3, "--max-distance", "2000km", "--columns", "name") == 0
    asked = Options(k=3, max_distance_m=2e6, columns=["name"])
    resolve(*sets, tmp_path / "expected.parquet", asked)
    assert out.read_bytes() == (tmp_path / "expected.parquet").read_bytes()
    matches = pq.read_table(out)
    said = capsys.readouterr()
    matched = matches["status"].to_pylist().count("matched")
    assert said.out == ""
    assert "300 observations, 80 references" in said.err
    assert f"{matched:,}" in said.err
    # Each of the three ranks of so many is taken.
    cut = sum(r == 3 and s == "matched" for r, s in zip(*ranked(matches), strict=True))
    assert 0 < cut < 300
    assert f"  {cut} observations have all 3, and may have more within 2,000.0 km: " in said.err
    farthest = pc.max(matches["distance_m"]).as_py()
    assert f"largest {farthest / 1000:,.1f} km" in said.err


def in_terminal(*arguments, **more):
    """What the command writes to a terminal of 100 columns, which standard error is."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    command = [sys.executable, "-m", "georesolve", "nearest", *arguments]
    written = b""
    with subprocess.Popen(command, stderr=theirs, cwd=ROOT, env=os.environ | more) as run:
        os.close(theirs)
        # On Linux a terminal whose other end is closed gives an error.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                written += piece
    os.close(ours)
    assert run.returncode == 0
    return written.decode()


def test_what_sigterm_ends_leaves_nothing_behind(files, tmp_path):
    """As a job of the night that took too long."""
    (scratch := tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "georesolve", "nearest", "-", files / "references.parquet"]
    with subprocess.Popen(
        [*command, "-o", tmp_path / "matches.parquet"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(scratch)},
    ) as process:
        wait_until(lambda: list(scratch.iterdir()), process=process)
        process.terminate()
        assert process.stderr.read() == b"georesolve: interrupted; nothing was written\n"
    assert process.returncode == 130
    assert [*tmp_path.iterdir()] == [scratch]
    assert not [*scratch.iterdir()]


def test_a_thread_may_run_a_command(files, tmp_path):
    asked = files / "observations.csv", files / "references.parquet", "-o", tmp_path / "out.csv"
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(nearest, *asked).result() == 0


def test_the_first_call_says_that_it_compiles(files, tmp_path):
    asked = files / "observations.csv", files / "references.parquet", "-o", tmp_path / "out.csv"
    asked += ("--device", "cpu")
    first, again = (in_terminal(*asked, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert "compiling the kernels, once for this machine:   0%" in first
    [compiled] = re.findall(r"compiled the kernels, once for this machine: ([0-9.]+) s", first)
    [resolved] = re.findall(r"resolved and written in ([0-9.]+) s", first)
    assert float(compiled) > float(resolved)
    assert "rows/s" in again
    assert "compil" not in again


def test_standard_input_and_output(files, tmp_path):
    command = [sys.executable, "-m", "georesolve", "nearest", "-", files / "references.parquet"]
    command += ["-o", "-", "--to", "csv", "--from", "csv", "--quiet"]
    with (files / "observations.csv").open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, cwd=ROOT, check=True)
    assert done.stderr == b""
    rows = pa.csv.read_csv(io.BytesIO(done.stdout)).to_pydict()
    observations = pq.read_table(files / "observations.parquet").to_pydict()
    references = pq.read_table(files / "references.parquet").to_pydict()
    expected, _ = oracle.nearest(
        *(np.array(side[name]) for side in (observations, references) for name in ("lat", "lon"))
    )
    assert rows["reference"] == np.ravel(expected).tolist()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "geojson"])
def test_a_service_gives_the_same_bytes(files, tmp_path, capsys, service, suffix):
    sets = files / "observations.csv", files / "references.parquet"
    here, there = tmp_path / f"here.{suffix}", tmp_path / f"there.{suffix}"
    assert nearest(*sets, "-o", here, "-k", 2) == 0
    counted = capsys.readouterr().err.splitlines()[1]
    assert nearest(*sets, "-o", there, "-k", 2, "--server", service.base_url) == 0
    assert there.read_bytes() == here.read_bytes()
    assert capsys.readouterr().err.splitlines() == [counted]


@pytest.mark.parametrize(
    "flags",
    [
        ("-d", "2000km", "--columns", "name"),
        ("-d", "2000km", "--count", "--summary", "lat:sum,max", "--summary-by", "reference"),
    ],
)
def test_a_service_gives_the_bytes_of_all_within_a_distance(files, tmp_path, service, flags):
    sets = files / "observations.csv", files / "references.parquet"
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    asked = ["within", *map(str, sets), *flags]
    assert cli.main([*asked, "-o", str(here)]) == 0
    assert cli.main([*asked, "-o", str(there), "--server", str(service.base_url)]) == 0
    assert there.read_bytes() == here.read_bytes()
    assert pq.read_metadata(here).num_rows > 10


def test_a_plan_of_pairs_is_a_sample_with_its_spread(files, tmp_path, capsys):
    sets = files / "observations.parquet", files / "references.parquet"
    asked = ["within", *map(str, sets), "-d", "2000km"]
    assert cli.main([*asked, "-o", str(tmp_path / "pairs.parquet")]) == 0
    rows = pq.read_metadata(tmp_path / "pairs.parquet").num_rows
    for flags in ([], ["--count"]):
        capsys.readouterr()
        assert cli.main([*asked, *flags, "--plan"]) == 0
        said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        if flags:
            assert said["result"] == "300 rows at most"
            assert said["columns"].startswith("observation, count, status")
        else:
            # All of these sets is in the sample.
            assert said["result"].startswith(f"{rows:,} rows by a sample, give or take ")
            assert said["columns"].startswith("observation, reference, distance_m, status")


def test_a_service_is_asked_for_what_it_has(files, tmp_path, service):
    with Client(str(service.base_url)) as client:
        client.register(files / "references.parquet", alias="sites")
    sets = files / "observations.csv", "dataset:sites"
    assert nearest(*sets, "-o", tmp_path / "a.csv", "--server", service.base_url) == 0
    assert nearest(sets[0], files / "references.parquet", "-o", tmp_path / "b.csv") == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_star_stands_for_all_columns(files, tmp_path, service):
    sets = files / "observations.csv", files / "references.parquet"
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    assert nearest(*sets, "-o", here, "--columns", "*") == 0
    assert nearest(*sets, "-o", there, "--columns", "*", "--server", service.base_url) == 0
    assert here.read_bytes() == there.read_bytes()
    assert {"reference_name", "reference_lat"} < set(pq.read_schema(here).names)


def test_a_service_that_refuses_is_quoted(files, tmp_path, capsys, service):
    sets = files / "observations.csv", files / "references.parquet"
    flags = "--columns", "height", "--server", service.base_url
    assert nearest(*sets, "-o", tmp_path / "out.parquet", *flags) == 1
    assert "there is no column 'height'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_plan_reads_and_writes_nothing(files, tmp_path, capsys):
    sets = files / "observations.parquet", files / "references.parquet"
    flags = "-k", 2, "--near", "--columns", "name"
    assert nearest(*sets, "--plan", *flags, "-o", tmp_path / "out.parquet") == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["observations"] == "300 rows, 0 invalid"
    assert said["result"] == "600 rows at most"
    assert said["columns"].endswith(
        "reference, distance_m, near_lat, near_lon, bearing_deg, status, observation_id, "
        "reference_id, reference_name"
    )
    assert said["device"] == ("cuda" if count_gpus() else "cpu")
    assert said["search"].split(",")[0] in ("brute", "packets", "singles")
    seconds = [float(one) for one in re.findall(r"([0-9.]+) s", said["time"])]
    assert re.sub("[0-9.]+ s", "N", said["time"]) == "about N: read N, search N, write N"
    assert seconds[0] == pytest.approx(sum(seconds[1:]), abs=0.02)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_counts_reading_and_writing(files, tmp_path, capsys):
    sets = files / "observations.parquet", files / "references.parquet"
    took = {suffix: plan(*sets, out=f"out.{suffix}").seconds for suffix in ("parquet", "csv")}
    assert all(second > 0 for one in took.values() for second in one.values())
    assert took["csv"]["write"] > took["parquet"]["write"]
    more = plan(*sets, Options(k=4, columns=["name"]), format="csv").seconds
    assert more["write"] > 4 * took["csv"]["write"]
    # Refused as it would be by the run itself.
    assert nearest(*sets, "--plan", "-o", tmp_path / "out.doc") == 1
    assert "is no format of a result" in capsys.readouterr().err
    # A service writes Parquet files into a folder, whatever that is called.
    at = "--server", "http://localhost:1", "-o", "s3://bucket/2026.11.27/"
    assert nearest(*sets, "--plan", *at) == 0


def test_a_plan_knows_where_the_points_lie(tmp_path):
    n = 1 << 14
    spread, place = points(n, 1), pa.array(np.full(n, 5.0))
    sets = {
        "spread": (spread, spread),
        "one place": [spread.set_column(1, "lat", place).set_column(2, "lon", place)] * 2,
        "ring": [spread.set_column(1, "lat", pa.array(np.full(n, lat))) for lat in (90.0, 45.0)],
    }
    seconds = {}
    for name, tables in sets.items():
        paths = [tmp_path / f"{role}.parquet" for role in ("observations", "references")]
        for table, path in zip(tables, paths, strict=True):
            pq.write_table(table, path)
        # Of one core: a machine has several.
        each = plan(*paths, device="cpu").seconds["search"] / n
        seconds[name] = each * numba.config.NUMBA_NUM_THREADS
    assert 1e-7 < seconds["spread"] < 2e-7
    assert 2 < seconds["one place"] / seconds["spread"] < 3
    # Each with each, half a nanosecond for a pair.
    assert 0.4e-9 < seconds["ring"] / n < 0.6e-9


@pytest.mark.parametrize(
    ("flags", "exit_code", "said"),
    [
        (("-k", "65"), 1, "k must be a whole number from 1 to 64, got 65"),
        (("--columns", "height"), 1, "there is no column 'height'"),
        (("--observation-lat", "breite"), 1, "observations: "),
        (("--to", "gpkg", "--server", "http://host"), 1, "a service gives no result as 'gpkg'"),
        pytest.param(
            *(("--device", "cuda"), 3, "no GPU"),
            marks=pytest.mark.skipif(count_gpus() > 0, reason="there is a GPU"),
        ),
    ],
)
def test_what_is_refused_leaves_nothing(files, tmp_path, capsys, flags, exit_code, said):
    sets = files / "observations.parquet", files / "references.parquet"
    assert nearest(*sets, "-o", tmp_path / "out.parquet", *flags) == exit_code
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nearest", "a.csv", "b.csv"], "-o FILE says where the result goes"),
        (["nearest", "a.csv", "b.csv", "--max-distance", "5 parsec"], "write a number and one of"),
        (["nearest", "a.csv"], "REFERENCES"),
        (
            ["nearest", "a.csv", "b.csv", "-o", "s3://out/", "--server", "http://host", "--to=csv"],
            "leave --to out",
        ),
        (["nearest", "a.csv", "b.csv", "-o", "c.csv", "--from", "csv"], "of standard input"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_told(capsys, arguments, said):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("server", [(), ("--server", "http://127.0.0.1:9")])
def test_a_file_that_is_not_there(files, tmp_path, capsys, server):
    sets = tmp_path / "no.csv", files / "references.parquet"
    assert nearest(*sets, "-o", tmp_path / "o.csv", *server) == 1
    assert "there is no file at" in capsys.readouterr().err


@pytest.mark.parametrize("server", [(), ("--server", "http://127.0.0.1:9")])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("observations.csv", "would replace"),
        ("link.csv", "would replace"),
        (".", "is a folder"),
        ("no/matches.csv", "there is no folder"),
    ],
)
def test_a_result_that_cannot_be_there(files, tmp_path, capsys, server, target, said):
    for name in ("observations.csv", "references.parquet"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    (tmp_path / "link.csv").symlink_to(tmp_path / "observations.csv")
    sets = tmp_path / "observations.csv", tmp_path / "references.parquet"
    before = sets[0].read_bytes(), sorted(tmp_path.iterdir())
    assert nearest(*sets, "-o", tmp_path / target, *server) == 1
    assert said in capsys.readouterr().err
    assert (sets[0].read_bytes(), sorted(tmp_path.iterdir())) == before


@pytest.mark.parametrize(
    ("read", "written", "is_refused"),
    [
        ("lake", "lake/out.parquet", True),
        ("lake", "lake/day=2/out.csv", True),
        ("lake", "link/out.parquet", True),
        ("lake", "lake/away.parquet", True),
        ("**/*.parquet", "out.parquet", True),
        ("link/", "lake/out.parquet", True),
        ("lake/*/*.parquet", "lake/day=2/../day=2/out.parquet", True),
        ("lake/**/*.parquet", "lake/out.parquet", True),
        ("lake/**", "lake/day=1/out.parquet", True),
        ("link/day=?/[a-z]*.parquet", "lake/day=1/out.parquet", True),
        ("lake/day=1/pa??.parquet", "lake/day=1/pass.parquet", True),
        ("lake", "lake/_out.parquet", False),
        ("lake", "lakes/out.parquet", False),
        ("lake", "into.parquet", False),
        ("lake/*/part.parquet", "out.parquet", False),
        ("lake/day=1", "lake/day=2/out.parquet", False),
        ("lake/day=1/part.parquet", "lake/day=1/out.parquet", False),
        ("lake/*/*.parquet", "lake/out.parquet", False),
        ("lake/*/*.parquet", "lake/day=1/out.csv", False),
        ("lake/**/*.parquet", "lake/.out.parquet", False),
    ],
)
def test_no_result_lies_where_the_next_run_would_read_it(
    files, tmp_path, monkeypatch, capsys, read, written, is_refused
):
    for day in (1, 2):
        (tmp_path / f"lake/day={day}").mkdir(parents=True)
        part = tmp_path / f"lake/day={day}/part.parquet"
        part.write_bytes((files / "observations.parquet").read_bytes())
    (tmp_path / "lakes").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    # Links to nothing: the folder that one is in has the result, which takes its place.
    (tmp_path / "lake/away.parquet").symlink_to(tmp_path / "away.parquet")
    (tmp_path / "into.parquet").symlink_to(tmp_path / "lake/into.parquet")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for own in (tmp_path / read, read):
        command = own, files / "references.parquet", "-o", written
        assert nearest(*command) == is_refused
        said = capsys.readouterr().err
        assert ("would lie among the files of" in said) == is_refused
        if is_refused:
            assert sorted(tmp_path.rglob("*")) == before
            continue
        first = (tmp_path / written).read_bytes()
        assert nearest(*command) == 0
        assert (tmp_path / written).read_bytes() == first


def test_an_address_of_no_service(files, tmp_path, capsys):
    sets = files / "observations.csv", files / "references.parquet"
    for address in ("localhost:8000", "http://[::"):
        with pytest.raises(SystemExit):
            nearest(*sets, "-o", tmp_path / "out.csv", "--server", address)
        assert "is no address of a service" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [((), "say it with --from"), (("--from", "txt"), "name it .csv or .geojson")],
)
def test_standard_input_of_no_known_format(files, tmp_path, capsys, monkeypatch, flags, said):
    with (files / "observations.csv").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        out = tmp_path / "out.csv"
        assert nearest("-", files / "references.parquet", "-o", out, *flags) == 1
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_standard_input_of_a_format_that_is_not_read(files, tmp_path, capsys, monkeypatch):
    workbook = tmp_path / "workbook"
    workbook.write_bytes(b"PK\3\4".ljust(30, b"\0") + b"[Content_Types].xml")
    with workbook.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert nearest("-", files / "references.parquet", "-o", tmp_path / "out.csv") == 1
    assert "an Excel workbook: save it as CSV" in capsys.readouterr().err


@pytest.mark.parametrize("unit", METRES)
def test_distances_have_units(unit):
    assert metres(f"2{unit}") == metres(f" 2.0 {unit} ") == 2 * METRES[unit]
    assert metres("1e3") == 1000


def test_distances_are_told_in_their_unit():
    assert [told(d) for d in (0.1234, 12.3, 812.3, 5432.1, 2e7)] == [
        *("0.123 m", "12.3 m", "812 m", "5.4 km", "20,000.0 km")
    ]


def test_every_command_of_the_service_is_one_of_georesolve(capsys):
    whole = cli.parser().format_help()
    for name in ("serve", "keys", "sweep", "backup", "bench"):
        assert re.search(f"^    {name} ", whole, re.MULTILINE)
        with pytest.raises(SystemExit, match="0"):
            cli.main([name, "--help"])
        assert f"usage: georesolve {name} " in capsys.readouterr().out


@pytest.mark.parametrize("asked", [[], ["--help"], ["--version"], ["within", "--help"]])
def test_what_is_said_of_commands_loads_no_library_of_theirs(asked):
    script = (
        f"import sys; sys.modules |= dict.fromkeys(('numba', 'pandas', 'pyarrow'))\n"
        f"sys.argv = ['georesolve', *{asked}]\n"
        "from georesolve.__main__ import main; sys.exit(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == (0 if asked else 2)
    whole = {"--help": cli.parser().format_help(), "--version": georesolve.__version__}
    whole |= {"": "COMMAND", "within--help": "--max-time TIME"}
    assert whole["".join(asked)] in (ran.stdout or ran.stderr)


def test_help_says_what_a_flag_does_and_not_its_value(capsys):
    with pytest.raises(SystemExit):
        cli.main(["nearest", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "--no-exact no reference of the very time matches" in told


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_shells_complete_commands_and_flags(capsys, shell):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--print-completion", shell])
    assert caught.value.code == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("nearest", "--max-distance", "serve"))
