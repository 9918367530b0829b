"""The exact nearest reference point of every geospatial observation."""

__version__ = "0.1.0"
