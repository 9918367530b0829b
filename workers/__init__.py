"""The cluster: Dask, dask-cuda, dask_cudf and Parquet. No HTTP."""

__version__ = "0.1.0"
