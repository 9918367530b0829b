"""Point sets from strangers: received, decoded in a child process, checked, kept."""
