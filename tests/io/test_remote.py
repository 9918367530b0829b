"""Files at addresses, from Python and by the command: the rows that files on this machine give."""

import functools
import gzip
import http.server
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import georesolve
from georesolve import cli
from georesolve.options import Options
from tests.conftest import points
from tests.object_store import BUCKET, line_to, seaweed
from tests.service.test_resolve import csv, parquet

OBSERVATIONS = points(1000, 1, name=[f"o{i}" for i in range(1000)])
REFERENCES = points(300, 2, name=[f"r{i}" for i in range(300)])
PLACE = f"s3://{BUCKET}"
EXPECTED = georesolve.nearest(OBSERVATIONS, REFERENCES, columns=["name"])


FILES = {
    **{f"lake/day={i}/part.parquet": OBSERVATIONS.slice(250 * i, 250) for i in range(4)},
    "lake/_SUCCESS": b"",
    "text/a.csv.gz": gzip.compress(csv(OBSERVATIONS.slice(0, 600))),
    "text/b.csv": csv(OBSERVATIONS.slice(600)),
    "references.parquet": REFERENCES,
    "references.parquet.old": b"no table",
    "shapes/a.shp": b"a shape",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with seaweed(tmp_path_factory.mktemp("store") / "weed") as store:
        # As consoles make folders: an object for each.
        store.files.create_dir(f"{BUCKET}/lake/day=3")
        for name, content in FILES.items():
            content = content if isinstance(content, bytes) else parquet(content)
            with store.files.open_output_stream(f"{BUCKET}/{name}", compression=None) as file:
                file.write(content)
        yield store


@pytest.fixture(autouse=True)
def environment(store, monkeypatch):
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


def own(table):
    return table.select(EXPECTED.column_names).combine_chunks()


@pytest.mark.parametrize(
    "observations",
    [
        f"{PLACE}/lake",
        f"{PLACE}/lake/",
        f"{PLACE}/lake/day=*/*.parquet",
        f"{PLACE}/text/",
    ],
)
def test_a_folder_or_a_pattern_is_one_table(observations):
    found = georesolve.nearest(
        observations, f"{PLACE}/references.parquet", columns=["name"], observation_columns="*"
    )
    assert own(found).equals(own(EXPECTED))
    assert found["observation_name"].to_pylist() == OBSERVATIONS["name"].to_pylist()
    if "lake" in observations:
        assert found["observation_day"].to_pylist() == [i // 250 for i in range(1000)]


def test_folders_named_by_values_are_columns_on_this_machine_too(tmp_path, monkeypatch):
    for name, content in FILES.items():
        if isinstance(content, pa.Table):
            path = tmp_path / name.replace("day=1", "day=one")
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(content, path)
    found = georesolve.nearest(tmp_path / "lake", REFERENCES, observation_columns=["day"])
    # Not all are whole numbers: none is. Files come by name.
    assert found["observation_day"].to_pylist()[::250] == ["0", "2", "3", "one"]
    monkeypatch.chdir(tmp_path / "lake")
    for given in (".", "day=[0-3]/part.parquet", "day=?/*.parquet"):
        found = georesolve.nearest(Path(given), REFERENCES, observation_columns=["day"])
        days = [0, 2, 3] if "[" in given or "?" in given else ["0", "2", "3", "one"]
        assert found["observation_day"].to_pylist()[::250] == days
    # What lies above what is given is no column, nor is what would be taken for coordinates.
    other = tmp_path / "run=7" / "y=2026" / "day=5"
    other.mkdir(parents=True)
    pq.write_table(OBSERVATIONS, tmp_path / "run=7" / "part.parquet")
    pq.write_table(OBSERVATIONS, other / "part.parquet")
    found = georesolve.nearest(tmp_path / "run=7", REFERENCES, observation_columns="*")
    own = [f"observation_{name}" for name in (*OBSERVATIONS.column_names, "day")]
    carried = [name for name in found.column_names if name.startswith("observation_")]
    assert carried == own
    assert found["observation_day"].to_pylist()[::1000] == [None, 5]


def test_the_command_writes_the_bytes_that_it_writes_here(tmp_path, store):
    here = tmp_path / "matches.parquet"
    pq.write_table(OBSERVATIONS, tmp_path / "observations.parquet")
    pq.write_table(REFERENCES, tmp_path / "references.parquet")
    georesolve.resolve(
        tmp_path / "observations.parquet", tmp_path / "references.parquet", here, Options(k=2)
    )
    command = ["nearest", f"{PLACE}/lake/", f"{PLACE}/references.parquet", "-k", "2", "--quiet"]
    for name in ("matches.parquet", "matches.gpkg", "matches.csv", "observations.parquet"):
        assert cli.main([*command, "-o", f"{PLACE}/out/{name}"]) == 0
        with store.files.open_input_file(f"{BUCKET}/out/{name}") as file:
            written = file.read()
        if name.endswith("parquet"):
            assert written == here.read_bytes()
        assert len(written) > 10_000


def test_a_server_gives_one_file(tmp_path):
    (tmp_path / "the references.parquet").write_bytes(parquet(REFERENCES))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            index = georesolve.Index(f"{address}/the%20references.parquet")
            assert own(index.nearest(OBSERVATIONS, columns=["name"])).equals(own(EXPECTED))
            with pytest.raises(FileNotFoundError, match="there is no http://127"):
                georesolve.Index(f"{address}/nothing.parquet")
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ftp://host/file.csv", "'ftp://host/file.csv' is no address of a file: there are s3"),
        ("s3://", "'s3://' is no address of a file"),
        (f"{PLACE}/nothing/", "there is no file at 's3://observations/nothing/'"),
        (f"{PLACE}/references", "there is no file at 's3://observations/references'"),
        ("s3://no-such-bucket/a.parquet", r"s3://no-such-bucket/a\.parquet: .*NoSuchBucket"),
        ("https://host/a.parquet?key=1", "has a query, which is not sent"),
        (f"{PLACE}/shapes/a.shp", "is a shapefile, which is several files"),
        (f"{PLACE}/references.parquet.old", "references: its name .* does not tell the format"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(address, said):
    with pytest.raises(
        (georesolve.InvalidInput, georesolve.InvalidOption, OSError, ValueError), match=said
    ):
        georesolve.nearest(OBSERVATIONS, address)


def test_outputs_that_are_none(tmp_path, capsys):
    for output, said in {
        f"{PLACE}/out/": "name a file of s3://, gs:// or az://",
        f"{PLACE}/out/*.parquet": "name a file of s3://, gs:// or az://",
        "https://host/matches.parquet": "name a file of s3://, gs:// or az://",
        f"{PLACE}/out/matches.shp": "a shapefile is several files",
        f"{PLACE}/references.parquet": "the result would replace",
    }.items():
        command = ["nearest", f"{PLACE}/lake/", f"{PLACE}/references.parquet", "-o", output]
        assert cli.main([*command, "--to", "parquet"] if output[-1] == "/" else command) == 1
        assert said in capsys.readouterr().err
    for read, output in {
        f"{PLACE}/lake/": f"{PLACE}/lake/day=0/out.csv",
        f"{PLACE}/lake": f"{PLACE}/lake/out.parquet",
        f"{PLACE}/lake/day=*/*.parquet": f"{PLACE}/lake/day=5/out.parquet",
    }.items():
        assert cli.main(["nearest", read, f"{PLACE}/references.parquet", "-o", output]) == 1
        assert "would lie among the files of" in capsys.readouterr().err
        beside = output.replace("out", "_out")
        assert cli.main(["nearest", read, f"{PLACE}/references.parquet", "-o", beside]) == 0


def test_a_store_that_is_gone_leaves_nothing_behind(tmp_path, store, monkeypatch, capsys):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with line_to(store) as line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.environment["AWS_ENDPOINT_URL"])
        line.is_cut = True
        command = ["nearest", f"{PLACE}/lake/", f"{PLACE}/references.parquet", "-o", "out.parquet"]
        assert cli.main(command) == 3
    assert "s3://observations/lake" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
