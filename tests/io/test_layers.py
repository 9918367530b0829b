"""Layers by GDAL: offsets of times, encodings of text, names in capitals, and curves."""

import os
import pwd
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import traceback
import zipfile
from pathlib import Path

import geopandas
import pandas as pd
import pyarrow as pa
import pyogrio.raw
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

import georesolve

ORIGIN = {"lat": [0.0], "lon": [0.0]}
ARC = struct.pack("<BII", 1, 8, 3) + struct.pack("<6d", 0, 0, 1, 1, 2, 0)
OFFSETS = st.sampled_from(["Z", "+01:00", "-05:00", "+05:45", "+14:00", "-03:30"])


def layer(path, **columns):
    rows = len(next(iter(columns.values())))
    points = [shapely.Point(i, 0) for i in range(rows)]
    options = {"SPATIAL_INDEX": "NO"} if path.suffix == ".fgb" else {}
    geopandas.GeoDataFrame(columns, geometry=points, crs=4326).to_file(path, **options)
    return path


def carry(path, *names):
    result = georesolve.nearest(path, ORIGIN, observation_columns=[*names])
    result.validate(full=True)
    return [result[f"observation_{name}"] for name in names]


@pytest.mark.filterwarnings("ignore:Non-conformant content:RuntimeWarning")
@pytest.mark.parametrize("suffix", ["fgb", "gpkg"])
@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.none()
        | st.tuples(st.datetimes(pd.Timestamp(1970, 1, 2), pd.Timestamp(2100, 1, 1)), OFFSETS),
        min_size=1,
    ).filter(any)
)
def test_times_keep_their_offsets(tmp_path_factory, suffix, times):
    folder = tmp_path_factory.mktemp("times")
    stamps = [
        None
        if one is None
        else pd.Timestamp(f"{one[0].isoformat(timespec='milliseconds')}{one[1]}")
        for one in times
    ]
    columns = {"at": pd.Series(stamps, dtype=object), "n": range(len(times))}
    path = layer(folder / f"x.{suffix}", **columns)
    at, n = carry(path, "at", "n")
    assert at.type == pa.timestamp("ms", "UTC")
    assert at.to_pylist() == [one if one is None else one.tz_convert("UTC") for one in stamps]
    assert n.to_pylist() == [*range(len(times))]


def test_times_without_an_offset_stay_without(tmp_path):
    at = pd.to_datetime(["2020-03-29 02:30", None])
    [result] = carry(layer(tmp_path / "x.fgb", at=at), "at")
    assert result.type == pa.timestamp("ms")
    assert result.to_pylist() == [at[0], None]


def test_times_of_which_some_have_an_offset_are_refused(tmp_path):
    at = pd.Series([pd.Timestamp(2020, 1, 1), pd.Timestamp(2020, 1, 1, tz="UTC")], dtype=object)
    with pytest.raises(georesolve.InvalidInput, match="'at': row 0: its time has no offset"):
        carry(layer(tmp_path / "x.fgb", at=at), "at")


def shapefile(folder, texts, encoding, cpg):
    """A shapefile of a column `name` in an encoding, which its .cpg may contradict."""
    folder.mkdir()
    points = [shapely.Point(i, 0) for i in range(len(texts))]
    frame = geopandas.GeoDataFrame({"name": texts}, geometry=points, crs=4326)
    frame.to_file(folder / "x.shp", encoding=encoding)
    (folder / "x.cpg").unlink()
    if cpg is not None:
        (folder / "x.cpg").write_text(cpg)
    return folder / "x.shp"


@pytest.mark.parametrize(
    ("encoding", "cpg"), [("cp1252", None), ("cp1252", "1252"), ("cp1250", "1250")]
)
def test_text_of_shapefiles_is_in_the_encoding_of_its_cpg_or_latin_1(tmp_path, encoding, cpg):
    texts = ["Köln", "São Tomé", "plain"] if encoding == "cp1252" else ["Łódź", "Košice", "Győr"]
    path = shapefile(tmp_path / "x", texts, encoding, cpg)
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for part in path.parent.iterdir():
            packed.write(part, part.name)
    for one in (path, archive):
        assert carry(one, "name")[0].to_pylist() == texts


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    path = shapefile(tmp_path / "shp", ["plain", "Málaga", "Köln"], "cp1252", "UTF-8")
    package = layer(tmp_path / "x.gpkg", name=["plain", "Malaga", "Koln"])
    with sqlite3.connect(package) as database:
        # The triggers of an index call functions of GDAL.
        triggers = database.execute("select name from sqlite_master where type='trigger'")
        for (name,) in triggers.fetchall():
            database.execute(f'drop trigger "{name}"')
        database.execute("update x set name = cast(x'4de16c616761' as text) where fid > 1")
    for one in (path, package):
        for role in ("observation", "reference"):
            sets = (one, ORIGIN) if role == "observation" else (ORIGIN, one)
            option = "observation_columns" if role == "observation" else "columns"
            with pytest.raises(georesolve.InvalidInput, match=r"UTF-8; 2 rows.*\.cpg") as refused:
                georesolve.nearest(*sets, **{option: ["name"]})
            place = refused.value.errors[0]
            assert (place["column"], place["row"]) == ("name", 1)
            assert "M\N{REPLACEMENT CHARACTER}laga" in place["detail"]


