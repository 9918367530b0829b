"""One task in five ways, as users would write it, side by side."""
