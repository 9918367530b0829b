"""For those who look after a service: health, metrics, the disk, the Dask dashboard."""
