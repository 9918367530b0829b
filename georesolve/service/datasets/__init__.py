"""Registered point sets: their files and their rows, and the requests that name them."""
