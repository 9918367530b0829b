"""OGC API - Processes, which names what the service does and how it is asked for."""
