"""Files to a file with pyarrow and the kernels alone: what `georesolve nearest` is measured beside.

python -m georesolve.benchmarks.bare_script OBSERVATIONS REFERENCES OUT
"""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from georesolve import kernels


def main() -> None:
    """Read two Parquet files, search, write a third."""
    observations, references, out = sys.argv[1:]
    lat_deg, lon_deg = (column.to_numpy() for column in _points(observations).columns)
    index = kernels.build_index(*(column.to_numpy() for column in _points(references).columns))
    answer = kernels.nearest(index, lat_deg, lon_deg)
    columns = {"observation": np.arange(lat_deg.size), **answer._asdict()}
    # Neither pays for such numbers.
    pq.write_table(pa.table(columns), out, compression="none", use_dictionary=False)


def _points(path: str) -> pa.Table:
    return pq.read_table(path, columns=["lat", "lon"])


if __name__ == "__main__":
    main()
