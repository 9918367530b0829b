"""What holds for every request: connections, bounds, encodings, origins, its line in the log."""
