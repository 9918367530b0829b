"""Two questions of SpatialBench, by ours and by others, side by side."""
