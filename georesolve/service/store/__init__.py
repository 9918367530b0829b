"""What is kept of datasets, jobs and keys, and how it is asked for."""
