"""Point sets from strangers: received, decoded in child processes, checked. Knows no router."""
