"""The dataframe backend of a worker, pandas or cudf: the only file that tells them apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dask
import pyarrow as pa

from workers.datasets import ROW_GROUP, read_rows, row_groups_of

Frame = Any
"""A DataFrame of pandas or cudf: ``frame[name].values`` is an array of numpy or CuPy."""


class Backend(NamedTuple):
    """What differs between the dataframe libraries."""

    read: Callable[[Path, int, int, list[str]], Frame]
    to_arrow: Callable[[Frame], pa.Table]
    synchronize: Callable[[], None]


def _read_pandas(path: Path, start: int, stop: int, columns: list[str]) -> Frame:
    return read_rows(path, start, stop, columns).to_pandas()


def _read_cudf(path: Path, start: int, stop: int, columns: list[str]) -> Frame:
    import cudf

    groups = row_groups_of(start, stop)
    frame = cudf.read_parquet(str(path), columns=columns, row_groups=[list(groups)])
    offset = start - groups.start * ROW_GROUP
    return frame.iloc[offset : offset + stop - start].reset_index(drop=True)


def _pandas_to_arrow(frame: Frame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def _cudf_to_arrow(frame: Frame) -> pa.Table:
    return frame.to_arrow(preserve_index=False)


def _synchronize_cuda() -> None:
    import cupy

    cupy.cuda.get_current_stream().synchronize()


_BACKENDS = {
    "pandas": Backend(_read_pandas, _pandas_to_arrow, lambda: None),
    "cudf": Backend(_read_cudf, _cudf_to_arrow, _synchronize_cuda),
}


def backend() -> Backend:
    """The backend that Dask's ``dataframe.backend`` names in this process."""
    return _BACKENDS[dask.config.get("dataframe.backend", "pandas")]
