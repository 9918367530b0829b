"""Results on web maps: tiles, and how the distances are spread."""
