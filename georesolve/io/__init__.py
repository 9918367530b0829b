"""Tables of points, read and checked, and results in their formats. No HTTP, no database."""
