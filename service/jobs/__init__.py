"""What becomes of accepted work: run on the cluster, told, given out, forgotten."""
