"""The cluster: Dask, dask-cuda, cuDF and Parquet. No HTTP."""

__version__ = "0.1.0"
