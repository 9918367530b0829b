"""The cluster: Dask, dask-cuda, cuDF and Parquet. No HTTP."""