@pytest.mark.parametrize("capitals", [".SHP .SHX .DBF .PRJ .CPG", ".SHP", ".SHX .PRJ"])
def test_suffixes_in_capitals(tmp_path, capitals):
    layer(tmp_path / "lugar.shp", name=["Málaga", "Łódź"])
    for part in [*tmp_path.iterdir()]:
        if part.suffix.upper() in capitals.split():
            part.rename(part.with_suffix(part.suffix.upper()))
    [path] = [one for one in tmp_path.iterdir() if one.suffix.lower() == ".shp"]
    assert carry(path, "name")[0].to_pylist() == ["Málaga", "Łódź"]


@pytest.mark.parametrize("suffix", ["gpkg", "fgb"])
@pytest.mark.parametrize("role", ["observation", "reference"])
def test_curves_of_layers(tmp_path, suffix, role):
    path = tmp_path / f"x.{suffix}"
    wkb = pa.array([shapely.to_wkb(shapely.Point(0, 0)), ARC], pa.binary())
    driver = {"gpkg": "GPKG", "fgb": "FlatGeobuf"}[suffix]
    options = {"SPATIAL_INDEX": "NO"} if suffix == "fgb" else {}
    pyogrio.raw.write_arrow(
        pa.table({"geom": wkb, "n": [0, 1]}),
        path,
        driver=driver,
        geometry_name="geom",
        geometry_type="Unknown",
        crs="EPSG:4326",
        **options,
    )
    sets = (path, ORIGIN) if role == "observation" else (ORIGIN, path)
    with pytest.raises(georesolve.InvalidInput, match="row 1 holds no shape: it is a curve"):
        georesolve.nearest(*sets)
    result = georesolve.nearest(*sets, on_invalid="null")
    status = result["status"].to_pylist() if role == "observation" else [*result["status"]]
    assert status[0] == "matched"
    assert status[1:] in ([], ["invalid_coordinate"])


def with_log(folder):
    """A GeoPackage of a killed program: its second row is in its write-ahead log alone."""
    path = layer(folder / "x.gpkg", name=["old"])
    program = f"""
import os, sqlite3
database = sqlite3.connect({str(path)!r})
database.execute("pragma journal_mode=wal")
for name, in database.execute("select name from sqlite_master where type='trigger'").fetchall():
    database.execute(f'drop trigger "{{name}}"')
database.execute("insert into x (geom, name) select geom, 'new' from x")
database.commit()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert (folder / "x.gpkg-wal").stat().st_size
    return path


def test_rows_in_the_log_of_a_geopackage_are_read(tmp_path):
    assert carry(with_log(tmp_path), "name")[0].to_pylist() == ["old", "new"]


def test_a_folder_has_the_geopackage_and_not_the_log(tmp_path):
    (tmp_path / "sets").mkdir()
    log = with_log(tmp_path)
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{log}{suffix}", tmp_path / "sets" / f"x.gpkg{suffix}")
    assert carry(tmp_path / "sets", "name")[0].to_pylist() == ["old", "new"]


@pytest.mark.skipif(os.geteuid() != 0, reason="drops the rights of root")
def test_rows_in_a_log_that_cannot_be_read_give_a_warning(tmp_path):
    log = with_log(tmp_path)
    # SQLite resolves paths, and the folders of pytest are those of root.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{log}{suffix}", folder / f"x.gpkg{suffix}")
            # Commands that run in this process may have set another mask.
            (folder / f"x.gpkg{suffix}").chmod(0o644)
        process = os.fork()
        if not process:
            status = 1
            try:
                os.setresuid(*[pwd.getpwnam("nobody").pw_uid] * 3)
                with pytest.warns(UserWarning, match=r"may be missing: they are in x\.gpkg-wal"):
                    [names] = carry(folder / "x.gpkg", "name")
                status = names.to_pylist() != ["old"]
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        assert os.waitpid(process, 0)[1] == 0
