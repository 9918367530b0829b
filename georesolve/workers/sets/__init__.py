"""Sets of points and shapes: where they lie, how they are stored, and what is refused."""
