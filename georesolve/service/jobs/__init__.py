"""Accepted work: run on the cluster, told while it runs, forgotten."""
