"""The dataframe backend of a worker, pandas or cudf: the only file that tells them apart."""

from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from georesolve.io.datasets import ROW_GROUP, Dataset, read_rows, row_groups_of
from georesolve.io.evidence import Evidence
from georesolve.io.source_files import SourceFiles, path_of
from georesolve.kernels.devices import Device
from georesolve.kernels.query import Degrees

Frame = Any
"""A DataFrame of pandas or cudf: ``frame[name].values`` is an array of numpy or CuPy."""


class Backend(NamedTuple):
    """What differs between the dataframe libraries and the devices that they compute on."""

    device: Device
    to_device: Callable[[np.ndarray], Any]
    to_host: Callable[[Any], np.ndarray]
    to_kept: Callable[[Any], np.ndarray]
    """To memory of the host that is used again for what comes next, once nobody holds this."""
    synchronize: Callable[[], None]
    is_alive: Callable[[], bool]


def _read_cudf(points: Dataset, file: Path, start: int, stop: int) -> Degrees:
    import cudf

    groups = row_groups_of(start, stop)
    columns = [points.lat, points.lon]
    frame = cudf.read_parquet(str(file), columns=columns, row_groups=[list(groups)])
    offset = start - groups.start * ROW_GROUP
    return _degrees(frame.iloc[offset : offset + stop - start], points)


def _decoded_by_cudf(points: Dataset, start: int, stop: int) -> Degrees | None:
    """Coordinates that lie on a disk here as float64; None of others, and where cuDF fails."""
    import cudf

    file, columns = points.file, [points.lat, points.lon]
    assert isinstance(file, SourceFiles), "asked of these alone"
    frames = []
    try:
        for one in file.stretches(start, stop):
            if file.scheme != "file" or not one.doubles.issuperset(columns):
                return None
            with path_of(one.file) as path:
                frame = cudf.read_parquet(path, columns=columns, row_groups=[one.groups])
            if len(frame) != one.rows:
                return None
            frames.append(frame.iloc[one.start - one.first : one.stop - one.first])
        return _degrees(frames[0] if len(frames) == 1 else cudf.concat(frames), points)
    except (OSError, RuntimeError, ValueError):
        # What is wrong with a file its reader on the host says in our words.
        return None


def _to_cuda(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(array)


def _to_pinned(array: Any) -> np.ndarray:
    import cupyx

    # CuPy keeps what is pinned. To touch new pages would take longer than the copy.
    kept: np.ndarray = array.get(out=cupyx.empty_pinned(array.shape, array.dtype))
    return kept


def _synchronize_cuda() -> None:
    import cupy

    cupy.cuda.get_current_stream().synchronize()


def _is_cuda_alive() -> bool:
    """Whether the device answers: an error of one kernel alone it forgets, a lost context not."""
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
        return int(cupy.arange(3).sum().get()) == 3
    except Exception:
        return False


_BACKENDS: dict[Device, Backend] = {
    "cpu": Backend(
        device="cpu",
        to_device=np.asarray,
        to_host=np.asarray,
        to_kept=np.asarray,
        synchronize=lambda: None,
        is_alive=lambda: True,
    ),
    "cuda": Backend(
        device="cuda",
        to_device=_to_cuda,
        # CuPy takes no other way: the copy waits for the kernels before it.
        to_host=methodcaller("get"),
        to_kept=_to_pinned,
        synchronize=_synchronize_cuda,
        is_alive=_is_cuda_alive,
    ),
}


def backend_on(device: Device) -> Backend:
    """The backend that computes on a device."""
    return _BACKENDS[device]


def backend() -> Backend:
    """The backend that Dask's ``dataframe.backend`` names in this process: that of a worker."""
    # Not at the top: who resolves without a cluster does without Dask, which takes long to load.
    import dask

    is_cudf = dask.config.get("dataframe.backend", "pandas") == "cudf"
    return _BACKENDS["cuda" if is_cudf else "cpu"]


def read_points(points: Dataset, start: int, stop: int) -> tuple[Degrees, Evidence | None]:
    """The coordinates of some rows, and of files that nobody has looked at what these say."""
    file, own = points.file, backend()
    if own.device == "cuda" and isinstance(file, Path):
        return _read_cudf(points, file, start, stop), None
    if own.device == "cuda" and isinstance(file, SourceFiles):
        decoded = _decoded_by_cudf(points, start, stop)
        evidence = decoded and Evidence.of_valid(*decoded)
        if decoded is not None and evidence is not None:
            return decoded, evidence
    # Not by cuDF: their bytes are not ours, or there are none.
    table = read_rows(file, start, stop, [points.lat, points.lon])
    degrees = Degrees(*(own.to_device(axis.to_numpy()) for axis in table.columns))
    return degrees, file.evidence(table) if isinstance(file, SourceFiles) else None


def _degrees(frame: Frame, points: Dataset) -> Degrees:
    """Its columns as arrays; cuDF raises ValueError where one has nulls."""
    return Degrees(frame[points.lat].values, frame[points.lon].values)
