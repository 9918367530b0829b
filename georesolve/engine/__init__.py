"""Searches of references that a worker holds: what is asked, and the rows that answer."""
